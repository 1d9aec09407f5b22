"""Fully connected networks."""

from collections.abc import Callable, Sequence
from itertools import pairwise

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array

from stein import compiler
from stein.types import FirstLayer, Key, Model, Weights

LARGE = 2**14
"""Activations of one network's layer from which on they are stored, not computed again where they are read."""


def mlp(sizes: Sequence[int], activation: Callable[[Array], Array] = jax.nn.relu) -> Model:
    r"""A fully connected network.

    .. math:: h_0 = x, \quad h_l = a(W_l h_{l-1} + b_l), \quad f(x) = W_L h_{L-1} + b_L

    Args:
        sizes: the width of the inputs, of every hidden layer, and of the outputs.
        activation: :math:`a`, element-wise, applied after every layer but the last.

    Returns:
        A model on inputs ``(b, sizes[0])``. Weights and biases are drawn from
        :math:`U(\pm 1/\sqrt{\text{fan-in}})`, Equinox's initialiser; outputs have the dtype of the weights.

    >>> model = mlp([1, 50, 50, 1])
    >>> weights = model.init(jax.random.key(0))
    >>> sum(leaf.size for leaf in jax.tree.leaves(weights))
    2701
    >>> model.apply(weights, jax.numpy.ones((8, 1))).shape
    (8, 1)
    """
    if len(sizes) < 2 or min(sizes) < 1:
        raise ValueError(f"sizes: got {list(sizes)}; need at least two widths, each 1 or more")
    widths = list(pairwise(sizes))
    unit = _rectified if activation is jax.nn.relu else lambda products, bias: activation(products + bias)

    def init(key: Key) -> Weights:
        keys = jax.random.split(key, len(widths))
        return tuple(eqx.nn.Linear(i, o, key=k) for (i, o), k in zip(widths, keys, strict=True))

    def apply(weights: Weights, inputs: Array) -> Array:
        # Points are columns, as in the formula. With inputs shared by all particles, vmap makes the first layer one
        # product with their stacked weights as stored; with points as rows it would transpose the weights.
        return rest(weights, weights[0].weight @ inputs.T.astype(weights[0].weight.dtype))

    def rest(weights: Weights, products: Array) -> Array:
        for number, (layer, following) in enumerate(pairwise(weights), 1):
            hidden = unit(products, layer.bias[:, None])
            hidden = checkpoint_name(hidden.T, f"hidden-{number}").T  # for stein.features; it costs nothing
            products = _product(following.weight, hidden)
        return (products + weights[-1].bias[:, None]).T

    return Model(init, apply, FirstLayer(lambda weights: weights[0].weight, rest))


@jax.custom_jvp
def _rectified(products: Array, bias: Array) -> Array:
    """``jax.nn.relu(products + bias)``. Its derivative needs the result only: the products need not be kept."""
    return jnp.maximum(products + bias, jnp.zeros((), products.dtype))


@_rectified.defjvp
def _(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    relu = compiler.stored(_rectified) if primals[0].size >= LARGE else _rectified
    result = relu(*primals)
    return result, jnp.where(result > 0, tangents[0] + tangents[1], jnp.zeros((), result.dtype))


@jax.custom_jvp
def _product(matrix: Array, columns: Array) -> Array:
    return matrix @ columns


@_product.defjvp
def _(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    """The product rule. Backwards, XLA would multiply by transposed matrices, which takes up to four times as long:
    so small matrices are turned in memory, those of a layer before the product, the few rows of an output layer's
    gradient after it."""
    (matrix, columns), (d_matrix, d_columns) = primals, tangents
    if matrix.shape[0] < matrix.shape[1]:
        d_matrix = _turned(d_matrix)
    return _product(matrix, columns), d_matrix @ columns + _turned(matrix) @ d_columns


def _turned(matrix: Array) -> Array:
    """The same matrix, stored by columns; XLA undoes a transpose unless there is a barrier."""
    return jax.lax.optimization_barrier(matrix.T).T
