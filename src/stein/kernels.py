r"""Kernels that return their Gram matrix and its gradient in closed form.

A kernel takes points with a leading particle axis (weights or outputs, it does not know which) and returns
a :class:`Gram`: the matrix :math:`K_{ij} = k(x_i, x_j)` and the coefficients of its gradient

.. math:: \nabla_{x_j} k(x_i, x_j) = \mathrm{left}_{ij}\, x_i - \mathrm{right}_{ij}\, x_j .

These are pairs, not sums, so that a rule can reweight them before summing. Bandwidths are constants to the
gradient, as in the literature.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from stein import tree
from stein.types import Particles, Weights

Matrix = Float[Array, "n n"]
Mask = Bool[Array, " n"]
Memory = Any


class Gram(NamedTuple):
    """A kernel evaluated on all pairs; rows and columns of dead particles are zero.

    ``right`` is ``None`` if it equals ``left``: the kernel depends on ``x_i - x_j`` only. The diagonal of
    ``left`` is then zero, because ``x_i - x_i`` is. ``ratio`` is the number ``left / matrix``, if it is the same for
    all pairs i ≠ j.
    """

    matrix: Matrix
    left: Matrix
    right: Matrix | None
    bandwidth: Any
    alive: Mask
    ratio: Float[Array, ""] | None = None

    def weighted(self, pairs: Matrix) -> "Gram":
        """The same kernel with each pair (i, j) multiplied by a number."""
        right = None if self.right is None else self.right * pairs
        return self._replace(matrix=self.matrix * pairs, left=self.left * pairs, right=right, ratio=None)

    def seen_through(self, factor: float) -> "Gram":
        """Chain rule: the kernel was evaluated at ``factor * x``; the gradient is with respect to ``x``."""
        right = None if self.right is None else self.right * factor**2
        ratio = None if self.ratio is None else self.ratio * factor**2
        return self._replace(left=self.left * factor**2, right=right, ratio=ratio)

    def repulsion(self, x: Particles) -> Particles:
        r"""Row i: :math:`\sum_j \nabla_{x_j} k(x_i, x_j)`, one n x n by n x d product."""
        right = self.left if self.right is None else self.right
        pull, push = jnp.sum(self.left, axis=1), jnp.sum(right, axis=1)
        # Around their middle, close particles far from the origin keep their digits, even with an outlier.
        origin = tree.middle(x, self.alive)
        shifted = tree.around(origin, x, self.alive)
        force = tree.add(tree.rows(pull, shifted), tree.scale(-1.0, tree.mix(right, shifted)))
        if self.right is None:
            return force
        return tree.add(force, jax.tree.map(lambda leaf: jnp.tensordot(pull - push, leaf, axes=0), origin))

    def stein(self, drive: Matrix, score: Particles, x: Particles) -> Particles:
        r"""Row i: :math:`\sum_j [\mathrm{drive}_{ij}\, g_j + \nabla_{x_j} k(x_i, x_j)]`, with g the ``score``.

        ``drive`` is the kernel matrix, perhaps with another diagonal. Where :math:`\mathrm{left} = c K` off the
        diagonal, as for the RBF kernel, one n x n by n x d product is enough: :math:`\sum_j K_{ij} (g_j - c x_j)`.
        """
        if self.ratio is None:
            return tree.add(tree.mix(drive, score), self.repulsion(x))
        shifted = tree.around_middle(x, self.alive)
        both = tree.mix(drive, tree.add(score, tree.scale(-self.ratio, shifted)))
        own = jnp.sum(self.left, axis=1) + self.ratio * jnp.diagonal(drive)
        return tree.add(both, tree.rows(own, shifted))


class AutodiffGram(NamedTuple):
    """The :class:`Gram` of a user's own function: its gradient comes from autodiff, one row at a time."""

    matrix: Matrix
    pairs: Matrix
    function: Callable[[Weights, Weights], Float[Array, ""]]
    factor: float = 1.0
    bandwidth: Any = ()

    def weighted(self, pairs: Matrix) -> "AutodiffGram":
        return self._replace(matrix=self.matrix * pairs, pairs=self.pairs * pairs)

    def seen_through(self, factor: float) -> "AutodiffGram":
        return self._replace(factor=self.factor * factor)

    def stein(self, drive: Matrix, score: Particles, x: Particles) -> Particles:
        return tree.add(tree.mix(drive, score), self.repulsion(x))

    def repulsion(self, x: Particles) -> Particles:
        def weighted_row(y: Particles, one: Weights, weights: Array) -> Array:
            seen = tree.scale(self.factor, y)
            values = jax.vmap(self.function, (None, 0))(tree.scale(self.factor, one), seen)
            return jnp.sum(weights * values)

        def row(one_and_weights: tuple[Weights, Array]) -> Weights:
            gradient = jax.grad(weighted_row)(x, *one_and_weights)
            return jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), gradient)

        return jax.lax.map(row, (x, self.pairs))  # one row at a time: n x d, never n x n x d


class PointwiseGram(NamedTuple):
    """The mean of a kernel over points; ``grams`` holds the coefficients of each point, in arrays (m, n, n)."""

    matrix: Matrix
    grams: Gram

    @property
    def bandwidth(self) -> Any:
        return jax.tree.map(jnp.mean, self.grams.bandwidth)

    def weighted(self, pairs: Matrix) -> "PointwiseGram":
        return PointwiseGram(self.matrix * pairs, jax.vmap(Gram.weighted, (0, None))(self.grams, pairs))

    def seen_through(self, factor: float) -> "PointwiseGram":
        return self._replace(grams=self.grams.seen_through(factor))

    def stein(self, drive: Matrix, score: Particles, x: Particles) -> Particles:
        return tree.add(tree.mix(drive, score), self.repulsion(x))

    def repulsion(self, x: Float[Array, "n m k"]) -> Float[Array, "n m k"]:
        return jax.vmap(Gram.repulsion, (0, 1), 1)(self.grams, x)


AnyGram = Gram | AutodiffGram | PointwiseGram


class Kernel(NamedTuple):
    """``kernel(x, alive, memory) -> (Gram, memory)``; ``memory`` starts at ``kernel.memory``."""

    evaluate: Callable[[Particles, Mask, Memory], tuple[AnyGram, Memory]]
    memory: Memory = ()

    def __call__(self, x: Particles, alive: Mask, memory: Memory) -> tuple[AnyGram, Memory]:
        return self.evaluate(x, alive, memory)


# -- bandwidths ---------------------------------------------------------------------------------------------


class Bandwidth(NamedTuple):
    """``estimate(squared distances, alive, memory) -> (h, memory)``."""

    estimate: Callable[[Matrix, Mask, Memory], tuple[Float[Array, ""], Memory]]
    memory: Memory = ()


def median(diagonal: bool = True, floor: float = 1e-12, factor: float = 1.0) -> Bandwidth:
    r"""The median heuristic :math:`h = c\operatorname{med}/\log(n+1)`, with c = ``factor``.

    :math:`\operatorname{med}` is the median of the squared distances of all :math:`n^2` ordered pairs,
    including the n zeros on the diagonal by default. A particle at the median distance from another
    then has :math:`k = 1/(n+1)`, so that in high dimension a kernel row sums to about 2.

    Reference: Liu & Wang (2016).
    """
    if not floor > 0:
        raise ValueError(f"floor = {floor}: must be positive")
    if not factor > 0:
        raise ValueError(f"factor = {factor}: must be positive")

    def estimate(squared: Matrix, alive: Mask, memory: Memory) -> tuple[Array, Memory]:
        n = jnp.sum(alive)
        upper = np.triu_indices(squared.shape[0], 1)  # constants: JAX's own would be computed at every step
        living = alive[upper[0]] & alive[upper[1]]
        ordered = jnp.sort(jnp.where(living, squared[upper], jnp.inf))
        zeros = n if diagonal else jnp.zeros_like(n)
        total = n * (n - 1) + zeros

        def order_statistic(k: Array) -> Array:  # off the diagonal every distance occurs twice
            rank = jnp.clip((k - zeros) // 2, 0, max(ordered.size - 1, 0))
            return jnp.where(k < zeros, 0, ordered[rank]) if ordered.size else jnp.zeros((), squared.dtype)

        med = (order_statistic((total - 1) // 2) + order_statistic(total // 2)) / 2
        med = jnp.where(n > 1, med, 0)  # a single particle has no distances
        h = factor * med / jnp.log1p(jnp.maximum(n, 1).astype(squared.dtype))
        return jnp.maximum(h, jnp.asarray(floor, squared.dtype)), memory

    return Bandwidth(estimate)


def fixed(h: float) -> Bandwidth:
    """A fixed bandwidth. The invariance of the stochastic rules is proved for this one."""
    smallest = float(jnp.finfo(jnp.float32).tiny)  # below it 1/h is infinite, and k(x, x) is NaN
    if not smallest <= h < math.inf:
        raise ValueError(f"bandwidth = {h}: must be positive, at least {smallest:.1g}, and finite")
    return Bandwidth(lambda squared, alive, memory: (jnp.asarray(h, squared.dtype), memory))


def frozen(bandwidth: Bandwidth, after: int) -> Bandwidth:
    """Adapt for ``after`` steps, then keep the last value, as samplers do after burn-in."""
    if after < 1:
        raise ValueError(f"after = {after}: must be at least 1")

    def estimate(squared: Matrix, alive: Mask, memory: Memory) -> tuple[Array, Memory]:
        seen, last, inner = memory
        adapted, inner = bandwidth.estimate(squared, alive, inner)
        h = jnp.where(seen < after, adapted, last.astype(squared.dtype))
        return h, (seen + 1, h.astype(last.dtype), inner)

    return Bandwidth(estimate, (jnp.zeros((), jnp.int32), jnp.ones((), float), bandwidth.memory))


# -- the menu -----------------------------------------------------------------------------------------------


def radial(
    profile: Callable[[Matrix], tuple[Matrix, Matrix]],
    bandwidth: Bandwidth | float = median(),
    slope: float | None = None,
) -> Kernel:
    r"""A kernel :math:`k = \kappa(u)` of :math:`u = |x_i - x_j|^2/h`.

    Args:
        profile: maps u to the pair :math:`\kappa(u), -\kappa'(u)`.
        bandwidth: h, a number or a :class:`Bandwidth`.
        slope: :math:`-\kappa'/\kappa`, if it is constant.
    """
    chosen = bandwidth if isinstance(bandwidth, Bandwidth) else fixed(bandwidth)

    def evaluate(x: Particles, alive: Mask, memory: Memory) -> tuple[Gram, Memory]:
        squared = tree.squared_distances(x, alive)
        h, memory = chosen.estimate(squared, alive, memory)
        value, descent = profile(squared / h)
        pairs = _pairs(alive, squared.dtype)
        left = 2 / h * descent * pairs * (1 - jnp.eye(len(alive), dtype=squared.dtype))
        return Gram(value * pairs, left, None, h, alive, None if slope is None else 2 / h * slope), memory

    return Kernel(evaluate, chosen.memory)


def rbf(bandwidth: Bandwidth | float = median()) -> Kernel:
    r"""Gaussian kernel :math:`k = \exp(-|x_i - x_j|^2/h)`, so that :math:`\mathrm{left} = \mathrm{right} = 2K/h`.

    >>> gram, _ = rbf(2.0)(jnp.array([[0.0], [1.0]]), jnp.array([True, True]), ())
    >>> print(f"{gram.matrix[0, 1]:.4f}")  # exp(-1/2)
    0.6065
    """

    def profile(u: Matrix) -> tuple[Matrix, Matrix]:
        value = jnp.exp(-u)
        return value, value

    return radial(profile, bandwidth, slope=1.0)


def imq(bandwidth: Bandwidth | float = median(), power: float = 0.5) -> Kernel:
    r"""Inverse multiquadric :math:`k = (1 + |x_i - x_j|^2/h)^{-p}`: heavy tails, long-range repulsion.

    Reference: Gorham & Mackey (2017).
    """
    if not power > 0:
        raise ValueError(f"power = {power}: must be positive")

    def profile(u: Matrix) -> tuple[Matrix, Matrix]:
        return (1 + u) ** -power, power * (1 + u) ** (-power - 1)

    return radial(profile, bandwidth)


def linear() -> Kernel:
    """k = <x_i, x_j> + 1; with it, SVGD matches the mean and covariance of a Gaussian exactly.

    k(x, x) is not constant, so it must not be used with noise (the divergence term would be incomplete).
    """

    def evaluate(x: Particles, alive: Mask, memory: Memory) -> tuple[Gram, Memory]:
        products = tree.gram(tree.where(alive, x, 0))
        pairs = _pairs(alive, products.dtype)
        return Gram((products + 1) * pairs, pairs, jnp.zeros_like(pairs), (), alive), memory

    return Kernel(evaluate)


def indicator() -> Kernel:
    """n times the identity: particles do not interact. w-SVGD with it *is* the deep ensemble."""

    def evaluate(x: Particles, alive: Mask, memory: Memory) -> tuple[Gram, Memory]:
        living = alive.astype(tree.dtype(x))
        matrix = jnp.diag(living) * jnp.sum(living)
        return Gram(matrix, jnp.zeros_like(matrix), None, (), alive), memory

    return Kernel(evaluate)


def from_function(function: Callable[[Weights, Weights], Float[Array, ""]]) -> Kernel:
    """Any positive-definite function of two points, differentiated by JAX.

    Slower than the closed forms (n gradients per step), but O(nd) memory. ``function`` must be smooth where its
    two arguments are equal. The exact functional repulsion needs a closed form and rejects it.
    """

    def evaluate(x: Particles, alive: Mask, memory: Memory) -> tuple[AutodiffGram, Memory]:
        safe = tree.where(alive, x, 0)
        values = jax.lax.map(lambda one: jax.vmap(function, (None, 0))(one, safe), safe)
        pairs = _pairs(alive, values.dtype)
        return AutodiffGram(values * pairs, pairs, function), memory

    return Kernel(evaluate)


def pointwise(kernel: Kernel) -> Kernel:
    r"""The mean over points of a kernel of the features at each: :math:`k = \tfrac1m \sum_b \kappa_b(x_{ib}, x_{jb})`.

    A median bandwidth is that of each point. It is for functions, and for rules with the local repulsion or none: the
    exact one, products and sums reject it.
    """
    if jax.tree.leaves(kernel.memory):
        raise ValueError("pointwise: the points are others in every step, so a bandwidth cannot be frozen")

    def evaluate(x: Float[Array, "n m k"], alive: Mask, memory: Memory) -> tuple[PointwiseGram, Memory]:
        m = x.shape[1]

        def at_point(one: Float[Array, "n k"]) -> Gram:
            # Rules divide a function by the root of m; a point alone is compared as it is.
            gram, _ = kernel(m**0.5 * one, alive, memory)
            if not isinstance(gram, Gram):
                raise ValueError("pointwise: needs a kernel in closed form, such as rbf")
            return gram.seen_through(m**0.5).weighted(jnp.full_like(gram.matrix, 1 / m))

        grams = jax.vmap(at_point, 1)(x)
        return PointwiseGram(jnp.sum(grams.matrix, axis=0), grams), memory

    return Kernel(evaluate, kernel.memory)


def product(*kernels: Kernel) -> Kernel:
    """Product of kernels of the same points."""
    return _combine(kernels, lambda grams: product_rule(*grams))


def add(*kernels: Kernel, weights: tuple[float, ...] | None = None) -> Kernel:
    """Weighted sum of kernels of the same points. Default: all weights 1."""
    factors = (1.0,) * len(kernels) if weights is None else weights
    check_weights(factors, len(kernels))
    return _combine(kernels, lambda grams: sum_rule(factors, *grams))


def check_weights(weights: tuple[float, ...], number: int) -> None:
    """Raise ``ValueError`` unless there is one positive weight per kernel of a sum."""
    if len(weights) != number or not all(w > 0 for w in weights):
        raise ValueError(f"weights = {weights}: one positive number for each of the {number} kernels")


def sum_rule(weights: tuple[float, ...], *grams: Gram | AutodiffGram) -> list[Gram | AutodiffGram]:
    """The summands of a weighted sum of kernels, each in the space of its own kernel.

    Every summand has the whole sum as its ``matrix``; its coefficients are its own kernel's, times its weight. The
    kernels may live in different spaces (weights and outputs).
    """
    scaled = [gram.weighted(jnp.full_like(gram.matrix, w)) for gram, w in zip(grams, weights, strict=True)]
    total = sum((gram.matrix for gram in scaled[1:]), scaled[0].matrix)
    return [gram._replace(matrix=total) for gram in scaled]


def product_rule(*grams: Gram | AutodiffGram) -> list[Gram | AutodiffGram]:
    """The summands of the gradient of a product of kernels, each in the space of its own factor.

    Every summand has the whole product as its ``matrix``; its coefficients are its factor's own, weighted by
    the values of all other factors. The factors may live in different spaces (weights and outputs).
    """
    summands = []
    for i, gram in enumerate(grams):
        others = [g.matrix for j, g in enumerate(grams) if j != i]
        summands.append(gram.weighted(jnp.prod(jnp.stack(others), axis=0)) if others else gram)
    return summands


def _combine(kernels: tuple[Kernel, ...], parts: Callable[[list[Any]], list[Any]]) -> Kernel:
    if not kernels:
        raise ValueError("no kernel given: at least one is needed")

    def evaluate(x: Particles, alive: Mask, memory: Memory) -> tuple[Gram, Memory]:
        grams, memories = zip(*(k(x, alive, m) for k, m in zip(kernels, memory, strict=True)), strict=True)
        if not all(isinstance(g, Gram) for g in grams):
            raise ValueError("from_function or pointwise in a product or sum: combine the functions themselves instead")
        summands = parts(list(grams))
        left = sum((g.left for g in summands[1:]), summands[0].left)
        right = None
        if any(g.right is not None for g in summands):
            rights = [g.left if g.right is None else g.right for g in summands]
            right = sum(rights[1:], rights[0])
        bandwidths = tuple(g.bandwidth for g in grams)
        return Gram(summands[0].matrix, left, right, bandwidths, alive), memories

    return Kernel(evaluate, tuple(k.memory for k in kernels))


def _pairs(alive: Mask, dtype: Any) -> Matrix:
    return (alive[:, None] & alive[None, :]).astype(dtype)
