r"""Estimators of the gradient of a log density from samples.

They come in two forms. On the particles themselves, each is an n x n matrix M that turns kernel
repulsion :math:`R_i = \sum_j \nabla_{x_j} k(x_i, x_j)` into a repulsion force: :math:`-\nabla\log q \approx M R`
(:func:`kde_weights`, :func:`stein_weights`, :func:`spectral_weights`). On other samples, as a prior over
functions needs it, :func:`ssge` and :func:`gaussian` return the score itself.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from stein import tree


def kde_weights(matrix: Float[Array, "n n"], alive: Bool[Array, " n"]) -> Float[Array, "n n"]:
    r"""Kernel density estimate: :math:`M = \operatorname{diag}(K\mathbf 1)^{-1}`."""
    return jnp.diag(jnp.where(alive, 1 / jnp.where(alive, jnp.sum(matrix, axis=1), 1), 0))


def stein_weights(matrix: Float[Array, "n n"], eta: float = 0.01) -> Float[Array, "n n"]:
    r"""Stein gradient estimator: :math:`M = (K + \eta I)^{-1}`. Reference: Li & Turner (2018)."""
    return jnp.linalg.inv(matrix + eta * jnp.eye(matrix.shape[0], dtype=matrix.dtype))


def spectral_weights(
    samples: Float[Array, "m m"], cross: Float[Array, "q m"], eta: float = 0.01, energy: float = 1.0
) -> Float[Array, "q m"]:
    r"""Spectral Stein gradient estimator: :math:`M = k(x, S)\, U_J \Lambda_J^{-2} U_J^\top`.

    :math:`K(S,S) + \eta I = U \Lambda U^\top`, and J is the smallest number of leading eigenvalues that hold
    the fraction ``energy`` of their sum. With all of them, M is :math:`k(x,S)\,(K+\eta I)^{-2}`: two solves
    and no eigenvectors.

    Args:
        samples: kernel matrix of the samples.
        cross: kernel matrix of the query points (rows) with the samples (columns).

    Reference: Shi, Sun & Zhu (2018), "A spectral approach to gradient estimation for implicit distributions".
    """
    if not 0 < energy <= 1:
        raise ValueError(f"energy = {energy}: must be in (0, 1]")
    regular = samples + eta * jnp.eye(samples.shape[0], dtype=samples.dtype)
    if energy == 1:
        factor = jax.scipy.linalg.cho_factor(regular)
        return jax.scipy.linalg.cho_solve(factor, jax.scipy.linalg.cho_solve(factor, cross.T)).T
    values, vectors = jnp.linalg.eigh(regular)
    above = jnp.cumsum(values[::-1])[::-1] - values  # the sum of the larger eigenvalues
    kept = above < energy * jnp.sum(values)
    inverse = jnp.where(kept, 1 / jnp.where(kept, values, 1) ** 2, 0)
    return (cross @ (vectors * inverse[None])) @ vectors.T


def ssge(
    samples: Float[Array, "m d"],
    queries: Float[Array, "q d"],
    energy: float = 0.99,
    eta: float = 0.0,
    alive: Bool[Array, " q"] | None = None,
) -> Float[Array, "q d"]:
    r"""Score :math:`\nabla\log p` at ``queries`` of the density that ``samples`` come from.

    RBF kernel :math:`\exp(-|x-y|^2/2w^2)` with one width w, the median distance of samples and queries
    together; queries that are not ``alive`` (default: all are) do not count. Needs many more samples than
    dimensions: with 50 samples in 640 dimensions the estimate is 1 % of the true score.

    Reference: Shi, Sun & Zhu (2018).
    """
    together = jnp.concatenate([samples, queries])
    queried = jnp.ones(queries.shape[0], bool) if alive is None else alive
    counted = jnp.concatenate([jnp.ones(samples.shape[0], bool), queried])
    squared = tree.squared_distances(together, counted)
    upper = jnp.triu_indices(together.shape[0], 1)
    pairs = counted[upper[0]] & counted[upper[1]]
    width = jnp.nanmedian(jnp.where(pairs, jnp.sqrt(squared[upper]), jnp.nan))
    h = jnp.maximum(2 * width**2, jnp.finfo(squared.dtype).tiny)
    matrix = jnp.exp(-squared / h)
    m = samples.shape[0]
    within, cross = matrix[:m, :m], matrix[m:, :m]
    attraction = 2 / h * (within @ samples - jnp.sum(within, axis=1)[:, None] * samples)
    return spectral_weights(within, cross, eta, energy) @ attraction


def gaussian(samples: Float[Array, "m d"], queries: Float[Array, "q d"], jitter: float = 1e-3) -> Float[Array, "q d"]:
    r"""Score :math:`-(\hat\Sigma + \mathrm{jitter}\,\bar\sigma^2 I)^{-1}(x - \hat\mu)` of the Gaussian with the
    samples' moments.

    :math:`\bar\sigma^2` is their mean variance, so that functions of any scale are regularised alike: smooth ones have
    a covariance that is numerically singular.
    """
    centred = samples - jnp.mean(samples, axis=0, keepdims=True)
    covariance = centred.T @ centred / (samples.shape[0] - 1)
    variance = jnp.mean(jnp.diagonal(covariance))
    regular = covariance + jitter * variance * jnp.eye(samples.shape[1], dtype=samples.dtype)
    return -jax.scipy.linalg.solve(regular, (queries - jnp.mean(samples, axis=0, keepdims=True)).T, assume_a="pos").T
