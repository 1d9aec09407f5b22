"""A user's own network, in any of the forms that the estimators take."""

import functools
import sys
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from stein import models
from stein.inputs import in_jax
from stein.types import Model

FORMS = (
    "a types.Model, a pair (init, apply), a flax.linen module, or a function that makes an equinox module from a key "
    "or a flax.nnx module from its rngs"
)


def adapted(model: Any, inputs: int) -> Model | None:
    """The model for tables with this many inputs; the same object for the same model, if that can be hashed."""
    if model is None:
        return None
    in_jax(model)
    try:
        hash(model)
    except TypeError:
        return _adapted(model, inputs)
    return _same(model, inputs)


def _adapted(model: Any, inputs: int) -> Model:
    if isinstance(model, Model):
        return model
    if isinstance(model, tuple) and len(model) == 2 and all(map(callable, model)):
        return models.from_function(*model)
    if hasattr(model, "init") and hasattr(model, "apply"):
        return models.from_linen(model, jnp.ones((1, inputs), jnp.float32))
    if not callable(model) or isinstance(model, eqx.Module):
        raise ValueError(f"model is of type {type(model).__name__}: must be {FORMS}")
    try:
        made = eqx.filter_eval_shape(model, jax.random.key(0))
    except Exception:  # it does not take a key: a flax.nnx module takes its rngs
        return models.from_nnx(model)
    return models.from_equinox(model) if isinstance(made, eqx.Module) else models.from_nnx(model)


_same = functools.lru_cache(maxsize=8)(_adapted)


def is_importable(model: Any) -> bool:
    """Whether another process finds the model, or its class, under its name."""
    if isinstance(model, tuple):
        return all(map(is_importable, model))
    if isinstance(model, functools.partial):
        return is_importable(model.func)
    named = model if hasattr(model, "__qualname__") else type(model)
    found: Any = sys.modules.get(named.__module__)
    for name in named.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is named and named.__module__ != "__main__"
