"""The end of a run with a summary: calibration on the validation part, comparison on the test part, summary.md."""

from collections.abc import Callable

import msgspec
import numpy as np

from stein import ensembles, predict
from stein.ensembles import State
from stein.predictions import ClassPrediction, Prediction
from stein.runs import comparison, summary
from stein.runs.build import Parts, in_units
from stein.runs.calibrated import Calibration, applied, calibrate, chosen_rows
from stein.runs.folder import RunFolder
from stein.runs.schema import Config
from stein.runs.signals import StoppedError
from stein.storage import documents


def conclude(
    config: Config,
    folder: RunFolder,
    parts: Parts,
    state: State,
    requests: list[int],
    show: bool,
    say: Callable[[str], None],
) -> tuple[Calibration, dict[str, float]]:
    """Write calibration.json and summary.md of a trained ensemble.

    Returns:
        The calibration, and the scores of the calibrated prediction on the test rows.

    Args:
        requests: signals received so far; any of them ends the comparison, which `stein resume` begins again.
        show: draw a progress bar while the deep ensemble of equal size is trained.
        say: called with a line that announces it.
    """
    loaded, seed = parts.data, config.data.seed
    if loaded.validation is None or loaded.test is None:
        raise ValueError(
            f"{folder}: evaluation.summary: there are no {'validation' if loaded.test else 'test'} rows to summarise"
        )

    chosen = chosen_rows(len(loaded.validation.x), seed)
    held_out = loaded.raw_targets(loaded.validation.y)[chosen]
    rows = loaded.validation.x[chosen], loaded.test.x

    def calibrated(made: Parts, state: State) -> tuple[Calibration, Prediction]:
        """The calibration of an ensemble, and what it then predicts for the test rows."""
        outputs = (predict.in_chunks(made.model, state, x) for x in rows)
        before, prediction = (in_units(loaded)(made.likelihood.predictive(each)) for each in outputs)
        found = calibrate(before, held_out, loaded.units, isinstance(config.likelihood.sigma, float))
        return found, applied(prediction, found.spread, found.temperature)

    calibration, prediction = calibrated(parts, state)
    if isinstance(prediction, ClassPrediction):
        prediction = prediction._replace(labels=loaded.train.labels)
    y = loaded.raw_targets(loaded.test.y)
    members = int(np.asarray(ensembles.members(state)[1]).sum())
    scores = [comparison.score(f"this ensemble, {config.method.name}, {members} members", prediction, y)]
    if config.method.name != "de":
        say(f"for comparison: a deep ensemble of {config.method.particles} members, {config.train.steps} steps")
        scores.append(comparison.deep_ensemble(config, loaded, y, requests, show, lambda *of: calibrated(*of)[1]))
    if requests:
        raise StoppedError(f"stopped after training, before the summary; `stein resume {folder}` goes on", requests[0])
    scores += [comparison.gradient_boosting(loaded, y, seed), comparison.constant(loaded, y)]
    documents.write_json(folder.calibration, msgspec.to_builtins(calibration))
    documents.write_json(folder.comparison, comparison.written(scores))
    title, coverage = folder.path.resolve().name, config.evaluation.coverage
    documents.write_text(folder.summary, summary.text(title, loaded, prediction, y, calibration, scores, coverage))
    return calibration, {f"test_{name}": value for name, value in prediction.scores(y).items()}
