"""Unlabelled inputs for functional kernels: sources for ``Measurement(extra=...)``.

Members that are compared only at the data agree or disagree by chance elsewhere. A source is a function of a random key
and the inputs of the batch; its points are new in every step.

    >>> import numpy as np
    >>> from stein.targets import Measurement
    >>> measurement = Measurement(extra=box(np.array([[0.0], [7.0]]), 1))
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from stein import inputs
from stein.types import Key

Source = Callable[[Key, Array], Array]


def box(x: Any, number: int) -> Source:
    """Points uniform in the smallest box that contains ``x``: between the data, never outside."""
    inputs.whole(1, number=number)
    rows = np.asarray(inputs.batch(x))
    low, high = rows.min(axis=0), rows.max(axis=0)

    def draw(key: Key, batch: Float[Array, "b ..."]) -> Float[Array, "m ..."]:
        return jax.random.uniform(
            key, (number, *low.shape), batch.dtype, jnp.asarray(low, batch.dtype), jnp.asarray(high, batch.dtype)
        )

    return draw


def noise(number: int, scale: float = 0.5) -> Source:
    """Inputs of the batch with normal noise of ``scale`` times their standard deviation in each column."""
    inputs.whole(1, number=number)
    inputs.positive(scale=scale)

    def draw(key: Key, batch: Float[Array, "b ..."]) -> Float[Array, "m ..."]:
        key_rows, key_noise = jax.random.split(key)
        rows = batch[jax.random.randint(key_rows, (number,), 0, len(batch))]
        return rows + scale * jnp.std(batch, axis=0, keepdims=True) * jax.random.normal(
            key_noise, rows.shape, batch.dtype
        )

    return draw


def mixture(number: int) -> Source:
    """Points between two inputs of the batch: :math:`a x_i + (1 - a) x_j`, a uniform."""
    inputs.whole(1, number=number)

    def draw(key: Key, batch: Float[Array, "b ..."]) -> Float[Array, "m ..."]:
        key_rows, key_share = jax.random.split(key)
        first, second = batch[jax.random.randint(key_rows, (2, number), 0, len(batch))]
        share = jax.random.uniform(key_share, (number, *[1] * (batch.ndim - 1)), batch.dtype)
        return share * first + (1 - share) * second

    return draw


def rows_of(x: Any, number: int) -> Source:
    """Rows of an unlabelled set, drawn with replacement."""
    inputs.whole(1, number=number)
    rows = np.asarray(inputs.batch(x))

    def draw(key: Key, batch: Float[Array, "b ..."]) -> Float[Array, "m ..."]:
        return jnp.asarray(rows, batch.dtype)[jax.random.randint(key, (number,), 0, len(rows))]

    return draw
