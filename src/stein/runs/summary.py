"""What a run learned, in plain words: how good, how calibrated, which rows are least certain."""

import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np

from stein import metrics
from stein.predictions import ClassPrediction, Prediction
from stein.runs.calibrated import Calibration, epistemic_score
from stein.runs.comparison import Score
from stein.runs.dataset import Loaded

LEAST_CERTAIN = 5
WIDTH = 100
FAR = 2.5  # standard deviations from the mean of training that are worth a word


def text(
    title: str,
    loaded: Loaded,
    prediction: Prediction,
    y: np.ndarray,
    calibration: Calibration,
    scores: Sequence[Score],
    coverage: float = 0.9,
) -> str:
    """The text of summary.md.

    Args:
        prediction, y: for the test rows, in the units of the data.
        scores: of the ensemble itself, and of others.
        coverage: of the intervals or sets that `stein predict` writes.
    """
    held_out = f"{calibration.rows} for calibration, {len(y)} for this test"
    parts = [
        f"# {title}: what the ensemble learned about {loaded.target!r}",
        f"{len(loaded.train.x)} rows for training, {held_out}; {len(loaded.inputs)} columns, "
        f"{int(np.prod(loaded.train.x.shape[1:]))} inputs.",
        "## How good",
        *_how_good(scores),
        "## How calibrated",
        *_how_calibrated(prediction, y, calibration, coverage),
        "## Which rows are least certain",
        *_least_certain(loaded, prediction),
    ]
    wrapped = (part if part.startswith(("|", "#")) else "\n".join(textwrap.wrap(part, WIDTH)) for part in parts)
    return "\n\n".join(wrapped) + "\n"


# -- how good -----------------------------------------------------------------------------------------------


def _how_good(scores: Sequence[Score]) -> list[str]:
    own, *others = scores
    is_classes = own.errors.dtype == bool
    rows = [("", "accuracy" if is_classes else "error (RMSE)", "NLL")]
    for score in scores:
        shown = 1 - score.error if is_classes else score.error
        rows.append((score.name, "-", "-") if score.remark else (score.name, _number(shown), f"{score.nll:.4g}"))
    sentences = [_against(own, other) for other in others]
    note = "NLL, the negative log-likelihood, scores the prediction with its uncertainty; lower is better."
    return [_table(rows), " ".join([*sentences, note])]


def _against(own: Score, other: Score) -> str:
    """One sentence. A difference counts if that of the absolute errors is above two standard errors, row by row, and
    the overall error agrees. (A few large squares would hide any difference.)"""
    name = other.name.partition(",")[0]
    if other.remark:
        return f"{name[0].upper()}{name[1:]} is not compared: {other.remark.rstrip('.')}."
    difference = np.sqrt(own.errors.astype(float)) - np.sqrt(other.errors.astype(float))
    error = difference.std(ddof=1) / np.sqrt(len(difference)) if len(difference) > 1 else np.inf
    simple = other.name.startswith("always")
    name = "predicting " + other.name.removeprefix("always ") if simple else name.partition(" (")[0]
    name = f"the {name}" if name.startswith("deep") else name
    if abs(difference.mean()) <= 2 * error or (own.error - other.error) * difference.mean() < 0:
        if simple:
            return f"The ensemble is no better than {name}, as far as {len(difference)} test rows can tell."
        return f"No difference from {name} can be seen on {len(difference)} test rows."
    change = abs(own.error / other.error - 1) if other.error else 0.0
    share = ""
    if own.errors.dtype == bool:
        share = f" (wrong in {own.error:.1%} of the rows, against {other.error:.1%})"
    elif change < 10:
        share = f" (its error is {change:.0%} {'lower' if difference.mean() < 0 else 'higher'})"
    better = "better" if difference.mean() < 0 else "worse"
    return f"The ensemble is {better} than {name}{share}."


# -- how calibrated -----------------------------------------------------------------------------------------


def _how_calibrated(prediction: Prediction, y: np.ndarray, calibration: Calibration, coverage: float) -> list[str]:
    if isinstance(prediction, ClassPrediction):
        return _classes_calibrated(prediction, y, calibration, coverage)
    coverages = sorted({0.5, coverage})
    conformal, y = calibration.conformal, y.reshape(prediction.mean.shape)
    rows = [("intervals", *(f"of {coverage:.0%}" for coverage in coverages))]
    kinds: dict[str, Any] = {"the ensemble's own": prediction.interval}
    if np.isfinite(conformal.threshold(max(coverages))).all():
        kinds["conformal"] = lambda coverage: conformal.interval(prediction, coverage)
    deviations: list[float] = []  # of the intervals that are written, in standard errors
    for name, interval in kinds.items():
        shares, deviations = [], []
        for wanted in coverages:
            low, high = interval(wanted)
            inside = float(((low <= y) & (y <= high)).mean())
            error = _binomial(wanted, len(y), calibration.rows if name == "conformal" else 0)
            shares.append(f"{inside:.0%} of the test rows inside (should be {wanted:.0%} ± {error:.0%})")
            deviations.append((inside - wanted) / error)
        rows.append((name, *shares))
    which = "conformal" if "conformal" in kinds else "the ensemble's own"
    reason = (
        f"they are widened or narrowed by the errors on the {calibration.rows} calibration rows"
        if "conformal" in kinds
        else f"{calibration.rows} calibration rows are too few for conformal ones"
    )
    return [_table(rows), f"`stein predict` writes intervals that are {which}: {reason}. {_verdict(deviations)}"]


def _classes_calibrated(
    prediction: ClassPrediction, y: np.ndarray, calibration: Calibration, coverage: float
) -> list[str]:
    confidence, right = prediction.probabilities.max(axis=1), prediction.chosen == y
    ece = metrics.calibration.ece(confidence, right)
    # On few rows a perfect classifier has an ECE too: as if each row were right with its own confidence.
    chance = np.random.default_rng(0).random((200, len(y))) < confidence
    perfect = float(np.mean([metrics.calibration.ece(confidence, drawn) for drawn in chance]))
    verdict = "as far as can be seen, calibrated" if ece < 1.5 * perfect else "not well calibrated"
    sentences = [
        f"Mean confidence {confidence.mean():.1%}, right in {right.mean():.1%} of the test rows. The expected "
        f"calibration error is {ece:.3f}; a perfectly calibrated classifier would have about {perfect:.3f} on {len(y)} "
        f"rows: {verdict}."
    ]
    conformal = calibration.conformal
    if np.isfinite(conformal.threshold(coverage)).all():
        sets = conformal.sets(prediction, coverage)
        inside = float(sets[np.arange(len(y)), y].mean())
        error = _binomial(coverage, len(y), calibration.rows)
        size = f"{sets.sum(axis=1).mean():.2g}"
        sentences.append(
            f"The {coverage:.0%} sets of classes hold the right one in {inside:.0%} of the test rows (should be at "
            f"least {coverage:.0%} ± {error:.0%}), with {size} class{'' if size == '1' else 'es'} on average."
        )
    return [" ".join(sentences)]


def _binomial(coverage: float, rows: int, calibration_rows: int) -> float:
    """Standard error of a share of test rows; of a conformal one also by the number of calibration rows."""
    variance = coverage * (1 - coverage)
    return float(np.sqrt(variance / rows + (variance / (calibration_rows + 2) if calibration_rows else 0)))


def _verdict(deviations: Sequence[float]) -> str:
    worst = max(deviations, key=abs)
    if abs(worst) <= 2:
        return "On these rows they hold what they promise."
    return f"On these rows they are too {'narrow: do not rely on them' if worst < 0 else 'wide'}."


# -- least certain ------------------------------------------------------------------------------------------


def _least_certain(loaded: Loaded, prediction: Prediction) -> list[str]:
    score = epistemic_score(prediction, loaded.units)
    rows = [("row", "prediction", "epistemic", "why")]
    for row in np.argsort(-score, kind="stable")[:LEAST_CERTAIN].tolist():
        if isinstance(prediction, ClassPrediction):
            said = f"{prediction.named[row]} ({prediction.probabilities[row].max():.0%})"
            part = f"{score[row]:.2g}"
        else:
            said = ", ".join(map(_number, prediction.mean[row]))
            part = ", ".join(f"± {_number(value, 2)}" for value in prediction.epistemic[row])
        name = loaded.test_rows.names[row] if loaded.test_rows else f"test row {row + 1}"
        rows.append((name, said, part, _why(loaded, row)))
    return [
        _table(rows),
        "Epistemic is the part of the uncertainty that more data like these rows could reduce: the members disagree.",
    ]


def _why(loaded: Loaded, row: int) -> str:
    """What is unusual about a test row: beyond the training data, or far from their mean."""
    notes = loaded.test_rows.notes[row] if loaded.test_rows else ""
    if notes or loaded.standardiser is None or loaded.recipe is None or loaded.test is None:
        return notes or "no single column stands out"
    raw = loaded.standardiser.undo(loaded.test.x[row].astype(float))
    x = (raw - loaded.standardiser.mean) / loaded.standardiser.scale
    far = [i for i in np.argsort(-np.abs(x), kind="stable").tolist() if abs(x[i]) > FAR][:2]
    features, words = loaded.recipe.features, []
    for i in far:
        column, part = features[i]
        if part.startswith(("=", "is missing")):
            share = loaded.standardiser.mean[i] if raw[i] > 0.5 else 1 - loaded.standardiser.mean[i]
            words.append(f"{column} {part if raw[i] > 0.5 else 'not ' + part}: so are {share:.1%} of the training rows")
        else:
            words.append(
                f"{column} {part + ' ' if part else ''}{_number(raw[i])}: {abs(x[i]):.1f} standard deviations off"
            )
    return "; ".join(words) or "no single column stands out"


def _number(value: float, digits: int = 4) -> str:
    """A number with some significant digits, without an exponent if it is of a usual size."""
    if value == 0 or not 1e-3 <= abs(value) < 1e9:
        return f"{value:.{digits}g}"
    rounded = float(f"{value:.{digits}g}")
    return f"{rounded:,.0f}" if abs(rounded) >= 10 ** (digits - 1) else f"{rounded:.{digits}g}"


def _table(rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table that is also readable as plain text."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["| " + " | ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) + " |" for row in rows]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)
