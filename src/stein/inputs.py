"""Checks of user input on the host before anything is compiled; errors are one line: what is wrong, what to do."""

import inspect
import math
import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar

import numpy as np

Function = TypeVar("Function", bound=Callable[..., Any])

AXES = {"n": "members", "b": "points", "c": "classes", "k": "targets", "g": "inputs", "_": "any number"}
"""The meaning of the axis letters in annotations."""


def array(name: str, value: Any) -> np.ndarray:
    """Numbers as a NumPy array, from an array, a list, or a pandas or polars table or column.

    Raises:
        ValueError: it holds something else; for a table, the message names the column.
    """
    columns = getattr(value, "columns", None)
    if columns is None:
        return _numbers(name, value)
    if len(set(columns)) < len(columns):
        raise ValueError(f"{name}: two columns have the same name; rename one")
    found = [_numbers(f"{name}: column {column!r}", value[column]) for column in columns]
    return np.stack(found, axis=1) if found else np.empty((len(value), 0))


def _numbers(name: str, value: Any) -> np.ndarray:
    if np.ma.is_masked(value):
        raise ValueError(f"{name} has masked values: must be numbers, without gaps")
    try:
        found = np.asarray(value)
    except ValueError:
        raise ValueError(f"{name}: rows of different lengths; must be an array of numbers") from None
    if found.dtype.kind in "biuf" or found.dtype.name == "bfloat16":
        return found
    if found.size and isinstance(first := found.ravel()[0], str):
        raise ValueError(
            f"{name} holds text ({str(first)!r}): must be numbers; "
            "np.unique(labels, return_inverse=True)[1] numbers the classes"
        )
    raise ValueError(f"{name} holds values of type {found.dtype}: must be numbers, without gaps")


def finite(name: str, values: np.ndarray) -> None:
    """Raise ``ValueError`` for the first value that is not finite."""
    if np.issubdtype(values.dtype, np.floating) and not np.isfinite(values).all():
        bad = tuple(np.argwhere(~np.isfinite(values))[0])
        place = ", ".join(map(str, bad))
        raise ValueError(f"{name}[{place}] = {values[bad]}: row {bad[0]} is not finite")


def same_rows(x: Any, y: Any) -> None:
    """Raise ``ValueError`` unless inputs and targets have one row per point."""
    if not (x.ndim and y.ndim):
        raise ValueError(f"x has shape {x.shape}, y {y.shape}: both must have a row for each point")
    if len(x) != len(y):
        raise ValueError(f"x has {len(x)} rows, y has {len(y)}: must be equal")


def batch(x: Any) -> Any:
    """Inputs of a network: at least two axes, finite. JAX arrays stay on their device."""
    import jax

    found = x if isinstance(x, jax.Array) else array("x", x)
    if found.ndim < 2:
        raise ValueError(
            f"x has shape {found.shape}: must have a row for each point; x[None] is one row, x[:, None] a column"
        )
    if not isinstance(found, jax.core.Tracer):
        finite("x", np.asarray(found))
    return found


@contextmanager
def applying(x: Any) -> Iterator[None]:
    """While a network is applied to ``x``, turn JAX's errors about shapes into one line."""
    try:
        yield
    except RuntimeError:  # such as out of memory
        raise
    except Exception as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise ValueError(f"x has shape {x.shape}: the model does not take it ({reason})") from error


def answers(x: Any, shape: tuple[int, ...]) -> None:
    """Raise ``ValueError`` unless a network's outputs for ``x`` have shape (rows, outputs)."""
    if len(shape) != 2 or shape[0] != len(x):
        raise ValueError(f"x has shape {x.shape}, the model's outputs {shape}: must be ({len(x)}, outputs)")


def in_jax(network: Any) -> None:
    """Raise ``ValueError`` for a network, or a class of networks, of PyTorch, which is not imported for it."""
    kind = network if isinstance(network, type) else type(network)
    if any(base.__module__.partition(".")[0] == "torch" for base in kind.__mro__):
        raise ValueError(
            f"{kind.__name__} is a PyTorch network, and members are trained in JAX: write it in Flax or Equinox, "
            "or save its features as an array and train an ensemble of heads on them"
        )


def key(value: Any) -> None:
    """Raise ``ValueError`` unless ``value`` is one JAX key."""
    import jax

    dtype, shape = getattr(value, "dtype", None), getattr(value, "shape", None)
    typed = dtype is not None and jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key)
    if (typed and shape == ()) or (dtype == np.uint32 and shape == (2,)):  # the latter is jax.random.PRNGKey
        return
    if typed:
        raise ValueError(f"key has shape {shape}: must be a single one, such as key[0]")
    seed = value if isinstance(value, int) else 0
    given = repr(value) if value is None or isinstance(value, (int, float, str)) else type(value).__name__
    raise ValueError(f"key = {given}: must be a JAX key, such as jax.random.key({seed})")


def positive(*, or_zero: bool = False, **named: Any) -> None:
    """Raise ``ValueError`` for the first argument that is not a positive finite number."""
    import jax

    for name, value in named.items():
        if isinstance(value, jax.core.Tracer):
            continue
        try:
            number = math.nan if isinstance(value, str) else float(value)
        except (TypeError, ValueError):
            number = math.nan
        if not (0 < number < math.inf or (or_zero and number == 0)):
            given, what = str(value), "0 or positive" if or_zero else "positive"
            if isinstance(value, str):
                given, what = repr(value), "a number"
            raise ValueError(f"{name} = {given}: must be {what}")


def whole(least: int, **named: Any) -> None:
    """Raise ``ValueError`` for the first argument that is not a whole number of at least ``least``."""
    for name, value in named.items():
        try:
            number = operator.index(value)
        except TypeError:
            raise ValueError(f"{name} = {value!r}: must be a whole number") from None
        if number < least:
            raise ValueError(f"{name} = {value}: must be at least {least}")


def shaped(function: Function) -> Function:
    """Check the shapes of arrays at every call against jaxtyping's annotations: equal letters mean equal lengths.

    An argument annotated as a NumPy array may be anything that :func:`array` takes. A single target per point may be
    (b,) or (b, 1), whatever the annotation says; nothing else is ever broadcast.
    """
    signature = inspect.signature(function)
    promised = {n: p.annotation for n, p in signature.parameters.items() if hasattr(p.annotation, "dim_str")}

    @wraps(function)
    def checked(*arguments: Any, **keywords: Any) -> Any:
        bound = signature.bind(*arguments, **keywords)
        lengths: dict[str, tuple[int, str, tuple[int, ...]]] = {}
        for name, value in bound.arguments.items():
            if (annotation := promised.get(name)) is None:
                continue
            if annotation.array_type is np.ndarray:
                value = _of_kind(name, array(name, value), annotation.dtypes)
            axes, given = annotation.dim_str.split(), value.shape
            if axes[-1] == "k" and value.ndim == len(axes) - 1:
                value = value[..., None]
            elif len(axes) == 1 and value.ndim == 2 and given[1] == 1:
                value = value[:, 0]
            if value.ndim != len(axes):
                expected = ", ".join(AXES.get(axis, axis) for axis in axes)
                raise ValueError(f"{name} has shape {given}: must be ({expected})")
            for axis, length in zip(axes, value.shape, strict=True):
                first, other, shape = lengths.setdefault(axis, (length, name, given))
                if axis != "_" and length != first:
                    raise ValueError(f"{other} has shape {shape}, {name} {given}: {AXES.get(axis, axis)} must agree")
            bound.arguments[name] = value
        return function(*bound.args, **bound.kwargs)

    return checked  # type: ignore[return-value]


def _of_kind(name: str, values: np.ndarray, kinds: Any) -> np.ndarray:
    """Floats, integers or booleans, as an annotation requires; only lossless conversions are made."""
    if not isinstance(kinds, tuple):  # of any type
        return values
    if "float64" in kinds:
        return values if values.dtype.kind not in "biu" else values.astype(float)
    if "int64" in kinds and values.dtype.kind in "biu":
        return values if values.dtype.kind == "i" else values.astype(np.int64)
    if "bool" in kinds and values.dtype.kind == "b":
        return values
    raise ValueError(f"{name} has type {values.dtype}: must be {'integers' if 'int64' in kinds else 'true or false'}")
