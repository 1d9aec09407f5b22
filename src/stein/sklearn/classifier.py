"""Classification with uncertainty, as a scikit-learn estimator."""

from typing import Any

import numpy as np
from numpy.random import RandomState
from sklearn.base import ClassifierMixin
from sklearn.utils import check_random_state, column_or_1d, compute_sample_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import validate_data

from stein.predictions import ClassPrediction
from stein.sklearn.ensemble import SteinEnsemble, Uncertainty, checked_weights, name_of


class SteinClassifier(ClassifierMixin, SteinEnsemble):
    """An ensemble of neural networks for classes: probabilities, and how far to trust them.

    The parameters are those of :class:`~stein.sklearn.SteinRegressor` without noise and likelihood, and with:

    Args:
        model: your own network has one output per class.
        class_weight: ``None``, ``"balanced"`` (rare classes count more), or a dict from class to weight; multiplies
            ``sample_weight``.
        calibration: ``"temperature"`` (``"auto"``) holds out ``calibration_fraction`` of the rows, finds on them how
            much surer or less sure :meth:`predict_proba` must be, and trains again on all rows. ``"conformal"`` holds
            them out for good: the sets of :meth:`predict_set` then have a coverage guarantee.

    Attributes:
        classes_: the classes, of any type, sorted.
        temperature_: above 1 if the ensemble was too sure; None if it was not calibrated.
        members_, history_, config_, conformal_: as of :class:`~stein.sklearn.SteinRegressor`.

    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> model = SteinClassifier(n_particles=3, hidden=(8,), steps=100, random_state=0).fit(X, y)
    >>> bool(model.score(X, y) > 0.9)
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
        class_weight: Any = None,
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
        self.class_weight = class_weight
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

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "SteinClassifier":
        """Train the ensemble; as :meth:`SteinRegressor.fit`, but ``y`` holds one class per row, of any type."""
        if self.calibration not in ("auto", None, "conformal", "temperature"):
            raise ValueError(f"calibration = {self.calibration!r}: must be 'auto', None, 'conformal' or 'temperature'")
        target = name_of(y)
        X, y = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(y)
        y = column_or_1d(y, warn=True)
        weights = checked_weights(sample_weight, X)
        if weights is not None:
            X, y, weights = X[weights > 0], y[weights > 0], weights[weights > 0]
        classes, numbers = np.unique(y, return_inverse=True)
        if len(classes) < 2:
            raise ValueError(f"y has one class, {classes[0]!r}: a classifier needs at least two classes")
        if self.class_weight is not None:
            of_class = compute_sample_weight(self.class_weight, y)
            weights = of_class if weights is None else weights * of_class
        self._fit(X, numbers, weights, tuple(map(str, classes)), target)
        self.classes_ = classes
        return self

    def predict(self, X: Any) -> np.ndarray:
        """The most probable class."""
        chosen = self.predict_proba(X).argmax(axis=1)
        return self.classes_[chosen]

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities of the classes, in the order of ``classes_``, at ``temperature_``."""
        return self._classes(X).probabilities

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Logarithms of :meth:`predict_proba`."""
        with np.errstate(divide="ignore"):
            return np.log(self.predict_proba(X))

    def predict_set(self, X: Any, coverage: float = 0.9) -> np.ndarray:
        """For each row, which classes are in a set that contains the right one with probability ``coverage``.

        With ``calibration="conformal"`` at least that often, whatever the networks learned, if the new rows are like
        those of ``fit``. Without, the most probable classes whose probabilities add up to ``coverage``.
        """
        prediction = self._classes(X)
        return prediction.sets(coverage) if self.conformal_ is None else self.conformal_.sets(prediction, coverage)

    def sample_y(self, X: Any, n_samples: int = 1, random_state: int | RandomState | None = 0) -> np.ndarray:
        """Draws of the class of each row, along the last axis."""
        levels = check_random_state(random_state).random_sample((len(X), n_samples, 1))
        below = self.predict_proba(X).cumsum(axis=1)[:, None, :-1] < levels
        return self.classes_[below.sum(axis=2)]

    def uncertainty(self, X: Any) -> Uncertainty:
        """Total, aleatoric and epistemic uncertainty and disagreement of each row (:class:`Uncertainty`)."""
        found = self._classes(X)
        total, epistemic = found.entropy, found.mutual_information
        return Uncertainty(total, np.maximum(total - epistemic, 0), epistemic, found.disagreement)

    def _kind_of_calibration(self) -> str | None:
        return "temperature" if self.calibration == "auto" else self.calibration

    def _classes(self, X: Any) -> ClassPrediction:
        prediction: Any = self.prediction(X)
        return prediction
