"""Checks whether the numbers of a data set are too large to train on."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

LARGE = 1e6  # far beyond what initial weights of order one can handle


class Largest(NamedTuple):
    """The largest number of an array, and where it is."""

    size: float
    row: int
    column: int

    def __str__(self) -> str:
        return f"{self.size:.3g} (row {self.row + 1})"


def check(x: np.ndarray, y: np.ndarray) -> None:
    """Reject numbers that overflow in the precision of ``x``, which would kill or freeze every member.

    A gradient grows as the square of an input and optimisers square gradients; the likelihood squares targets.
    """
    most = float(np.finfo(x.dtype).max)
    found = largest(x)
    if found.size > most**0.25:
        raise ValueError(
            f"input {found.column + 1} of {x[0].size} is as large as {found}: its fourth power overflows in "
            f"{x.dtype}; set data.standardise = true, or scale or drop the column"
        )
    if np.issubdtype(y.dtype, np.floating) and largest(y).size > most**0.5:
        raise ValueError(f"a target is as large as {largest(y)}: its square overflows in {y.dtype}; scale the targets")


def warnings(x: np.ndarray, y: np.ndarray) -> Iterator[str]:
    """Warnings for numbers that can be trained on, but hardly learned."""
    if (found := largest(x)).size > LARGE:
        yield (
            f"input {found.column + 1} of {x[0].size} is as large as {found}: networks learn from numbers of about 1; "
            "set data.standardise = true"
        )
    if np.issubdtype(y.dtype, np.floating) and (found := largest(y)).size > LARGE:
        yield f"a target is as large as {found}: networks learn numbers of about 1; scale the targets"


def largest(values: np.ndarray) -> Largest:
    index = max(np.argmax(values), np.argmin(values), key=lambda i: abs(values.flat[i]))  # no copy: may be all of CIFAR
    row, column = divmod(int(index), values[0].size)
    return Largest(float(abs(values.flat[index])), row, column)
