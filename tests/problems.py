"""Small problems that several test files share: a network that both JAX and the NumPy twin know, and its data."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stein import tree
from stein.types import Model
from twin import Network

CHAINS = {"mile": {"burn_in": 100, "tuning_steps": 100}}
"""What :func:`stein.build` cannot do without for some methods: chains that begin, and tune themselves, at once."""


def tanh_model(net: Network) -> Model:
    """The twin's network for JAX."""
    like = unflatten(net, np.zeros(sum(net.sizes())))

    def apply(w, x):
        z = jnp.tanh(x @ w["hidden"][:, :-1].T + w["hidden"][None, :, -1])
        return z @ w["out"][:, :-1].T + w["out"][None, :, -1]

    return Model(lambda key: tree.draw_like(jax.random.normal, key, like), apply)


def unflatten(net: Network, w):
    """One network's vector (d,) or an ensemble's (n, d) as the model's pytree."""
    parts = np.split(np.asarray(w), net.sizes()[:1], axis=-1)
    hidden, out = (part.reshape(*part.shape[:-1], *shape) for part, shape in zip(parts, net.shapes(), strict=True))
    return {"hidden": jnp.asarray(hidden), "out": jnp.asarray(out)}


def flatten(particles) -> np.ndarray:
    """The model's pytree of n particles as (n, d)."""
    leaves = particles["hidden"], particles["out"]
    return np.concatenate([np.asarray(leaf).reshape(leaf.shape[0], -1) for leaf in leaves], axis=1)


def by_layer(net: Network, hidden: float, out: float) -> np.ndarray:
    """A number for each layer as a vector over the weights."""
    return np.repeat([hidden, out], net.sizes())


def relative_error(value, truth) -> float:
    """Largest error over the largest entry of the truth."""
    value, truth = np.asarray(value), np.asarray(truth)
    assert value.shape == truth.shape, f"{value.shape} is not {truth.shape}"
    return float(np.max(np.abs(value - truth)) / np.max(np.abs(truth)))


def rounding(terms: int, dtype="float64") -> float:
    """How far two ways of summing ``terms`` terms may be apart, over the sum of the terms' sizes.

    Every term is rounded once on each way, whatever the order and the width of the machine's vectors.
    """
    return 2 * terms * float(np.finfo(dtype).eps)


def close(a, b, tolerance):
    """All leaves of two trees agree, relatively or absolutely."""
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(np.asarray(x), np.asarray(y), rtol=tolerance, atol=tolerance)


def assert_refused(call, message: str) -> None:
    """A ``ValueError`` of one line with this message in it."""
    with pytest.raises(ValueError) as refusal:  # noqa: PT011 - the message is checked below
        call()
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)


def central_difference(function, x: np.ndarray, width: float = 1e-5) -> np.ndarray:
    """Gradient of a function of an array by central differences, entry by entry."""
    x = np.asarray(x)
    gradient = np.zeros_like(x)
    for place in np.ndindex(x.shape):
        shift = np.zeros_like(x)
        shift[place] = width
        gradient[place] = (float(function(x + shift)) - float(function(x - shift))) / (2 * width)
    return gradient
