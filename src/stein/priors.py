r"""Priors on one network's weights: independent over entries, with one scale for all or one per layer.

``scale`` is a number, or a pytree prefix of the weights with a number per layer. It is a standard
deviation (normal) or a diversity b (Laplace), never a variance. :func:`fan_in` derives it from the shapes.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from stein import tree
from stein.types import Key, Weights


class Prior(NamedTuple):
    """``log_prob(w)``, its gradient ``score(w)``, and ``sample(key, like)`` shaped as the weights ``like``."""

    log_prob: Callable[[Weights], Float[Array, ""]]
    score: Callable[[Weights], Weights]
    sample: Callable[[Key, Weights], Weights]


def normal(std: Any = 1.0) -> Prior:
    r"""Normal prior :math:`w \sim N(0, \mathrm{std}^2)`; score :math:`-w/\mathrm{std}^2`."""
    _check_positive("std", std)

    def log_prob(w: Weights) -> Array:
        # Apart from constants: with std = 1 the sum of squares is what `tree.healthy` needs too, and XLA makes it once.
        squares = _total(w, std, lambda a, s: jnp.square(a / s))
        scales = _each(w, std, lambda a, s: a.size * jnp.mean(jnp.log(s) + 0.5 * math.log(2 * math.pi)))
        return -0.5 * squares - sum(jax.tree.leaves(scales))

    def score(w: Weights) -> Weights:
        return _each(w, std, lambda a, s: -a / s**2)

    def sample(key: Key, like: Weights) -> Weights:
        return _each(tree.draw_like(jax.random.normal, key, like), std, lambda a, s: s * a)

    return Prior(log_prob, score, sample)


def fan_in(scale: float = 1.0) -> Prior:
    r"""Normal prior whose functions are of about the same size for every width.

    .. math:: w \sim N(0, \mathrm{scale}^2/m)

    for the weights of a unit with m inputs; biases and other vectors have standard deviation ``scale``.

    m is the product of a leaf's axes without the outputs: the last axis of a Flax ``kernel``, the first of all others.

    Reference: Neal (1996).

    >>> weights = {"weight": jnp.ones((2, 100)), "bias": jnp.ones(2)}
    >>> score = fan_in(0.5).score(weights)
    >>> round(score["weight"][0, 0].item()), round(score["bias"][0].item())
    (-400, -4)
    """
    _check_positive("scale", scale)

    def of(w: Weights) -> Prior:
        return normal(jax.tree_util.tree_map_with_path(lambda path, leaf: scale / math.sqrt(_inputs(path, leaf)), w))

    return Prior(
        lambda w: of(w).log_prob(w),
        lambda w: of(w).score(w),
        lambda key, like: of(like).sample(key, like),
    )


def with_own_scale(prior: Prior) -> Prior:
    r"""A prior whose scale s is part of the weights ``{"weights": w, "scale": s}`` and stays as it is.

    .. math:: \log p_s(w) = \log p(w/s) - d \log s, \qquad \nabla \log p_s(w) = \nabla \log p(w/s)/s

    One compiled program then trains members with different priors.
    """

    def log_prob(w: Weights) -> Array:
        scale = w["scale"]
        entries = sum(leaf.size for leaf in jax.tree.leaves(w["weights"]))
        return prior.log_prob(_divided(w["weights"], scale)) - entries * jnp.log(scale)

    def score(w: Weights) -> Weights:
        scale = w["scale"]
        gradient = _divided(prior.score(_divided(w["weights"], scale)), scale)
        return {"weights": gradient, "scale": jnp.zeros_like(scale)}

    def sample(key: Key, like: Weights) -> Weights:
        drawn = prior.sample(key, like["weights"])
        return {"weights": _divided(drawn, 1 / like["scale"]), "scale": like["scale"]}

    return Prior(log_prob, score, sample)


def laplace(scale: Any = 1.0) -> Prior:
    r"""Laplace prior :math:`p(w) = e^{-|w|/b}/2b`; score :math:`-\operatorname{sign}(w)/b`. Favours sparse weights."""
    _check_positive("scale", scale)

    def log_prob(w: Weights) -> Array:
        return _total(w, scale, lambda a, b: -jnp.abs(a) / b - jnp.log(2 * b))

    def score(w: Weights) -> Weights:
        return _each(w, scale, lambda a, b: -jnp.sign(a) / b)

    def sample(key: Key, like: Weights) -> Weights:
        return _each(tree.draw_like(jax.random.laplace, key, like), scale, lambda a, b: b * a)

    return Prior(log_prob, score, sample)


def _divided(w: Weights, scale: Array) -> Weights:
    return jax.tree.map(lambda leaf: leaf / scale.astype(leaf.dtype), w)


def _inputs(path: Any, leaf: Any) -> int:
    """Number of inputs of the units whose weights are in this leaf; 1 for vectors."""
    is_kernel = getattr(path[-1], "key", getattr(path[-1], "name", "")) == "kernel" if path else False
    return max(1, math.prod(leaf.shape[:-1] if is_kernel else leaf.shape[1:])) if len(leaf.shape) > 1 else 1


def _each(w: Weights, scale: Any, function: Callable[[Array, Array], Array]) -> Weights:
    """``function(leaf, its scale)`` for every leaf."""
    scales = jax.tree.broadcast(scale, w)
    return jax.tree.map(lambda a, s: function(a, jnp.asarray(s, a.dtype)), w, scales)


def _total(w: Weights, scale: Any, log_density: Callable[[Array, Array], Array]) -> Float[Array, ""]:
    terms = [tree.row_sums(leaf[None])[0] for leaf in jax.tree.leaves(_each(w, scale, log_density))]
    return sum(terms[1:], terms[0])


def _check_positive(name: str, scale: Any) -> None:
    for path, value in jax.tree.flatten_with_path(scale)[0]:
        if not value > 0:
            raise ValueError(f"{name}{jax.tree_util.keystr(path)} = {value}: must be positive")
