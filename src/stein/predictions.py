"""Predictions of an ensemble: the mixture of its members' predictions. Plain NumPy, in float64.

:meth:`stein.likelihoods.Likelihood.predictive` makes one of the two kinds from the members' outputs.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import scipy  # its parts are loaded when they are first used
from jaxtyping import Bool, Float, Int

from stein.metrics import classification, regression, uncertainty

Members = Float[np.ndarray, "n b k"]
Points = Float[np.ndarray, " b"]
Targets = Float[np.ndarray, "b k"]
Classes = Float[np.ndarray, "b c"]


class Family(NamedTuple):
    r"""How targets scatter around a member's mean :math:`\mu`, with scale :math:`\sigma`.

    Args:
        log_density: ``(means, sigmas, y)``: one number per member and point, summed over the targets of the point.
        cdf: ``(means, sigmas, y)``: the distribution function.
        deviation: the standard deviation over :math:`\sigma`.
        draw: ``(random, means, sigmas)``: one draw for each mean.
        counts: whether the targets are whole numbers.
    """

    log_density: Callable[[Members, Members, Targets], Float[np.ndarray, "n b"]]
    cdf: Callable[[Members, Members, Targets], Members]
    deviation: float
    draw: Callable[[np.random.Generator, np.ndarray, np.ndarray], np.ndarray]
    counts: bool = False


def _standard(means: Members, sigmas: Members, y: Targets) -> Members:
    return regression.standardised(y - means, sigmas)


NORMAL = Family(
    regression.log_density,
    cdf=lambda means, sigmas, y: scipy.special.ndtr(_standard(means, sigmas, y)),
    deviation=1.0,
    draw=lambda random, means, sigmas: means + sigmas * random.normal(size=means.shape),
)

POISSON = Family(
    lambda means, sigmas, y: (scipy.special.xlogy(y, means) - means - scipy.special.gammaln(y + 1)).sum(axis=2),
    cdf=lambda means, sigmas, y: np.where(y < 0, 0.0, scipy.special.pdtr(np.floor(np.maximum(y, 0)), means)),
    deviation=1.0,
    draw=lambda random, means, sigmas: random.poisson(means).astype(float),
    counts=True,
)
"""Counts: the mean is the rate, and sigma its root."""


def student_t(degrees: float) -> Family:
    """Student's t distribution around the mean; :math:`\\sigma` is its scale, not its standard deviation."""
    if not degrees > 2:
        raise ValueError(f"degrees = {degrees}: must be above 2; with fewer the variance is infinite")
    constant = (
        scipy.special.gammaln((degrees + 1) / 2) - scipy.special.gammaln(degrees / 2) - 0.5 * np.log(degrees * np.pi)
    )

    def log_density(means: Members, sigmas: Members, y: Targets) -> Float[np.ndarray, "n b"]:
        power = 0.5 * (degrees + 1) * np.log1p(_standard(means, sigmas, y) ** 2 / degrees)
        return (constant - power - np.log(sigmas)).sum(axis=2)

    return Family(
        log_density,
        cdf=lambda means, sigmas, y: scipy.special.stdtr(degrees, _standard(means, sigmas, y)),
        deviation=float(np.sqrt(degrees / (degrees - 2))),
        draw=lambda random, means, sigmas: means + sigmas * random.standard_t(degrees, size=means.shape),
    )


class RegressionPrediction(NamedTuple):
    r"""Each member predicts a distribution with mean :math:`\mu_i` and scale :math:`\sigma_i`, for each of b points and
    k targets; the ensemble predicts their mixture. ``family`` is the kind: :math:`N(\mu_i, \sigma_i^2)` unless given.

    >>> both = RegressionPrediction(np.array([[[0.0]], [[2.0]]]), np.ones((2, 1, 1)))
    >>> both.mean.item(), round(both.std.item() ** 2, 6)
    (1.0, 2.0)
    """

    means: Members
    sigmas: Members
    family: Family = NORMAL

    @property
    def mean(self) -> Targets:
        return self.means.mean(axis=0)

    @property
    def std(self) -> Targets:
        """Standard deviation of the mixture: ``std² = aleatoric² + epistemic²``."""
        return np.hypot(self.aleatoric, self.epistemic)

    @property
    def aleatoric(self) -> Targets:
        """Noise of the data: root mean square of the members' standard deviations."""
        return self.family.deviation * np.sqrt(np.square(self.sigmas).mean(axis=0))

    @property
    def epistemic(self) -> Targets:
        """Disagreement of the members: standard deviation of their means. More data could reduce it."""
        return self.means.std(axis=0)

    def cdf(self, y: Targets) -> Targets:
        """The mixture's distribution function."""
        return self.family.cdf(self.means, self.sigmas, y).mean(axis=0)

    def levels(self, y: Any) -> Targets:
        """The mixture's distribution function at targets; of counts, the middle of the step. Uniform if calibrated."""
        y = np.asarray(y, float).reshape(self.means.shape[1:])
        return 0.5 * (self.cdf(y) + self.cdf(y - 1)) if self.family.counts else self.cdf(y)

    def quantile(self, level: float) -> Targets:
        """The quantile of the mixture at probability ``level``, by bisection of its distribution function."""
        if not 0 < level < 1:
            raise ValueError(f"level = {level}: must be between 0 and 1")
        # Cantelli's inequality: the quantile of any distribution lies between these.
        low, high = self.mean - self.std * np.sqrt(1 / level - 1), self.mean + self.std / np.sqrt(1 / level - 1)
        for _ in range(80):  # bisects to rounding
            middle = 0.5 * (low + high)
            below = self.cdf(middle) < level
            low, high = np.where(below, middle, low), np.where(below, high, middle)
        return np.round(high) if self.family.counts else 0.5 * (low + high)

    def interval(self, coverage: float) -> tuple[Targets, Targets]:
        """The lower and upper ends of the central interval with probability ``coverage``."""
        if not 0 < coverage < 1:
            raise ValueError(f"coverage = {coverage}: must be between 0 and 1")
        return self.quantile(0.5 - coverage / 2), self.quantile(0.5 + coverage / 2)

    def crps(self, y: Any) -> float:
        r"""Continuous ranked probability score, averaged over points and targets, from 200 quantiles.

        .. math:: 2 \int_0^1 (1\{y < q_\tau\} - \tau)(q_\tau - y) \, d\tau

        For any family; exact for normal ones, and faster: :func:`stein.metrics.regression.crps`.
        """
        y = np.asarray(y, float).reshape(self.means.shape[1:])
        if self.family is NORMAL:
            return regression.crps(self.means, self.sigmas, y)
        levels = (np.arange(200) + 0.5) / 200
        quantiles = ((level, self.quantile(level)) for level in levels)
        return float(np.mean([2 * ((y < q) - level) * (q - y) for level, q in quantiles]))

    def sample(self, number: int, seed: int = 0) -> Float[np.ndarray, "number b k"]:
        """Draws of the targets. All targets of one draw come from the same member, so they are consistent."""
        random = np.random.default_rng(seed)
        chosen = random.integers(len(self.means), size=(number, self.means.shape[1]))
        points = np.arange(self.means.shape[1])
        return self.family.draw(random, self.means[chosen, points], self.sigmas[chosen, points])

    def widened(self, factor: float) -> "RegressionPrediction":
        """The same mean and shape, with ``factor`` times the standard deviation, both parts of it."""
        if self.family.counts:
            raise ValueError("the spread of counts follows from their rates; it cannot be widened")
        means = self.mean + factor * (self.means - self.mean)
        return self._replace(means=means, sigmas=factor * self.sigmas)

    def in_units(self, scale: Any, shift: Any) -> "RegressionPrediction":
        """The prediction of ``scale * y + shift``, for standardised targets y."""
        if self.family.counts:
            raise ValueError("counts have no other units; do not standardise them")
        scale = np.asarray(scale, float)
        return self._replace(means=self.means * scale + shift, sigmas=self.sigmas * scale)

    def scores(self, y: Any) -> dict[str, float]:
        """``nll`` of the mixture, ``nll_members`` (mean of the members' own) and ``rmse`` on known targets."""
        y = np.asarray(y, float).reshape(self.means.shape[1:])
        each = self.family.log_density(self.means, self.sigmas, y)
        return {
            "nll": regression.of_mixture(each),
            "nll_members": regression.of_members(each),
            "rmse": regression.rmse(self.means, y),
        }


class ClassPrediction(NamedTuple):
    """Each member predicts log-probabilities of c classes for each of b points; the ensemble predicts their mean
    probability, to the power 1/``temperature`` if it is calibrated (:func:`stein.calibration.temperature`).
    ``labels`` are the names of the classes, if any.

    The temperature changes ``probabilities`` and all that follows from them: entropy, sets, ``nll``. The members, and
    what is said about their differences, stay as they are.

    >>> votes = ClassPrediction(np.log([[[0.9, 0.1]], [[0.7, 0.3]]]))
    >>> votes.probabilities.round(6).tolist(), votes.chosen.tolist()
    ([[0.8, 0.2]], [0])
    """

    log_probabilities: Float[np.ndarray, "n b c"]
    labels: tuple[str, ...] = ()
    temperature: float = 1.0

    @property
    def members(self) -> Float[np.ndarray, "n b c"]:
        """Probabilities of each member."""
        return classification.probabilities(self.log_probabilities)

    @property
    def probabilities(self) -> Classes:
        return classification.probabilities(self._tempered).mean(axis=0)

    @property
    def chosen(self) -> Int[np.ndarray, " b"]:
        """Number of the most probable class."""
        return self.probabilities.argmax(axis=1)

    @property
    def named(self) -> list[str]:
        """Name of the most probable class; its number if classes have no names."""
        return [self.labels[c] if self.labels else str(c) for c in self.chosen]

    @property
    def entropy(self) -> Points:
        """Total uncertainty: entropy of the mean probability; 1 is uniform."""
        return uncertainty.entropy(self.probabilities)

    @property
    def mutual_information(self) -> Points:
        """Epistemic part of the entropy, which more data could reduce."""
        return uncertainty.mutual_information(self.members)

    @property
    def disagreement(self) -> Points:
        """Standard deviation of the probabilities over members, mean over classes."""
        return uncertainty.disagreement(self.members)

    def sets(self, coverage: float) -> Bool[np.ndarray, "b c"]:
        """For each point, the smallest set of most probable classes with total probability at least ``coverage``."""
        if not 0 < coverage < 1:
            raise ValueError(f"coverage = {coverage}: must be between 0 and 1")
        p = self.probabilities
        order = np.argsort(-p, axis=1, kind="stable")
        ranked = np.take_along_axis(p, order, axis=1)
        needed = np.cumsum(ranked, axis=1) - ranked < coverage  # the classes before it are not enough
        return np.take_along_axis(needed, np.argsort(order, axis=1), axis=1)

    def scores(self, y: Any) -> dict[str, float]:
        """``nll`` of the mean probability, ``nll_members`` (mean of the members' own) and ``accuracy``."""
        y = np.asarray(y)
        return {
            "nll": classification.nll(self._tempered, y),
            "nll_members": classification.nll_members(self.log_probabilities, y),
            "accuracy": float(classification.right(self.probabilities, y).mean()),
        }

    @property
    def _tempered(self) -> Float[np.ndarray, "_ b c"]:
        return classification.tempered(self.log_probabilities, self.temperature)


Prediction = RegressionPrediction | ClassPrediction
