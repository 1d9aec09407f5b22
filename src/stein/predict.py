"""What a trained ensemble says about new inputs."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from stein import inputs
from stein.ensembles import State
from stein.likelihoods import Likelihood
from stein.predictions import Prediction
from stein.types import Model, Particles

CHUNK = 1000
IMAGE_CHUNK = 100
"""Rows per call of a network: a thousand is fast for tables; the activations of convolutions would take gigabytes."""


def prediction(model: Model, likelihood: Likelihood, members: State | Particles, x: Any) -> Prediction:
    """What the ensemble predicts for every input: mean, spread and intervals, or probabilities of classes.

    Args:
        members, x: as in :func:`outputs`.
    """
    return likelihood.predictive(in_chunks(model, members, x))


def outputs(model: Model, members: State | Particles, x: Any, *, all_members: bool = False) -> Float[Array, "n b c"]:
    """Outputs of every living member at every input.

    Args:
        members: the state of a run, whose dead members are left out, or particles, who are all taken to be alive.
        x: a row for each input: an array, a list, a table of pandas or polars.
        all_members: ask the dead too, and return whatever they answer. Without it, an answer that is not finite is an
            error.
    """
    particles, numbers = _asked(members, all_members)
    x = inputs.batch(x)
    with inputs.applying(x):
        said = _outputs(model, particles, x)
    inputs.answers(x, said.shape[1:])
    if not all_members and not isinstance(said, jax.core.Tracer):
        _check_finite(np.isfinite(np.asarray(said)), numbers)
    return said


def in_chunks(
    model: Model, members: State | Particles, x: Any, *, chunk: int | None = None, all_members: bool = False
) -> Float[np.ndarray, "n b c"]:
    """Outputs of every living member at many inputs, on the host.

    Only the outputs are held for all inputs, activations for no more than ``chunk`` of them.

    Args:
        members, x, all_members: as in :func:`outputs`.
        chunk: inputs per call of the networks; by default 1000, for images 100.
    """
    particles, numbers = _asked(members, all_members)
    x = np.asarray(inputs.batch(x))
    if chunk is None:
        chunk = CHUNK if x.ndim == 2 else IMAGE_CHUNK
    inputs.whole(1, chunk=chunk)
    size = max(1, min(chunk, len(x)))
    one = jax.ShapeDtypeStruct((size, *x.shape[1:]), x.dtype)
    with inputs.applying(x):
        shape = jax.eval_shape(lambda particles, x: _outputs(model, particles, x), particles, one)
    inputs.answers(one, shape.shape[1:])
    answers = np.empty((shape.shape[0], len(x), shape.shape[2]), shape.dtype)
    for start in range(0, len(x), size):
        part = x[start : start + size]
        # The last chunk is filled up: another size would be compiled anew.
        filled = np.concatenate([part, np.repeat(part[-1:], size - len(part), axis=0)]) if len(part) < size else part
        said = _outputs(model, particles, jnp.asarray(filled))
        answers[:, start : start + size] = np.asarray(said)[:, : len(part)]
    if not all_members:
        _check_finite(np.isfinite(answers), numbers)
    return answers


def living(particles: Particles, alive: Any) -> Particles:
    """The members that are alive: the dead have nothing to say."""
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
    """The particles that shall answer and, of a state, their numbers in it."""
    if not isinstance(members, State):
        return members, None
    if all_members:
        return members.particles, None
    if isinstance(members.alive, jax.core.Tracer):
        raise ValueError(
            "inside jit nobody knows yet who is alive: hand in the particles of predict.living, computed outside"
        )
    return living(members.particles, members.alive), np.flatnonzero(np.asarray(members.alive))


def _check_finite(good: np.ndarray, numbers: np.ndarray | None) -> None:
    bad = np.flatnonzero(~good.all(axis=(1, 2)))
    if bad.size:
        named = ", ".join(map(str, bad if numbers is None else numbers[bad]))
        advice = "pass the state, which knows who is dead" if numbers is None else "leave them out"
        raise ValueError(f"members {named} answer with numbers that are not finite: {advice}, or all_members=True")
