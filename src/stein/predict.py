"""What a trained ensemble says about new inputs."""

from functools import partial

import jax
import numpy as np
from jaxtyping import Array, Bool, Float

from stein.types import Model, Particles


@partial(jax.jit, static_argnums=0)
def outputs(model: Model, particles: Particles, x: Array) -> Float[Array, "n b c"]:
    """Outputs of every member at every input."""
    return jax.vmap(model.apply, (0, None))(particles, x)


def living(particles: Particles, alive: Bool[Array, " n"]) -> Particles:
    """The members that are alive: the dead have nothing to say."""
    keep = np.flatnonzero(np.asarray(alive))
    return particles if keep.size == alive.size else jax.tree.map(lambda leaf: leaf[keep], particles)
