"""Predictions of a trained ensemble for new inputs."""

from functools import partial
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float

from stein import ensembles, inputs, processes
from stein.ensembles import State
from stein.likelihoods import Likelihood
from stein.predictions import Prediction
from stein.types import Model, Particles

CHUNK = 1000
IMAGE_CHUNK = 100
"""Rows per call of a network: a thousand is fast for tables, but convolutions would need gigabytes."""
AT_ONCE = 16_000
"""Rows times members per call: the layers of so many stay near the processor, and their memory is used again."""


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
        chunk: inputs per call of the networks. Default: 1000, with many members fewer, for images 100.
        full: fill a single chunk up too, so that the outputs at an input do not depend on how many others there are.
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
    for start in range(0, len(x), size):
        part = x[start : start + size]
        # The last chunk is padded: another size would be compiled again.
        filled = np.concatenate([part, np.repeat(part[-1:], size - len(part), axis=0)]) if len(part) < size else part
        result = _outputs(model, particles, filled)
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


@partial(jax.jit, static_argnums=0)
def _outputs(model: Model, particles: Particles, x: Array) -> Array:
    return jax.vmap(model.apply, (0, None))(particles, x)


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
