"""Predictions of an exported ensemble, without stein. Needs jax, numpy and flatbuffers, and nothing else.

This file lies beside the program that it loads::

    from stein_program import Ensemble

    ensemble = Ensemble("houses-stablehlo")
    answers = ensemble.predict({"area": [55.5, 140.0], "city": ["Bern", None], "sold": ["2021-03-06", "2022-10-17"]})
    answers["mean"], answers["low_90"], answers["high_90"]

The answers are the columns of ``predictions.csv`` as arrays. A column that is not there, None, NaN and "" are gaps, and
filled in as in training; a text that training did not have is none of the known ones. Other columns are ignored.
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import jax
import jax.export
import numpy as np

PROGRAM, ENCODING, FORMAT = "program.jax", "encoding.json", 1


class Ensemble:
    """An exported ensemble.

    Attributes:
        about: what ``encoding.json`` says.
    """

    def __init__(self, folder: str | Path):
        content = (Path(folder) / PROGRAM).read_bytes()
        self.about: dict[str, Any] = json.loads((Path(folder) / ENCODING).read_text(encoding="utf-8"))
        if self.about["format"] != FORMAT:
            raise ValueError(
                f"{folder}: format {self.about['format']}; this loader reads {FORMAT}: use the one beside it"
            )
        if hashlib.sha256(content).hexdigest() != self.about["sha256"]:
            raise ValueError(f"{folder}: {PROGRAM} is damaged; export the run again")
        self._program = jax.jit(jax.export.deserialize(bytearray(content)).call)

    def predict(self, table: Any) -> dict[str, np.ndarray]:
        """The answers for every row, by name.

        Args:
            table: a dict of lists, or a table of pandas or polars, with the columns of ``encoding.json`` in any order;
                an array if these have no names.
        """
        x = self.encode(table)
        # A program is compiled for each number of rows: with powers of two there are few.
        padding = max(16, 1 << (len(x) - 1).bit_length()) - len(x)
        with jax.enable_x64(True):
            found = self._program(np.concatenate([x, np.repeat(x[-1:], padding, axis=0)]))
        columns = zip(self.about["answers"], found, strict=True)
        return {name: self._named(np.asarray(values)[: len(x)]) for name, values in columns}

    def _named(self, values: np.ndarray) -> np.ndarray:
        """Numbers and flags as they are; the number of a class as its name, a set of classes as their names."""
        classes = np.array(self.about["classes"], object)
        if values.ndim == 2:
            return np.array([" | ".join(classes[inside]) for inside in values], object)
        return classes[values] if values.dtype.kind == "i" else values

    def encode(self, table: Any) -> np.ndarray:
        """A table as the program takes it: numbers in float64, NaN for gaps."""
        columns = self.about["columns"]
        if columns is None:
            x = np.asarray(table, np.float64)
            if x.shape[1:] != tuple(self.about["shape"]) or not len(x) or not np.isfinite(x).all():
                raise ValueError(f"an array of shape {x.shape}: must be finite rows of shape {self.about['shape']}")
            return x
        given = [column["name"] for column in columns if column["name"] in table]
        if not given or not len(table[given[0]]):
            names = ", ".join(column["name"] for column in columns[:5])
            raise ValueError(f"the table has no rows, or none of the columns {names}{', ...' * (len(columns) > 5)}")
        x = np.full((len(table[given[0]]), len(columns)), np.nan)
        for i, column in enumerate(columns):
            if column["name"] in given:
                x[:, i] = _numbers(column, table[column["name"]])
        return x


def _numbers(column: Mapping[str, Any], values: Sequence[Any]) -> np.ndarray:
    """One column as numbers: days since 1970 of dates, positions of texts among the levels, -1 for others."""
    kind, levels = column["kind"], {text: code for code, text in enumerate(column.get("levels", ()))}
    found = np.empty(len(values))
    array = np.asarray(values)
    if kind == "number" and array.dtype.kind in "iuf":
        found[:] = array
    else:
        for row, value in enumerate(array.astype("M8[us]").tolist() if array.dtype.kind == "M" else list(values)):
            try:
                found[row] = math.nan if _is_gap(value) else _READ[kind](value, levels)
            except (KeyError, TypeError, ValueError, OverflowError):
                must = {"number": "a number", "boolean": "true or false"}.get(kind, "a date as 2024-12-31")
                raise ValueError(f"row {row}, column {column['name']!r}: {value!r}: must be {must}") from None
    if np.isinf(found).any():
        raise ValueError(f"row {np.isinf(found).argmax()}, column {column['name']!r}: must be finite")
    return found


def _is_gap(value: Any) -> bool:
    # NaN, NaT and pandas.NA are not equal to themselves; NA has no truth value.
    return value is None or type(value).__name__ in ("NAType", "NaTType") or value != value or value == ""


def _days(value: Any, _: Any) -> float:
    if not isinstance(value, date):
        value = datetime.fromisoformat(value.strip())
    moment = value if isinstance(value, datetime) else datetime(value.year, value.month, value.day)
    return moment.replace(tzinfo=moment.tzinfo or UTC).timestamp() / 86400


_TRUTH = {"true": 1.0, "false": 0.0, "1": 1.0, "0": 0.0, "1.0": 1.0, "0.0": 0.0}
_READ = {
    "number": lambda value, _: float(value),
    "boolean": lambda value, _: _TRUTH[str(value).strip().lower()],
    "date": _days,
    "text": lambda value, levels: float(levels.get(str(value).strip(), -1)),
}


# -- MLflow -------------------------------------------------------------------------------------------------


class _Pyfunc:
    """What MLflow calls: a table in, a table out."""

    def __init__(self, ensemble: Ensemble):
        self._ensemble = ensemble

    def predict(self, table: Any, params: Any = None) -> Any:
        import pandas

        return pandas.DataFrame(self._ensemble.predict(table))


def _load_pyfunc(folder: str) -> _Pyfunc:
    return _Pyfunc(Ensemble(folder))
