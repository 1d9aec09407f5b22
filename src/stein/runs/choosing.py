"""The prior of a table's network, chosen on rows that are held out of the training rows.

One prior for all tables underfits some, and on others it lets networks with a learned noise overfit without bound. A
few members trained apart try each of a few priors. What they are too sure of on the held-out rows, the ensemble will be
too sure of too, so they also say how much wider its predictions must be.
"""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np

from stein import calibration, data, defaults, predict, train
from stein.hooks import progress
from stein.predictions import ClassPrediction, Prediction
from stein.runs import build, dataset, tables
from stein.runs.environment import precision
from stein.runs.schema import Config, Method
from stein.runs.signals import StoppedError
from stein.types import Model

FEW = 40
"""With fewer rows nothing is held out to choose the prior."""
FRACTION = 0.15


class Trial(NamedTuple):
    """What the members with the best prior predict for the held-out rows, in the units of the data, not calibrated.

    ``x`` are these rows as the network takes them, ``width`` and ``temperature`` what calibrates the prediction
    (:mod:`stein.calibration`); one of them is None or 1.
    """

    prior: float
    prediction: Prediction
    x: np.ndarray
    nll: float
    width: float = 1.0
    temperature: float | None = None


def choose(
    config: Config,
    read: tables.Read,
    priors: Sequence[float],
    fraction: float,
    *,
    weights: np.ndarray | None = None,
    network: Model | None = None,
    hooks: Sequence[train.Hook] = (),
) -> Trial:
    """Try every prior on the training part of ``read``, of which a ``fraction`` is held out; the best trial.

    Args:
        weights: of the training rows.
        network: as in :func:`stein.runs.build.parts`.

    Raises:
        stein.train.Interrupted: on Ctrl-C.
    """
    rows = read.parts[0]
    classes = rows.y if read.kind == "categorical" else None
    held = data.held_out(len(rows.x), fraction, [config.train.seed, tables.TEST], classes)
    inner, outer = (data.Arrays(rows.x[part], rows.y[part], rows.labels) for part in (~held, held))
    read = read._replace(parts=(inner, tables.nothing_like(rows), outer), facts={})
    trials = (
        _tried(_few_members(config, prior), read, None if weights is None else weights[~held], network, hooks)
        for prior in priors
    )
    return min(trials, key=lambda trial: trial.nll)


def with_prior(config: Config, requests: list[int], show: bool) -> Config:
    """The config of a table with the scale of its prior, if it is "auto" and there are enough rows to choose it on.

    Args:
        requests: signals received so far; any of them ends the trials.
        show: draw a progress bar.
    """
    if config.prior.scale != "auto" or config.prior.name != "fan-in":
        return config
    read = tables.read(config, {}, None)
    kind: Literal["classes", "regression"] = "classes" if read.kind == "categorical" else "regression"
    prior = defaults.for_table(kind, len(read.parts[0].x), 1).prior
    if len(read.parts[0].x) >= FEW:
        with progress(show) as bar:
            hooks = [bar, lambda moment: bool(requests)]
            meant = build.resolved(config, read.kind, len(read.parts[0].x))
            prior = choose(meant, read, defaults.PRIORS[kind], FRACTION, hooks=hooks).prior
    if requests:
        raise StoppedError("stopped before training began; the same command begins again", requests[0])
    return msgspec.structs.replace(config, prior=msgspec.structs.replace(config.prior, scale=prior))


def _few_members(config: Config, prior: float) -> Config:
    method = Method(
        name="de", particles=min(defaults.TRIAL_MEMBERS, config.method.particles), start=config.method.start
    )
    return msgspec.structs.replace(
        config,
        method=method,
        prior=msgspec.structs.replace(config.prior, scale=prior),
        train=msgspec.structs.replace(config.train, early_stop=0),
    )


def _tried(
    config: Config,
    read: tables.Read,
    weights: np.ndarray | None,
    network: Model | None,
    hooks: Sequence[train.Hook],
) -> Trial:
    if int(config.train.batch_size) >= len(read.parts[0].x):  # fewer rows than the ensemble will have
        config = msgspec.structs.replace(config, train=msgspec.structs.replace(config.train, batch_size=0))
    loaded = dataset.prepared(config, read, weights=weights)
    held: Any = loaded.test
    with precision(config):
        made = build.parts(config, loaded, network, reuse=True)
        state = build.begin(made.algorithm, config)
        state, _ = train.run(
            made.algorithm, state, made.batches, config.train.steps, chunk=config.train.log_every, hooks=hooks
        )
        outputs = predict.in_chunks(made.model, state, held.x)
    prediction: Any = build.in_units(loaded)(made.likelihood.predictive(outputs))
    return _calibrated(float(config.prior.scale), prediction, held.x, loaded.raw_targets(held.y))


def _calibrated(prior: float, prediction: Any, x: np.ndarray, y: np.ndarray) -> Trial:
    if isinstance(prediction, ClassPrediction):
        temperature = calibration.temperature(prediction, y)
        p = calibration.tempered(prediction, temperature)[np.arange(len(y)), y]
        return Trial(prior, prediction, x, -float(np.log(p).mean()), temperature=temperature)
    width = 1.0 if prediction.family.counts else calibration.width(prediction, y)
    calibrated = prediction if width == 1 else prediction.widened(width)
    return Trial(prior, prediction, x, calibrated.scores(y)["nll"], width)
