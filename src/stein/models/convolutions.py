"""Convolutions of any network as matrix products, where XLA is slow at them.

On a CPU, XLA has fast code for the convolutions of one network outside of loops. But the members of an ensemble are
vmapped, and their steps are a loop: there convolutions, and their gradients above all, are many times slower. A
convolution is also the product of the filters with the patches of the image that they cover, and products are fast
everywhere. Patches of the inputs are the same for all members and made once.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal
from jaxtyping import Array

from stein.types import Weights

MOST_ENTRIES = 2**24
"""Patches of more entries than this, 64 MB of one member, would take too much memory."""
_CALLS = ("pjit", "jit", "closed_call")  # looked into; what is inside of loops and branches stays as it is


def as_products(apply: Callable[[Weights, Array], Array]) -> Callable[[Weights, Array], Array]:
    """The same function; on a CPU with its convolutions as products.

    Convolutions over groups of channels, of dilated images (transposed convolutions) and of very large images stay as
    they are.
    """

    def with_products(weights: Weights, inputs: Array) -> Array:
        if jax.default_backend() != "cpu":
            return apply(weights, inputs)
        program, shape = jax.make_jaxpr(apply, return_shape=True)(weights, inputs)
        if not _convolves(program.jaxpr):
            return apply(weights, inputs)
        answers = _evaluate(program, jax.tree.leaves((weights, inputs)))
        return jax.tree.unflatten(jax.tree.structure(shape), answers)

    return with_products


def convolve(
    images: Array,
    filters: Array,
    strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    gaps: Sequence[int],
    precision: Any = None,
) -> Array:
    """Filters ``(*sizes, c, c2)`` over images ``(b, *sizes, c)``: the product of patches and filters.

    Args:
        gaps: distances between neighbouring entries of a filter on the image (dilation).

    >>> image, filters = jnp.arange(4.0).reshape(1, 4, 1), jnp.array([1.0, 10.0]).reshape(2, 1, 1)
    >>> convolve(image, filters, (1,), ((0, 0),), (1,)).ravel().tolist()
    [10.0, 21.0, 32.0]
    """
    seen = patches(images, filters.shape[:-2], strides, padding, gaps)
    return jnp.matmul(seen, filters.reshape(-1, filters.shape[-1]), precision=precision)


def patches(
    images: Array,
    sizes: Sequence[int],
    strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    gaps: Sequence[int],
) -> Array:
    """What filters of these sizes see of images ``(b, *sizes, c)`` wherever they are: ``(b, *sizes, entries * c)``."""
    batch, *_, channels = images.shape
    borders = [(0, 0, 0), *((before, after, 0) for before, after in padding), (0, 0, 0)]
    padded = jax.lax.pad(images, jnp.zeros((), images.dtype), borders)
    lengths = [
        (have - (size - 1) * gap - 1) // stride * stride + 1
        for have, size, gap, stride in zip(padded.shape[1:-1], sizes, gaps, strides, strict=True)
    ]

    def shifted(corner: tuple[int, ...]) -> Array:
        """What the filter's entry at ``corner`` sees."""
        begin = [at * gap for at, gap in zip(corner, gaps, strict=True)]
        end = [first + length for first, length in zip(begin, lengths, strict=True)]
        return jax.lax.slice(padded, (0, *begin, 0), (batch, *end, channels), (1, *strides, 1))

    return jnp.concatenate([shifted(corner) for corner in np.ndindex(*sizes)], axis=-1)


def _product(images: Array, filters: Array, params: dict[str, Any]) -> Array:
    """The convolution that JAX describes by ``params``, whatever the order of its axes."""
    of_images, of_filters, of_answers = params["dimension_numbers"]
    answers = convolve(
        jnp.transpose(images, (of_images[0], *of_images[2:], of_images[1])),
        jnp.transpose(filters, (*of_filters[2:], of_filters[1], of_filters[0])),
        params["window_strides"],
        params["padding"],
        params["rhs_dilation"],
        params["precision"],
    )
    return jnp.transpose(jnp.moveaxis(answers, -1, 1), np.argsort(of_answers).tolist())


def _is_replaced(equation: Any) -> bool:
    params = equation.params
    if equation.primitive.name != "conv_general_dilated":
        return False
    entries = math.prod(equation.outvars[0].aval.shape) * math.prod(equation.invars[1].aval.shape)
    outputs = equation.invars[1].aval.shape[params["dimension_numbers"][1][0]]
    return (
        params["feature_group_count"] == params["batch_group_count"] == 1
        and all(gap == 1 for gap in params["lhs_dilation"])
        and params["preferred_element_type"] in (None, equation.invars[0].aval.dtype)
        and entries // outputs**2 <= MOST_ENTRIES
    )


def _inside(equation: Any) -> ClosedJaxpr | None:
    inner = equation.params.get("jaxpr") if equation.primitive.name in _CALLS else None
    return inner if isinstance(inner, ClosedJaxpr) else None


def _convolves(program: Jaxpr) -> bool:
    return any(
        _is_replaced(equation) or ((inner := _inside(equation)) is not None and _convolves(inner.jaxpr))
        for equation in program.eqns
    )


def _evaluate(program: ClosedJaxpr, arguments: Sequence[Array]) -> list[Array]:
    """The answers of a traced function, with products in place of convolutions."""
    jaxpr = program.jaxpr
    values: dict[Any, Any] = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*program.consts, *arguments), strict=True))

    def value(atom: Any) -> Any:
        return atom.val if isinstance(atom, Literal) else values[atom]

    for equation in jaxpr.eqns:
        known, inner = [value(atom) for atom in equation.invars], _inside(equation)
        if _is_replaced(equation):
            images, filters = known
            answers: Any = [_product(images, filters, equation.params)]
        elif inner is not None and _convolves(inner.jaxpr):
            answers = _evaluate(inner, known)
        else:
            bound = equation.primitive.get_bind_params(equation.params)  # with functions apart in some versions of JAX
            functions, params = bound if isinstance(bound, tuple) else ((), bound)
            answers = equation.primitive.bind(*functions, *known, **params)
            answers = answers if equation.primitive.multiple_results else [answers]
        values.update(zip(equation.outvars, answers, strict=True))
    return [value(atom) for atom in jaxpr.outvars]
