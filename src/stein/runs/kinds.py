"""Whether the targets of a table are numbers or classes; ambiguous targets are an error.

The rules are in docs/data.md. No jax here.
"""

import re
from typing import Literal

import numpy as np

from stein.runs.schema import Likelihood

Kind = Literal["gaussian", "heteroscedastic", "categorical", "student-t", "poisson"]

MOST_CLASSES = 20
"""More distinct whole numbers are ambiguous: they may be counts, prices or years."""
ROWS_PER_CLASS = 5
"""Fewer rows per distinct whole number, on average, are ambiguous."""
# A number with a prefix or suffix: "24.0 €", "$1,200", "15kg", "7 %".
_WITH_UNIT = re.compile(r"^[^\w.,+-]{0,3}\s*[+-]?\d[\d.,' ]*\s*[^\d\s]{0,6}$")
SETTLE = "`--set likelihood.name=gaussian` for regression, `--set likelihood.name=categorical` for classes"


def decide(y: np.ndarray, section: Likelihood, name: str) -> Kind:
    """The likelihood for raw targets (floats, integers or text) called ``name``.

    Raises:
        ValueError: if the targets do not fit the likelihood, or are ambiguous; one line.
    """
    is_text = y.dtype.kind == "U"
    if section.name != "auto":
        check_given(y, section.name, name)
        return section.name
    if is_text:
        _check_text(y, section, name)
        return "categorical"
    if y.ndim > 1 and y.shape[1] > 1:
        return "gaussian"
    values, rows = np.unique(y), len(y)
    if len(values) == 1:
        raise ValueError(f"{name!r}: all targets are {values[0]}; there is nothing to learn")
    if section.sigma != "auto":  # only numbers have a standard deviation
        return "gaussian"
    few = len(values) == 2 or (len(values) <= MOST_CLASSES and rows >= ROWS_PER_CLASS * len(values))
    if y.dtype.kind == "f":
        if few and (values == np.round(values)).all():
            raise ValueError(f"{name!r}: numbers or classes? its values are {_shown(values)}; {SETTLE}")
        return "gaussian"
    counted = values[-1] - values[0] == len(values) - 1 and values[0] in (0, 1)
    if few and (counted or len(values) == 2):
        return "categorical"
    raise ValueError(f"{name!r}: numbers or classes? {len(values)} different whole numbers, {_shown(values)}; {SETTLE}")


def names(y: np.ndarray) -> list[str]:
    """The class label of every row of raw targets; 1 and 1.0 are the same class."""
    whole = y if y.dtype.kind in "Uiu" else y.astype(np.int64)
    return [str(value) for value in whole.reshape(len(y))]


def in_order(labels: list[str]) -> tuple[str, ...]:
    """Distinct labels, numbers by size and text alphabetically."""
    different = set(labels)
    try:
        return tuple(sorted(different, key=int))
    except ValueError:
        return tuple(sorted(different))


def check_given(y: np.ndarray, kind: Kind, name: str) -> None:
    """Raise ``ValueError`` if raw targets do not fit the config's likelihood."""
    if kind == "categorical":
        if y.ndim > 1 and y.shape[1] > 1:
            raise ValueError(
                f"likelihood.name = 'categorical': {name!r} has {y.shape[1]} numbers a row; must be one label"
            )
        if y.dtype.kind == "f" and (y != np.round(y)).any():
            bad = float(y[y != np.round(y)][0])
            raise ValueError(f"likelihood.name = 'categorical': {name!r} holds {bad}; must be whole numbers or text")
        if len(np.unique(y)) == 1:
            raise ValueError(f"{name!r}: there is only one class, {y.flat[0]}; nothing to learn")
    elif y.dtype.kind == "U":
        raise ValueError(
            f"likelihood.name = {kind!r}: {name!r} holds text, such as {str(y.flat[0])[:40]!r}; must be numbers"
        )
    elif kind == "poisson" and ((y < 0) | (y != np.round(y))).any():
        bad = float(y[(y < 0) | (y != np.round(y))][0])
        raise ValueError(f"likelihood.name = 'poisson': {name!r} holds {bad:g}; must be counts: 0, 1, 2, ...")


def _check_text(y: np.ndarray, section: Likelihood, name: str) -> None:
    labels = np.unique(y)
    example = str(labels[0])[:40]
    plain = "for regression write plain numbers, for classes `--set likelihood.name=categorical`"
    if section.sigma != "auto":
        raise ValueError(f"likelihood.sigma: is for numbers; {name!r} holds text, such as {example!r}")
    if len(labels) == 1:
        raise ValueError(f"{name!r}: all targets are {example!r}; there is nothing to learn")
    if sum(bool(_WITH_UNIT.match(label)) for label in labels) > len(labels) / 2:
        raise ValueError(f"{name!r}: numbers or classes? {example!r} is text that looks like a number; {plain}")
    if len(labels) > len(y) / 2:
        found = f"{len(labels)} different texts in {len(y)} rows, such as {example!r}"
        raise ValueError(f"{name!r}: numbers or classes? {found}; {plain}")


def _shown(values: np.ndarray) -> str:
    shown = [f"{value:g}" for value in values.tolist()]
    return ", ".join(shown) if len(shown) <= 6 else f"from {shown[0]} to {shown[-1]}"
