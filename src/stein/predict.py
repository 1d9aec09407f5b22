"""What a trained ensemble says about new inputs."""

from functools import partial

import jax
from jaxtyping import Array, Float

from stein.types import Model, Particles


@partial(jax.jit, static_argnums=0)
def outputs(model: Model, particles: Particles, x: Array) -> Float[Array, "n b c"]:
    """Outputs of every member at every input."""
    return jax.vmap(model.apply, (0, None))(particles, x)
