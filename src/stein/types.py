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


class FirstLayer(NamedTuple):
    """A first layer that multiplies the inputs ``(b, i)`` by a matrix W, and the rest of the network.

    ``weight(weights)`` is W, of shape ``(o, i)``, which nothing else may use; ``rest(weights, products)`` maps the
    products ``W inputs.T``, of shape ``(o, b)``, to the outputs.
    """

    weight: Callable[[Weights], Array]
    rest: Callable[[Weights, Array], Array]


class Model(NamedTuple):
    """A network as two pure functions, whatever library it was written in.

    ``init(key)`` draws one network's weights with the model's own initialiser; every leaf is a trainable
    floating-point array. ``apply(weights, inputs)`` maps a batch ``(b, ...)`` to outputs ``(b, k)``. ``first`` is for
    speed: ``apply`` in two parts, if they are known (see :mod:`stein.pullbacks`).
    """

    init: Callable[[Key], Weights]
    apply: Callable[[Weights, Array], Array]
    first: FirstLayer | None = None


class Batch(NamedTuple):
    """One minibatch: inputs ``(b, ...)``, targets ``(b, ...)``, and optional further measurement inputs."""

    x: Array
    y: Array
    measure: Array | None = None
