"""Metrics of a trained ensemble on labelled data, as one flat dict of numbers."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from stein import ensembles, inputs, metrics, predict, targets
from stein.data import corruptions
from stein.ensembles import State
from stein.inputs import shaped
from stein.likelihoods import Likelihood
from stein.metrics.classification import Labels, Probabilities
from stein.metrics.regression import Members, Targets
from stein.predictions import NORMAL, Family, Prediction, RegressionPrediction
from stein.types import Model, Particles

Others = Float[np.ndarray, "_ _ _"]
"""Probabilities or their logarithms, at out-of-distribution points."""
POOLED = 10_000
"""Largest number of points on a calibration curve, which takes as many of the most certain points as there are test
points; also the largest number of out-of-distribution points in it."""
CURVE_POINTS = 500
INTERVALS = (0.5, 0.9, 0.95)


def held_out(
    model: Model,
    likelihood: Likelihood,
    x: Any,
    y: Any,
    in_units: Callable[[Prediction], Prediction] = lambda prediction: prediction,
) -> Callable[[State | Particles], dict[str, float]]:
    """An evaluation on held-out data.

    Args:
        in_units: converts the likelihood's predictions to the units of ``y``, if targets are standardised.

    Returns:
        A function of a state, or of living particles (:func:`stein.predict.living`), that returns ``test_nll`` of the
        ensemble, ``test_nll_members`` (the mean over members), and ``test_accuracy`` or ``test_rmse``. All are NaN if
        a living member's outputs are not finite.
    """
    targets.check_data(model, likelihood, x, y)
    x, y = inputs.array("x", x), inputs.array("y", y)

    def judge(members: State | Particles) -> dict[str, float]:
        particles: Particles = members
        alive: Any = slice(None)
        if isinstance(members, State):
            particles, alive = ensembles.members(members)
            alive = np.asarray(alive)
        # The living are chosen by their outputs, which are small: members may be spread over devices.
        outputs = predict.in_chunks(model, particles, x, all_members=True)[alive]
        finite = bool(np.isfinite(outputs).all())
        scores = in_units(likelihood.predictive(outputs if finite else np.zeros_like(outputs))).scores(y)
        return {f"test_{name}": value if finite else math.nan for name, value in scores.items()}

    return judge


# -- classification -----------------------------------------------------------------------------------------


@shaped
def classification(
    log_probabilities: Probabilities, y: Labels, outside: Mapping[str, Any] | None = None, temperature: float = 1.0
) -> dict[str, float]:
    """All metrics of a classifier; docs/evaluation.md defines them.

    Args:
        log_probabilities: of every member at the test points, as in :class:`stein.predictions.ClassPrediction`. In
            float32 the probability of a confident mistake is zero, its logarithm is not.
        y: the classes of the test points.
        outside: the same at out-of-distribution points, by name. Metrics of the first set have plain names
            (``auroc_h``); with several sets, those of each set also have its name as a prefix: ``svhn_auroc_h``.
        temperature: of the ensemble's probabilities; numbers about the members do not change.
    """
    answers, others = _answers(log_probabilities, y, outside, temperature)
    probabilities, mean = answers
    ensemble = metrics.classification.tempered(log_probabilities, temperature)
    right = metrics.classification.right(mean, y)
    members = metrics.classification.accuracy_of_members(probabilities, y)
    found = {
        "accuracy": float(right.mean()),
        "nll": metrics.classification.nll(ensemble, y),
        "nll_paper": metrics.classification.nll_paper(ensemble, y),
        "nll_members": metrics.classification.nll_members(log_probabilities, y),
        "brier": metrics.classification.brier(mean, y),
        "ece": metrics.calibration.ece(mean.max(axis=1), right),
        "member_accuracy": float(members.mean()),
        "member_accuracy_min": float(members.min()),
        "member_disagreement": metrics.classification.pairwise_disagreement(probabilities),
        "entropy": float(metrics.uncertainty.entropy(mean).mean()),
        "model_disagreement": float(metrics.uncertainty.disagreement(probabilities).mean()),
        "mutual_information": float(metrics.uncertainty.mutual_information(probabilities).mean()),
    }
    if not others:
        return found | _ranking(answers, right, None)
    sets = {name: _detection(answers, other) | _ranking(answers, right, other) for name, other in others.items()}
    found |= next(iter(sets.values()))
    if len(sets) > 1:
        found |= {f"{name}_{key}": value for name, own in sets.items() for key, value in own.items()}
    return found


@shaped
def classification_curves(
    log_probabilities: Probabilities, y: Labels, outside: Mapping[str, Any] | None = None, temperature: float = 1.0
) -> dict[str, Any]:
    """The data of the figures, as lists.

    These are the bins of the reliability diagram and, for each out-of-distribution set (or for ``test`` alone), the
    calibration curves: by entropy (``accuracy``), by model disagreement (``accuracy_md``) and of a perfect ranking,
    thinned to at most 500 points. The arguments are those of :func:`classification`.
    """
    answers, others = _answers(log_probabilities, y, outside, temperature)
    right = metrics.classification.right(answers.mean, y)
    bins = metrics.calibration.reliability(answers.mean.max(axis=1), right)
    curves: dict[str, Any] = {}
    for name, other in others.items() or [("test", None)]:
        found = _curves(answers, right, other)
        shown = np.unique(np.linspace(0, len(found.perfect) - 1, CURVE_POINTS).round().astype(int))
        curves[name] = {
            "points": (shown + 1).tolist(),
            "accuracy": found.by_entropy[shown].tolist(),
            "accuracy_md": found.by_disagreement[shown].tolist(),
            "perfect": found.perfect[shown].tolist(),
            "test_points": len(y),
            "outside_points": found.outside_points,
        }
    return {"reliability": {key: value.tolist() for key, value in bins._asdict().items()}, "calibration": curves}


@shaped
def corruption(
    predict: Callable[[np.ndarray], Probabilities],
    images: corruptions.Images,
    y: Labels,
    sigmas: Sequence[float] = corruptions.SIGMAS,
) -> list[dict[str, float]]:
    """Accuracy, ECE and NLL on blurred images, and AUROC of entropy against clean ones: one row per sigma.

    Args:
        predict: from images to the members' log-probabilities.
        images: clean images (rows, height, width, channels), not standardised.
    """
    clean = metrics.uncertainty.entropy(_mean(predict(images)))
    rows = []
    for sigma in sigmas:
        logs = predict(corruptions.gaussian_blur(images, sigma))
        mean = _mean(logs)
        right = metrics.classification.right(mean, y)
        rows.append(
            {
                "sigma": float(sigma),
                "accuracy": float(right.mean()),
                "ece": metrics.calibration.ece(mean.max(axis=1), right),
                "nll": metrics.classification.nll(logs, y),
                "auroc_h": metrics.ood.auroc(metrics.uncertainty.entropy(mean), clean),
            }
        )
    return rows


class _Answers(NamedTuple):
    """Probabilities of the members at some points, and those of the ensemble."""

    members: Others
    mean: np.ndarray


def _detection(inside: _Answers, outside: _Answers) -> dict[str, float]:
    """How well each uncertainty separates the two sets, and how much larger it is outside."""
    of_members = {
        "md": metrics.uncertainty.disagreement,
        "md_rms": metrics.uncertainty.rms_disagreement,
        "mi": metrics.uncertainty.mutual_information,
    }
    by = {"h": (metrics.uncertainty.entropy(outside.mean), metrics.uncertainty.entropy(inside.mean))}
    by |= {key: (score(outside.members), score(inside.members)) for key, score in of_members.items()}
    found: dict[str, float] = {}
    for key, pair in by.items():
        found |= {
            f"auroc_{key}": metrics.ood.auroc(*pair),
            f"aupr_{key}": metrics.ood.aupr(*pair),
            f"fpr95_{key}": metrics.ood.fpr95(*pair),
            f"{key}_ratio": metrics.ood.ratio(*pair),
        }
    return found


class _Curves(NamedTuple):
    by_entropy: np.ndarray
    by_disagreement: np.ndarray
    perfect: np.ndarray
    outside_points: int


def _curves(answers: _Answers, right: np.ndarray, other: _Answers | None) -> _Curves:
    """The calibration curves, that of a perfect ranking, and the number of out-of-distribution points in them."""
    most, parts = min(len(right), POOLED), [answers]
    if other is not None:
        parts.append(_Answers(other.members[:, :POOLED], other.mean[:POOLED]))
    points = sum(len(part.mean) for part in parts[1:])
    is_right = np.concatenate([right, np.zeros(points, bool)])

    def curve(scores: list[np.ndarray]) -> np.ndarray:
        return metrics.calibration.curve(np.concatenate(scores), is_right, most)

    by_entropy = curve([metrics.uncertainty.entropy(part.mean) for part in parts])
    by_disagreement = curve([metrics.uncertainty.disagreement(part.members) for part in parts])
    return _Curves(by_entropy, by_disagreement, metrics.calibration.perfect(int(right.sum()), most), points)


def _ranking(answers: _Answers, right: np.ndarray, other: _Answers | None) -> dict[str, float]:
    found = _curves(answers, right, other)
    curves = {"": found.by_entropy, "_md": found.by_disagreement}
    return {
        **{f"calibration{by}_area": metrics.calibration.area(curve) for by, curve in curves.items()},
        "calibration_area_perfect": metrics.calibration.area(found.perfect),
        **{f"calibration{by}_coverage97": float(metrics.calibration.coverage(curve)) for by, curve in curves.items()},
        "calibration_coverage97_perfect": float(metrics.calibration.coverage(found.perfect)),
        **{
            f"calibration{by}_rises": metrics.calibration.rises(curve, max(1, len(curve) // 100))
            for by, curve in curves.items()
        },
        "calibration_outside_points": float(found.outside_points),
    }


def _mean(log_probabilities: Others) -> np.ndarray:
    return metrics.classification.probabilities(log_probabilities).mean(axis=0)


def _answers(
    log_probabilities: Probabilities, y: Labels, outside: Mapping[str, Any] | None, temperature: float
) -> tuple[_Answers, dict[str, _Answers]]:
    """Checked probabilities at the test points and outside."""
    n, points, classes = log_probabilities.shape
    if not points:
        raise ValueError(f"log_probabilities has shape {log_probabilities.shape}: there is no point to judge")
    found = {}
    for name, given in {"log_probabilities": log_probabilities, **(outside or {})}.items():
        logs = inputs.array(name, given)
        if logs.ndim != 3 or (len(logs), logs.shape[2]) != (n, classes):
            raise ValueError(
                f"{name} is {logs.shape}: must have {n} members and {classes} classes, as the test points have"
            )
        members = metrics.classification.probabilities(logs, name)
        found[name] = _Answers(members, members.mean(axis=0))
        if temperature != 1:
            found[name] = _Answers(members, _mean(metrics.classification.tempered(logs, temperature)))
    return found.pop("log_probabilities"), found


# -- regression ---------------------------------------------------------------------------------------------


@shaped
def regression(means: Members, sigmas: Members, y: Targets, family: Family = NORMAL) -> dict[str, float]:
    """RMSE, negative log-likelihoods, CRPS and interval coverage of the mixture (``coverage_90`` should be 0.9).

    Args:
        family: of the members' distributions.
    """
    levels = _levels(means, sigmas, y, family)
    prediction = RegressionPrediction(means, sigmas, family)
    return (
        prediction.scores(y)
        | {"crps": prediction.crps(y)}
        | {f"coverage_{round(100 * wanted)}": metrics.regression.coverage(levels, wanted) for wanted in INTERVALS}
    )


@shaped
def regression_curves(means: Members, sigmas: Members, y: Targets, family: Family = NORMAL) -> dict[str, Any]:
    """For central intervals of 5 % to 95 %: the expected and the actual fraction of targets inside."""
    wanted = [percent / 100 for percent in range(5, 100, 5)]
    levels = _levels(means, sigmas, y, family)
    return {"coverage": {"wanted": wanted, "found": [metrics.regression.coverage(levels, share) for share in wanted]}}


def _levels(means: Members, sigmas: Members, y: Targets, family: Family) -> Targets:
    normal = metrics.regression.levels(means, sigmas, y)  # also checks the numbers
    return normal if family is NORMAL else RegressionPrediction(means, sigmas, family).levels(y)
