"""The loop: jitted chunks of steps, and what happens between them."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np

from stein.data import Batches
from stein.ensembles import Algorithm, Info, State


class ParticlesDiedError(RuntimeError):
    """Too many particles are not finite; the message says at which step and which."""


def run(
    algorithm: Algorithm,
    state: State,
    batches: Batches | None,
    steps: int,
    *,
    chunk: int = 1000,
    after_chunk: Callable[[State, Info], None] | None = None,
    min_alive: float = 0.5,
) -> tuple[State, Info]:
    """Train for ``steps`` steps from wherever ``state`` is.

    Args:
        batches: the data; ``None`` for a target without any (:func:`stein.density`).
        chunk: steps in one jitted scan.
        after_chunk: called on the host with the state and the chunk's infos (a leading step axis).
        min_alive: stop with :class:`ParticlesDiedError` when a smaller fraction of the particles is finite.

    Returns:
        The last state and the infos of the last chunk.
    """
    if steps < 1:
        raise ValueError(f"steps = {steps}: must be at least 1")
    if batches is not None:
        algorithm.target.check(batches.x, batches.y)
    for done in range(0, steps, chunk):
        state, info = _advance(algorithm.step, state, batches, min(chunk, steps - done))
        _check_alive(algorithm, state, info, min_alive)
        if after_chunk is not None:
            after_chunk(state, info)
    return state, info


@partial(jax.jit, static_argnums=(0, 3))
def _advance(step: Callable, state: State, batches: Batches | None, length: int) -> tuple[State, Info]:
    """``length`` steps in one scan; compiled once for an algorithm, the shapes of its data and a length."""
    rows = None if batches is None else batches.indices(state.step, length)

    def one(state: State, rows: Any) -> tuple[State, Info]:
        return step(state, None if batches is None else batches.take(rows))

    return jax.lax.scan(one, state, rows, length=length)


def _check_alive(algorithm: Algorithm, state: State, info: Info, min_alive: float) -> None:
    alive = np.asarray(info.alive)
    last = alive[-1]
    allowed = 1.0 if algorithm.on_nan == "stop" else min_alive
    if algorithm.on_nan != "resample" and last.mean() < allowed:
        first = int(np.argmax(alive.mean(axis=1) < allowed)) - len(alive) + int(state.step)
        dead = ", ".join(map(str, np.asarray(state.ids)[~last]))
        raise ParticlesDiedError(
            f"step {first}: particles {dead} are not finite ({last.sum()} of {last.size} alive); "
            "lower the learning rate"
        )
