"""The prior of a table's network, chosen on rows that are held out of the training rows.

One prior for all tables underfits some, and on others it lets networks with a learned noise overfit without bound. So a
few members trained apart try each of a few priors; on small tables several times, with other rows held out each time.
What they are too sure of on these rows, the ensemble will be too sure of too: they also say how its predictions must be
calibrated.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import msgspec
import numpy as np

from stein import calibration, data, defaults, predict, train
from stein.ensembles import State
from stein.hooks import progress
from stein.predictions import ClassPrediction, Prediction
from stein.runs import build, calibrated, dataset, tables
from stein.runs.environment import precision
from stein.runs.schema import Config, Method
from stein.runs.signals import StoppedError
from stein.types import Model

FEW = 40
"""With fewer rows nothing is held out to choose the prior."""
FRACTION = 0.15
ENOUGH, MOST_TIMES = 150, 3
"""Rows are held out until there are enough of them, at most three times."""


class Trial(NamedTuple):
    """What the members with the best prior predict for the held-out rows, in the units of the data, not calibrated.

    ``x`` are these rows as the network takes them; ``spread`` or ``temperature`` calibrates the prediction
    (:mod:`stein.calibration`).
    """

    prior: float
    prediction: Prediction
    x: np.ndarray
    nll: float
    spread: calibration.Spread = calibration.UNCHANGED
    temperature: float | None = None


class Interrupted(KeyboardInterrupt):
    """Ctrl-C during a trial, with what was learned so far: its members, and the data that they learn from."""

    def __init__(self, state: State, loaded: dataset.Loaded):
        super().__init__(f"trying priors stopped at step {int(state.step)}")
        self.state, self.loaded = state, loaded


class _HeldOut(NamedTuple):
    """The held-out rows of one try: predictions by prior, None where a member died, inputs, and targets in the units of
    the data."""

    predictions: list[Prediction | None]
    x: np.ndarray
    y: np.ndarray


def choose(
    config: Config,
    read: tables.Read,
    priors: Sequence[float],
    fraction: float,
    *,
    keep_noise: bool = False,
    weights: np.ndarray | None = None,
    network: Model | None = None,
    hooks: Sequence[train.Hook] = (),
) -> Trial:
    """Try every prior on the training part of ``read``, of which a ``fraction`` is held out each time; the best trial.

    Args:
        keep_noise: leave the spread as it is, because the noise was given.
        weights: of the training rows.
        network: as in :func:`stein.runs.build.parts`.

    Raises:
        Interrupted: on Ctrl-C.
    """
    rows = read.parts[0]
    classes = rows.y if read.kind == "categorical" else None
    config, found = _for_trials(config, len(priors)), []
    for time in range(min(MOST_TIMES, math.ceil(ENOUGH / (fraction * len(rows.x))))):
        held = data.held_out(len(rows.x), fraction, [config.train.seed, tables.TEST, time], classes)
        inner, outer = (data.Arrays(rows.x[part], rows.y[part], rows.labels) for part in (~held, held))
        part = read._replace(parts=(inner, tables.nothing_like(rows), outer), facts={})
        found.append(_tried(config, part, priors, None if weights is None else weights[~held], network, hooks))
    x, y = (np.concatenate([getattr(one, name) for one in found]) for name in ("x", "y"))
    by_prior = zip(priors, zip(*(one.predictions for one in found), strict=True), strict=True)
    trials = [_calibrated(prior, _together(parts), x, y, keep_noise) for prior, parts in by_prior if all(parts)]
    if not trials:
        raise RuntimeError("with every prior some members died; lower the learning rate, or scale the data")
    return min(trials, key=lambda trial: trial.nll)


def with_prior(config: Config, requests: list[int], show: bool, say: Callable[[str], None]) -> Config:
    """The config of a table with the scale of its prior, if it is "auto" and there are enough rows to choose it on.

    Args:
        requests: signals received so far; any of them ends the trials.
        show: draw a progress bar.
        say: called with a line that announces the trials.
    """
    if config.prior.scale != "auto" or config.prior.name != "fan-in":
        return config
    read = tables.read(config, {}, None)
    meant = build.resolved(config, read.kind, len(read.parts[0].x))
    prior = float(meant.prior.scale)
    if len(read.parts[0].x) >= FEW:
        say(f"trying {len(defaults.PRIORS)} priors on held-out rows")
        with progress(show) as bar:
            hooks = [bar, lambda moment: bool(requests)]
            given = isinstance(config.likelihood.sigma, float)
            prior = choose(meant, read, defaults.PRIORS, FRACTION, keep_noise=given, hooks=hooks).prior
    if requests:
        raise StoppedError("stopped before training began; the same command begins again", requests[0])
    return msgspec.structs.replace(config, prior=msgspec.structs.replace(config.prior, scale=prior))


def _for_trials(config: Config, priors: int) -> Config:
    """A few members for each prior, trained apart. Nothing but the prior holds their weights."""
    members = min(defaults.TRIAL_MEMBERS, config.method.particles)
    return msgspec.structs.replace(
        config,
        method=Method(name="de", particles=priors * members, start="model"),
        optimiser=msgspec.structs.replace(config.optimiser, weight_decay=0.0),
        train=msgspec.structs.replace(config.train, early_stop=0),
    )


def _tried(
    config: Config,
    read: tables.Read,
    priors: Sequence[float],
    weights: np.ndarray | None,
    network: Model | None,
    hooks: Sequence[train.Hook],
) -> _HeldOut:
    if int(config.train.batch_size) >= len(read.parts[0].x):  # fewer rows than the ensemble will have
        config = msgspec.structs.replace(config, train=msgspec.structs.replace(config.train, batch_size=0))
    loaded = dataset.prepared(config, read, weights=weights)
    held: Any = loaded.test
    members = config.method.particles // len(priors)
    with precision(config):
        made = build.parts(config, loaded, network, own_priors=True)
        state = build.begin(made.algorithm, config)
        scales = np.repeat(priors, members).astype(config.train.precision)
        state = state._replace(particles=state.particles | {"scale": jnp.asarray(scales)})
        try:
            state, _ = train.run(
                made.algorithm, state, made.batches, config.train.steps, chunk=config.train.log_every, hooks=hooks
            )
        except train.Interrupted as stop:
            reached = stop.state._replace(particles=stop.state.particles["weights"])
            raise Interrupted(reached, loaded._replace(test=None)) from None
        outputs = predict.in_chunks(made.model, state, held.x, all_members=True)
    in_units = build.in_units(loaded)
    of_priors = zip(np.split(outputs, len(priors)), np.split(np.asarray(state.alive), len(priors)), strict=True)
    predictions = [in_units(made.likelihood.predictive(part)) if alive.all() else None for part, alive in of_priors]
    return _HeldOut(predictions, held.x, loaded.raw_targets(held.y))


def _together(predictions: Sequence[Any]) -> Any:
    """One prediction for the points of all of them."""
    if isinstance(predictions[0], ClassPrediction):
        return ClassPrediction(np.concatenate([one.log_probabilities for one in predictions], axis=1))
    both = {name: np.concatenate([getattr(one, name) for one in predictions], axis=1) for name in ("means", "sigmas")}
    return predictions[0]._replace(**both)


def _calibrated(prior: float, prediction: Any, x: np.ndarray, y: np.ndarray, keep_noise: bool) -> Trial:
    spread, temperature = calibrated.correction(prediction, y, keep_noise)
    nll = calibrated.applied(prediction, spread, temperature).scores(y)["nll"]
    return Trial(prior, prediction, x, nll, spread, temperature)
