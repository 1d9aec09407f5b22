"""Hooks that measure: the numbers they return become metrics of the step."""

import math
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, cast

import jax
import numpy as np

from stein import predict
from stein.batches import Batches
from stein.ensembles import Algorithm, State
from stein.likelihoods import Likelihood
from stein.metrics.diagnostics import conditional_spread, troubles
from stein.predictions import RegressionPrediction
from stein.targets import Target
from stein.train import Hook, Moment, as_batch
from stein.types import Batch, Model


def diagnostics(
    algorithm: Algorithm,
    batches: Any,
    warn: Callable[[str], None] = warnings.warn,
) -> Hook:
    """Measures :func:`stein.ensembles.diagnose`; warns when members collapse or no longer interact.

    Each warning comes once, after ten measurements in a row or at the end of the run.

    Args:
        batches: the training data as :func:`stein.train.run` takes them, or a fixed batch if training uses an iterable.
    """
    times: Counter[str] = Counter()

    def hook(moment: Moment) -> dict[str, float]:
        if isinstance(batches, Batches) or batches is None:
            cursor = None if batches is None else batches.cursor(moment.step)
            numbers = _examine(algorithm.diagnose, moment.state, batches, cursor)
        else:
            given = getattr(batches, "batch_at", batches)
            batch = as_batch(given(moment.step) if callable(given) else given)
            numbers = _examine_on(algorithm.diagnose, moment.state, batch)
        numbers = {name: float(value) for name, value in jax.device_get(numbers).items()}
        found = troubles(numbers, moment.metrics["alive"])
        for trouble in [*times]:
            if trouble not in found and times[trouble] < 10:
                del times[trouble]
        times.update(found.keys())
        for trouble, message in found.items():
            if times[trouble] == 10 or (times[trouble] < 10 and moment.step == moment.last_step):
                warn(f"step {moment.step}: {message}")
        return numbers

    return hook


@partial(jax.jit, static_argnums=0)
def _examine(diagnose: Callable, state: State, batches: Batches | None, cursor: Any) -> dict[str, jax.Array]:
    """The diagnosis on the batch of the next step; compiled once per algorithm."""
    if batches is None:
        return diagnose(state, None)
    rows = jax.tree.map(lambda row: row[0], batches.indices(cursor, 1))
    return diagnose(state, batches.take(rows))


@partial(jax.jit, static_argnums=0)
def _examine_on(diagnose: Callable, state: State, batch: Batch) -> dict[str, jax.Array]:
    return diagnose(state, batch)


def far_spread(
    model: Model,
    likelihood: Likelihood,
    target: Target,
    x: Any,
    *,
    every: int = 0,
    draws: int = 500,
    rows: int = 100,
    narrow: float = 0.7,
    warn: Callable[[str], None] = warnings.warn,
) -> Hook:
    """Measures ``far_spread``: how far apart regression members are where there are no data, 1 being right.

    Far points are training inputs, twice as far from their mean. The members' mean standard deviation there is divided
    by what the data leave to draws from the network's own prior
    (:func:`stein.metrics.diagnostics.conditional_spread`): no samples of the posterior are needed. Where a prior pulls
    every weight and the repulsion acts at the data only, members end up agreeing far away: warns once below
    ``narrow``.

    Args:
        x: the training inputs; of more than ``rows``, an even choice, each with the weight of those it stands for.
        every: steps between two measurements, a multiple of the chunk; 0: each chunk, and always the last.
        draws: networks drawn from the prior, once, and held in memory together.
    """
    x = np.asarray(x)
    used = x[np.linspace(0, len(x) - 1, min(rows, len(x))).round().astype(int)]
    centre = used.mean(axis=0, keepdims=True)
    points = np.concatenate([used, centre + 2 * (used - centre)])
    fresh = jax.vmap(target.sample)(jax.random.split(jax.random.key(0), draws))
    drawn = likelihood.predictive(predict.in_chunks(model, fresh, points))
    if not isinstance(drawn, RegressionPrediction):
        raise ValueError("hooks.far_spread: the likelihood has no noise to condition on; must be one for regression")
    at_data, far = (part.reshape(draws, -1) for part in np.split(drawn.means, 2, axis=1))
    warned = False

    def hook(moment: Moment) -> dict[str, float] | None:
        nonlocal warned
        if every and moment.step % every and moment.step != moment.last_step:
            return None
        found = cast(RegressionPrediction, predict.prediction(model, likelihood, moment.state, points))
        noise = float(found.aleatoric[: len(used)].mean()) * math.sqrt(len(used) / len(x))
        ratio = float(found.epistemic[len(used) :].sum() / conditional_spread(at_data, far, noise).sum())
        if ratio < narrow and not warned:
            warned = True
            warn(
                f"step {moment.step}: the members agree too much far from the data: their spread is {ratio:.2f} of "
                "what the prior and the data leave there; stop earlier, add measurement points, or use student-fwgd"
            )
        return {"far_spread": ratio}

    return hook


def members() -> Hook:
    """Measures each member's mean log-likelihood and log-prior over the chunk; ``None`` for dead members."""

    def hook(moment: Moment) -> dict[str, list[float | None]]:
        means = {name: np.asarray(getattr(moment.info, name)).mean(axis=0) for name in ("log_likelihood", "log_prior")}
        return {
            f"{name}_members": [float(value) if math.isfinite(value) else None for value in values]
            for name, values in means.items()
        }

    return hook


def evaluation(evaluate: Callable[[State], Mapping[str, float]], every: int = 0) -> Hook:
    """Measures ``evaluate(state)`` every ``every`` steps (0: never) and at the last step."""

    def hook(moment: Moment) -> Mapping[str, float] | None:
        if moment.step == moment.last_step or (every and moment.step % every == 0):
            return evaluate(moment.state)
        return None

    return hook
