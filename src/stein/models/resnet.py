"""Residual networks for small images."""

import functools
import math
from itertools import pairwise

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float

from stein import tree
from stein.models import convolutions
from stein.types import Key, Model, Weights


class _Layer(eqx.Module):
    """Weights whose last axis is the outputs; created with the bounds of their initial values as placeholders."""

    weight: Float[Array, "*inputs c2"]
    bias: Float[Array, " c2"]
    stride: int = eqx.field(static=True)

    def __init__(self, *shape: int, stride: int = 1):
        bound = 1 / math.sqrt(math.prod(shape[:-1]))
        self.weight, self.bias = jnp.full(shape, bound), jnp.full(shape[-1:], bound)
        self.stride = stride


class _Block(eqx.Module):
    first: _Layer
    second: _Layer

    def __init__(self, channels: int, filters: int, stride: int):
        self.first = _Layer(3, 3, channels, filters, stride=stride)
        self.second = _Layer(3, 3, filters, filters)

    def __call__(self, x: Float[Array, "b h w c"]) -> Float[Array, "b h2 w2 c2"]:
        residual = _convolve(self.second, jax.nn.relu(_convolve(self.first, x)))
        stride, new_channels = self.first.stride, residual.shape[-1] - x.shape[-1]
        shortcut = jnp.pad(x[:, ::stride, ::stride], ((0, 0), (0, 0), (0, 0), (0, new_channels)))
        return jax.nn.relu(shortcut + residual)


class _Stage(eqx.Module):
    entrance: _Block
    rest: _Block | None  # the other blocks, stacked: they are alike, and a loop over them compiles faster

    def __init__(self, channels: int, filters: int, blocks: int):
        self.entrance = _Block(channels, filters, stride=1 if filters == channels else 2)
        one = _Block(filters, filters, stride=1)
        self.rest = jax.tree.map(lambda leaf: jnp.stack([leaf] * (blocks - 1)), one) if blocks > 1 else None

    def __call__(self, x: Float[Array, "b h w c"]) -> Float[Array, "b h2 w2 c2"]:
        x = self.entrance(x)
        return x if self.rest is None else jax.lax.scan(lambda x, block: (block(x), None), x, self.rest)[0]


class _ResNet(eqx.Module):
    stem: _Layer
    stages: list[_Stage]
    head: _Layer

    def __init__(self, num_classes: int, channels: int, blocks: int, filters: int, stride: int):
        self.stem = _Layer(3, 3, channels, filters, stride=stride)
        widths = (filters, filters, 2 * filters, 4 * filters)
        self.stages = [_Stage(before, after, blocks) for before, after in pairwise(widths)]
        self.head = _Layer(4 * filters, num_classes)

    def __call__(self, images: Array) -> Float[Array, "b k"]:
        x = images.astype(self.head.weight.dtype)
        x = checkpoint_name(jax.nn.relu(_convolve(self.stem, x)), "hidden-1")  # names for stein.features
        for number, stage in enumerate(self.stages, 2):
            x = checkpoint_name(stage(x), f"hidden-{number}")
        mean = checkpoint_name(x.mean((1, 2)), f"hidden-{len(self.stages) + 2}")
        return mean @ self.head.weight + self.head.bias[None]


def resnet32(num_classes: int = 10, channels: int = 3, blocks: int = 5, filters: int = 16, stride: int = 1) -> Model:
    r"""The CIFAR residual network without batch normalisation.

    One 3x3 convolution with 16 filters (``filters``); three stages of ``blocks`` residual blocks with 16, 32 and 64
    filters, two 3x3 convolutions with biases per block; the mean over pixels; one linear layer. Between stages the
    shortcut takes every second pixel and fills the new channels with zeros, so it has no weights.

    Args:
        num_classes: number of outputs.
        channels: channels of the images.
        blocks: blocks per stage; the network has ``6 * blocks + 2`` layers with weights.
        filters: of the first stage; the others have two and four times as many.
        stride: of the first convolution; 2 takes every second pixel, so that the network costs a quarter.

    Returns:
        A model on images ``(b, height, width, channels)``. Weights and biases are drawn from
        :math:`U(\pm 1/\sqrt{\text{fan-in}})`; outputs have the dtype of the weights.

    Reference: He et al. (2016), section 4.2, shortcut A.

    >>> weights = jax.eval_shape(resnet32().init, jax.random.key(0))
    >>> sum(leaf.size for leaf in jax.tree.leaves(weights))
    463018
    """
    sizes = {"num_classes": num_classes, "channels": channels, "blocks": blocks, "filters": filters, "stride": stride}
    for name, value in sizes.items():
        if value < 1:
            raise ValueError(f"{name}: got {value}; must be 1 or more")

    def init(key: Key) -> Weights:
        bounds = _ResNet(**sizes)
        uniform = functools.partial(jax.random.uniform, minval=-1, maxval=1)
        return jax.tree.map(jnp.multiply, bounds, tree.draw_like(uniform, key, bounds))

    return Model(init, apply=lambda weights, images: weights(images))


def _convolve(layer: _Layer, images: Float[Array, "b h w c"]) -> Float[Array, "b h2 w2 c2"]:
    convolve = _in_turns if jax.default_backend() == "cpu" else _slide
    return convolve(images, layer.weight, layer.stride) + layer.bias[None, None, None]


def _slide(
    images: Float[Array, "b h w c"], filters: Float[Array, "k l c c2"], stride: int
) -> Float[Array, "b h2 w2 c2"]:
    """Filters over images with a border of zeros, one pixel wide."""
    layout = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(images, filters, (stride, stride), ((1, 1), (1, 1)), dimension_numbers=layout)


# On a CPU, XLA is fast at one member's convolution in the layout above. It is slower at those of several members
# together, and far slower at the gradients that JAX derives inside a loop, as in training (`make bench`). So members
# run one after the other there, the gradient of the images is such a convolution, and that of the filters is a product.
@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _in_turns(
    images: Float[Array, "b h w c"], filters: Float[Array, "k l c c2"], stride: int
) -> Float[Array, "b h2 w2 c2"]:
    return jax.custom_batching.sequential_vmap(functools.partial(_slide, stride=stride))(images, filters)


def _forward(images: Array, filters: Array, stride: int) -> tuple[Array, tuple[Array, Array]]:
    return _in_turns(images, filters, stride), (images, filters)


def _backward(stride: int, saved: tuple[Array, Array], cotangent: Float[Array, "b h2 w2 c2"]) -> tuple[Array, Array]:
    images, filters = saved
    return _to_images(cotangent, filters, images.shape[1:3], stride), _to_filters(images, cotangent, stride)


_in_turns.defvjp(_forward, _backward)


def _to_images(
    cotangent: Float[Array, "b h2 w2 c2"], filters: Float[Array, "k l c c2"], size: tuple[int, ...], stride: int
) -> Float[Array, "b h w c"]:
    """The turned filters over the cotangent, with zeros for the pixels that the stride skipped."""
    sizes = zip(size, cotangent.shape[1:3], strict=True)
    gaps = [(0, before - stride * (after - 1) - 1, stride - 1) for before, after in sizes]
    cotangent = jax.lax.pad(cotangent, jnp.zeros((), cotangent.dtype), [(0, 0, 0), *gaps, (0, 0, 0)])
    return _in_turns(cotangent, jnp.swapaxes(filters[::-1, ::-1], 2, 3), 1)


PATCHES = 2**21
"""Bytes of the patches that are multiplied at once: so many stay in the processor's cache."""


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _to_filters(
    images: Float[Array, "b h w c"], cotangent: Float[Array, "b h2 w2 c2"], stride: int
) -> Float[Array, "3 3 c c2"]:
    """Every patch of the images times the cotangent at its place, summed over places and images."""

    def of_member(images: Array, cotangent: Array) -> Array:
        number, channels, answers = len(images), images.shape[-1], cotangent.shape[-1]
        most = PATCHES // (9 * channels * cotangent[0, ..., 0].size * images.dtype.itemsize)
        together = max(size for size in range(1, number + 1) if number % size == 0 and size <= max(1, most))

        def add(total: Array, part: tuple[Array, Array]) -> tuple[Array, None]:
            images, cotangent = part
            seen = convolutions.patches(images, (3, 3), (stride, stride), ((1, 1), (1, 1)), (1, 1))
            return total + cotangent.reshape(-1, answers).T @ seen.reshape(-1, 9 * channels), None

        parts = jax.tree.map(lambda part: part.reshape(-1, together, *part.shape[1:]), (images, cotangent))
        total, _ = jax.lax.scan(add, jnp.zeros((answers, 9 * channels), images.dtype), parts)
        return total.T.reshape(3, 3, channels, answers)

    return jax.custom_batching.sequential_vmap(of_member)(images, cotangent)


def _filters_forward(images: Array, cotangent: Array, stride: int) -> tuple[Array, tuple[Array, Array]]:
    return _to_filters(images, cotangent, stride), (images, cotangent)


def _filters_backward(stride: int, saved: tuple[Array, Array], second: Float[Array, "3 3 c c2"]) -> tuple[Array, Array]:
    """Linear in both, as the convolution is: for second derivatives."""
    images, cotangent = saved
    return _to_images(cotangent, second, images.shape[1:3], stride), _in_turns(images, second, stride)


_to_filters.defvjp(_filters_forward, _filters_backward)
