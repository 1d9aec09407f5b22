"""Residual networks for small images."""

import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from stein.types import Key, Model

_FILTERS = (16, 32, 64)


class _Block(eqx.Module):
    first: eqx.nn.Conv2d
    second: eqx.nn.Conv2d

    def __call__(self, x: Float[Array, "b h w c"]) -> Float[Array, "b h2 w2 c2"]:
        residual = _convolve(self.second, jax.nn.relu(_convolve(self.first, x)))
        down, across = self.first.stride
        new_channels = residual.shape[-1] - x.shape[-1]
        shortcut = jnp.pad(x[:, ::down, ::across], ((0, 0), (0, 0), (0, 0), (0, new_channels)))
        return jax.nn.relu(shortcut + residual)


class _ResNet(eqx.Module):
    stem: eqx.nn.Conv2d
    blocks: list[_Block]
    head: eqx.nn.Linear

    def __init__(self, num_classes: int, channels: int, blocks: int, key: Key):
        keys = iter(jax.random.split(key, 2 + 2 * blocks * len(_FILTERS)))
        self.stem = _conv3x3(channels, _FILTERS[0], 1, next(keys))
        self.blocks = []
        width = _FILTERS[0]
        for filters in _FILTERS:
            for _ in range(blocks):
                stride = 1 if filters == width else 2
                first = _conv3x3(width, filters, stride, next(keys))
                self.blocks.append(_Block(first, _conv3x3(filters, filters, 1, next(keys))))
                width = filters
        self.head = eqx.nn.Linear(width, num_classes, key=next(keys))

    def __call__(self, images: Array) -> Float[Array, "b k"]:
        x = images.astype(self.head.weight.dtype)
        x = jax.nn.relu(_convolve(self.stem, x))
        for block in self.blocks:
            x = block(x)
        return jax.vmap(self.head)(x.mean((1, 2)))


def resnet32(num_classes: int = 10, channels: int = 3, blocks: int = 5) -> Model:
    """The CIFAR residual network without batch normalisation.

    One 3x3 convolution with 16 filters; three stages of ``blocks`` residual blocks with 16, 32 and 64 filters, two
    3x3 convolutions with biases a block; the mean over pixels; one linear layer. Between stages the shortcut takes
    every second pixel and fills the new channels with zeros, so it has no weights.

    Args:
        num_classes: number of outputs.
        channels: channels of the images.
        blocks: blocks per stage; the network has ``6 * blocks + 2`` layers with weights.

    Returns:
        A model on images ``(b, height, width, channels)`` with Equinox's initialiser; outputs have the dtype of the
        weights.

    Reference: He et al. (2016), section 4.2, shortcut A.

    >>> weights = jax.eval_shape(resnet32().init, jax.random.key(0))
    >>> sum(leaf.size for leaf in jax.tree.leaves(weights))
    463018
    """
    for name, value in (("num_classes", num_classes), ("channels", channels), ("blocks", blocks)):
        if value < 1:
            raise ValueError(f"{name}: got {value}; must be 1 or more")
    return Model(
        init=lambda key: _ResNet(num_classes, channels, blocks, key),
        apply=lambda weights, images: weights(images),
    )


def _conv3x3(channels: int, filters: int, stride: int, key: Key) -> eqx.nn.Conv2d:
    return eqx.nn.Conv2d(channels, filters, 3, stride, padding=1, key=key)


def _convolve(layer: Any, images: Float[Array, "b h w c"]) -> Float[Array, "b h2 w2 c2"]:
    """3x3, channels last. On a CPU as a matrix product: the weight gradient of a vmapped convolution is slow there."""
    convolve = _as_product if jax.default_backend() == "cpu" else _as_convolution
    return convolve(layer.weight, images, layer.stride[0]) + layer.bias.reshape(1, 1, 1, -1)


def _as_convolution(
    weight: Float[Array, "c2 c 3 3"], images: Float[Array, "b h w c"], stride: int
) -> Float[Array, "b h2 w2 c2"]:
    layout = ("NHWC", "OIHW", "NHWC")
    return jax.lax.conv_general_dilated(images, weight, (stride, stride), ((1, 1), (1, 1)), dimension_numbers=layout)


@functools.partial(jax.checkpoint, static_argnums=2)  # neighbourhoods are nine times the images: not kept, made again
def _as_product(
    weight: Float[Array, "c2 c 3 3"], images: Float[Array, "b h w c"], stride: int
) -> Float[Array, "b h2 w2 c2"]:
    """Every pixel's neighbourhood as one long row, times the filters."""
    height, width = images.shape[1:3]
    padded = jnp.pad(images, ((0, 0), (1, 1), (1, 1), (0, 0)))
    neighbours = [
        padded[:, down : down + height : stride, across : across + width : stride]
        for down in range(3)
        for across in range(3)
    ]
    filters = jnp.transpose(weight, (2, 3, 1, 0)).reshape(-1, weight.shape[0])
    return jnp.concatenate(neighbours, axis=-1) @ filters
