"""The calibration of a run on its validation part: conformal scores, and which epistemic uncertainty is unusual."""

from typing import Annotated

import msgspec
import numpy as np

from stein import calibration
from stein.data import Standardiser
from stein.predictions import ClassPrediction, Prediction

UNUSUAL = 0.99
"""A row is unusual if its epistemic score is above this quantile of those of the validation rows."""
MOST_ROWS = 5000  # more add nothing to a threshold, and an export has a header of limited size


Temperature = Annotated[float, msgspec.Meta(gt=0)]


class Calibration(msgspec.Struct, frozen=True):
    """Sorted conformal scores of validation rows, one list per target, and the threshold of unusual rows.

    ``rows`` is the number of validation rows that were used; no data are kept. ``width`` and ``degrees`` are the
    calibrated spread of predicted numbers (:class:`stein.calibration.Spread`), ``temperature`` is that of classes;
    scores and threshold are of predictions calibrated by them.
    """

    rows: int
    scores: list[list[float]]
    unusual: float
    width: float = 1.0
    degrees: float | None = None
    temperature: Temperature = 1.0

    @property
    def spread(self) -> calibration.Spread:
        return calibration.Spread(self.width, self.degrees)

    @property
    def conformal(self) -> calibration.Conformal:
        return calibration.Conformal(np.array(self.scores).T)


def calibrate(
    prediction: Prediction, y: np.ndarray, units: Standardiser | None, keep_noise: bool = False
) -> Calibration:
    """The calibration from predictions for validation rows and their targets ``y``, both in the units of the data.

    Args:
        keep_noise: leave the spread as it is, because the noise was given.
    """
    spread, temperature = correction(prediction, y, keep_noise)
    prediction = applied(prediction, spread, temperature)
    conformal = calibration.conformal(prediction, y)
    threshold = float(np.quantile(epistemic_score(prediction, units), UNUSUAL, method="higher"))
    return Calibration(len(y), conformal.scores.T.tolist(), threshold, *spread, temperature or 1.0)


def correction(prediction: Prediction, y: np.ndarray, keep_noise: bool) -> tuple[calibration.Spread, float | None]:
    """What held-out rows say about a prediction: the spread of numbers, or the temperature of classes (else None).

    Args:
        keep_noise: leave the spread as it is, because the noise was given.
    """
    if isinstance(prediction, ClassPrediction):
        return calibration.UNCHANGED, calibration.temperature(prediction, y)
    if prediction.family.counts or keep_noise:
        return calibration.UNCHANGED, None
    return calibration.spread(prediction, y), None


def applied(prediction: Prediction, spread: calibration.Spread, temperature: float | None) -> Prediction:
    """A calibrated prediction: of numbers by the spread, of classes by the temperature."""
    if isinstance(prediction, ClassPrediction):
        return calibration.tempered(prediction, temperature or 1.0)
    return spread(prediction)


def chosen_rows(rows: int, seed: int) -> np.ndarray:
    """The validation rows to calibrate on: all of them, or a random part."""
    return np.sort(np.random.default_rng([seed, 2]).permutation(rows)[:MOST_ROWS])


def epistemic_score(prediction: Prediction, units: Standardiser | None) -> np.ndarray:
    """One number per row for what more data could teach: mutual information of classes; for numbers the epistemic
    standard deviation, averaged over targets in units of their spread in training."""
    if isinstance(prediction, ClassPrediction):
        return prediction.mutual_information
    return (prediction.epistemic / (1.0 if units is None else units.scale)).mean(axis=1)
