"""Predictions of a trained ensemble for new inputs."""

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from stein import ensembles, inputs, processes, pullbacks
from stein.ensembles import State
from stein.likelihoods import Likelihood
from stein.predictions import Prediction
from stein.types import Model, Particles

CHUNK = 1000
IMAGE_CHUNK = 100
"""Rows per call of a network: a thousand is fast for tables, but convolutions would need gigabytes."""
AT_ONCE = 16_000
"""Rows times members in a chunk: the layers of so many stay near the processor, and their memory is used again."""
CHUNKS = 8
"""Chunks of a table per call, in a loop: memory for layers that is asked for anew takes a fifth of the time."""


def prediction(model: Model, likelihood: Likelihood, members: State | Particles, x: Any) -> Prediction:
    """The ensemble's prediction for every input: mean, spread and intervals, or class probabilities.

    Args:
        members, x: as in :func:`outputs`.
    """
    return likelihood.predictive(in_chunks(model, members, x))


def outputs(model: Model, members: State | Particles, x: Any, *, all_members: bool = False) -> Float[Array, "n b c"]:
    """Outputs of every living member at every input.

    Args:
        members: the state of a run, whose dead members are left out (:func:`stein.ensembles.members`), or particles,
            which must all be alive.
        x: one row per input: an array, a list, or a pandas or polars table.
        all_members: include dead members, whatever their outputs. Without it, an output that is not finite raises an
            error.
    """
    particles, numbers = _asked(members, all_members)
    x = inputs.batch(x)
    with inputs.applying(x):
        result = _outputs(model, particles, x)
    inputs.answers(x, result.shape[1:])
    if not all_members and not isinstance(result, jax.core.Tracer):
        _check_finite(np.isfinite(np.asarray(result)), numbers)
    return result


def in_chunks(
    model: Model,
    members: State | Particles,
    x: Any,
    *,
    chunk: int | None = None,
    all_members: bool = False,
    full: bool = False,
) -> Float[np.ndarray, "n b c"]:
    """Outputs of every living member at many inputs, on the host.

    Only outputs are kept for all inputs; activations are held for at most ``chunk`` inputs.

    Args:
        members, x, all_members: as in :func:`outputs`.
        chunk: inputs at once. Default: 1000, with many members fewer, for images 100.
        full: fill a single chunk up too, and call the networks for one at a time, so that the outputs at an input do
            not depend on how many others there are.
    """
    particles, numbers = _asked(members, all_members)
    x = np.asarray(inputs.batch(x))
    if chunk is None:
        members = len(jax.tree.leaves(particles)[0])
        chunk = max(IMAGE_CHUNK, min(CHUNK, AT_ONCE // members)) if x.ndim == 2 else IMAGE_CHUNK
    inputs.whole(1, chunk=chunk)
    size = chunk if full else max(1, min(chunk, len(x)))
    one = jax.ShapeDtypeStruct((size, *x.shape[1:]), x.dtype)
    with inputs.applying(x):
        shape = jax.eval_shape(lambda particles, x: _outputs(model, particles, x), particles, one)
    inputs.answers(one, shape.shape[1:])
    answers = np.empty((shape.shape[0], len(x), shape.shape[2]), shape.dtype)
    # Convolutions are slow inside of XLA's loops. Calls are of equal length: another one would be compiled again, and
    # the last one is padded.
    chunks = max(1, math.ceil(len(x) / size))
    together = 1 if full or x.ndim != 2 else math.ceil(chunks / math.ceil(chunks / CHUNKS))
    size *= together
    for start in range(0, len(x), size):
        part = x[start : start + size]
        filled = np.concatenate([part, np.repeat(part[-1:], size - len(part), axis=0)]) if len(part) < size else part
        result = _outputs(model, particles, filled, together)
        answers[:, start : start + size] = processes.fetch(result)[:, : len(part)]
    if not all_members:
        _check_finite(np.isfinite(answers), numbers)
    return answers


def living(particles: Particles, alive: Any) -> Particles:
    """The members that are alive."""
    alive, n = np.asarray(alive), len(jax.tree.leaves(particles)[0])
    if alive.dtype != bool or alive.shape != (n,):
        raise ValueError(
            f"alive is {alive.dtype} of shape {alive.shape}: must be true or false for each of {n} members"
        )
    if not alive.any():
        raise ValueError("no member is alive")
    keep = np.flatnonzero(alive)
    return particles if keep.size == n else jax.tree.map(lambda leaf: leaf[keep], particles)


@partial(jax.jit, static_argnums=(0, 3))
def _outputs(model: Model, particles: Particles, x: Array, chunks: int = 1) -> Array:
    """The outputs at all of ``x``, whose activations are held for a chunk at a time."""
    see = partial(pullbacks.outputs_alone, model, particles)
    if chunks == 1:
        return see(x)
    found = jax.lax.map(see, x.reshape(chunks, -1, *x.shape[1:]))
    return jnp.moveaxis(found, 0, 1).reshape(found.shape[1], len(x), found.shape[3])


def _asked(members: State | Particles, all_members: bool) -> tuple[Particles, np.ndarray | None]:
    """The particles to evaluate and, for a state, their indices in it."""
    if not isinstance(members, State):
        return members, None
    if isinstance(members.alive, jax.core.Tracer) and not all_members:
        raise ValueError(
            "inside jit nobody knows yet who is alive: hand in the particles of predict.living, computed outside"
        )
    particles, alive = ensembles.members(members)
    return (particles, None) if all_members else (living(particles, alive), np.flatnonzero(np.asarray(alive)))


def _check_finite(good: np.ndarray, numbers: np.ndarray | None) -> None:
    bad = np.flatnonzero(~good.all(axis=(1, 2)))
    if bad.size:
        named = ", ".join(map(str, bad if numbers is None else numbers[bad]))
        advice = "pass the state, which knows who is dead" if numbers is None else "leave them out"
        raise ValueError(f"members {named} answer with numbers that are not finite: {advice}, or all_members=True")
