"""Models made from another model: part of it frozen, observation noise added, or computed in less precision."""

import math
from collections.abc import Callable, Collection
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array

from stein import inputs
from stein.types import Key, Model, Weights

LEAST_LOG_SIGMA = 3.0
"""How far a modulated log sigma can be below its level."""


def split(
    model: Model,
    weights: Weights,
    particles: str | Callable[[str], bool] = "last-layer",
    example: ArrayLike | None = None,
) -> tuple[Model, Weights]:
    """Particles over part of a network; the rest is frozen and shared.

    Args:
        model: the whole network.
        weights: one network's weights, usually trained: the source of the frozen part.
        particles: a predicate on the path of a weight, such as ``lambda path: "head" in path`` for the path
            ``"head/kernel"``; or ``"last-layer"``: the layers nearest to the outputs in whose weights, all taken
            together, the outputs are affine. That is the final linear layer, or all of them if the network has
            several heads. It is determined from the function itself, not from names.
        example: a batch of inputs, needed to find the last layer.

    Returns:
        A model whose weights are the chosen leaves, with None in place of the others, and the chosen part of
        ``weights``. Under ``vmap`` over particles the frozen layers below them are evaluated once.

    Raises:
        ValueError: nothing was selected, or the outputs are affine in no layer.

    >>> from stein.models import mlp
    >>> network = mlp([1, 50, 50, 1])
    >>> trained = network.init(jax.random.key(0))
    >>> model, start = split(network, trained, example=jnp.ones((4, 1)))
    >>> [leaf.shape for leaf in jax.tree.leaves(start)]
    [(1, 50), (1,)]
    """
    inputs.in_jax(model)
    expected = jax.eval_shape(model.init, jax.random.key(0))
    if not eqx.tree_equal(jax.tree.map(jnp.shape, weights), jax.tree.map(jnp.shape, expected)):
        raise ValueError("weights: must be one network's weights, of the shapes that model.init returns")
    flat, structure = jax.tree_util.tree_flatten_with_path(weights)
    paths = [_join(path) for path, _ in flat]
    if callable(particles):
        chosen = [bool(particles(path)) for path in paths]
        if not any(chosen):
            raise ValueError(f"particles: the predicate selects none of {_some(paths)}")
    elif particles == "last-layer":
        if example is None:
            raise ValueError("example: got None; 'last-layer' needs a batch of inputs")
        chosen = _last_layer(model, weights, jnp.asarray(example))
    else:
        raise ValueError(f"particles: got {particles!r}; must be 'last-layer' or a predicate on paths")
    mask = jax.tree.unflatten(structure, chosen)
    start, frozen = eqx.partition(weights, mask)

    def init(key: Key) -> Weights:
        return eqx.filter(model.init(key), mask)

    def apply(part: Weights, inputs: Array) -> Array:
        return model.apply(eqx.combine(part, frozen), inputs)

    return Model(init, apply), start


def with_log_sigma(model: Model, initial: float = 0.0, targets: int = 1, modulation: float = 0.0) -> Model:
    r"""A learned observation noise of each target as further outputs, the same for all inputs or modulated by them.

    .. math:: \log\sigma(x) = \log\sigma_0 + \max(\mathrm{modulation} \cdot g(x), -3)

    A network that outputs :math:`\log\sigma(x)` freely learns that there is no noise where it fits training rows by
    chance. With a small ``modulation`` the level :math:`\log\sigma_0` is shared by all rows, and only evidence from
    many of them makes the noise depend on the inputs; nowhere is it below a twentieth of that level. (Where targets are
    whole numbers a network can fit some rows exactly, and be certain of their neighbours.)

    Args:
        model: a network with outputs ``(b, k)``; with ``modulation`` ``(b, 2k)``, the last k of which are g.
        initial: the value of log sigma at initialisation.
        targets: k.
        modulation: how strongly the inputs change the noise; 0: not at all.

    Returns:
        A model with weights ``{"network": ..., "log_sigma": ...}`` and outputs ``(b, 2k)``, the last k of which are
        the log sigmas.

    >>> from stein.models import mlp
    >>> model = with_log_sigma(mlp([3, 8, 1]), initial=-1.0)
    >>> model.apply(model.init(jax.random.key(0)), jnp.ones((2, 3)))[:, 1].tolist()
    [-1.0, -1.0]
    """
    if not math.isfinite(initial):
        raise ValueError(f"initial: got {initial}; must be finite")
    if targets < 1:
        raise ValueError(f"targets: got {targets}; must be 1 or more")
    if not 0 <= modulation < math.inf:
        raise ValueError(f"modulation: got {modulation}; must be 0 or more")
    expected = 2 * targets if modulation else targets

    def init(key: Key) -> Weights:
        network = model.init(key)
        shape = () if targets == 1 else (targets,)
        return {"network": network, "log_sigma": jnp.full(shape, initial, jax.tree.leaves(network)[0].dtype)}

    def apply(weights: Weights, inputs: Array) -> Array:
        outputs = model.apply(weights["network"], inputs)
        if outputs.shape[1:] != (expected,):
            raise ValueError(
                f"targets = {targets}: the network has outputs {outputs.shape}; must be {expected} per row"
            )
        level = weights["log_sigma"].reshape(1, targets).astype(outputs.dtype)
        means, by_input = outputs[:, :targets], outputs[:, targets:]
        log_sigma = jnp.broadcast_to(level, means.shape)
        if modulation:
            log_sigma = log_sigma + jnp.maximum(modulation * by_input, -LEAST_LOG_SIGMA)
        return jnp.concatenate([means, log_sigma], axis=-1)

    return Model(init, apply)


def in_bfloat16(model: Model) -> Model:
    """The same network, computed in bfloat16. Weights, outputs and gradients keep the precision of the weights.

    Kernels, priors, noise and optimisers work on these, so in full precision. A bfloat16 number has 8 significant bits:
    every layer rounds its results by up to 0.4 %. It is for accelerators that multiply bfloat16; most CPUs are slower
    with it.

    >>> from stein.models import mlp
    >>> model = in_bfloat16(mlp([3, 8, 1]))
    >>> model.apply(model.init(jax.random.key(0)), jnp.ones((2, 3))).dtype
    dtype('float32')
    """

    def apply(weights: Weights, inputs: Array) -> Array:
        def narrow(array: Array) -> Array:
            return array.astype(jnp.bfloat16) if jnp.issubdtype(array.dtype, jnp.floating) else array

        outputs = model.apply(jax.tree.map(narrow, weights), narrow(inputs))
        return outputs.astype(jax.tree.leaves(weights)[0].dtype)

    return Model(model.init, apply)


def _last_layer(model: Model, weights: Weights, example: Array) -> list[bool]:
    """Which leaves belong to the layers nearest to the outputs in which the outputs are jointly affine."""
    flat, structure = jax.tree_util.tree_flatten_with_path(weights)
    leaves = [leaf for _, leaf in flat]
    layer_of = [_join(path[:-1]) for path, _ in flat]
    layers = list(dict.fromkeys(layer_of))
    rng = np.random.default_rng(0)
    moves = [rng.standard_normal(leaf.shape).astype(leaf.dtype) for leaf in leaves]

    @jax.jit
    def outputs(leaves: list[Array], moves: list[Array], steps: list[Array]) -> Array:
        moved = [w + step * v for w, v, step in zip(leaves, moves, steps, strict=True)]
        with jax.default_matmul_precision("highest"):
            return model.apply(jax.tree.unflatten(structure, moved), example)

    def affine_in(group: Collection[str]) -> bool:
        before, here, after = (
            np.asarray(outputs(leaves, moves, [step * (layer in group) for layer in layer_of]))
            for step in (-1.0, 0.0, 1.0)
        )
        change = np.abs(after - before).max()
        bend = np.abs((after - here) - (here - before)).max()
        eps = float(jnp.finfo(here.dtype).eps)
        tolerance = math.sqrt(eps) * change + 100 * eps * np.abs(here).max()
        return bool(bend <= tolerance < change)

    # Below a linear head other layers (such as a LayerNorm) are affine too; only the one nearest to the outputs counts.
    steps = _steps_to_output(model, leaves, structure, example)
    distance = {layer: max(s for s, of in zip(steps, layer_of, strict=True) if of == layer) for layer in layers}
    last: set[str] = set()
    for layer in sorted(layers, key=lambda layer: (distance[layer], -layers.index(layer))):
        if affine_in({layer}) and affine_in({layer, *last}):
            last.add(layer)
    if not last:
        raise ValueError(
            f"particles: the outputs are affine in no layer, so there is no last layer to find; "
            f"pass a predicate on the paths {_some([_join(path) for path, _ in flat])}"
        )
    return [layer in last for layer in layer_of]


def _steps_to_output(model: Model, leaves: list[Array], structure: Any, example: Array) -> list[int]:
    """For each leaf, the number of operations on the data that come after it enters."""
    with jax.disable_jit():  # so that a jitted network is seen as its operations
        traced = jax.make_jaxpr(lambda w, x: model.apply(jax.tree.unflatten(structure, w), x))(leaves, example)
    data = len(leaves)
    sources = {id(variable): {index} for index, variable in enumerate(traced.jaxpr.invars)}
    steps = [0] * len(leaves)
    for equation in traced.jaxpr.eqns:
        found: set[int] = set().union(*(sources.get(id(variable), set()) for variable in equation.invars))
        for index in found - {data} if data in found else ():
            steps[index] += 1
        sources.update((id(variable), found) for variable in equation.outvars)
    return steps


def _join(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")


def _some(paths: list[str]) -> str:
    return ", ".join(repr(path) for path in paths[:6]) + (", ..." if len(paths) > 6 else "")
