"""Unlabelled inputs for functional kernels: sources for ``Measurement(extra=...)``.

Members that are compared only at the data agree or disagree by chance elsewhere. A source is a function of a random key
and the inputs of the batch; its points are new in every step.

    >>> import numpy as np
    >>> from stein.targets import Measurement
    >>> measurement = Measurement(extra=box(np.array([[0.0], [7.0]]), 1))
"""

import math
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


def augmented(number: int, shape: tuple[int, int, int] | None = None, shift: float = 0.125) -> Source:
    """Images of the batch, shifted by up to ``shift`` of their size (what moves in is zero), half of them flipped.

    Args:
        shape: height, width and channels of an image, if the rows of the batch are flat.
    """
    inputs.whole(1, number=number)
    inputs.positive(shift=shift)

    def change(key: Key, image: Float[Array, "h w c"]) -> Float[Array, "h w c"]:
        key_flip, key_shift = jax.random.split(key)
        borders = [max(1, round(shift * side)) for side in image.shape[:2]]
        wide = jnp.pad(image, [(border, border) for border in borders] + [(0, 0)])
        corner = jax.random.randint(key_shift, (2,), 0, 2 * np.array(borders) + 1)
        shifted = jax.lax.dynamic_slice(wide, (corner[0], corner[1], jnp.zeros_like(corner[0])), image.shape)
        return jnp.where(jax.random.bernoulli(key_flip), shifted[:, ::-1], shifted)

    return _of_images(number, shape, change)


def patches(number: int, shape: tuple[int, int, int] | None = None, parts: int = 4) -> Source:
    """Images of the batch, cut into ``parts`` times ``parts`` patches and shuffled: the same details, another whole.

    Args:
        shape: as in :func:`augmented`.
    """
    inputs.whole(1, number=number)
    inputs.whole(2, parts=parts)

    def change(key: Key, image: Float[Array, "h w c"]) -> Float[Array, "h w c"]:
        height, width, channels = image.shape
        if height % parts or width % parts:
            raise ValueError(f"parts = {parts}: must divide the height and width of the images, {height} and {width}")
        cells = image.reshape(parts, height // parts, parts, width // parts, channels).swapaxes(1, 2)
        shuffled = jax.random.permutation(key, cells.reshape(parts**2, *cells.shape[2:]))
        return shuffled.reshape(cells.shape).swapaxes(1, 2).reshape(image.shape)

    return _of_images(number, shape, change)


def _of_images(
    number: int, shape: tuple[int, int, int] | None, change: Callable[[Key, Array], Float[Array, "h w c"]]
) -> Source:
    """Images of the batch, each changed by a key of its own."""

    def draw(key: Key, batch: Float[Array, "b ..."]) -> Float[Array, "m ..."]:
        size = batch.shape[1:] if shape is None else shape
        if len(size) != 3 or math.prod(size) != math.prod(batch.shape[1:]):
            raise ValueError(f"shape = {shape}: the rows are {batch.shape[1:]}; must be height, width and channels")
        key_rows, key_change = jax.random.split(key)
        rows = batch[jax.random.randint(key_rows, (number,), 0, len(batch))]
        changed = jax.vmap(change)(jax.random.split(key_change, number), rows.reshape(number, *size))
        return changed.reshape(rows.shape)

    return draw


def rows_of(x: Any, number: int) -> Source:
    """Rows of an unlabelled set, drawn with replacement."""
    inputs.whole(1, number=number)
    rows = np.asarray(inputs.batch(x))

    def draw(key: Key, batch: Float[Array, "b ..."]) -> Float[Array, "m ..."]:
        return jnp.asarray(rows, batch.dtype)[jax.random.randint(key, (number,), 0, len(rows))]

    return draw
