"""The rows of a request: read as `stein predict` reads the rows of a file, predicted together with those of others."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from stein.data import cells
from stein.runs.exported import Exported
from stein.runs.streaming import answers, usable_conformal, used_columns
from stein.tables import Column, gaps

FEWEST = 16
"""Rows that are predicted at least."""
# What a value of each kind of column is in JSON; null is a gap.
TYPES: dict[cells.Kind, tuple[tuple[type, ...], str]] = {
    "number": ((int, float), "a number"),
    "boolean": ((bool,), "true or false"),
    "date": ((str,), "a date in quotes, as 2024-12-31"),
    "text": ((str,), "text in quotes"),
}


class Asked(NamedTuple):
    """The rows of one request: inputs that are not standardised yet, remarks about each, and which are far away."""

    x: np.ndarray
    notes: list[str] | None
    far: np.ndarray
    warnings: list[str]


class Predictor:
    """A finished run that answers requests.

    Args:
        coverage: of the intervals or sets; that of the run if None.
        warn: called with one line if the intervals cannot be conformal.
    """

    def __init__(self, finished: Exported, coverage: float | None, warn: Callable[[str], None]):
        self.finished = finished
        self.coverage = finished.config.evaluation.coverage if coverage is None else coverage
        self._conformal = usable_conformal(finished, self.coverage, warn)
        x = np.zeros((1, *finished.shape))
        blank = Asked(x, None if finished.recipe is None else [""], np.zeros(1, bool), [])
        self.example: dict[str, Any] = self._together([blank])[0][0]  # compiles, too
        """The answer for one row, whose names and types are those of all."""

    def read(self, rows: Sequence[Any]) -> Asked:
        """The rows of a request, checked: objects by the names of columns, or arrays if these have no names.

        Raises:
            ValueError: a row is not as the schema says.
        """
        if self.finished.recipe is None:
            x = _array(rows, self.finished.shape)
            return Asked(x, None, np.zeros(len(x), bool), [])
        recipe, warnings = self.finished.recipe, list[str]()
        for number, row in enumerate(rows):
            if not isinstance(row, dict):
                raise ValueError(f"rows[{number}]: must be an object with the columns by name")
            if not recipe.kinds.keys() & row.keys():
                used_columns(self.finished, list(row), f"rows[{number}]: ", warnings.append)  # raises
        names = list(dict.fromkeys(name for row in rows for name in row))
        used = used_columns(self.finished, names, "", warnings.append)
        columns = {name: _column(name, recipe.kinds[name], [row.get(name) for row in rows]) for name in used}
        return Asked(recipe.encode(columns), recipe.notes(columns), recipe.far(columns), warnings)

    def predict(self, requests: Sequence[Asked]) -> list[list[dict[str, Any]] | Exception]:
        """The answers to some requests, each a row of names and values per row, or why there is none.

        All rows are predicted at once, unless that fails: then each request by itself, so that one with rows that no
        member can take does not spoil the others.
        """
        try:
            return list(self._together(requests))
        except Exception as error:
            return [error] if len(requests) == 1 else [self.predict([request])[0] for request in requests]

    def _together(self, requests: Sequence[Asked]) -> list[list[dict[str, Any]]]:
        x, far = (np.concatenate([getattr(one, name) for one in requests]) for name in ("x", "far"))
        number = len(x)
        # NumPy sums the members of very few rows in another order: as in a file, there are always some more.
        x = np.concatenate([x, np.repeat(x[-1:], max(0, FEWEST - number), axis=0)])
        with np.errstate(over="ignore"):  # of numbers that are no use to anybody
            prediction = self.finished.predict_prepared(self.finished.inputs(x))
            columns = dict(answers(self.finished, prediction, self.coverage, self._conformal, far))
        if "unusual" in columns:
            columns["unusual"] = [flag == "true" for flag in columns["unusual"]]
        if self.finished.recipe is not None:
            columns["notes"] = [note for one in requests for note in one.notes or ()]
        values = (column[:number] for column in columns.values())
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*values, strict=True)]
        ends = np.cumsum([0, *(len(one.x) for one in requests)]).tolist()
        return [rows[start:end] for start, end in itertools.pairwise(ends)]


def usual(column: Column) -> Any:
    """A value of a column as in a request: the median, or the most frequent level."""
    if column.kind == "date":
        return str(np.datetime64(int(column.fill), "D"))
    return bool(column.fill) if column.kind == "boolean" else column.fill


def _array(rows: Sequence[Any], shape: tuple[int, ...]) -> np.ndarray:
    x = np.array(rows, object)  # of other types numbers would be made
    if x.shape[1:] != shape or not all(type(value) in (int, float) for value in x.flat):
        raise ValueError(f"rows: must be arrays of numbers of shape {list(shape)}, all of this shape")
    return x.astype(np.float64)


def _column(name: str, kind: cells.Kind, values: list[Any]) -> np.ndarray:
    """The values of a column, of the type that the schema promises: what a file may say in words, JSON says by type."""
    types, must = TYPES[kind]
    given = [row for row, value in enumerate(values) if value is not None]
    for row in given:
        if not isinstance(values[row], types) or (kind == "number" and isinstance(values[row], bool)):
            raise ValueError(f"rows[{row}]: column {name!r}: {str(values[row])[:60]!r}: must be {must}, or null")
    found = gaps(kind, len(values))
    if given:
        try:
            present = np.array([values[row] for row in given], float if kind == "number" else object)
        except OverflowError:
            raise ValueError(f"column {name!r}: a number is too large") from None
        found[given] = cells.column(present, kind, lambda row: f"rows[{given[row]}]: column {name!r}", gaps=False)
    return found
