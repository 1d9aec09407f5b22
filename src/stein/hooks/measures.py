"""Hooks that measure: the numbers they return become metrics of the step."""

import math
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import numpy as np

from stein.batches import Batches
from stein.ensembles import Algorithm, State
from stein.metrics.diagnostics import troubles
from stein.train import Hook, Moment, as_batch
from stein.types import Batch


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
