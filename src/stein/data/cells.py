"""The cells of a column: numbers, booleans, dates or text, and gaps. A doubtful column is an error, never a guess."""

import contextlib
import re
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Literal

import numpy as np

from stein.data.values import is_number, numbers

Kind = Literal["number", "boolean", "date", "text"]
Cells = Sequence[str]
Where = Callable[[int], str]  # the number of a row in a block -> its position in the file

GAPS = frozenset({"", "na", "n/a", "#n/a", "nan", "<na>", "null", "none", "?", "-", "--", "."})
"""Words for a missing value, in lower case. In a column of text only the empty cell is missing: NA may be Namibia."""
BOOLEANS = {"true": 1.0, "false": 0.0}
_DATE = re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d{1,9})?)?(Z|[+-]\d\d:?\d\d)?)?", re.ASCII)
_LOCAL_DATE = re.compile(r"\d{1,4}[./-]\d{1,2}[./-]\d{1,4}(\s+\d.*)?", re.ASCII)
# A number with a prefix or suffix: "24.0 €", "$1,200", "15kg", "7 %".
WITH_UNIT = re.compile(r"^[^\w.,+-]{0,3}\s*[+-]?\d[\d.,' ]*\s*[^\d\s]{0,6}$")
_DAY = 86400e6  # microseconds


class Survey:
    """What the cells of one column are, block by block."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._first: dict[str, tuple[str, str]] = {}  # kind of cell -> the first one and where it is

    def add(self, values: Cells | np.ndarray, where: Where) -> None:
        kind = _typed(values)
        if kind is not None:
            missing = int(np.isnan(numeric(values)).sum())
            self._counts.update({kind: len(values) - missing, "gap": missing})
            return
        cells = as_text(values)
        with contextlib.suppress(ValueError):  # a column of numbers, as most are, is counted at once
            missing = int(np.isnan(numbers(cells)).sum())
            self._counts.update({"number": len(cells) - missing, "gap": missing})
            return
        for cell, count in Counter(cells).items():
            what = _what(cell.strip())
            self._counts[what] += count
            if what not in self._first:
                self._first[what] = cell.strip()[:40], where(cells.index(cell))

    def kind(self, name: str) -> Kind:
        """The kind of the column called ``name``. Raises ``ValueError`` if it is doubtful."""
        found = self._counts
        total = sum(found.values()) - found["gap"]
        named, as_text = f"column {name!r}", f"`--text-column {name}` takes it as it is"
        if not total:
            raise ValueError(f"{named} has no values; drop it")
        for kind in ("number", "boolean"):
            if found[kind] == total:
                return kind
        if found["date"] + found["zoned date"] == total:
            if found["date"] and found["zoned date"]:
                cell, where = self._first["zoned date"]
                raise ValueError(f"{where}, {named}: {cell!r} has a time zone and other dates have none; must be alike")
            return "date"
        if found["number"] > total / 2:
            cell, where = next(self._first[k] for k in self._first if k not in ("number", "gap"))
            raise ValueError(
                f"{where}, {named}: {cell!r} is no number, {found['number']} others are; correct it, or {as_text}"
            )
        if found["date"] + found["zoned date"] > total / 2:
            cell, where = next(self._first[k] for k in self._first if k not in ("date", "zoned date", "gap"))
            raise ValueError(f"{where}, {named}: {cell!r} is no ISO 8601 date, others are; correct it, or {as_text}")
        for what, remedy in (("local date", "write dates as 2024-12-31"), ("unit", "write plain numbers")):
            if found[what] > total / 2:
                looks = "a date" if what == "local date" else "a number"
                raise ValueError(
                    f"{named}: {self._first[what][0]!r} is text that looks like {looks}; {remedy}, or {as_text}"
                )
        return "text"


def column(values: Cells | np.ndarray, kind: Kind, where: Where, gaps: bool = True) -> np.ndarray:
    """The values of a column: float64 with NaN for gaps (dates are days since 1970), or text with "" for gaps.

    Args:
        where: the position of a row, for messages.
        gaps: whether words for missing values are allowed; otherwise they are rejected as text.
    """
    if kind == "text":
        return np.array([cell.strip() for cell in as_text(values)], object)
    if kind == "number":
        found = _numbers(values, where, gaps)
        for row in np.flatnonzero(np.isinf(found))[:1].tolist():
            raise ValueError(f"{where(row)}: {found[row]}: must be finite; fill it in or drop the row")
        return found
    if _typed(values) == kind:
        return numeric(values)
    cells = as_text(values)
    if kind == "boolean":
        words = BOOLEANS | {"1": 1.0, "0": 0.0, "1.0": 1.0, "0.0": 0.0}
        return _each(cells, lambda cell: words[cell.lower()], where, gaps, "must be true or false")
    return _each(cells, _days, where, gaps, "must be a date of the calendar as 2024-12-31, with or without a time")


def _numbers(values: Cells | np.ndarray, where: Where, gaps: bool) -> np.ndarray:
    if _typed(values) in ("number", "boolean"):
        return numeric(values)
    cells = as_text(values)
    try:
        return numbers(cells)
    except ValueError:
        return _each(cells, lambda cell: numbers([cell]).item(), where, gaps, "must be a number")


def as_text(values: Any) -> Cells:
    """Cells as text; what pandas, polars and Arrow mean by missing is the empty text."""
    if isinstance(values, np.ndarray):
        return ["" if _is_missing(cell) else str(cell) for cell in values.tolist()]
    return values


def numeric(values: Any) -> np.ndarray:
    """Numbers, booleans or datetime64 as float64; dates are days since 1970."""
    if values.dtype.kind != "M":
        return values.astype(np.float64)
    moments = values.astype("M8[us]")
    return np.where(np.isnat(moments), np.nan, moments.astype(np.int64) / _DAY)


def _typed(values: Any) -> Kind | None:
    kinds: dict[str, Kind] = {"f": "number", "i": "number", "u": "number", "b": "boolean", "M": "date"}
    return kinds.get(values.dtype.kind) if isinstance(values, np.ndarray) else None


def _is_missing(cell: Any) -> bool:
    # NaN, NaT and pandas.NA are not equal to themselves; NA has no truth value.
    return cell is None or type(cell).__name__ in ("NAType", "NaTType") or cell != cell


def _what(cell: str) -> str:
    if cell.lower() in GAPS:
        return "gap"
    if is_number(cell):
        return "number"
    if cell.lower() in BOOLEANS:
        return "boolean"
    if found := _DATE.fullmatch(cell):
        return "zoned date" if found[4] else "date"
    if _LOCAL_DATE.fullmatch(cell):
        return "local date"
    return "unit" if WITH_UNIT.match(cell) else "text"


def _each(cells: Cells, convert: Callable[[str], float], where: Where, gaps: bool, must: str) -> np.ndarray:
    found = np.empty(len(cells))
    for row, raw in enumerate(cells):
        cell = raw.strip()
        if gaps and cell.lower() in GAPS:
            found[row] = np.nan
            continue
        try:
            found[row] = convert(cell)
        except (ValueError, KeyError, OverflowError):
            raise ValueError(f"{where(row)}: {cell[:60]!r}: {must}") from None
    return found


def _days(cell: str) -> float:
    if not _DATE.fullmatch(cell):
        raise ValueError(cell)
    moment = datetime.fromisoformat(cell)
    return moment.replace(tzinfo=moment.tzinfo or UTC).timestamp() * 1e6 / _DAY
