r"""Likelihoods of one network's outputs, with their scores in closed form.

Outputs are ``(b, c)``: one row per data point. ``log_prob`` and ``score`` are per data point; the target
scales them to the data set (N/B).
"""

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.special import log_softmax

from stein import inputs, versions
from stein.predictions import ClassPrediction, Prediction, RegressionPrediction

versions.require()

Outputs = Float[Array, "b c"]


class FeatureMap(NamedTuple):
    """What the functional kernel compares, and its transpose map.

    ``forward(outputs)`` are the features; ``back(outputs, u)`` turns a cotangent on the features into the
    cotangent on the outputs.
    """

    forward: Callable[[Outputs], Float[Array, "b k"]]
    back: Callable[[Outputs, Float[Array, "b k"]], Outputs]


class Likelihood(NamedTuple):
    """``log_prob(outputs, y) -> (b,)``, its gradient ``score(outputs, y) -> (b, c)``, and feature maps by name.

    ``predictive(outputs)`` turns the members' outputs (n, b, c) into a :data:`stein.predictions.Prediction`;
    ``check(outputs_per_point, y)`` raises ``ValueError`` for targets that do not fit this likelihood. A network has
    ``extra_outputs`` more outputs than there are targets or classes; with ``shared_sigma`` one more number, the same
    for all inputs (:func:`stein.models.with_log_sigma`).
    """

    name: str
    log_prob: Callable[[Outputs, Array], Float[Array, " b"]]
    score: Callable[[Outputs, Array], Outputs]
    features: Mapping[str, FeatureMap]
    predictive: Callable[[np.ndarray], Prediction]
    check: Callable[[int, np.ndarray], None]
    extra_outputs: int = 0
    shared_sigma: bool = False


def gaussian(sigma: float | None = 1.0) -> Likelihood:
    r"""Regression with :math:`y \sim N(f(x), \sigma^2 I)`; score :math:`(y - f)/\sigma^2`.

    ``sigma=None`` learns it: the last output of the model is then :math:`\log\sigma`
    (see :func:`stein.models.with_log_sigma`).
    """
    if sigma is None:
        return heteroscedastic()._replace(name="gaussian, learned sigma", extra_outputs=0, shared_sigma=True)
    inputs.positive(sigma=sigma)

    def log_prob(outputs: Outputs, y: Array) -> Array:
        residual = (_like(outputs, y) - outputs) / sigma
        return -0.5 * jnp.sum(residual**2 + 2 * math.log(sigma) + math.log(2 * math.pi), axis=1)

    def score(outputs: Outputs, y: Array) -> Outputs:
        return (_like(outputs, y) - outputs) / sigma**2

    def predictive(outputs: np.ndarray) -> Prediction:
        means = np.asarray(outputs, float)
        return RegressionPrediction(means, np.full_like(means, sigma))

    def check(outputs: int, y: np.ndarray) -> None:
        _check_regression(outputs, y, means=outputs)

    identity = FeatureMap(lambda outputs: outputs, lambda outputs, u: u)
    return Likelihood("gaussian", log_prob, score, {"outputs": identity}, predictive, check)


def heteroscedastic() -> Likelihood:
    r"""Regression whose last output is :math:`\log\sigma(x)`; the others are the mean.

    The functional kernel uses the mean only: members should disagree about the function, not about its noise.
    """

    def split(outputs: Outputs, y: Array) -> tuple[Array, Array]:
        mean, log_sigma = outputs[:, :-1], outputs[:, -1:]
        return (_like(mean, y) - mean) * jnp.exp(-log_sigma), log_sigma

    def log_prob(outputs: Outputs, y: Array) -> Array:
        residual, log_sigma = split(outputs, y)
        return -0.5 * jnp.sum(residual**2 + 2 * log_sigma + math.log(2 * math.pi), axis=1)

    def score(outputs: Outputs, y: Array) -> Outputs:
        residual, log_sigma = split(outputs, y)
        return jnp.concatenate(
            [residual * jnp.exp(-log_sigma), jnp.sum(residual**2 - 1, axis=1, keepdims=True)], axis=1
        )

    def predictive(outputs: np.ndarray) -> Prediction:
        outputs = np.asarray(outputs, float)
        means = outputs[:, :, :-1]
        return RegressionPrediction(means, np.broadcast_to(np.exp(outputs[:, :, -1:]), means.shape))

    def check(outputs: int, y: np.ndarray) -> None:
        if outputs < 2:
            raise ValueError(f"the model has {outputs} output: a mean and log sigma need at least 2")
        _check_regression(outputs, y, means=outputs - 1)

    means = FeatureMap(lambda outputs: outputs[:, :-1], lambda outputs, u: jnp.pad(u, ((0, 0), (0, 1))))
    return Likelihood(
        "heteroscedastic gaussian", log_prob, score, {"outputs": means}, predictive, check, extra_outputs=1
    )


def categorical(center_logits: bool = False) -> Likelihood:
    r"""Classification: outputs are logits, ``y`` holds class numbers; score :math:`\mathrm{onehot}(y) - p`.

    Features are the logits (methods ending in ``-l``) or the probabilities (``-s``). Logits contain a shift
    that does not affect predictions; ``center_logits`` removes it from the kernel by subtracting the class mean.
    """

    def log_prob(outputs: Outputs, y: Array) -> Array:
        return jnp.take_along_axis(jax.nn.log_softmax(outputs), y[:, None], axis=1)[:, 0]

    def score(outputs: Outputs, y: Array) -> Outputs:
        return jax.nn.one_hot(y, outputs.shape[1], dtype=outputs.dtype) - jax.nn.softmax(outputs)

    def centred(u: Array) -> Array:
        return u - jnp.mean(u, axis=1, keepdims=True) if center_logits else u

    def through_softmax(outputs: Outputs, u: Array) -> Outputs:
        p = jax.nn.softmax(outputs)
        return p * (u - jnp.sum(p * u, axis=1, keepdims=True))

    def predictive(outputs: np.ndarray) -> Prediction:
        return ClassPrediction(log_softmax(np.asarray(outputs, float), axis=2))

    def check(outputs: int, y: np.ndarray) -> None:
        if not np.issubdtype(y.dtype, np.integer):
            raise ValueError(f"y has type {y.dtype}: class labels must be integers")
        if y.ndim != 1:
            raise ValueError(f"y has shape {y.shape}: class labels must be one number a row")
        bad = np.flatnonzero((y < 0) | (y >= outputs))
        if bad.size:
            raise ValueError(
                f"y[{bad[0]}] = {y[bad[0]]}: labels of a model with {outputs} outputs are 0 to {outputs - 1}"
            )

    features = {
        "outputs": FeatureMap(centred, lambda outputs, u: centred(u)),
        "probabilities": FeatureMap(jax.nn.softmax, through_softmax),
    }
    return Likelihood("categorical", log_prob, score, features, predictive, check)


def _like(mean: Array, y: Array) -> Array:
    """Targets in the shape and precision of the mean: (b,) and (b, 1) must never broadcast to (b, b)."""
    return y.reshape(mean.shape).astype(mean.dtype)


def _check_regression(outputs: int, y: np.ndarray, means: int) -> None:
    if not np.issubdtype(y.dtype, np.floating):
        raise ValueError(f"y has type {y.dtype}: regression targets must be floating point")
    per_row = math.prod(y.shape[1:])
    if per_row != means:
        raise ValueError(f"y has {per_row} targets a row, the model {outputs} outputs: this likelihood expects {means}")
