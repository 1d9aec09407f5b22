"""The loop: jitted chunks of steps, and what happens between them."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from stein import inputs
from stein.data import Batches
from stein.ensembles import Algorithm, Info, State


class ParticlesDiedError(RuntimeError):
    """Too many particles are not finite; the message says at which step and which."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C during training. ``state`` is that of the last whole chunk, from which :func:`run` goes on."""

    def __init__(self, state: State):
        super().__init__(f"training stopped at step {int(state.step)}; `.state` of this exception goes on from there")
        self.state = state


class Moment(NamedTuple):
    """What a hook sees between two chunks.

    ``last_step`` is where the run is going to end. Hooks are called in order, and what one adds to ``metrics``, the
    numbers that the run reports at this step, the later ones find there.
    """

    state: State
    info: Info  # of every step of the chunk: a leading step axis
    step: int
    last_step: int
    metrics: dict[str, Any]


Hook = Callable[[Moment], bool | None]
"""Called between chunks; ``True`` ends the run. :mod:`stein.hooks` has the usual ones."""


def run(
    algorithm: Algorithm,
    state: State,
    batches: Batches | None,
    steps: int,
    *,
    chunk: int | Callable[[int], int] = 1000,
    hooks: Iterable[Hook] = (),
    min_alive: float = 0.5,
) -> tuple[State, Info]:
    """Train for ``steps`` steps from wherever ``state`` is.

    Args:
        batches: the data; ``None`` for a target without any (:func:`stein.density`).
        chunk: steps in one jitted scan, or a function from the step at which it begins to its length.
        hooks: called between chunks, in order: progress, logs, checkpoints, evaluation (see :mod:`stein.hooks`).
        min_alive: stop with :class:`ParticlesDiedError` when a smaller fraction of the particles is finite.

    Returns:
        The last state and the infos of the last chunk. ``state`` itself stays as it was.

    Raises:
        Interrupted: on Ctrl-C, with the last whole state.
    """
    inputs.whole(1, steps=steps)
    if not callable(chunk):
        inputs.whole(1, chunk=chunk)
    if not 0 <= min_alive <= 1:
        raise ValueError(f"min_alive = {min_alive}: must be between 0 and 1")
    if batches is not None:
        if not isinstance(batches, Batches):
            raise ValueError(f"batches is of type {type(batches).__name__}: must be data.Batches(x, y), or None")
        algorithm.target.check(batches.x, batches.y)
    hooks = tuple(hooks)
    step, last_step = int(state.step), int(state.step) + steps
    try:
        while step < last_step:
            length = min(chunk(step) if callable(chunk) else chunk, last_step - step)
            cursor = None if batches is None else batches.cursor(step)
            advanced, info = _advance(algorithm.step, state, batches, cursor, length)
            _check_alive(algorithm, advanced, info, step, min_alive)
            state, step = advanced, step + length
            moment = Moment(state, info, step, last_step, _summary(info))
            answers = [hook(moment) for hook in hooks]
            if any(answers):
                break
    except KeyboardInterrupt:
        raise Interrupted(state) from None
    return state, info


@partial(jax.jit, static_argnums=(0, 4))
def _advance(step: Callable, state: State, batches: Batches | None, cursor: Any, length: int) -> tuple[State, Info]:
    """``length`` steps in one scan; compiled once for an algorithm, the shapes of its data and a length."""
    rows = None if batches is None else batches.indices(cursor, length)

    def one(state: State, rows: Any) -> tuple[State, Info]:
        return step(state, None if batches is None else batches.take(rows))

    return jax.lax.scan(one, state, rows, length=length)


def _summary(info: Info) -> dict[str, Any]:
    """Means over the chunk and the members that are alive at its end."""
    alive = np.asarray(info.alive[-1])
    return {
        "log_likelihood": float(np.asarray(info.log_likelihood)[:, alive].mean()),
        "log_prior": float(np.asarray(info.log_prior)[:, alive].mean()),
        "alive": int(alive.sum()),
    }


def _check_alive(algorithm: Algorithm, state: State, info: Info, step: int, min_alive: float) -> None:
    """``step`` is the first of the chunk; under ``on_nan="stop"`` the state's own counter stands still."""
    alive = np.asarray(info.alive)
    last = alive[-1]
    allowed = 1.0 if algorithm.on_nan == "stop" else min_alive
    if algorithm.on_nan != "resample" and last.mean() < allowed:
        first = step + int(np.argmax(alive.mean(axis=1) < allowed))
        dead = ", ".join(map(str, np.asarray(state.ids)[~last]))
        advice = (
            "already at the first step: scale the inputs and targets (data.standardise = true in a config) or "
            "lower the learning rate"
            if first == 0
            else "lower the learning rate"
        )
        raise ParticlesDiedError(
            f"step {first}: particles {dead} are not finite ({last.sum()} of {last.size} alive); {advice}"
        )
