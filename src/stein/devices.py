"""The particle axis over devices, inside a program: how many there are, and sums that pass data between them.

A step over devices is traced under a mesh with an axis ``"particles"`` (:mod:`stein.sharding`). Each device holds whole
particles, a few rows of the n x d matrix of weights. What acts on each particle alone needs no communication. Products
of particles with each other need all rows, but any few columns of them at a time: an all-to-all turns a piece of a
device's rows into all rows of a few columns, and back. A device sends and receives n_local x d numbers this way,
however many devices there are, and holds one piece of them besides its own rows.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float

from stein import versions

versions.require()

PARTICLES, DATA = "particles", "data"
"""The axes of a mesh: particles over devices, and the rows of a batch over devices with the same particles."""
PIECE = 4 * 2**20
"""Bytes of a device's rows that are under way at once."""


def number() -> int:
    """Devices that the particles of the program being traced are spread over; 1 if it is not under a mesh."""
    return dict(jax.sharding.get_abstract_mesh().shape).get(PARTICLES, 1)


def everywhere(small: Float[Array, " n"]) -> Float[Array, " n"]:
    """A number per particle, on every device: what is computed from it, such as n x n matrices, needs no other."""
    return small if number() == 1 else jax.lax.with_sharding_constraint(small, PartitionSpec())


def width(rows: int, columns: int, itemsize: int, over: int) -> int:
    """Columns of a piece: a multiple of the devices, of at most ``PIECE`` bytes in the rows of one device."""
    most = max(PIECE // (rows * itemsize) // over, 1) * over
    return min(most, math.ceil(columns / over) * over)


def passed(rows: int, columns: int, itemsize: int, over: int) -> int:
    """Bytes of the pieces of a device's rows, all together: what one pass over the columns sends and receives."""
    c = width(rows, columns, itemsize, over)
    return math.ceil(columns / c) * c * rows * itemsize


def mixed(matrix: Float[Array, "n n"], x: Float[Array, "n d"]) -> Float[Array, "n d"]:
    """``matrix @ x`` with the rows of x and of the result over devices."""

    def local(matrix: Array, x: Array) -> Array:
        def put(result: Array, piece: Array, first: Array, new: Array) -> Array:
            back = jax.lax.all_to_all(jnp.matmul(matrix, piece), PARTICLES, 0, 1, tiled=True)
            return jax.lax.dynamic_update_slice_in_dim(result, back, first, 1)

        return _by_columns(x, jnp.zeros_like(x), put)

    filled = jnp.pad(matrix, [(0, -side % number()) for side in matrix.shape])
    return _spread(local, x, PartitionSpec(PARTICLES), filled)[: x.shape[0], : x.shape[1]]


def products(x: Float[Array, "n d"]) -> Float[Array, "n n"]:
    """``x @ x.T``, the same on every device, with the rows of x over devices."""

    def local(x: Array) -> Array:
        def add(total: Array, piece: Array, first: Array, new: Array) -> Array:
            piece = jnp.where(new[None], piece, 0)
            return total + jnp.matmul(piece, piece.T, precision="highest")

        n = x.shape[0] * number()
        return jax.lax.psum(_by_columns(x, jnp.zeros((n, n), x.dtype), add), PARTICLES)

    return _spread(local, x, PartitionSpec())[: x.shape[0], : x.shape[0]]


def _spread(local: Callable[..., Array], x: Array, out: PartitionSpec, *everywhere: Array) -> Array:
    """``local(*everywhere, rows of x)`` on every device, x filled up with zeros to whole pieces."""
    rows, columns = x.shape
    rows += -rows % number()
    columns = max(columns, width(rows // number(), columns, x.dtype.itemsize, number()))
    filled = jnp.pad(x, ((0, rows - x.shape[0]), (0, columns - x.shape[1])))
    specs = (*(PartitionSpec() for _ in everywhere), PartitionSpec(PARTICLES))
    return jax.shard_map(local, in_specs=specs, out_specs=out, check_vma=False)(*everywhere, filled)


def _by_columns(x: Float[Array, "rows d"], result: Array, take: Callable[..., Array]) -> Array:
    """``result = take(result, piece, first, new)`` for all columns of a device's rows x, piece by piece.

    A piece has all rows of the ensemble, and this device's share of the columns from ``first`` on. The last piece may
    overlap the one before it: ``new`` marks the columns that were in no earlier piece.
    """
    rows, columns = x.shape
    c = width(rows, columns, x.dtype.itemsize, number())
    share = c // number()

    def step(i: Array, result: Array) -> Array:
        first = jnp.minimum(i * c, columns - c)
        piece = jax.lax.all_to_all(jax.lax.dynamic_slice_in_dim(x, first, c, 1), PARTICLES, 1, 0, tiled=True)
        column = first + jax.lax.axis_index(PARTICLES) * share + jnp.arange(share, dtype=jnp.int32)
        return take(result, piece, first, column >= i * c)

    return jax.lax.fori_loop(np.int32(0), np.int32(math.ceil(columns / c)), step, result)
