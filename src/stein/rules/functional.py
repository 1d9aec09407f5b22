r"""Repulsion between functions, mapped to the weights.

The kernel compares the features :math:`f_i = f(X; w_i)`; the two versions differ in whose Jacobian maps the force back.

``exact``: :math:`R_i = \sum_j J_j^\top \nabla_{f_j} k(f_i, f_j)`, the gradient of :math:`k(f(w_i), f(w_j))` in
:math:`w_j`. It is what Stein's identity and the stochastic rules need.

``local``: :math:`R_i = J_i^\top \sum_j \nabla_{f_j} k(f_i, f_j)`, through the moved particle's own Jacobian. One
backward pass; it always pushes apart in function space, but is not the gradient of a kernel.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from stein import inputs, tree
from stein.kernels import AnyGram, Gram, Kernel, Memory
from stein.pullbacks import Pulled
from stein.targets import View
from stein.types import Key, Particles

Repulsion = Callable[[Key, AnyGram, View], Particles]
"""``repulsion(key, gram, view)`` is R."""


@dataclasses.dataclass(frozen=True)
class Pulling:
    """A repulsion that is pulled back; ``pulled`` is R before its last product (see :mod:`stein.pullbacks`)."""

    pulled: Callable[[Key, AnyGram, View], Pulled]

    def __call__(self, key: Key, gram: AnyGram, view: View) -> Particles:
        return view.jacobians.expand(self.pulled(key, gram, view))


def on_functions(kernel: Kernel, view: View, memory: Memory) -> tuple[AnyGram, Memory]:
    """The kernel of the features, with distances as means, not sums, over measurement points.

    The mean makes a fixed bandwidth comparable across batch sizes; with the median bandwidth it cancels.
    """
    factor = view.features.shape[1] ** -0.5
    gram, memory = kernel(factor * view.features, view.alive, memory)
    return gram.seen_through(factor), memory


def drive_and_repel(
    matrix: Float[Array, "n n"], repulsion: Repulsion, key: Key, gram: AnyGram, view: View
) -> tuple[Particles, Particles]:
    r"""Row i: :math:`\sum_j A_{ij} g_j + R_i`, with g the ``score_w`` and one last product for both; and R alone."""
    if not isinstance(repulsion, Pulling):
        R = repulsion(key, gram, view)
        return tree.add(tree.mix(matrix, view.score_w), R), R
    pulled = repulsion.pulled(key, gram, view)
    expand = view.jacobians.expand
    return expand(tree.add(tree.mix(matrix, view.score), pulled)), expand(pulled)


def local() -> Pulling:
    r""":math:`R_i = J_i^\top \sum_j \nabla_{f_j} k(f_i, f_j)`: one backward pass per particle.

    Moving along it always lowers particle i's similarity to the others, to first order (:eq:`always`). It is not the
    gradient of a kernel on the weights, so with noise it does not leave the posterior invariant.
    """
    return Pulling(lambda key, gram, view: view.pulled(gram.repulsion(view.features)))


def exact(energy: float = 0.9999, probe: bool = False, directions: int | None = None) -> Pulling:
    r""":math:`R_i = \sum_j J_j^\top \nabla_{f_j} k(f_i, f_j)` without its n^2 backward passes.

    Let the rows of F be the centred features over their norms :math:`\rho_i`, :math:`u_q` the eigenvectors of
    :math:`F F^\top` and :math:`v_q = F^\top u_q`. Then every difference is
    :math:`f_i - f_j = \sum_q (a_{qi} - a_{qj}) v_q` with :math:`a_q = \rho \circ u_q`. So one cotangent
    :math:`v_q`, the same for all networks, gives :math:`B^q_j = J_j^\top v_q` in one batched backward pass, and

    .. math:: R = \sum_q \big[ a_q \circ (C B^q) - C (a_q \circ B^q) \big], \qquad C = 2K/h,

    which is :eq:`stream`.

    Function matrices are nearly of low rank, so that few directions carry almost everything. (Dividing by the norms
    changes nothing in exact arithmetic; in floating point it keeps a distant member from costing the others precision.)

    Args:
        energy: keep the directions that hold this fraction of :math:`\sum_{ij} |C_{ij} (f_i - f_j)|^2`, of which
            direction q has :math:`|v_q|^2 \sum_{ij} C_{ij}^2 (a_{qi} - a_{qj})^2`: what is left out is
            :math:`\sqrt{1 - \mathrm{energy}}` of the pairwise forces, in the root mean square. 1 keeps all.
            Distant members, where the kernel is zero, do not count.
        probe: add one random combination of the directions left out, which makes the result unbiased.
        directions: keep at most this many, those that hold most; it bounds the cost, not the error.

    Cost: a backward pass and an n x n by n x d product per direction (and for the probe), O(nd) memory.
    """
    if not 0 <= energy <= 1:
        raise ValueError(f"energy = {energy}: must be in [0, 1]")
    if directions is not None:
        inputs.whole(0, directions=directions)

    def repulsion(key: Key, gram: AnyGram, view: View) -> Pulled:
        if not isinstance(gram, Gram):
            raise ValueError("repulsion 'exact' needs a kernel in closed form; use 'local' with this one")
        norms, unit, values, vectors = spectrum(view)
        most = min(values.size - 1, unit[0].size)  # centring removes one direction
        kept: int | Array = most if directions is None else min(directions, most)
        if energy < 1 or kept < most:
            seen = pushes(gram.left, norms, values, vectors)
            order = jnp.argsort(-seen)
            values, vectors = values[order], vectors[:, order]
            kept = jnp.minimum(sufficient(seen[order], energy), kept)

        def along(u: Array, v: Array) -> tuple[Pulled, Pulled]:
            """The part of the directions sum_q u_q v_q^T in both terms, before the last product."""
            pulled = view.pulled(jnp.broadcast_to(v[None], unit.shape))
            return tree.rows(norms * u, tree.mix(gram.left, pulled)), tree.rows(norms * u, pulled)

        def add_direction(q: int | Array, sums: tuple[Pulled, Pulled]) -> tuple[Pulled, Pulled]:
            u = vectors[:, q]
            return tree.add(sums, along(u, jnp.tensordot(u, unit, axes=1)))

        zeros = jax.tree.map(lambda of: jnp.zeros(of.shape, of.dtype), jax.eval_shape(along, norms, unit[0]))
        sums = jax.lax.fori_loop(0, kept, add_direction, zeros)
        if probe:
            signs = jax.random.rademacher(key, (values.size,), values.dtype)
            sums = tree.add(sums, along(*combine(signs, kept, values, vectors, unit)))
        right = gram.left if gram.right is None else gram.right
        result = tree.add(sums[0], tree.scale(-1.0, tree.mix(right, sums[1])))
        if gram.right is None:
            return result
        origin = jnp.broadcast_to(tree.middle(view.features, view.alive)[None], unit.shape)
        return tree.add(result, tree.mix(gram.left - gram.right, view.pulled(origin)))

    return Pulling(repulsion)


def spectrum(
    view: View,
) -> tuple[Float[Array, " n"], Float[Array, "n m k"], Float[Array, " n"], Float[Array, "n n"]]:
    """Norms of the centred features, the features over their norms, and the eigenvalues (largest first) and
    eigenvectors of their Gram matrix."""
    centred = tree.around_middle(view.features, view.alive)
    norms = jnp.sqrt(tree.squared_norms(centred))
    unit = tree.rows(1 / jnp.where(norms > 0, norms, 1), centred)
    values, vectors = jnp.linalg.eigh(tree.gram(unit))
    return norms, unit, jnp.maximum(values[::-1], 0), vectors[:, ::-1]


def pushes(
    left: Float[Array, "n n"], norms: Float[Array, " n"], values: Float[Array, " n"], vectors: Float[Array, "n n"]
) -> Float[Array, " n"]:
    r"""The share of each direction in :math:`\tfrac12 \sum_{ij} |C_{ij} (f_i - f_j)|^2`: the v_q are orthogonal, so
    it is :math:`|v_q|^2\, a_q^\top L\, a_q` with the Laplacian L of the weights :math:`C_{ij}^2`."""
    squares = left**2
    a = norms[:, None] * vectors
    laplacian = jnp.sum(squares, axis=1)[:, None] * a - squares @ a
    return values * jnp.maximum(jnp.sum(a * laplacian, axis=0), 0)


def sufficient(values: Float[Array, " n"], energy: float) -> Array:
    """How many of the values, largest first, hold the fraction ``energy`` of their sum."""
    before = jnp.cumsum(values) - values
    return jnp.sum(before < energy * jnp.sum(values))


def combine(
    signs: Float[Array, " n"],
    kept: int | Array,
    values: Float[Array, " n"],
    vectors: Float[Array, "n n"],
    rows: Float[Array, "n m k"],
) -> tuple[Float[Array, " n"], Float[Array, "m k"]]:
    r"""One random pair (alpha, z) with :math:`E[\alpha z^\top] = \sum_{q \ge \mathrm{kept}} u_q v_q^\top`.

    :math:`\alpha = \sum_q \omega_q \sqrt{\sigma_q} u_q` and :math:`z = \sum_q \omega_q v_q/\sqrt{\sigma_q}` with signs
    :math:`\omega` and :math:`\sigma_q = |v_q|`. Splitting :math:`\sigma` evenly between the two minimises the
    variance of the cross terms, which then grow as :math:`\sigma_q \sigma_p` instead of as the largest one squared.
    """
    limit = jnp.max(values) * values.size * jnp.finfo(values.dtype).eps
    used = (jnp.arange(values.size) >= kept) & (values > limit)
    root = jnp.where(used, values, 1) ** 0.25
    alpha = vectors @ jnp.where(used, signs * root, 0)
    weights = vectors @ jnp.where(used, signs / root, 0)
    return alpha, jnp.tensordot(weights, rows, axes=1)
