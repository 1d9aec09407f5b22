r"""Scores of regression predictions.

Each member predicts :math:`N(\mu_i, \sigma_i^2)`; the ensemble predicts their mixture.
Plain NumPy. ``means`` and ``sigmas`` are (members, points, targets), ``y`` is (points, targets); for a single target
the last axis may be missing. A sigma of zero means certainty: the limit of small sigmas.
"""

import math

import numpy as np
from jaxtyping import Float

from stein.inputs import shaped

Members = Float[np.ndarray, "n b k"]
Targets = Float[np.ndarray, "b k"]


@shaped
def rmse(means: Members, y: Targets) -> float:
    """Root mean square error of the mean over members."""
    _check(means=means, y=y)
    return float(np.sqrt(np.square(np.mean(means, axis=0, dtype=float) - y).mean()))


@shaped
def nll(means: Members, sigmas: Members, y: Targets) -> float:
    r"""Negative log-likelihood, :math:`-\frac1b \sum_b \log \frac1n \sum_i N(y_b; \mu_{ib}, \sigma_{ib}^2)`.

    Targets of a point are independent given the member, not given the mixture. Infinite if all members are certain of
    a wrong target at some point.
    """
    return of_mixture(log_density(means, sigmas, y))


@shaped
def nll_members(means: Members, sigmas: Members, y: Targets) -> float:
    """Mean over members of their own :func:`nll`; never below the mixture's (Jensen)."""
    return of_members(log_density(means, sigmas, y))


@shaped
def of_mixture(log_densities: Float[np.ndarray, "n b"]) -> float:
    """:func:`nll` from the log densities of each member's prediction at each point, whatever their distribution."""
    return _mean(math.log(len(log_densities)) - np.logaddexp.reduce(log_densities, axis=0))


@shaped
def of_members(log_densities: Float[np.ndarray, "n b"]) -> float:
    """:func:`nll_members`, likewise."""
    return _mean(-log_densities)


@shaped
def crps(means: Members, sigmas: Members, y: Targets) -> float:
    r"""Continuous ranked probability score of the mixture, averaged over points and targets, in units of ``y``.

    .. math:: E|Y - y| - \tfrac12 E|Y - Y'| = \tfrac1n \sum_i A(y - \mu_i, \sigma_i)
        - \tfrac1{2n^2} \sum_{ij} A\big(\mu_i - \mu_j, \sqrt{\sigma_i^2 + \sigma_j^2}\big),

    where :math:`A(\mu, \sigma) = 2\sigma\varphi(\mu/\sigma) + \mu(2\Phi(\mu/\sigma) - 1)` is the mean of :math:`|N(\mu,
    \sigma^2)|`. It is the absolute error if all members predict the same number with certainty.

    Cost: n² b k, memory of n b k.
    Reference: Grimit, Gneiting, Berrocal & Johnson (2006).
    """
    _check(means=means, sigmas=sigmas, y=y)
    means, sigmas, y = (np.asarray(v, float) for v in (means, sigmas, y))
    spread = np.mean(
        [_absolute(mean - means, np.hypot(s, sigmas)).mean() for mean, s in zip(means, sigmas, strict=True)]
    )
    return float(_absolute(y[None] - means, sigmas).mean() - 0.5 * spread)


@shaped
def levels(means: Members, sigmas: Members, y: Targets) -> Targets:
    r"""The mixture's distribution function at the targets, :math:`\frac1n \sum_i \Phi((y - \mu_i)/\sigma_i)`.

    Uniform on (0, 1) if the predictions are calibrated.
    """
    _check(means=means, sigmas=sigmas, y=y)
    return _normal_cdf(standardised(y[None] - np.asarray(means, float), sigmas)).mean(axis=0)


@shaped
def coverage(levels: Targets, wanted: float) -> float:
    """Fraction of targets inside the central interval of probability ``wanted``."""
    _check(levels=levels)
    return float((np.abs(levels - 0.5) <= wanted / 2).mean())


@shaped
def log_density(means: Members, sigmas: Members, y: Targets) -> Float[np.ndarray, "n b"]:
    """Of each member's normal distribution, summed over the targets of a point."""
    _check(means=means, sigmas=sigmas, y=y)
    residual = standardised(y[None] - np.asarray(means, float), sigmas)
    missed = np.isinf(residual)  # sigma is zero, and the density is too
    with np.errstate(divide="ignore"):
        each = 0.5 * np.where(missed, 0, residual) ** 2 + np.log(sigmas) + 0.5 * math.log(2 * math.pi)
    return np.where(missed.any(axis=2), -np.inf, -each.sum(axis=2))


def _mean(costs: np.ndarray) -> float:
    """The mean, infinite if any cost is, whatever the others are."""
    return math.inf if np.isposinf(costs).any() else float(costs.mean())


def _check(**named: np.ndarray) -> None:
    """Reject non-finite values: they would count as outside every interval without notice."""
    for name, values in named.items():
        if not np.isfinite(values).all():
            raise ValueError(f"{name}: a value is not finite; leave dead members and missing targets out")
    if "sigmas" in named and (named["sigmas"] < 0).any():
        raise ValueError(f"sigmas: {named['sigmas'].min()} is negative; must be standard deviations")


def standardised(difference: np.ndarray, sigmas: np.ndarray) -> np.ndarray:
    """Differences over sigma: zero stays zero; any other difference over sigma = 0 is infinite."""
    with np.errstate(divide="ignore", over="ignore"):
        return np.divide(difference, sigmas, out=np.zeros_like(difference), where=difference != 0)


def _normal_cdf(z: np.ndarray) -> np.ndarray:
    return 0.5 + 0.5 * np.asarray(_erf(z / math.sqrt(2)), float)


_erf = np.frompyfunc(math.erf, 1, 1)  # NumPy has none


def _absolute(mean: np.ndarray, sigma: np.ndarray) -> np.ndarray:
    z = standardised(mean, sigma)
    return 2 * sigma * np.exp(-0.5 * z**2) / math.sqrt(2 * math.pi) + mean * (2 * _normal_cdf(z) - 1)
