"""A run beside other models on the same rows: a constant, a deep ensemble of equal size, gradient boosting."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import msgspec
import numpy as np

from stein import hooks, train
from stein.ensembles import State
from stein.metrics import classification, regression
from stein.predictions import ClassPrediction, Prediction
from stein.runs.build import Parts, parts
from stein.runs.dataset import Loaded
from stein.runs.schema import Config, Method

MANY_NUMBERS = 10**6


class Score(NamedTuple):
    """How good a model is on the test rows: error of each row (squared, or 1 if the class is wrong), and NLL.

    ``remark`` says why there are no numbers, if there are none.
    """

    name: str
    errors: np.ndarray
    nll: float
    remark: str = ""

    @property
    def error(self) -> float:
        """Root mean square error, or share of wrong classes."""
        mean = float(self.errors.mean())
        return mean if self.errors.dtype == bool else mean**0.5


def score(name: str, prediction: Prediction, y: np.ndarray) -> Score:
    """The score of a prediction for the test rows, whose targets are ``y`` in their units."""
    nll = prediction.scores(y)["nll"]
    if isinstance(prediction, ClassPrediction):
        return Score(name, prediction.chosen != y, nll)
    return Score(name, np.square(prediction.mean - y.reshape(prediction.mean.shape)).mean(axis=1), nll)


def written(scores: Sequence[Score]) -> dict[str, Any]:
    """The content of comparison.json."""
    rows = [
        {"name": each.name, "error": each.error, "nll": each.nll}
        if not each.remark
        else {"name": each.name, "error": None, "nll": None, "remark": each.remark}
        for each in scores
    ]
    finite = [{k: None if v != v or v in (np.inf, -np.inf) else v for k, v in row.items()} for row in rows]
    return {"measure": "share of wrong classes" if scores[0].errors.dtype == bool else "RMSE", "scores": finite}


def constant(loaded: Loaded, y: np.ndarray) -> Score:
    """Always the mean of the training targets with their standard deviation, or the shares of the classes."""
    known = loaded.raw_targets(loaded.train.y)
    if loaded.kind == "categorical":
        shares = np.bincount(known, minlength=loaded.classes) / len(known)
        return _of_classes("always the most frequent class", np.tile(shares, (len(y), 1)), y)
    known = known.reshape(len(known), -1).astype(float)
    return _of_numbers("always the mean", np.tile(known.mean(axis=0), (len(y), 1)), known.std(axis=0), y)


def deep_ensemble(
    config: Config,
    loaded: Loaded,
    y: np.ndarray,
    requests: list[int],
    show: bool,
    calibrated: Callable[[Parts, State], Prediction],
) -> Score:
    """As many members, trained apart for as many steps with the same settings; stops early at a request.

    Args:
        calibrated: predicts the test rows, with a calibration on the same rows as that of the run itself.
    """
    section, steps = config.method, config.train.steps
    rival = msgspec.structs.replace(
        config, method=Method("de", particles=section.particles, start=section.start, temperature=section.temperature)
    )
    name = f"deep ensemble, {section.particles} members trained apart"
    made = parts(rival, loaded)
    state = train.begin(made.algorithm, jax.random.key(config.train.seed), section.particles)
    with hooks.progress(show) as bar:
        called: list[train.Hook] = [hooks.members(), bar, lambda moment: bool(requests)]
        try:
            state, _ = train.run(
                made.algorithm, state, made.batches, steps,
                chunk=config.train.log_every, hooks=called, min_alive=config.train.min_alive,
            )  # fmt: skip
        except RuntimeError as error:  # its members died: no reason to fail the run itself
            return Score(name, np.empty(0), np.nan, str(error))
    return score(name, calibrated(made, state), y)


def gradient_boosting(loaded: Loaded, y: np.ndarray, seed: int) -> Score:
    """scikit-learn's HistGradientBoosting with its defaults; of numbers, the noise is its error on validation rows."""
    name = "gradient boosting (scikit-learn)"
    try:
        from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
        from threadpoolctl import threadpool_limits
    except ImportError:
        return Score(name, np.empty(0), np.nan, "needs scikit-learn: pip install '.[sklearn]' in the checkout")
    assert loaded.test is not None  # noqa: S101
    assert loaded.validation is not None  # noqa: S101
    known, checked = (loaded.raw_targets(part.y) for part in (loaded.train, loaded.validation))
    # On small tables its threads wait for each other most of the time, above all on a busy machine.
    threads = 1 if loaded.train.x.size < MANY_NUMBERS else None
    try:
        with threadpool_limits(threads, user_api="openmp"):
            if loaded.kind == "categorical":
                model = HistGradientBoostingClassifier(random_state=seed).fit(loaded.train.x, known)
                p = np.zeros((len(y), loaded.classes))
                p[:, model.classes_] = model.predict_proba(loaded.test.x)
                return _of_classes(name, p, y)
            means, sigmas = [], []
            for target, held_out in zip(
                known.reshape(len(known), -1).T, checked.reshape(len(checked), -1).T, strict=True
            ):
                model = HistGradientBoostingRegressor(random_state=seed).fit(loaded.train.x, target)
                means.append(model.predict(loaded.test.x))
                sigmas.append(np.sqrt(np.mean((model.predict(loaded.validation.x) - held_out) ** 2)))
    except ValueError as error:  # such as a class with too few rows for its own validation
        return Score(name, np.empty(0), np.nan, " ".join(str(error).split()))
    return _of_numbers(name, np.stack(means, axis=1), np.array(sigmas), y)


def _of_classes(name: str, p: np.ndarray, y: np.ndarray) -> Score:
    with np.errstate(divide="ignore"):
        return Score(name, p.argmax(axis=1) != y, classification.nll(np.log(p)[None], y))


def _of_numbers(name: str, means: np.ndarray, sigmas: np.ndarray, y: np.ndarray) -> Score:
    y = y.reshape(means.shape).astype(float)
    nll = regression.nll(means[None], np.broadcast_to(sigmas, means.shape)[None], y)
    return Score(name, np.square(means - y).mean(axis=1), nll)
