"""Minibatches as a pure function of a seed and the step."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, Num

from stein import inputs
from stein.types import Batch, Key


@jax.tree_util.register_pytree_node_class  # so that the data is an argument of jitted functions, not a constant
class Batches:
    """A shuffled stream over the data without replacement, which continues across epochs.

    Batch t holds positions t*size to (t+1)*size of the infinite sequence "permutation of epoch 0, permutation of epoch
    1, ...". The permutation of an epoch depends on ``key`` and the epoch's number alone, so that a run resumed at
    step t sees the same batches as an uninterrupted one.

    Args:
        x: inputs, one row per data point.
        y: targets, one row per data point.
        size: points per batch. Default: all, in their original order.
        key: seed of the permutations.
        independent: also draw a second batch of inputs, from a separate stream, for an independent measurement.
        crop: every image of a batch is a random window, of the image's size, of the image with a border of so many
            zero pixels. Inputs must be images ``(rows, height, width, channels)``.
        flip: every image of a batch is mirrored, left to right, with probability 1/2.
    """

    def __init__(
        self,
        x: Any,
        y: Any,
        size: int | None = None,
        key: Key | None = None,
        independent: bool = False,
        crop: int = 0,
        flip: bool = False,
    ):
        self.x, self.y = (
            values if isinstance(values, jax.Array) else jnp.asarray(inputs.array(name, values))
            for name, values in (("x", x), ("y", y))
        )
        inputs.same_rows(self.x, self.y)
        if size is not None:
            inputs.whole(0, size=size)
            if not 1 <= size <= self.num_data:
                raise ValueError(f"size = {size}: must be between 1 and the {self.num_data} rows of the data")
        inputs.whole(0, crop=crop)
        if (crop or flip) and self.x.ndim != 4:
            raise ValueError(
                f"{'crop' if crop else 'flip'}: is for images (rows, height, width, channels), but x is {self.x.shape}"
            )
        if crop and crop >= min(self.x.shape[1:3]):
            raise ValueError(f"crop = {crop}: must be below height and width of the images, {self.x.shape[1:3]}")
        if key is None and (size is not None or independent or crop or flip):
            raise ValueError("key = None: minibatches, crops and flips are drawn at random and need a key")
        if key is not None:
            inputs.key(key)
        self.size = size
        self._key: Any = key
        self._independent = independent
        self._crop, self._flip = crop, flip

    def with_key(self, key: Key) -> "Batches":
        """The same data in another order."""
        return Batches(self.x, self.y, self.size, key, self._independent, self._crop, self._flip)

    @property
    def num_data(self) -> int:
        """Number of data points N."""
        return self.x.shape[0]

    def cursor(self, step: Any) -> tuple[Any, Any]:
        """The epoch in which a step's batch begins, and the position in it; a Python integer cannot overflow here."""
        return divmod(step * (self.size or self.num_data), self.num_data)

    def indices(self, cursor: tuple[Any, Any], steps: int) -> Any:
        """Rows of the batches of ``steps`` steps from ``cursor`` on, for a scan over a chunk.

        Each epoch's permutation is computed once. Pass the result's slices to :meth:`take`.
        """
        size = self.size or self.num_data
        rows = None if self.size is None else _stream(self._key, cursor, self.num_data, steps, size)
        other = jax.random.fold_in(self._key, 1 << 30) if self._independent else None
        measured = None if other is None else _stream(other, cursor, self.num_data, steps, size)
        keys = _keys(self._key, cursor, self.num_data, steps, size) if self._crop or self._flip else None
        return rows, measured, keys

    def take(self, rows: Any) -> Batch:
        """The batch with these row numbers, one slice of :meth:`indices`."""
        chosen, measured, key = rows
        x, y = (self.x, self.y) if chosen is None else (self.x[chosen], self.y[chosen])
        measure = None if measured is None else self.x[measured]
        if key is not None:
            of_x, of_measure = jax.random.split(key)
            x = _augment(of_x, x, self._crop, self._flip)
            measure = None if measure is None else _augment(of_measure, measure, self._crop, self._flip)
        return Batch(x, y, measure)

    def at(self, step: int | Int[Array, ""]) -> Batch:
        """The batch of one step."""
        return self.take(jax.tree.map(lambda rows: rows[0], self.indices(self.cursor(step), 1)))

    def tree_flatten(self) -> tuple[tuple, tuple]:
        return (self.x, self.y, self._key), (self.size, self._independent, self._crop, self._flip)

    @classmethod
    def tree_unflatten(cls, static: tuple, arrays: tuple) -> "Batches":
        batches = object.__new__(cls)
        batches.x, batches.y, batches._key = arrays
        batches.size, batches._independent, batches._crop, batches._flip = static
        return batches


# Compiled once for all methods with the same data; and outside of jit `lax.map` would compile its lambda at every call.
@partial(jax.jit, static_argnums=(2, 3, 4))
def _stream(key: Key, cursor: tuple[Any, Any], n: int, steps: int, size: int) -> Int[Array, "steps size"]:
    """Rows of ``steps`` batches from ``cursor`` on, of n rows that are reshuffled in every epoch."""
    first, place = cursor
    position = place + jnp.arange(steps * size, dtype=jnp.int32)
    epochs = first + jnp.arange(steps * size // n + 2, dtype=jnp.int32)  # all that the window can contain
    shuffled = jax.lax.map(lambda epoch: jax.random.permutation(jax.random.fold_in(key, epoch), n), epochs)
    return shuffled[position // n, position % n].reshape(steps, size)


@partial(jax.jit, static_argnums=(2, 3, 4))
def _keys(key: Key, cursor: tuple[Any, Any], n: int, steps: int, size: int) -> Array:
    """A key for each of ``steps`` steps from ``cursor`` on, by the epoch and the position where its batch begins."""
    first, place = cursor
    position = place + size * jnp.arange(steps, dtype=jnp.int32)
    own = jax.random.fold_in(key, (1 << 30) + 1)  # no epoch of the permutations has this number
    of_step = lambda epoch, place: jax.random.fold_in(jax.random.fold_in(own, epoch), place)  # noqa: E731
    return jax.vmap(of_step)(first + position // n, position % n)


def _augment(key: Key, images: Num[Array, "b h w c"], crop: int, flip: bool) -> Num[Array, "b h w c"]:
    """Random windows of the images with a border of ``crop`` zeros, half of them mirrored if ``flip``."""
    of_windows, of_mirrors = jax.random.split(key)
    number, height, width, channels = images.shape
    if crop:
        padded = jnp.pad(images, ((0, 0), (crop, crop), (crop, crop), (0, 0)))
        corners = jax.random.randint(of_windows, (number, 2), 0, 2 * crop + 1)
        window = lambda image, at: jax.lax.dynamic_slice(image, (*at, 0), (height, width, channels))  # noqa: E731
        images = jax.vmap(window)(padded, corners)
    if flip:
        mirrored = jax.random.bernoulli(of_mirrors, 0.5, (number, 1, 1, 1))
        images = jnp.where(mirrored, images[:, :, ::-1], images)
    return images
