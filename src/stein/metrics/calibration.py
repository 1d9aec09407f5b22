"""Calibration: does a classifier know how often, and when, it is right? Plain NumPy."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from stein.inputs import shaped
from stein.metrics import ties

Points = Float[np.ndarray, " b"]
Right = Bool[np.ndarray, " b"]
Curve = Float[np.ndarray, " points"]

BINS = 30
EDGE = 8 * float(np.finfo(np.float32).eps)
"""A confidence less than this below the edge of a bin counts as on it: networks compute in float32, and k of n certain
members put their mean exactly on an edge."""


class Reliability(NamedTuple):
    """Per equal-width bin of confidence: number of points, mean confidence, accuracy (0 if empty)."""

    points: Int[np.ndarray, " bins"]
    confidence: Float[np.ndarray, " bins"]
    accuracy: Float[np.ndarray, " bins"]


@shaped
def reliability(confidence: Points, right: Right, bins: int = BINS) -> Reliability:
    """The reliability diagram: points by their confidence, the largest probability of the ensemble.

    Bin i holds confidences in [i/bins, (i+1)/bins), up to rounding (:data:`EDGE`); the last one also 1.
    """
    confidence = np.asarray(confidence, float)
    index = np.clip(((confidence + EDGE) * bins).astype(int), 0, bins - 1)
    count = np.bincount(index, minlength=bins)

    def mean(values: np.ndarray) -> np.ndarray:
        return np.bincount(index, values, bins) / np.maximum(count, 1)

    return Reliability(count, mean(confidence), mean(right.astype(float)))


@shaped
def ece(confidence: Points, right: Right, bins: int = BINS) -> float:
    r"""Expected calibration error, :math:`\sum_i \frac{b_i}{b} |a_i - c_i|` over bins: accuracy minus mean confidence.

    From 0 to 1. It depends on the bins, grows with their number on few points, and can be 0 for a classifier that
    knows only its own accuracy: read it together with a proper score.

    Reference: Naeini, Cooper & Hauskrecht (2015).
    """
    found = reliability(confidence, right, bins)
    return float((found.points * np.abs(found.accuracy - found.confidence)).sum() / found.points.sum())


@shaped
def curve(uncertainty: Points, right: Right, most: int | None = None) -> Curve:
    r"""Accuracy on the k points of lowest uncertainty, :math:`\frac1k \sum_{j \le k} r_{(j)}`, for k = 1 ... ``most``.

    Out-of-distribution points count as wrong: the curve falls late if they come last. Points of equal
    uncertainty share their mean, so that the order of the data does not matter.
    """
    group = ties.groups(np.asarray(uncertainty, float))
    shared = (np.bincount(group, right.astype(float)) / np.bincount(group))[np.sort(group)]
    return (np.cumsum(shared) / np.arange(1, len(shared) + 1))[:most]


def perfect(right: int, most: int) -> Curve:
    """The curve of a perfect ranking, which puts every right point first: an upper bound."""
    k = np.arange(1, most + 1)
    return np.minimum(k, right) / k


@shaped
def area(accuracies: Curve) -> float:
    """Mean of a curve over its points: from 0 to 1, and at most that of :func:`perfect`."""
    return float(accuracies.mean())


@shaped
def coverage(accuracies: Curve, wanted: float = 0.97) -> int:
    """The largest number of points with at least this accuracy; 0 if there is none."""
    enough = np.flatnonzero(accuracies >= wanted - 1e-12)  # 97 of 100 is 97 %, whatever the rounding
    return int(enough[-1]) + 1 if enough.size else 0


@shaped
def rises(accuracies: Curve, step: int = 100) -> float:
    r"""How far a curve is from being decreasing, :math:`\sum_k \max(0, a_{k+s} - a_k)` for k = 2s, 3s, ...

    Zero when less certain points are always wrong more often. The first 2s points are left out: there, a single point
    moves the curve too much.
    """
    seen = accuracies[2 * step - 1 :: step]
    return float(np.maximum(np.diff(seen), 0).sum())
