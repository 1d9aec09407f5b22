"""Predictions of an ensemble: the mixture of its members' predictions. Plain NumPy, in float64.

:meth:`stein.likelihoods.Likelihood.predictive` makes one of the two kinds from the members' outputs.
"""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.special import ndtr, ndtri

from stein.metrics import classification, regression, uncertainty

Members = Float[np.ndarray, "n b k"]
Points = Float[np.ndarray, " b"]
Targets = Float[np.ndarray, "b k"]
Classes = Float[np.ndarray, "b c"]


class RegressionPrediction(NamedTuple):
    r"""Each member predicts :math:`N(\mu_i, \sigma_i^2)` for each of b points and k targets; the ensemble predicts
    their mixture.

    >>> both = RegressionPrediction(np.array([[[0.0]], [[2.0]]]), np.ones((2, 1, 1)))
    >>> both.mean.item(), round(both.std.item() ** 2, 6)
    (1.0, 2.0)
    """

    means: Members
    sigmas: Members

    @property
    def mean(self) -> Targets:
        return self.means.mean(axis=0)

    @property
    def std(self) -> Targets:
        """Standard deviation of the mixture: ``std² = aleatoric² + epistemic²``."""
        return np.hypot(self.aleatoric, self.epistemic)

    @property
    def aleatoric(self) -> Targets:
        """Noise of the data: root mean square of the members' sigmas."""
        return np.sqrt(np.square(self.sigmas).mean(axis=0))

    @property
    def epistemic(self) -> Targets:
        """Disagreement of the members: standard deviation of their means. More data could reduce it."""
        return self.means.std(axis=0)

    def quantile(self, level: float) -> Targets:
        """The quantile of the mixture at probability ``level``, by bisection of its distribution function."""
        if not 0 < level < 1:
            raise ValueError(f"level = {level}: must be between 0 and 1")
        members = self.means + ndtri(level) * self.sigmas  # the mixture's quantile lies between its members'
        low, high = members.min(axis=0), members.max(axis=0)
        scale = np.maximum(self.sigmas, np.finfo(float).tiny)
        for _ in range(60):  # bisects to rounding
            middle = 0.5 * (low + high)
            below = ndtr((middle - self.means) / scale).mean(axis=0) < level
            low, high = np.where(below, middle, low), np.where(below, high, middle)
        return 0.5 * (low + high)

    def interval(self, coverage: float) -> tuple[Targets, Targets]:
        """The lower and upper ends of the central interval with probability ``coverage``."""
        if not 0 < coverage < 1:
            raise ValueError(f"coverage = {coverage}: must be between 0 and 1")
        return self.quantile(0.5 - coverage / 2), self.quantile(0.5 + coverage / 2)

    def sample(self, number: int, seed: int = 0) -> Float[np.ndarray, "number b k"]:
        """Draws of the targets. All targets of one draw come from the same member, so they are consistent."""
        random = np.random.default_rng(seed)
        chosen = random.integers(len(self.means), size=(number, self.means.shape[1]))
        points = np.arange(self.means.shape[1])
        means, sigmas = self.means[chosen, points], self.sigmas[chosen, points]
        return means + sigmas * random.normal(size=means.shape)

    def in_units(self, scale: Any, shift: Any) -> "RegressionPrediction":
        """The prediction of ``scale * y + shift``, for standardised targets y."""
        scale = np.asarray(scale, float)
        return RegressionPrediction(self.means * scale + shift, self.sigmas * scale)

    def scores(self, y: Any) -> dict[str, float]:
        """``nll`` of the mixture, ``nll_members`` (mean of the members' own) and ``rmse`` on known targets."""
        y = np.asarray(y, float).reshape(self.means.shape[1:])
        return {
            "nll": regression.nll(self.means, self.sigmas, y),
            "nll_members": regression.nll_members(self.means, self.sigmas, y),
            "rmse": regression.rmse(self.means, y),
        }


class ClassPrediction(NamedTuple):
    """Each member predicts log-probabilities of c classes for each of b points; the ensemble predicts their mean
    probability. ``labels`` are the names of the classes, if any.

    >>> votes = ClassPrediction(np.log([[[0.9, 0.1]], [[0.7, 0.3]]]))
    >>> votes.probabilities.round(6).tolist(), votes.chosen.tolist()
    ([[0.8, 0.2]], [0])
    """

    log_probabilities: Float[np.ndarray, "n b c"]
    labels: tuple[str, ...] = ()

    @property
    def members(self) -> Float[np.ndarray, "n b c"]:
        """Probabilities of each member."""
        return classification.probabilities(self.log_probabilities)

    @property
    def probabilities(self) -> Classes:
        return self.members.mean(axis=0)

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
            "nll": classification.nll(self.log_probabilities, y),
            "nll_members": classification.nll_members(self.log_probabilities, y),
            "accuracy": float(classification.right(self.probabilities, y).mean()),
        }


Prediction = RegressionPrediction | ClassPrediction
