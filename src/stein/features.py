r"""What a functional kernel compares: outputs, probabilities, a hidden layer, input gradients, or a function of yours.

A feature map is a function ``(apply, weights, x) -> (m, ...)`` of one network at m points, or
``(apply, weights, x, labels)`` if it needs their labels. ``apply(weights, x)`` are the network's outputs as the kernel
sees them (logits, or means without :math:`\log\sigma`); ``labels`` is (m, c), one-hot for classes and ones for
regression. The force on the features is pulled back by the map's vector-Jacobian product :math:`J_i^\top v_i`; for
input gradients that is a second derivative.

Rules take a map as ``space``, configs its name as ``method.compares``:

===================  ==================================================================================
``outputs``          logits or means
``probabilities``    of the classes
``hidden-1``, ...    a hidden layer by its number (``mlp``, ``resnet32``), or what your network calls
                     ``jax.ad_checkpoint.checkpoint_name(h, name)``, by that name
``input-gradients``  the derivatives of all outputs in the inputs
``label-gradients``  the direction of the derivative of the label's output in the inputs (method ``forde``)
===================  ==================================================================================

A function of yours is given as it is, ``rules.fw_svgd(space=function)``, or gets a name in ``stein.methods.FEATURES``.

    >>> from stein import rules
    >>> rule = rules.fw_svgd(space=lambda apply, weights, x: jnp.tanh(apply(weights, x)))
"""

import contextlib
import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import jaxpr_as_fun
from jaxtyping import Array, Float

from stein import inputs, methods
from stein.types import Weights

FeatureMap = Callable[..., Array]
Space = str | FeatureMap
"""A feature map, or its name."""


def named(name: str) -> FeatureMap:
    """The map of a name in :data:`stein.methods.FEATURES`; else the hidden layer that the network calls so."""
    known = methods.FEATURES.get(name)
    if known is None:
        return hidden(name)
    return known if callable(known) else globals()[known]()


def takes_labels(space: Space) -> bool:
    """Whether a feature map, or the one of this name, has a fourth argument."""
    function = named(space) if isinstance(space, str) else space
    needed = [p for p in inspect.signature(function).parameters.values() if p.default is p.empty]
    return len(needed) > 3


def at(
    space: Space, apply: Callable[[Weights, Array], Array], x: Array, labels: Float[Array, "m c"]
) -> Callable[[Weights], Float[Array, "m k"]]:
    """The features of one network at the points ``x``, a row for each, as a function of its weights."""
    function = named(space) if isinstance(space, str) else space
    given = (x, labels) if takes_labels(function) else (x,)

    def compare(weights: Weights) -> Float[Array, "m k"]:
        found = function(apply, weights, *given)
        if found.ndim < 1 or found.shape[0] != x.shape[0]:
            raise ValueError(f"space: the features of {x.shape[0]} points are {found.shape}; must be a row for each")
        return found.reshape(x.shape[0], -1).astype(labels.dtype)

    return compare


def hidden(name: str) -> FeatureMap:
    """A value inside the network, by the name that ``jax.ad_checkpoint.checkpoint_name`` gives it there.

    The layers of ``mlp`` are ``hidden-1`` to the last, after their activation; those of ``resnet32`` are ``hidden-1``
    (after the first convolution), ``hidden-2`` to ``hidden-4`` (its stages) and ``hidden-5`` (the mean over pixels).
    What comes after the layer is not computed. Values inside of loops and branches have no names.
    """

    def compare(apply: Callable[[Weights, Array], Array], weights: Weights, x: Array) -> Array:
        found: dict[str, Any] = {}
        # Without jit, parts that the network jits are seen too, but loops are unrolled.
        for mode in (contextlib.nullcontext(), jax.disable_jit()):
            with mode:
                program = jax.make_jaxpr(apply)(weights, x)
            found |= {e.params["name"]: e.outvars for e in program.jaxpr.eqns if e.primitive.name == "name"}
            if name in found:
                until = program.replace(jaxpr=program.jaxpr.replace(outvars=found[name]))
                return jaxpr_as_fun(until)(*jax.tree.leaves((weights, x)))[0]
        known = ["outputs", *methods.FEATURES, *found]
        raise ValueError(f"space = {name!r}: this network has no layer of this name; must be one of {', '.join(known)}")

    return compare


def input_gradients() -> FeatureMap:
    r"""The derivatives :math:`\nabla_x f_o(x)` of all c outputs, by c backward passes."""

    def compare(apply: Callable[[Weights, Array], Array], weights: Weights, x: Array) -> Array:
        outputs, back = _at_inputs(apply, weights, x)
        points, c = outputs.shape
        each = jnp.broadcast_to(jnp.eye(c, dtype=outputs.dtype)[:, None], (c, points, c))
        return jnp.moveaxis(jax.vmap(back)(each)[0], 0, 1)

    return compare


def label_gradients(axes: Float[Array, "d r"] | np.ndarray | None = None) -> FeatureMap:
    r"""The direction of the derivative of the label's output in the inputs.

    .. math:: a(x) = A^\top \nabla_x f_y(x) \,/\, |\nabla_x f_y(x)|

    where y is the class of the point (for regression :math:`f_y` is the sum of the means) and A are the ``axes``, those
    of :func:`principal_axes` of the inputs, or all directions alike.

    Reference: Trinh, Heinonen, Acerbi & Kaski (2024), "Input-gradient space particle inference for neural network
        ensembles".
    """

    def compare(apply: Callable[[Weights, Array], Array], weights: Weights, x: Array, labels: Array) -> Array:
        _, back = _at_inputs(apply, weights, x)
        gradient = back(labels)[0].reshape(x.shape[0], -1)
        # As published: flat networks have no direction, and a zero that is not NaN.
        unit = gradient / jnp.sqrt(jnp.sum(gradient**2, axis=1, keepdims=True) + 1e-12)
        return unit if axes is None else unit @ jnp.asarray(axes, unit.dtype)

    return compare


def principal_axes(x: Any) -> Float[np.ndarray, "d r"]:
    r""":math:`U\Lambda^{1/2}` of the inputs' covariance :math:`U\Lambda U^\top`: its axes, as long as its spread."""
    rows = np.asarray(inputs.batch(x), np.float64).reshape(len(x), -1)
    values, vectors = np.linalg.eigh(np.atleast_2d(np.cov(rows, rowvar=False)))
    return vectors * np.sqrt(np.maximum(values, 0))


def _at_inputs(
    apply: Callable[[Weights, Array], Array], weights: Weights, x: Array
) -> tuple[Array, Callable[[Array], tuple[Array]]]:
    """Outputs, and cotangents on them as derivatives in the inputs: points do not mix."""
    if not jnp.issubdtype(x.dtype, jnp.floating):
        raise ValueError(f"x has type {x.dtype}: input gradients need floating-point inputs")
    return jax.vjp(lambda points: apply(weights, points), x)
