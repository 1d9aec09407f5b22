"""The loop: jitted chunks of steps, and what happens between them."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from stein.data import Batches
from stein.ensembles import Algorithm, Info, State
from stein.types import Particles


class ParticlesDied(RuntimeError):
    """Too many particles are not finite; the message says at which step and which."""


class Collected(NamedTuple):
    """Thinned samples: every leaf is (draws, particles, ...)."""

    particles: Particles
    alive: jax.Array


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
        min_alive: stop with :class:`ParticlesDied` when a smaller fraction of the particles is finite.

    Returns:
        The last state and the infos of the last chunk.
    """
    if steps < 1:
        raise ValueError(f"steps = {steps}: must be at least 1")
    if batches is not None:
        algorithm.target.check(batches.x, batches.y)
    advance = _chunk_runner(algorithm, batches)
    done, info = 0, None
    while done < steps:
        length = min(chunk, steps - done)
        state, info = advance(state, length)
        done += length
        _check_alive(algorithm, state, info, min_alive)
        if after_chunk is not None:
            after_chunk(state, info)
    return state, info


def collect(
    algorithm: Algorithm, state: State, batches: Batches | None, *, burn_in: int, draws: int, thin: int
) -> tuple[State, Collected]:
    """Run a stochastic rule and keep every ``thin``-th state after ``burn_in`` steps as samples.

    See :func:`stein.samples.to_arviz` for what to do with them.
    """
    for name, value in (("draws", draws), ("thin", thin)):
        if value < 1:
            raise ValueError(f"{name} = {value}: must be at least 1")
    if burn_in > 0:
        state, _ = run(algorithm, state, batches, burn_in)
    kept = []
    for _ in range(draws):
        state, _ = run(algorithm, state, batches, thin, chunk=thin)
        kept.append((state.particles, state.alive))
    particles, alive = jax.tree.map(lambda *leaves: jnp.stack(leaves), *kept)
    return state, Collected(particles, alive)


def _chunk_runner(
    algorithm: Algorithm, batches: Batches | None
) -> Callable[[State, int], tuple[State, Info]]:
    def advance(state: State, length: int) -> tuple[State, Info]:
        def one(state: State, rows: Any) -> tuple[State, Info]:
            return algorithm.step(state, None if batches is None else batches.take(rows))

        rows = None if batches is None else batches.indices(state.step, length)
        return jax.lax.scan(one, state, rows, length=length)

    return jax.jit(advance, static_argnums=1)


def _check_alive(algorithm: Algorithm, state: State, info: Info, min_alive: float) -> None:
    alive = np.asarray(info.alive)
    last = alive[-1]
    allowed = 1.0 if algorithm.on_nan == "stop" else min_alive
    if algorithm.on_nan != "resample" and last.mean() < allowed:
        first = int(np.argmax(alive.mean(axis=1) < allowed)) - len(alive) + int(state.step)
        dead = ", ".join(map(str, np.asarray(state.ids)[~last]))
        raise ParticlesDied(
            f"step {first}: particles {dead} are not finite ({last.sum()} of {last.size} alive); lower the learning rate"
        )
