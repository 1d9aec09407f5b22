r"""Repulsion between functions, carried to the weights.

The kernel compares the features :math:`f_i = f(X; w_i)`; the question is whose Jacobian brings the force back.

``exact``: :math:`R_i = \sum_j J_j^\top \nabla_{f_j} k(f_i, f_j)`, the gradient of :math:`k(f(w_i), f(w_j))` in
:math:`w_j`. It is what Stein's identity and the stochastic rules need.

``local``: :math:`R_i = J_i^\top \sum_j \nabla_{f_j} k(f_i, f_j)`, through the moved particle's own Jacobian. One
backward pass, always apart in function space, but the gradient of no kernel.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from stein import tree
from stein.kernels import AutodiffGram, Gram, Kernel, Memory
from stein.targets import View
from stein.types import Key, Particles

Repulsion = Callable[[Key, Gram | AutodiffGram, View], Particles]


def on_functions(kernel: Kernel, view: View, memory: Memory) -> tuple[Gram | AutodiffGram, Memory]:
    """The kernel of the features, as a mean and not a sum over measurement points.

    The mean makes a fixed bandwidth comparable across batch sizes; with the median bandwidth it cancels.
    """
    factor = view.features.shape[1] ** -0.5
    gram, memory = kernel(factor * view.features, view.alive, memory)
    return gram.seen_through(factor), memory


def local() -> Repulsion:
    r""":math:`R_i = J_i^\top \sum_j \nabla_{f_j} k(f_i, f_j)`: one backward pass a particle.

    Moving along it lowers particle i's similarity to the others to first order, always. It is not the gradient
    of a kernel on the weights, so with noise it does not leave the posterior invariant.
    """
    return lambda key, gram, view: view.pullback(gram.repulsion(view.features))


def exact(energy: float = 0.99, probe: bool = False) -> Repulsion:
    r""":math:`R_i = \sum_j J_j^\top \nabla_{f_j} k(f_i, f_j)` without its n^2 backward passes.

    With :math:`u_q` the eigenvectors of the centred Gram matrix :math:`F F^\top` of the features and
    :math:`v_q = F^\top u_q`, every difference is :math:`f_i - f_j = \sum_q (u_{qi} - u_{qj}) v_q`. So one cotangent
    :math:`v_q`, the same for all networks, gives :math:`B^q_j = J_j^\top v_q` in one batched backward pass, and

    .. math:: R = \sum_q \big[ u_q \circ (C B^q) - C (u_q \circ B^q) \big], \qquad C = 2K/h.

    Function matrices are nearly of low rank, so that few directions carry almost everything.

    Args:
        energy: keep the leading directions that hold this fraction of the squared norm of F; 1 keeps all and
            is exact.
        probe: add one random combination of the directions left out, which makes the result unbiased.

    Cost: a backward pass and an n x n by n x d product for each direction (and the probe), O(nd) memory.
    """
    if not 0 <= energy <= 1:
        raise ValueError(f"energy = {energy}: must be in [0, 1]")

    def repulsion(key: Key, gram: Gram | AutodiffGram, view: View) -> Particles:
        if isinstance(gram, AutodiffGram):
            raise ValueError("repulsion 'exact' needs a kernel in closed form; use 'local' with from_function")
        centred = tree.centre(view.features, view.alive)
        values, vectors = jnp.linalg.eigh(tree.gram(centred))
        values, vectors = jnp.maximum(values[::-1], 0), vectors[:, ::-1]  # largest first
        most = min(values.size - 1, centred[0].size)  # centring takes one direction away
        kept = most if energy == 1 else jnp.minimum(directions(values, energy), most)

        def along(u: Array, v: Array) -> tuple[Particles, Particles]:
            """The share of the directions sum_q u_q v_q^T in both terms, before the last product."""
            pulled = view.pullback(jnp.broadcast_to(v[None], centred.shape))
            return tree.rows(u, tree.mix(gram.left, pulled)), tree.rows(u, pulled)

        def add_direction(q: int | Array, sums: tuple[Particles, Particles]) -> tuple[Particles, Particles]:
            u = vectors[:, q]
            return tree.add(sums, along(u, jnp.tensordot(u, centred, axes=1)))

        zero = jax.tree.map(jnp.zeros_like, view.weights)
        sums = jax.lax.fori_loop(0, kept, add_direction, (zero, zero))
        if probe:
            signs = jax.random.rademacher(key, (values.size,), values.dtype)
            sums = tree.add(sums, along(*combine(signs, kept, values, vectors, centred)))
        right = gram.left if gram.right is None else gram.right
        result = tree.add(sums[0], tree.scale(-1.0, tree.mix(right, sums[1])))
        if gram.right is None:
            return result
        mean = jnp.broadcast_to(tree.mean(view.features, view.alive)[None], centred.shape)
        return tree.add(result, tree.mix(gram.left - gram.right, view.pullback(mean)))

    return repulsion


def directions(values: Float[Array, " n"], energy: float) -> Array:
    """How many of the eigenvalues, largest first, hold the fraction ``energy`` of their sum."""
    before = jnp.cumsum(values) - values
    return jnp.sum(before < energy * jnp.sum(values))


def combine(
    signs: Float[Array, " n"],
    kept: int | Array,
    values: Float[Array, " n"],
    vectors: Float[Array, "n n"],
    centred: Float[Array, "n m k"],
) -> tuple[Float[Array, " n"], Float[Array, "m k"]]:
    r"""One random pair (alpha, z) with :math:`E[\alpha z^\top] = \sum_{q \ge \mathrm{kept}} u_q v_q^\top`.

    :math:`\alpha = \sum_q \omega_q \sqrt{\sigma_q} u_q` and :math:`z = \sum_q \omega_q v_q/\sqrt{\sigma_q}` with signs
    :math:`\omega` and :math:`\sigma_q = |v_q|`. Sharing :math:`\sigma` evenly between the two is what minimises the
    variance of the cross terms, which grow as :math:`\sigma_q \sigma_p` then instead of as the largest one squared.
    """
    limit = values[0] * values.size * jnp.finfo(values.dtype).eps
    used = (jnp.arange(values.size) >= kept) & (values > limit)
    root = jnp.where(used, values, 1) ** 0.25
    alpha = vectors @ jnp.where(used, signs * root, 0)
    weights = vectors @ jnp.where(used, signs / root, 0)
    return alpha, jnp.tensordot(weights, centred, axes=1)
