"""Models from networks written in other libraries."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
from jax.typing import ArrayLike
from jaxtyping import Array

from stein import inputs
from stein.models.convolutions import as_products
from stein.types import Key, Model, Weights

_STATISTICS = "running statistics that an ensemble of particles cannot share; use GroupNorm or LayerNorm"
_NOISE = "its noise is not part of the posterior; remove it or switch it off with"
_NO_FLAX = "this adapter needs flax, which is not installed: pip install '.[flax]' in the checkout"


def from_function(init: Callable[[Key], Any], apply: Callable[[Any, Array], Array]) -> Model:
    """A model from a plain pair of functions.

    Args:
        init: ``init(key)`` draws a pytree of parameters. Its floating-point arrays are the weights; all else in it
            (integer arrays, numbers, functions) is a constant, taken once and shared by all particles.
        apply: ``apply(parameters, inputs)`` maps inputs ``(b, ...)`` to outputs ``(b, k)``.

    On a CPU its convolutions are computed as products (:mod:`stein.models.convolutions`), equal to rounding.

    >>> model = from_function(lambda key: {"w": jax.random.normal(key, (3, 2))}, lambda p, x: x @ p["w"])
    >>> model.apply(model.init(jax.random.key(0)), jax.numpy.ones((5, 3))).shape
    (5, 2)
    """

    inputs.in_jax(init)
    inputs.in_jax(apply)

    @eqx.filter_jit  # so that the weights, which are discarded, are not computed
    def rest(key: Key) -> Any:
        return eqx.filter(init(key), eqx.is_inexact_array, inverse=True)

    constants = rest(jax.random.key(0))

    def draw(key: Key) -> Weights:
        return eqx.filter(init(key), eqx.is_inexact_array)

    def evaluate(weights: Weights, inputs: Array) -> Array:
        return apply(eqx.combine(weights, constants), inputs)

    return Model(draw, as_products(evaluate))


def from_equinox(make: Callable[[Key], Any]) -> Model:
    """A model from an Equinox module that acts on one example.

    Args:
        make: ``make(key)`` builds the module. Its floating-point JAX arrays are the weights.

    Raises:
        ValueError: the module keeps state (``BatchNorm``, ``SpectralNorm``) or has active dropout, or is of PyTorch.

    >>> model = from_equinox(lambda key: eqx.nn.MLP(3, 2, width_size=8, depth=1, key=key))
    >>> model.apply(model.init(jax.random.key(0)), jax.numpy.ones((5, 3))).shape
    (5, 2)
    """
    # Not eqx.nn.StatefulLayer, which every Sequential is.
    stateful = (eqx.nn.BatchNorm, eqx.nn.SpectralNorm, eqx.nn.StateIndex)
    inputs.in_jax(make)
    made = eqx.filter_eval_shape(make, jax.random.key(0))
    inputs.in_jax(made)
    layers = jax.tree_util.tree_leaves_with_path(
        made,
        is_leaf=lambda node: isinstance(node, (*stateful, eqx.nn.Dropout)),
    )
    for path, layer in layers:
        name = f"{type(layer).__name__} at {jax.tree_util.keystr(path, simple=True, separator='/') or 'the top'}"
        if isinstance(layer, stateful):
            raise ValueError(f"{name} keeps {_STATISTICS}")
        if isinstance(layer, eqx.nn.Dropout) and layer.p > 0 and not layer.inference:
            raise ValueError(f"{name}: {_NOISE} eqx.nn.inference_mode")
    return from_function(make, lambda module, inputs: jax.vmap(module)(inputs))


def from_linen(module: Any, example: ArrayLike, **arguments: Any) -> Model:
    """A model from a ``flax.linen`` module.

    Args:
        module: a module that acts on a batch. The collection ``params`` holds the weights; other collections are
            constants, taken once.
        example: a batch of inputs, for the shapes.
        arguments: keyword arguments of every call, such as ``train=False``.

    Raises:
        ValueError: the module keeps batch statistics or other state, or needs random numbers when it is called.
        ImportError: flax is not installed.

    >>> from flax import linen
    >>> model = from_linen(linen.Dense(2), jax.numpy.ones((1, 3)))
    >>> model.apply(model.init(jax.random.key(0)), jax.numpy.ones((5, 3))).shape
    (5, 2)
    """
    try:
        from flax import errors
    except ImportError:
        raise ImportError(_NO_FLAX) from None
    inputs.in_jax(module)

    @jax.jit
    def rest(key: Key) -> Any:
        variables = module.init(key, example, **arguments)
        return {collection: value for collection, value in variables.items() if collection != "params"}

    constants = rest(jax.random.key(0))
    if "batch_stats" in constants:
        layers = ", ".join(constants["batch_stats"])
        raise ValueError(f"{layers} (collection 'batch_stats') keeps {_STATISTICS}")

    def init(key: Key) -> Any:
        return module.init(key, example, **arguments).get("params", {})

    def apply(params: Any, inputs: Array) -> Array:
        return module.apply({"params": params, **constants}, inputs, **arguments)

    model = from_function(init, apply)
    try:
        jax.eval_shape(model.apply, jax.eval_shape(model.init, jax.random.key(0)), example)
    except errors.InvalidRngError as error:
        raise ValueError(f"{_first_sentence(error)}: {_NOISE} deterministic=True") from None
    except errors.ModifyScopeVariableError as error:
        raise ValueError(f"{_first_sentence(error)} An ensemble's networks keep no state: remove it") from None
    return model


def from_nnx(make: Callable[[Any], Any]) -> Model:
    """A model from a ``flax.nnx`` module that acts on a batch.

    Args:
        make: ``make(rngs)`` builds the module from an ``nnx.Rngs``. Its ``nnx.Param`` variables are the weights, a
            nested dict of arrays; all other variables are constants, taken once.

    Raises:
        ValueError: the module keeps batch statistics or has active dropout.
        ImportError: flax is not installed.

    >>> from flax import nnx
    >>> model = from_nnx(lambda rngs: nnx.Linear(3, 2, rngs=rngs))
    >>> model.apply(model.init(jax.random.key(0)), jax.numpy.ones((5, 3))).shape
    (5, 2)
    """
    try:
        from flax import nnx
    except ImportError:
        raise ImportError(_NO_FLAX) from None

    inputs.in_jax(make)
    module = make(nnx.Rngs(jax.random.key(0)))
    inputs.in_jax(module)
    for path, _ in nnx.to_flat_state(nnx.state(module, nnx.BatchStat)):
        raise ValueError(f"{'/'.join(map(str, path))} (nnx.BatchStat) keeps {_STATISTICS}")
    for path, layer in nnx.iter_modules(module):
        if not isinstance(layer, nnx.Dropout | nnx.MultiHeadAttention) or layer.deterministic:
            continue
        if getattr(layer, "rate", 0) or getattr(layer, "dropout_rate", 0):
            name = f"{type(layer).__name__} at {'/'.join(map(str, path)) or 'the top'}"
            raise ValueError(f"{name}: {_NOISE} deterministic=True or module.eval()")
    graph, state = nnx.split(module)

    def init(key: Key) -> Any:
        return nnx.to_pure_dict(nnx.state(make(nnx.Rngs(key)), nnx.Param))

    def apply(params: Any, inputs: Array) -> Array:
        network = nnx.merge(graph, state, copy=True)  # a copy, or the update would write through to `state`
        nnx.update(network, params)
        return network(inputs)

    return from_function(init, apply)


def _first_sentence(error: Exception) -> str:
    return str(error).split(" (https://")[0]
