r"""Noise that turns a rule into a sampler.

A noise is ``noise(key, matrix, view) -> (driving matrix, noise)`` for the kernel matrix K of the rule. In the
recipe of Ma et al. (2015) with diffusion :math:`D = \tfrac1n (K + \delta I) \otimes I_d` both the driving force
and the noise must use :math:`K + \delta I`; the repulsion is the divergence of D and does not change.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from stein import tree
from stein.targets import View
from stein.types import Key, Particles

Matrix = Float[Array, "n n"]
Noise = Callable[[Key, Matrix, View], tuple[Matrix, Particles]]


def driven(noise: Noise | None, key: Key, matrix: Matrix, view: View) -> tuple[Matrix, Particles | None]:
    """The driving matrix and the noise; without noise, the kernel matrix itself and ``None``."""
    return (matrix, None) if noise is None else noise(key, matrix, view)


def cholesky(jitter: float | None = None) -> Noise:
    r"""The correct noise, :math:`\sqrt{2/n}\, L\, \Xi` with :math:`L L^\top = K + \delta I`.

    Its covariance over particles is :math:`2(K + \delta I)/n`, which with the exact repulsion leaves the
    posterior invariant (fixed bandwidth): :eq:`recipe` and :eq:`cholesky`.

    Args:
        jitter: :math:`\delta`. Default: max(1e-6, 10 n eps). It is doubled until the factor exists.
    """
    if jitter is not None and jitter < 0:
        raise ValueError(f"jitter = {jitter}: must not be negative")

    def noise(key: Key, matrix: Matrix, view: View) -> tuple[Matrix, Particles]:
        regular, factor = factorise(matrix, view.alive, jitter)
        return regular, tree.scale(_root(view), tree.mix(factor, tree.normal(key, view.ids, view.weights)))

    return noise


def elementwise_shared() -> Noise:
    r"""Reproduction only: :math:`\sum_j \sqrt{2K_{ij}/n}\;\eta_j`, the paper's equation as printed.

    Wrong: its covariance is :math:`\tfrac2n \sqrt{K}\sqrt{K}^\top` with *element-wise* roots, whose diagonal is
    :math:`\sum_j k_{ij}` times too large, up to n (:eq:`elementwise`). On N(0, 1) with four particles the stationary
    variance is 1.6 instead of 1.
    """

    def noise(key: Key, matrix: Matrix, view: View) -> tuple[Matrix, Particles]:
        draws = tree.normal(key, view.ids, view.weights)
        return matrix, tree.scale(_root(view), tree.mix(jnp.sqrt(jnp.maximum(matrix, 0)), draws))

    return noise


def elementwise_independent() -> Noise:
    r"""Reproduction only: :math:`\sum_j \sqrt{2K_{ij}/n}\;\eta_{ij}`, a new draw for every pair.

    Wrong: its covariance is :math:`\tfrac2n \operatorname{diag}(K \mathbf 1)`, too large by the same factor as
    :func:`elementwise_shared` and without the correlations. (A sum of independent normals is drawn as one.)
    """

    def noise(key: Key, matrix: Matrix, view: View) -> tuple[Matrix, Particles]:
        spread = jnp.sqrt(jnp.sum(jnp.maximum(matrix, 0), axis=1))
        return matrix, tree.scale(_root(view), tree.rows(spread, tree.normal(key, view.ids, view.weights)))

    return noise


def factorise(matrix: Matrix, alive: Bool[Array, " n"], jitter: float | None = None) -> tuple[Matrix, Matrix]:
    """K + delta I over the living particles and its Cholesky factor; delta doubles until the factorisation succeeds."""
    n, eps = matrix.shape[0], float(jnp.finfo(matrix.dtype).eps)
    living = jnp.diag(alive.astype(matrix.dtype))
    dead = jnp.diag((~alive).astype(matrix.dtype))  # a one on a dead diagonal does not change the living block
    start = max(1e-6, 10 * n * eps) if jitter is None else jitter

    def attempt(delta: Array) -> tuple[Array, Array]:
        return delta, jnp.linalg.cholesky(matrix + delta * living + dead)

    def failed(state: tuple[Array, Array]) -> Array:
        delta, factor = state
        return jnp.any(jnp.isnan(factor)) & (delta < 1)

    delta, factor = jax.lax.while_loop(
        failed,
        lambda state: attempt(jnp.maximum(2 * state[0], eps)),
        attempt(jnp.asarray(start, matrix.dtype)),
    )
    return matrix + delta * living, factor


def _root(view: View) -> Float[Array, ""]:
    return jnp.sqrt(2 / view.num_alive())
