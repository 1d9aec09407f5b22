"""Inputs and targets as arrays: with names, standardised, held out."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Arrays(NamedTuple):
    """Inputs ``x``, one row per point, in floating point; targets ``y``, floating point or integer.

    ``labels`` are the names of the classes 0, 1, ... if the targets were text, otherwise empty.
    """

    x: np.ndarray
    y: np.ndarray
    labels: tuple[str, ...] = ()


class Table(NamedTuple):
    """A file as it was read: inputs in floating point, targets unchanged, and the names of the columns.

    ``y`` is floating point, integer or text, with no columns if the file has no targets. ``parts`` are the texts of the
    split column, or None. Inputs without names are called x0, x1, ...
    """

    x: np.ndarray
    y: np.ndarray
    inputs: tuple[str, ...]
    target: str
    parts: np.ndarray | None = None


class Standardiser(NamedTuple):
    """``(x - mean) / scale`` per column; a constant column is only shifted."""

    mean: np.ndarray
    scale: np.ndarray

    def __call__(self, x: np.ndarray) -> np.ndarray:
        return ((x - self.mean) / self.scale).astype(x.dtype)

    def undo(self, x: np.ndarray) -> np.ndarray:
        """The original inputs, up to rounding."""
        return (x * self.scale + self.mean).astype(x.dtype)


def standardiser(x: np.ndarray, weights: np.ndarray | None = None) -> Standardiser:
    """Scales every column of ``x`` to mean 0 and standard deviation 1; fit it to the training points only.

    Args:
        weights: a row of weight 2 counts as two rows.
    """
    x = x if x.dtype.kind == "f" else x.astype(np.float64)
    shifted = x.astype(np.float64) - x[0].astype(np.float64)  # a constant column is exactly 0 in any sum
    if weights is None:
        mean, scale = shifted.mean(axis=0), shifted.std(axis=0)
    else:
        mean = np.average(shifted, axis=0, weights=weights)
        scale = np.sqrt(np.average(np.square(shifted - mean), axis=0, weights=weights))
    # Equal values that were computed in different ways differ by a few rounding errors: this is no spread.
    rounding = 8 * np.finfo(x.dtype).eps * np.abs(x).max(axis=0).astype(np.float64)
    return Standardiser(mean + x[0], np.where(scale > rounding, scale, 1.0))


def split(x: np.ndarray, y: np.ndarray, fraction: float, seed: int) -> tuple[Arrays, Arrays]:
    """Training and test points: a random ``fraction`` of the rows is held out, at least one if it is above 0.

    Both parts keep the order of the data.
    """
    test = held_out(len(x), fraction, seed)
    return Arrays(x[~test], y[~test]), Arrays(x[test], y[test])


def held_out(rows: int, fraction: float, seed: int | Sequence[int], classes: np.ndarray | None = None) -> np.ndarray:
    """A mask of the held-out rows. With ``classes`` the split is stratified, and each class keeps at least one row."""
    if not 0 <= fraction < 1:
        raise ValueError(f"fraction = {fraction}: must be at least 0 and below 1")
    number = max(1, round(fraction * rows)) if fraction else 0
    if number >= rows:
        raise ValueError(f"fraction = {fraction}: of {rows} rows nothing is left to train on")
    order = np.random.default_rng(seed).permutation(rows)
    mask = np.zeros(rows, bool)
    if classes is None or not number:
        mask[order[:number]] = True
        return mask
    names, which, counts = np.unique(classes, return_inverse=True, return_counts=True)
    shares = np.minimum(number * counts / rows, counts - 1)
    given = np.floor(shares).astype(int)
    for c in np.argsort(given - shares, kind="stable")[: number - given.sum()]:  # the largest remainders first
        given[c] += shares[c] > given[c]
    for c in range(len(names)):
        mask[order[which[order] == c][: given[c]]] = True
    return mask
