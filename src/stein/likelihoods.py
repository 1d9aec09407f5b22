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
import scipy  # its parts are loaded when they are first used
from jaxtyping import Array, Float

from stein import inputs, predictions, versions
from stein.predictions import NORMAL, ClassPrediction, Family, Prediction, RegressionPrediction

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
    ``extra_outputs`` more outputs per target or class; with ``shared_sigma`` one more number per target, the same for
    all inputs (:func:`stein.models.with_log_sigma`).
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

    ``sigma=None`` learns it: the last k outputs of the model are then the :math:`\log\sigma` of its k targets
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


class _Shape(NamedTuple):
    r"""A density of the residual :math:`r = (y - f)/\sigma`: :math:`\log p = -\frac12 [e(r) + 2 \log\sigma + c]`.

    ``energy`` is e, ``pull`` half its derivative, ``constant`` is c.
    """

    energy: Callable[[Array], Array]
    pull: Callable[[Array], Array]
    constant: float
    family: Family


_NORMAL = _Shape(lambda r: r**2, lambda r: r, math.log(2 * math.pi), NORMAL)


def heteroscedastic() -> Likelihood:
    r"""Regression whose outputs are the means of the k targets, then their :math:`\log\sigma(x)`.

    The functional kernel uses the means only: members should disagree about the function, not about its noise.
    """
    return _with_sigma("heteroscedastic gaussian", _NORMAL)


def student_t(sigma: float | str | None = None, degrees: float = 4.0) -> Likelihood:
    r"""Regression with heavy tails, for data with outliers: :math:`(y - f)/\sigma` has Student's t distribution.

    The pull of a residual r on the mean is :math:`(\nu + 1) r / (\nu + r^2)`, with :math:`\nu` = ``degrees``: far
    points hardly count. :math:`\sigma` is the scale; the standard deviation is :math:`\sigma\sqrt{\nu/(\nu - 2)}`.

    Args:
        sigma: a number; ``None`` learns it, as in :func:`gaussian`; ``"input-dependent"``: as in
            :func:`heteroscedastic`.
        degrees: of freedom, above 2; large values approach the Gaussian.
    """
    family = predictions.student_t(degrees)
    shape = _Shape(
        lambda r: (degrees + 1) * jnp.log1p(r**2 / degrees),
        lambda r: (degrees + 1) * r / (degrees + r**2),
        2 * math.lgamma(degrees / 2) - 2 * math.lgamma((degrees + 1) / 2) + math.log(degrees * math.pi),
        family,
    )
    varying = _with_sigma("student-t, input-dependent sigma", shape)
    if sigma is None:
        return varying._replace(name="student-t, learned sigma", extra_outputs=0, shared_sigma=True)
    if sigma == "input-dependent":
        return varying
    inputs.positive(sigma=sigma)

    def full(outputs: Outputs) -> Array:
        return jnp.concatenate([outputs, jnp.full_like(outputs, math.log(float(sigma)))], axis=1)

    return varying._replace(
        name="student-t",
        log_prob=lambda outputs, y: varying.log_prob(full(outputs), y),
        score=lambda outputs, y: varying.score(full(outputs), y)[:, : outputs.shape[1]],
        features=gaussian().features,
        predictive=lambda outputs: RegressionPrediction(
            np.asarray(outputs, float), np.full(np.shape(outputs), float(sigma)), family
        ),
        check=gaussian().check,
        extra_outputs=0,
    )


def _with_sigma(name: str, shape: _Shape) -> Likelihood:
    """A likelihood whose outputs are k means, then k log sigmas."""

    def split(outputs: Outputs, y: Array) -> tuple[Array, Array]:
        mean, log_sigma = jnp.split(outputs, 2, axis=1)
        return (_like(mean, y) - mean) * jnp.exp(-log_sigma), log_sigma

    def log_prob(outputs: Outputs, y: Array) -> Array:
        residual, log_sigma = split(outputs, y)
        return -0.5 * jnp.sum(shape.energy(residual) + 2 * log_sigma + shape.constant, axis=1)

    def score(outputs: Outputs, y: Array) -> Outputs:
        residual, log_sigma = split(outputs, y)
        pull = shape.pull(residual)
        return jnp.concatenate([pull * jnp.exp(-log_sigma), pull * residual - 1], axis=1)

    def predictive(outputs: np.ndarray) -> Prediction:
        means, log_sigmas = np.split(np.asarray(outputs, float), 2, axis=2)
        # Far from all data log sigma has no limit; the square of this one is still a number.
        return RegressionPrediction(means, np.exp(np.minimum(log_sigmas, 300.0)), shape.family)

    def check(outputs: int, y: np.ndarray) -> None:
        if outputs % 2:
            raise ValueError(f"the model has {outputs} outputs: a mean and log sigma per target need an even number")
        _check_regression(outputs, y, means=outputs // 2)

    means = FeatureMap(
        lambda outputs: jnp.split(outputs, 2, axis=1)[0], lambda outputs, u: jnp.pad(u, ((0, 0), (0, u.shape[1])))
    )
    return Likelihood(name, log_prob, score, {"outputs": means}, predictive, check, extra_outputs=1)


def poisson(rate: float = 1.0) -> Likelihood:
    r"""Counts: :math:`y \sim \mathrm{Poisson}(\lambda_0 e^{f(x)})`; score :math:`y - \lambda_0 e^f`.

    Args:
        rate: :math:`\lambda_0`, a typical count, so that outputs near zero are a good start.
    """
    inputs.positive(rate=rate)
    start = math.log(rate)

    def log_prob(outputs: Outputs, y: Array) -> Array:
        y, log_rate = _like(outputs, y), outputs + start
        return jnp.sum(y * log_rate - jnp.exp(log_rate) - jax.scipy.special.gammaln(y + 1), axis=1)

    def score(outputs: Outputs, y: Array) -> Outputs:
        return _like(outputs, y) - jnp.exp(outputs + start)

    def predictive(outputs: np.ndarray) -> Prediction:
        rates = np.exp(np.asarray(outputs, float) + start)
        return RegressionPrediction(rates, np.sqrt(rates), predictions.POISSON)

    def check(outputs: int, y: np.ndarray) -> None:
        _check_regression(outputs, y, means=outputs)
        bad = y[(y < 0) | (y != np.round(y))]
        if bad.size:
            raise ValueError(f"y holds {bad[0]:g}: counts must be whole numbers, 0 or more")

    return Likelihood("poisson", log_prob, score, gaussian().features, predictive, check)


def weighted(likelihood: Likelihood) -> Likelihood:
    """A likelihood whose targets have their weight as one more column: a row of weight 2 counts as two rows.

    Targets are (b, k + 1) in floating point; of classes (b, 2). Predictions are not changed.
    """
    is_class = "probabilities" in likelihood.features

    def split(y: Array) -> tuple[Array, Array]:
        return (y[:, 0].astype(jnp.int32) if is_class else y[:, :-1]), y[:, -1]

    def log_prob(outputs: Outputs, y: Array) -> Array:
        y, weight = split(y)
        return weight.astype(outputs.dtype) * likelihood.log_prob(outputs, y)

    def score(outputs: Outputs, y: Array) -> Outputs:
        y, weight = split(y)
        return weight.astype(outputs.dtype)[:, None] * likelihood.score(outputs, y)

    def check(outputs: int, y: np.ndarray) -> None:
        if y.ndim != 2 or y.shape[1] < 2 or y.dtype.kind != "f":
            raise ValueError(f"y is {y.dtype} of shape {y.shape}: must be numbers, the weight in the last column")
        if (y[:, -1] < 0).any() or not y[:, -1].any():
            raise ValueError(f"weights: from {y[:, -1].min():g} to {y[:, -1].max():g}; must be 0 or more, one above 0")
        likelihood.check(outputs, y[:, 0].astype(np.int32) if is_class else y[:, :-1])

    return likelihood._replace(name=f"weighted {likelihood.name}", log_prob=log_prob, score=score, check=check)


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
        return ClassPrediction(scipy.special.log_softmax(np.asarray(outputs, float), axis=2))

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
