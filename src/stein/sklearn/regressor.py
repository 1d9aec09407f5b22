"""Regression with uncertainty, as a scikit-learn estimator."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.random import RandomState
from sklearn.base import RegressorMixin
from sklearn.utils import Tags, check_random_state
from sklearn.utils.validation import validate_data

from stein.predictions import RegressionPrediction
from stein.sklearn import settings
from stein.sklearn.ensemble import SteinEnsemble, Uncertainty, checked_weights, name_of


class SteinRegressor(RegressorMixin, SteinEnsemble):
    """An ensemble of neural networks for regression: a mean, and how far to trust it.

    Inputs and targets are standardised inside, so units do not matter. Every parameter can stay as it is; ``"auto"``
    follows :mod:`stein.defaults`.

    Args:
        method: how the members interact, one of ``stein methods``: ``"de"`` trains them apart.
        n_particles: number of members.
        hidden: widths of the hidden layers.
        model: your own network instead: a pair ``(init, apply)``, a flax.linen module, a function that makes an
            equinox module from a key, or one that makes a flax.nnx module from ``nnx.Rngs``. It has one output per
            target; with input-dependent noise two, first the means, then the logarithms of the noise.
        steps: training steps; with ``early_stopping`` the most.
        early_stopping: hold out ``validation_fraction`` of the rows, stop when their nll has not improved for ten
            evaluations, and keep the best members.
        batch_size: rows per step, at most all; ``None``: all.
        learning_rate: of Adam at the start; it falls to a hundredth (cosine).
        prior: scale of the normal prior of the weights: their standard deviation times the root of the number of
            inputs of a unit.
        anneal: ``"none"``, ``"linear"``, ``"hyperbolic"`` or ``"cyclical"``: a force that grows during training.
        noise: of the data: ``"learned"``, the same for all rows; ``"input-dependent"``; or a number, its standard
            deviation in the units of the target (of ``"student-t"`` its scale).
        likelihood: ``"gaussian"``, ``"student-t"`` for data with outliers, or ``"poisson"`` for counts.
        calibration: ``"spread"`` holds out ``calibration_fraction`` of the rows, finds on them how wide predictions
            must be and how heavy their tails, and trains again on all rows. ``"conformal"`` holds them out for good:
            :meth:`predict_interval` then has a coverage guarantee. ``"auto"``: ``"spread"``; ``None`` for counts and
            for a noise that is given, which only ``"spread"`` changes.
        unskew: bend skewed inputs, each by its own power (:class:`stein.data.Unskewing`).
        stochastic, repulsion, extra_points: further settings of the method, as in the section ``method`` of a config.
        precision: ``"float32"`` or ``"float64"``.
        random_state: ``None``, a number or a ``RandomState``; with a number the same data give the same estimator.
        verbose: 1 shows a progress bar.
        warm_start: ``fit`` goes on from the members of the last one, in their scales.

    Attributes:
        members_: the members' weights, along the first axis of every leaf.
        history_: ``step`` and ``log_likelihood`` (a mean over rows and members), with early stopping also
            ``validation_nll``.
        config_: all settings, without "auto".
        spread_: the calibrated spread, a :class:`stein.calibration.Spread`: a factor, and perhaps heavier tails.
        conformal_: the conformal calibration, or None.

    >>> from sklearn.datasets import load_diabetes
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = SteinRegressor(n_particles=3, hidden=(8,), steps=100, random_state=0).fit(X[:300], y[:300])
    >>> mean, std = model.predict(X[300:], return_std=True)
    >>> low, high = model.predict_interval(X[300:], coverage=0.9)
    >>> bool(((low < mean) & (mean < high)).all())
    True
    """

    def __init__(
        self,
        method: Any = "auto",
        *,
        n_particles: Any = "auto",
        hidden: Any = "auto",
        model: Any = None,
        steps: Any = "auto",
        early_stopping: Any = False,
        validation_fraction: Any = 0.1,
        batch_size: Any = "auto",
        learning_rate: Any = "auto",
        prior: Any = "auto",
        anneal: Any = "none",
        noise: Any = "auto",
        likelihood: Any = "gaussian",
        calibration: Any = "auto",
        calibration_fraction: Any = 0.15,
        unskew: Any = True,
        stochastic: Any = False,
        repulsion: Any = "auto",
        extra_points: Any = 0,
        precision: Any = "float32",
        random_state: Any = None,
        verbose: Any = 0,
        warm_start: Any = False,
    ):
        self.method = method
        self.n_particles = n_particles
        self.hidden = hidden
        self.model = model
        self.steps = steps
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.prior = prior
        self.anneal = anneal
        self.noise = noise
        self.likelihood = likelihood
        self.calibration = calibration
        self.calibration_fraction = calibration_fraction
        self.unskew = unskew
        self.stochastic = stochastic
        self.repulsion = repulsion
        self.extra_points = extra_points
        self.precision = precision
        self.random_state = random_state
        self.verbose = verbose
        self.warm_start = warm_start

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "SteinRegressor":
        """Train the ensemble.

        Args:
            X: one row per point: an array, or a pandas, polars or Arrow table of numbers.
            y: one target per row, or several columns.
            sample_weight: a row of weight 2 counts as two rows.

        Ctrl-C ends the training with a warning; the estimator keeps what it has learned.
        """
        if self.likelihood not in ("gaussian", "student-t", "poisson"):
            raise ValueError(f"likelihood = {self.likelihood!r}: must be 'gaussian', 'student-t' or 'poisson'")
        if self.calibration not in ("auto", None, "spread", "conformal"):
            raise ValueError(f"calibration = {self.calibration!r}: must be 'auto', None, 'spread' or 'conformal'")
        if self.calibration == "spread" and self.likelihood == "poisson":
            raise ValueError("calibration = 'spread': the spread of counts follows from their rates; must be None")
        target = name_of(y)
        X, y = validate_data(self, X, y, dtype=np.float64, multi_output=True, y_numeric=True)
        weights = checked_weights(sample_weight, X)
        self._flat = y.ndim == 1
        self._fit(X, y.astype(np.float64), weights, (), target)
        return self

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """The mean; with ``return_std`` a pair of the mean and the standard deviation."""
        prediction = self._numbers(X)
        mean = self._shaped(prediction.mean)
        return (mean, self._shaped(prediction.std)) if return_std else mean

    def predict_quantiles(self, X: Any, alpha: float | Sequence[float] = (0.05, 0.5, 0.95)) -> np.ndarray:
        """Quantiles of the prediction at the probabilities ``alpha``; several along the last axis. Not calibrated."""
        prediction = self._numbers(X)
        if np.ndim(alpha) == 0:
            return self._shaped(prediction.quantile(alpha))  # type: ignore[arg-type]
        return np.stack([self._shaped(prediction.quantile(level)) for level in alpha], axis=-1)  # type: ignore[union-attr]

    def predict_interval(self, X: Any, coverage: float = 0.9) -> tuple[np.ndarray, np.ndarray]:
        """The lower and upper ends of intervals that contain each target with probability ``coverage``.

        With ``calibration="conformal"`` at least that many, whatever the networks learned, if the new rows are like
        those of ``fit``; infinite where too few rows were held out. Without, the ensemble's own central interval.
        """
        prediction = self._numbers(X)
        ends = (
            prediction.interval(coverage) if self.conformal_ is None else self.conformal_.interval(prediction, coverage)
        )
        return self._shaped(ends[0]), self._shaped(ends[1])

    def sample_y(self, X: Any, n_samples: int = 1, random_state: int | RandomState | None = 0) -> np.ndarray:
        """Draws of the targets, along the last axis. All targets of a draw come from the same member."""
        seed = int(check_random_state(random_state).randint(2**31 - 1))
        return np.moveaxis(self._numbers(X).sample(n_samples, seed), 0, -1)[(slice(None), 0) if self._flat else ...]

    def uncertainty(self, X: Any) -> Uncertainty:
        """Total, aleatoric and epistemic uncertainty and disagreement of each row (:class:`Uncertainty`)."""
        found = self._numbers(X)
        spread = np.ptp(found.means, axis=0)
        return Uncertainty(*map(self._shaped, (found.std, found.aleatoric, found.epistemic, spread)))

    def _kind_of_calibration(self) -> str | None:
        if self.calibration == "auto":
            return None if self.likelihood == "poisson" or settings.is_number(self.noise) else "spread"
        return self.calibration

    def _numbers(self, X: Any) -> RegressionPrediction:
        prediction: Any = self.prediction(X)
        return prediction

    def _shaped(self, values: np.ndarray) -> np.ndarray:
        return values[:, 0] if self._flat else values

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags
