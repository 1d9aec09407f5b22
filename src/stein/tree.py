"""Algebra on stacked pytrees.

Every leaf carries the particle axis first. Products are taken leaf by leaf: nothing is ever flattened into
one long vector, so that leaves keep their layout and can be sharded over the particle axis.
"""

import math
from collections.abc import Callable
from functools import reduce

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

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


def mix(matrix: Float[Array, "n j"], x: Particles) -> Particles:
    """sum_j matrix_ij x_j: linear combinations of particles."""
    return jax.tree.map(lambda leaf: jnp.tensordot(matrix, leaf, axes=1), x)


def where(mask: Bool[Array, " n"], x: Particles, y: Particles | float) -> Particles:
    """Particle i of ``x`` where ``mask`` holds, else of ``y`` (a tree, or one number for all)."""
    if isinstance(y, (int, float)):
        return jax.tree.map(lambda a: jnp.where(_column(mask, a), a, jnp.asarray(y, a.dtype)), x)
    return jax.tree.map(lambda a, b: jnp.where(_column(mask, a), a, b), x, y)


def mean(x: Particles, alive: Bool[Array, " n"]) -> Weights:
    """Mean over the living particles."""
    total = jnp.maximum(jnp.sum(alive), 1)
    return jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0) / total.astype(leaf.dtype), where(alive, x, 0))


def centre(x: Particles, alive: Bool[Array, " n"]) -> Particles:
    """x_i minus the mean over the living particles; rows of the dead become zero."""
    return where(alive, jax.tree.map(lambda a, m: a - m[None], x, mean(x, alive)), 0)


def squared_norms(x: Particles) -> Float[Array, " n"]:
    """|x_i|^2 over all leaves."""
    squares = [jnp.sum(jnp.square(leaf), axis=tuple(range(1, leaf.ndim))) for leaf in jax.tree.leaves(x)]
    return sum(squares[1:], squares[0])


def middle(x: Particles, alive: Bool[Array, " n"]) -> Weights:
    """Mean of the living particles whose norm is at most three times the median norm, so without outliers."""
    norms = jnp.where(alive, squared_norms(where(alive, x, 0)), jnp.inf)
    median = jnp.sort(norms)[jnp.maximum(jnp.sum(alive) - 1, 0) // 2]
    return mean(x, alive & (norms <= 9 * median))


def around_middle(x: Particles, alive: Bool[Array, " n"]) -> Particles:
    """x_i minus the :func:`middle`; rows of the dead become zero.

    For quantities that depend on differences only. A single particle at 1e6 would move the mean of all so far that the
    differences of the others are lost in rounding.
    """
    return where(alive, jax.tree.map(lambda a, m: a - m[None], x, middle(x, alive)), 0)


def gram(x: Particles) -> Float[Array, "n n"]:
    """Inner products <x_i, x_j> over all leaves."""

    def leaf_gram(leaf: Array) -> Array:
        flat = leaf.reshape(leaf.shape[0], -1)
        return jnp.matmul(flat, flat.T, precision="highest")

    products = [leaf_gram(leaf) for leaf in jax.tree.leaves(x)]
    return sum(products[1:], products[0])


def squared_distances(x: Particles, alive: Bool[Array, " n"]) -> Float[Array, "n n"]:
    """|x_i - x_j|^2 from the Gram matrix.

    Shifting first keeps precision when particles are close relative to their norm; rounding can still make
    a distance slightly negative, hence the clip.
    """
    products = gram(around_middle(x, alive))
    norms = jnp.diagonal(products)
    return jnp.maximum(norms[:, None] + norms[None, :] - 2 * products, 0)


def healthy(x: Particles) -> Bool[Array, " n"]:
    """Whether particle i and its squared norm are finite.

    The second half matters because Gram matrices square: one entry of 1e30 would turn every distance to it
    into infinity. Entries are compared with the largest value that all of them may have at once, so no sum is needed.
    """
    wide, leaves = dtype(x), jax.tree.leaves(x)
    entries = max(1, sum(math.prod(leaf.shape[1:]) for leaf in leaves))
    bound = math.sqrt(float(jnp.finfo(wide).max) / entries)
    within = [jnp.all(jnp.abs(leaf.astype(wide)) < bound, axis=tuple(range(1, leaf.ndim))) for leaf in leaves]
    return reduce(jnp.logical_and, within)  # comparisons with NaN are false


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


def _column(r: Array, leaf: Array) -> Array:
    return r.reshape(r.shape + (1,) * (leaf.ndim - 1))
