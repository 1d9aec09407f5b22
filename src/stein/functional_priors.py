r"""Priors over functions, as the functional rules need them: the score :math:`\nabla_f \log p(f)` at points.

A functional prior is ``prior(key, features, alive, inputs, draw) -> score``: ``features`` (n, m, k) are the particles'
outputs at ``inputs`` (m, ...), ``alive`` marks the living ones, and ``draw(key, number, inputs)`` evaluates the network
at new draws from the weight prior, (number, m, k). Outputs that the functional kernel does not use (a log variance)
have a flat prior.
"""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from stein import scores
from stein.types import Key

Features = Float[Array, "n m k"]
Alive = Bool[Array, " n"]
Draw = Callable[[Key, int, Array], Features]
FunctionalPrior = Callable[[Key, Features, Alive, Array, Draw], Features]


def none() -> FunctionalPrior:
    """A flat prior over functions."""
    return lambda key, features, alive, inputs, draw: jnp.zeros_like(features)


def ssge(draws: int | None = None, energy: float = 0.99, eta: float = 0.0, noise: float = 0.01) -> FunctionalPrior:
    """The network's own prior, its score estimated from ``draws`` prior draws per step by :func:`stein.scores.ssge`.

    ``draws`` defaults to max(100, 2n). ``noise`` is the standard deviation of noise added to the drawn functions,
    which otherwise lie on a thin manifold. Accurate at few points only: wrap it in :func:`on_points`
    if the batch is large (at image scale the plain estimate is close to zero).
    """
    return _estimated(lambda samples, queries, alive: scores.ssge(samples, queries, energy, eta, alive), draws, noise)


def moment_matched(draws: int | None = None, jitter: float = 1e-3, noise: float = 0.0) -> FunctionalPrior:
    """The Gaussian with the mean and covariance of prior draws (the Gaussian-process limit of wide networks).

    ``jitter`` times the mean variance is added to the diagonal of the covariance.
    """
    return _estimated(lambda samples, queries, alive: scores.gaussian(samples, queries, jitter), draws, noise)


def gaussian_process(
    kernel: Callable[[Array, Array], Float[Array, "m m"]], mean: float = 0.0, jitter: float = 1e-6
) -> FunctionalPrior:
    r"""A Gaussian process, independent over outputs: :math:`P = -(F - \mu)\,K_{GP}^{-1}`.

    Args:
        kernel: ``kernel(inputs, inputs) -> (m, m)``, the covariance of the function's values.
        mean: the constant :math:`\mu`.
        jitter: added to the diagonal of the covariance.
    """

    def prior(key: Key, features: Features, alive: Alive, inputs: Array, draw: Draw) -> Features:
        covariance = kernel(inputs, inputs)
        regular = covariance + jitter * jnp.eye(covariance.shape[0], dtype=covariance.dtype)
        factor = jax.scipy.linalg.cho_factor(regular)
        by_point = jnp.moveaxis(features - mean, 1, 0)
        solved = jax.scipy.linalg.cho_solve(factor, by_point.reshape(by_point.shape[0], -1))
        return -jnp.moveaxis(solved.reshape(by_point.shape), 0, 1)

    return prior


def infinite_width(
    sizes: Sequence[int],
    weight_std: float | Sequence[float] = 1.0,
    bias_std: float | Sequence[float] = 1.0,
    jitter: float = 0.1,
) -> FunctionalPrior:
    r"""The Gaussian process that a fully connected ReLU network is at infinite width, under its own prior.

    .. math:: K_0 = \beta_0^2 + \omega_0^2\, x \cdot x', \qquad K_l = \beta_l^2 + \omega_l^2 m_l\,
        \frac{\sqrt{k_l k_l'}}{2\pi} \big(\sin\theta_l + (\pi - \theta_l) \cos\theta_l\big)

    where :math:`\cos\theta_l = K_{l-1}/\sqrt{k_l k_l'}`, :math:`k_l` and :math:`k_l'` are the values of
    :math:`K_{l-1}` on the diagonal, and :math:`m_l` is the width of hidden layer l. Without draws, so that nothing
    has to be estimated; at finite width the variances are exact, the correlations wrong by the order of 1/width.

    Args:
        sizes: the network's, as for :func:`stein.models.mlp`.
        weight_std, bias_std: standard deviations :math:`\omega_l` and :math:`\beta_l`, one for all layers or one each.
        jitter: added to the diagonal of the covariance, but never less than the rounding of its trace.

    Reference: Cho & Saul (2009); Lee et al. (2018), "Deep neural networks as Gaussian processes".
    """
    layers = len(sizes) - 1
    omega, beta = (_one_per_layer(std, layers) for std in (weight_std, bias_std))

    def covariance(x: Array, y: Array) -> Float[Array, "m m"]:
        K = beta[0] ** 2 + omega[0] ** 2 * (x @ y.T)
        k_x, k_y = (beta[0] ** 2 + omega[0] ** 2 * jnp.sum(z * z, axis=1) for z in (x, y))
        for width, w, b in zip(sizes[1:-1], omega[1:], beta[1:], strict=True):
            norms = jnp.sqrt(k_x[:, None] * k_y[None, :])
            cosine = jnp.clip(K / norms, -1, 1)
            theta = jnp.arccos(cosine)
            K = b**2 + w**2 * width * norms / (2 * jnp.pi) * (jnp.sin(theta) + (jnp.pi - theta) * cosine)
            k_x, k_y = (b**2 + w**2 * width * k / 2 for k in (k_x, k_y))
        rounding = jnp.finfo(K.dtype).eps * jnp.trace(K)  # prior functions have variances of thousands and more
        return K + jnp.maximum(jitter, rounding) * jnp.eye(len(K), dtype=K.dtype)

    return gaussian_process(covariance, jitter=0.0)


def from_function(score: Callable[[Array, Features], Features]) -> FunctionalPrior:
    """Your own ``score(inputs, features)``, the gradient of log p(f) at the features."""
    return lambda key, features, alive, inputs, draw: score(inputs, features)


def on_points(prior: FunctionalPrior, points: int) -> FunctionalPrior:
    """``prior`` at a new random subset of ``points`` measurement points per step; zero at the others."""
    if points < 1:
        raise ValueError(f"points = {points}: must be at least 1")

    def restricted(key: Key, features: Features, alive: Alive, inputs: Array, draw: Draw) -> Features:
        key_points, key_prior = jax.random.split(key)
        m = features.shape[1]
        chosen = jax.random.choice(key_points, m, (min(points, m),), replace=False)
        score = prior(key_prior, features[:, chosen], alive, inputs[chosen], draw)
        return jnp.zeros_like(features).at[:, chosen].set(score)

    return restricted


def _one_per_layer(std: float | Sequence[float], layers: int) -> Sequence[float]:
    each = [std] * layers if isinstance(std, float | int) else std
    if len(each) != layers or not all(s > 0 for s in each):
        raise ValueError(f"standard deviations {list(each)}: must be positive, one per layer; there are {layers}")
    return each


def _estimated(estimator: Callable[[Array, Array, Array], Array], draws: int | None, noise: float) -> FunctionalPrior:
    if draws is not None and draws < 2:
        raise ValueError(f"draws = {draws}: must be at least 2")

    def prior(key: Key, features: Features, alive: Alive, inputs: Array, draw: Draw) -> Features:
        n = features.shape[0]
        key_draw, key_noise = jax.random.split(key)
        samples = draw(key_draw, max(100, 2 * n) if draws is None else draws, inputs)
        samples = samples + noise * jax.random.normal(key_noise, samples.shape, samples.dtype)
        flat = estimator(samples.reshape(samples.shape[0], -1), features.reshape(n, -1), alive)
        return flat.reshape(features.shape)

    return prior
