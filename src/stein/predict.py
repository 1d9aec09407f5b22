"""What a trained ensemble says about new inputs."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Shaped

from stein.types import Model, Particles

Link = Callable[[Array], Array]


@partial(jax.jit, static_argnums=0)
def outputs(model: Model, particles: Particles, x: Array) -> Float[Array, "n b c"]:
    """Outputs of every member at every input."""
    return jax.vmap(model.apply, (0, None))(particles, x)


def in_chunks(
    model: Model,
    particles: Particles,
    x: Shaped[np.ndarray, "b *shape"],
    *,
    chunk: int = 1000,
    link: Link | None = jax.nn.softmax,
) -> Float[np.ndarray, "n b c"]:
    """What every member says about many inputs, in float32.

    Only the answers are held for all inputs, activations for no more than ``chunk`` of them. A thousand is fast for
    networks of tables; convolutions over images want a hundred, or their activations take gigabytes.

    Args:
        link: from outputs to what is wanted: probabilities of a classifier; None for the outputs themselves.
    """
    if chunk < 1:
        raise ValueError(f"chunk = {chunk}: must be at least 1")
    size = max(1, min(chunk, len(x)))
    one = jax.ShapeDtypeStruct((size, *x.shape[1:]), x.dtype)
    n, _, c = jax.eval_shape(lambda particles, x: _linked(model, link, particles, x), particles, one).shape
    answers = np.empty((n, len(x), c), np.float32)
    for start in range(0, len(x), size):
        part = x[start : start + size]
        # The last chunk is filled up: another size would be compiled anew.
        filled = np.concatenate([part, np.repeat(part[-1:], size - len(part), axis=0)]) if len(part) < size else part
        said = _linked(model, link, particles, jnp.asarray(filled))
        answers[:, start : start + size] = np.asarray(said)[:, : len(part)]
    return answers


@partial(jax.jit, static_argnums=(0, 1))
def _linked(model: Model, link: Link | None, particles: Particles, x: Array) -> Float[Array, "n b c"]:
    said = outputs(model, particles, x)
    return said if link is None else link(said)


def living(particles: Particles, alive: Bool[Array, " n"]) -> Particles:
    """The members that are alive: the dead have nothing to say."""
    keep = np.flatnonzero(np.asarray(alive))
    return particles if keep.size == alive.size else jax.tree.map(lambda leaf: leaf[keep], particles)
