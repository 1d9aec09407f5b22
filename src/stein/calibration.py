r"""Calibration after training, on rows that training has not seen: conformal intervals and sets, width,
temperature.

Split conformal prediction: of the n calibration rows' scores, take the k-th smallest, :math:`k = \lceil (n + 1)
\gamma \rceil`, as the threshold of coverage :math:`\gamma`. If a new row is exchangeable with the calibration rows, its
score is at most the threshold with probability at least :math:`\gamma`, whatever the ensemble predicts. Given the
calibration rows, the coverage of new rows is distributed as Beta(k, n + 1 - k).

Reference: Vovk, Gammerman & Shafer (2005); Lei et al. (2018); sets: Romano, Sesia & Candès (2020); temperature: Guo et
    al. (2017).
"""

import math
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float
from scipy.optimize import minimize_scalar

from stein import inputs, predictions
from stein.metrics import regression, ties
from stein.predictions import NORMAL, Classes, ClassPrediction, Prediction, RegressionPrediction, Targets

TEMPERATURES = (0.02, 50.0)
"""The range of temperatures: with a few rows, all of them right, the best would be zero."""

WIDTHS = (0.2, 20.0)
LOG_PRIOR = 0.5
"""Standard deviation of the logarithm of a width or a temperature, beforehand: a handful of rows changes little."""
TAILS = (None, 10.0, 4.0)
"""Degrees of freedom that :func:`spread` tries; None is the normal distribution."""


class Conformal(NamedTuple):
    """The sorted scores of the calibration rows, one column per target; no data are kept.

    The scores are :math:`|y - \\mu|/\\sigma` for numbers. For classes a score is the total probability of all classes
    at least as probable as the right one: adaptive prediction sets, in their conservative form without random numbers,
    which cover more than promised where one class has most of the probability.

    >>> calibrated = Conformal(np.arange(1.0, 20.0)[:, None])
    >>> calibrated.threshold(0.9), calibrated.threshold(0.99)
    (array([18.]), array([inf]))
    """

    scores: Float[np.ndarray, "m k"]

    def threshold(self, coverage: float) -> Float[np.ndarray, " k"]:
        """The k-th smallest score, k = ⌈(n + 1) coverage⌉; infinite if there are too few rows for this coverage."""
        if not 0 < coverage < 1:
            raise ValueError(f"coverage = {coverage}: must be between 0 and 1")
        rows = len(self.scores)
        k = math.ceil((rows + 1) * coverage - 1e-9)  # 100 * 0.55 is 55.00000000000001
        return self.scores[k - 1] if k <= rows else np.full(self.scores.shape[1], np.inf)

    def interval(self, prediction: RegressionPrediction, coverage: float) -> tuple[Targets, Targets]:
        """The ends of the interval mean ± threshold * std; each target is covered on its own."""
        threshold = self.threshold(coverage)
        self._check(prediction.mean.shape[1])
        with np.errstate(invalid="ignore"):
            half = np.where(np.isinf(threshold), np.inf, threshold * prediction.std)
        return prediction.mean - half, prediction.mean + half

    def sets(self, prediction: ClassPrediction, coverage: float) -> Bool[np.ndarray, "b c"]:
        """For each point, the classes whose score is within the threshold, and always the most probable one."""
        threshold = self.threshold(coverage)
        self._check(1)
        p = prediction.probabilities
        within = _totals(p) <= threshold * (1 + ties.ROUNDING)  # rounding must not leave out a class
        within[np.arange(len(p)), p.argmax(axis=1)] = True
        return within

    def _check(self, columns: int) -> None:
        if self.scores.shape[1] != columns:
            raise ValueError(f"the calibration has {self.scores.shape[1]} targets, the prediction {columns}")


def conformal(prediction: Prediction, y: Any) -> Conformal:
    """Conformal calibration from the predictions for held-out rows, and their targets in the same units.

    Args:
        y: numbers; for classes their numbers from 0.
    """
    if isinstance(prediction, ClassPrediction):
        p, y = prediction.probabilities, _labels(prediction, y)
        return Conformal(np.sort(_totals(p)[np.arange(len(p)), y])[:, None])
    y = inputs.array("y", y).astype(float).reshape(prediction.mean.shape)
    inputs.finite("y", y)
    return Conformal(np.sort(np.abs(regression.standardised(y - prediction.mean, prediction.std)), axis=0))


class Spread(NamedTuple):
    """How the spread of predicted numbers is calibrated: by a factor, and by tails heavier than the normal ones.

    >>> both = RegressionPrediction(np.array([[[0.0]], [[2.0]]]), np.ones((2, 1, 1)))
    >>> round(Spread(width=3.0)(both).std.item() ** 2, 6)
    18.0
    """

    width: float = 1.0
    degrees: float | None = None

    def __call__(self, prediction: RegressionPrediction) -> RegressionPrediction:
        """The calibrated prediction. ``degrees`` are those of Student's t distribution around each member's mean."""
        if self.degrees is not None:
            prediction = prediction._replace(family=predictions.student_t(self.degrees))
        return prediction if self.width == 1 else prediction.widened(self.width)


UNCHANGED = Spread()


def spread(prediction: RegressionPrediction, y: Any) -> Spread:
    r"""The spread at which a prediction has the least nll on held-out rows.

    A width above 1 means that the ensemble was too sure, as networks with a learned noise are on few rows. Some rows
    may be predicted far too surely, as where targets are whole numbers and are fitted exactly: so a normal prediction
    is also tried with heavier tails. What is minimised over the width c is

    .. math:: -\sum_b \log p_c(y_b) + \tfrac12 (\log c / s)^2, \quad s = \tfrac12,

    so that a handful of rows changes little. Tails are heavier only if that gains more than one.
    """
    y = inputs.array("y", y).astype(float).reshape(prediction.mean.shape)
    inputs.finite("y", y)

    def best(degrees: float | None) -> tuple[float, Spread]:
        def loss(log_c: float) -> float:
            nll = Spread(math.exp(log_c), degrees)(prediction).scores(y)["nll"]
            return len(y) * nll + 0.5 * (log_c / LOG_PRIOR) ** 2

        ends = tuple(math.log(end) for end in WIDTHS)
        found = minimize_scalar(loss, bounds=ends, method="bounded", options={"xatol": 1e-6})
        return float(found.fun) + (degrees is not None), Spread(math.exp(found.x), degrees)

    tails = TAILS if prediction.family is NORMAL else TAILS[:1]
    return min((best(degrees) for degrees in tails), key=lambda one: one[0])[1]


def temperature(prediction: ClassPrediction, y: Any) -> float:
    """The temperature T at which the tempered mean probabilities have the least nll on held-out rows.

    Above 1 the ensemble was too sure, below 1 not sure enough. The order of the classes does not change. The
    prior of :func:`spread` is added: without it a few rows that are all right would make the ensemble certain.
    """
    y = _labels(prediction, y)

    def loss(log_t: float) -> float:
        return len(y) * tempered(prediction, math.exp(log_t)).scores(y)["nll"] + 0.5 * (log_t / LOG_PRIOR) ** 2

    ends = tuple(math.log(end) for end in TEMPERATURES)
    return math.exp(minimize_scalar(loss, bounds=ends, method="bounded", options={"xatol": 1e-6}).x)


def tempered(prediction: ClassPrediction, temperature: float) -> ClassPrediction:
    """The prediction at a temperature."""
    inputs.positive(temperature=temperature)
    return prediction._replace(temperature=float(temperature))


def _totals(p: Classes) -> Classes:
    """For each class, the total probability of the classes up to it, the most probable first."""
    order = np.argsort(-p, axis=1, kind="stable")
    totals = np.cumsum(np.take_along_axis(p, order, axis=1), axis=1)
    return np.take_along_axis(totals, np.argsort(order, axis=1), axis=1)


def _labels(prediction: ClassPrediction, y: Any) -> np.ndarray:
    y = inputs.array("y", y)
    points, classes = prediction.probabilities.shape
    if y.shape != (points,) or y.dtype.kind not in "iu" or not points:
        raise ValueError(f"y is {y.dtype} of shape {y.shape}: must be the class numbers of {points} rows, at least one")
    if y.min() < 0 or y.max() >= classes:
        raise ValueError(f"y has classes from {y.min()} to {y.max()}: must be from 0 to {classes - 1}")
    return y
