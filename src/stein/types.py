"""The common types of the library: arrays, particles, models and batches."""

from collections.abc import Callable
from typing import Any, NamedTuple

from jaxtyping import Array, PRNGKeyArray

from stein import versions

versions.require()

Key = PRNGKeyArray
"""A JAX random key."""

Particles = Any
"""A pytree whose every leaf has a leading particle axis of the same length n."""

Weights = Any
"""The same pytree for one network: no particle axis."""


class Model(NamedTuple):
    """A network as two pure functions, whatever library it was written in.

    ``init(key)`` draws one network's weights with the model's own initialiser; every leaf is a trainable
    floating-point array. ``apply(weights, inputs)`` maps a batch ``(b, ...)`` to outputs ``(b, k)``.
    """

    init: Callable[[Key], Weights]
    apply: Callable[[Weights, Array], Array]


class Batch(NamedTuple):
    """One minibatch: inputs ``(b, ...)``, targets ``(b, ...)``, and optional further measurement inputs."""

    x: Array
    y: Array
    measure: Array | None = None
