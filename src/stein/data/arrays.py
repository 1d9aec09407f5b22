"""Inputs and targets as arrays: with names, standardised, held out."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy  # its parts are loaded when they are first used

MOST_ROWS = 10_000
"""Rows from which the power of a column is found."""


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


class Unskewing(NamedTuple):
    r"""Less skewed inputs: a power transformation of standardised columns z, standardised again.

    .. math:: \psi_p(z) = \begin{cases} ((1 + z)^p - 1)/p & z \ge 0 \\ -((1 - z)^{2-p} - 1)/(2 - p) & z < 0 \end{cases}

    with logarithms where an exponent is 0. p = 1 changes nothing. p is between 0 and 2, so that far values stay far.

    Reference: Yeo & Johnson (2000).
    """

    power: np.ndarray
    mean: np.ndarray
    scale: np.ndarray

    def __call__(self, z: np.ndarray) -> np.ndarray:
        return (_bent(z, self.power) - self.mean) / self.scale

    def undo(self, u: np.ndarray) -> np.ndarray:
        bent = u * self.scale + self.mean
        right, left = (
            scipy.special.inv_boxcox1p(np.maximum(bent, 0), self.power),
            scipy.special.inv_boxcox1p(np.maximum(-bent, 0), 2 - self.power),
        )
        return np.where(bent >= 0, right, -left)


class Standardiser(NamedTuple):
    """``(x - mean) / scale`` per column, then :class:`Unskewing` if given; a constant column is only shifted."""

    mean: np.ndarray
    scale: np.ndarray
    unskewing: Unskewing | None = None

    def __call__(self, x: np.ndarray) -> np.ndarray:
        z = (x - self.mean) / self.scale
        return (z if self.unskewing is None else self.unskewing(z)).astype(x.dtype)

    def undo(self, x: np.ndarray) -> np.ndarray:
        """The original inputs, up to rounding."""
        z = x if self.unskewing is None else self.unskewing.undo(x.astype(np.float64))
        return (z * self.scale + self.mean).astype(x.dtype)


def standardiser(x: np.ndarray, weights: np.ndarray | None = None, unskew: bool = False) -> Standardiser:
    """Scales every column of ``x`` to mean 0 and standard deviation 1; fit it to the training points only.

    Args:
        weights: a row of weight 2 counts as two rows.
        unskew: also bend skewed columns, each by the power that makes it most like a normal distribution.
    """
    x = x if x.dtype.kind == "f" else x.astype(np.float64)
    shifted = x.astype(np.float64) - x[0].astype(np.float64)  # a constant column is exactly 0 in any sum
    mean, scale = _moments(shifted, weights)
    # Equal values that were computed in different ways differ by a few rounding errors: this is no spread.
    rounding = 8 * np.finfo(x.dtype).eps * np.abs(x).max(axis=0).astype(np.float64)
    scale = np.where(scale > rounding, scale, 1.0)
    found = Standardiser(mean + x[0], scale)
    if not unskew:
        return found
    z = (shifted - mean) / scale
    power = np.array([_power(column, weights) for column in z.T])
    mean, scale = _moments(_bent(z, power), weights)
    return found._replace(unskewing=Unskewing(power, mean, np.where(scale > 0, scale, 1.0)))


def _moments(x: np.ndarray, weights: np.ndarray | None) -> tuple[Any, Any]:
    """Mean and standard deviation of each column."""
    mean = np.average(x, axis=0, weights=weights)
    return mean, np.sqrt(np.average(np.square(x - mean), axis=0, weights=weights))


def _bent(z: np.ndarray, power: np.ndarray | float) -> np.ndarray:
    return np.where(
        z >= 0, scipy.special.boxcox1p(np.maximum(z, 0), power), -scipy.special.boxcox1p(np.maximum(-z, 0), 2 - power)
    )


def _power(z: np.ndarray, weights: np.ndarray | None) -> float:
    """The power of the greatest normal likelihood; 1 for a column of two values, which no power makes less skewed."""
    every = -(-len(z) // MOST_ROWS)
    z, weights = z[::every], None if weights is None else weights[::every]
    if len(np.unique(z)) <= 2:
        return 1.0
    slope = np.average(np.sign(z) * np.log1p(np.abs(z)), weights=weights)  # of the log Jacobian

    def cost(power: float) -> float:
        return float(np.log(_moments(_bent(z, power), weights)[1]) - (power - 1) * slope)

    from scipy.optimize import minimize_scalar  # slow to import, and most runs unskew nothing

    return float(minimize_scalar(cost, bounds=(0.0, 2.0), method="bounded").x)


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
