"""Algebra on stacked pytrees.

Every leaf carries the particle axis first. Products are taken leaf by leaf: nothing is ever flattened into
one long vector, so that leaves keep their layout and can be sharded over the particle axis.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from stein import devices
from stein.types import Key, Particles, Weights


def dtype(x: Particles) -> jnp.dtype:
    """Floating-point type of the leaves."""
    return jnp.result_type(*jax.tree.leaves(x))


def index(x: Particles, i: int) -> Weights:
    """Particle i, without the particle axis."""
    return jax.tree.map(lambda leaf: leaf[i], x)


def add(*trees: Particles) -> Particles:
    """Sum of trees of one structure."""
    return jax.tree.map(lambda *leaves: sum(leaves[1:], leaves[0]), *trees)


def scale(factor: float | Float[Array, ""], x: Particles) -> Particles:
    """One number times every leaf, in the leaf's own precision."""
    return jax.tree.map(lambda leaf: jnp.asarray(factor, leaf.dtype) * leaf, x)


def rows(r: Float[Array, " n"], x: Particles) -> Particles:
    """r_i x_i: one number per particle."""
    return jax.tree.map(lambda leaf: _column(r, leaf) * leaf, x)


def mix(matrix: Float[Array, "... j"], x: Particles) -> Particles:
    """sum_j matrix_ij x_j: linear combinations of particles."""
    if matrix.ndim == 2 and devices.number() > 1:
        return jax.tree.map(lambda leaf: devices.mixed(matrix, _flat(leaf)).reshape(leaf.shape), x)
    return jax.tree.map(lambda leaf: jnp.tensordot(matrix, leaf, axes=1), x)


def where(mask: Bool[Array, " n"], x: Particles, y: Particles | float) -> Particles:
    """Particle i of ``x`` where ``mask`` holds, else of ``y`` (a tree, or one number for all)."""
    if isinstance(y, (int, float)):
        return jax.tree.map(lambda a: jnp.where(_column(mask, a), a, jnp.asarray(y, a.dtype)), x)
    return jax.tree.map(lambda a, b: jnp.where(_column(mask, a), a, b), x, y)


def mean(x: Particles, alive: Bool[Array, " n"]) -> Weights:
    """Mean over the living particles."""
    weights, number = alive.astype(dtype(x)), jnp.maximum(jnp.sum(alive), 1).astype(dtype(x))
    return mix(weights / number, where(alive, x, 0))


def centre(x: Particles, alive: Bool[Array, " n"]) -> Particles:
    """x_i minus the mean over the living particles; rows of the dead become zero."""
    return around(mean(x, alive), x, alive)


def row_sums(leaf: Float[Array, "n ..."]) -> Float[Array, " n"]:
    """The sum of each particle's entries, as a product with ones.

    On a CPU, XLA multiplies with all cores and vector instructions, and sums without: this is six times as fast.
    """
    if leaf.ndim == 1:
        return leaf
    sums = jnp.matmul(leaf, jnp.ones(leaf.shape[-1], leaf.dtype), precision="highest")
    return jnp.sum(sums, axis=tuple(range(1, sums.ndim)))


def squared_norms(x: Particles) -> Float[Array, " n"]:
    r""":math:`|x_i|^2` over all leaves."""
    squares = [row_sums(jnp.square(leaf)) for leaf in jax.tree.leaves(x)]
    return devices.everywhere(sum(squares[1:], squares[0]))


def middle(x: Particles, alive: Bool[Array, " n"]) -> Weights:
    """Mean of the living particles whose norm is at most three times the median norm, so without outliers."""
    norms = jnp.where(alive, squared_norms(x), jnp.inf)
    median = jnp.sort(norms)[jnp.maximum(jnp.sum(alive) - 1, 0) // 2]
    return mean(x, alive & (norms <= 9 * median))


def around_middle(x: Particles, alive: Bool[Array, " n"]) -> Particles:
    """x_i minus the :func:`middle`; rows of the dead become zero.

    For quantities that depend on differences only. A single particle at 1e6 would move the mean of all so far that the
    differences of the others are lost in rounding.
    """
    return around(middle(x, alive), x, alive)


def around(origin: Weights, x: Particles, alive: Bool[Array, " n"]) -> Particles:
    """x_i minus the ``origin``; rows of the dead become zero."""
    return where(alive, jax.tree.map(lambda a, o: a - o[None], x, origin), 0)


BLOCK = 2**20
"""Bytes of the columns that a Gram matrix takes at once: with them in the processor's cache it is faster, and needs no
copy of the particles."""


def gram(x: Particles, origin: Weights | None = None) -> Float[Array, "n n"]:
    """Inner products <x_i - o, x_j - o> over all leaves, o being the ``origin`` (default: 0)."""
    origin = jax.tree.map(lambda leaf: jnp.zeros_like(leaf[0]), x) if origin is None else origin
    leaves = zip(jax.tree.leaves(x), jax.tree.leaves(origin), strict=True)
    products = [_gram(_flat(leaf), o.reshape(1, -1)) for leaf, o in leaves]
    return sum(products[1:], products[0])


def _gram(x: Float[Array, "n d"], origin: Float[Array, "1 d"]) -> Float[Array, "n n"]:
    if devices.number() > 1:
        return devices.products(x - origin)

    def product(part: Array, middle: Array) -> Array:
        # Turned in memory, not only on paper: XLA's product of a matrix with its own transpose takes twice as long.
        turned = jax.lax.optimization_barrier((part - middle).T)
        return jnp.matmul(turned.T, turned, precision="highest")

    number = x.nbytes // BLOCK + 1
    if number == 1:
        return product(x, origin)  # a loop of one round would take longer to compile, and to run
    width = x.shape[1] // number

    def block(first: int | Array, width: int) -> Array:
        return product(*(jax.lax.dynamic_slice_in_dim(of, first, width, axis=1) for of in (x, origin)))

    rest = block(number * width, x.shape[1] - number * width)
    return jax.lax.fori_loop(0, number, lambda i, total: total + block(i * width, width), rest)


def squared_distances(x: Particles, alive: Bool[Array, " n"]) -> Float[Array, "n n"]:
    r""":math:`|x_i - x_j|^2` from the Gram matrix; zero for the dead.

    Shifting first keeps precision when particles are close relative to their norm; rounding can still make
    a distance slightly negative, hence the clip.
    """
    products = jnp.where(alive[:, None] & alive[None, :], gram(x, middle(x, alive)), 0)
    norms = jnp.diagonal(products)
    return jnp.maximum(norms[:, None] + norms[None, :] - 2 * products, 0)


def healthy(x: Particles) -> Bool[Array, " n"]:
    """Whether particle i and its squared norm are finite.

    The second half matters because Gram matrices square: one entry of 1e30 would turn every distance to it
    into infinity.
    """
    wide = dtype(x)
    return jnp.isfinite(squared_norms(jax.tree.map(lambda leaf: leaf.astype(wide), x)))


def normal(key: Key, ids: Int[Array, " n"], like: Particles) -> Particles:
    """Standard normal draws shaped as ``like``; the draws of a particle depend on its id alone."""
    return jax.vmap(lambda i, one: draw_like(jax.random.normal, jax.random.fold_in(key, i), one))(ids, like)


def draw_like(sampler: Callable[..., Array], key: Key, like: Weights) -> Weights:
    """Draws ``sampler(key, shape, dtype)`` with the shapes and types of one network's weights."""
    leaves, structure = jax.tree.flatten(like)
    # One draw for all leaves: a generator is slow to compile, and a ResNet has many leaves.
    flat = sampler(key, (sum(leaf.size for leaf in leaves),), jnp.result_type(*leaves))
    draws, used = [], 0
    for leaf in leaves:
        draws.append(flat[used : used + leaf.size].reshape(leaf.shape).astype(leaf.dtype))
        used += leaf.size
    return jax.tree.unflatten(structure, draws)


def _flat(leaf: Array) -> Float[Array, "n d"]:
    return leaf.reshape(leaf.shape[0], -1)


def _column(r: Array, leaf: Array) -> Array:
    return r.reshape(r.shape + (1,) * (leaf.ndim - 1))
