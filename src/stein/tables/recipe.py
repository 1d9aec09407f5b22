"""How the columns of a table become numbers: learned from the training rows, kept without them.

=========  ==========================================================================================
kind       becomes
=========  ==========================================================================================
number     itself
boolean    0 or 1
date       days since the first training date; sine and cosine of the time of the year, of the week and,
           if the dates have times, of the day
text       one input per level, 1 for its own; none for a level that training did not have
=========  ==========================================================================================

A gap is filled with the median, or with the most frequent level. If training had gaps, one more input is 1 there.
Dates are days since 1970 on the way in.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

Kind = Literal["number", "boolean", "date", "text"]
MOST_LEVELS = 50
"""More levels of a column of text are rejected."""


class Feature(NamedTuple):
    """One input of the network: the column that it comes from, and which part of it."""

    column: str
    part: str = ""


@dataclass(frozen=True)
class Column:
    """One column: what a gap becomes (``fill``), whether training had gaps, the range of training, the levels.

    ``times``: the dates have a time of day. ``trend``: the days themselves are an input; not those of the column that
    orders the rows, because new rows are always later.
    """

    name: str
    kind: Kind
    fill: float | str
    gaps: bool = False
    low: float = 0.0
    high: float = 0.0
    levels: tuple[str, ...] = ()
    times: bool = False
    trend: bool = True

    @property
    def features(self) -> list[Feature]:
        parts = [""]
        if self.kind == "text":
            parts = [f"= {level}" for level in self.levels]
        if self.kind == "date":
            cycles = ["year", "week", *(["day"] if self.times else [])]
            parts = ["days"] * self.trend + [f"{wave} of the {cycle}" for cycle in cycles for wave in ("sin", "cos")]
        return [Feature(self.name, part) for part in (*parts, *(["is missing"] if self.gaps else []))]

    def encode(self, values: np.ndarray) -> np.ndarray:
        """One row per value, one column per feature."""
        missing = is_gap(values)
        filled = np.where(missing, self.fill, values)
        if self.kind == "text":
            parts = [filled == level for level in self.levels]
        else:
            filled = filled.astype(np.float64)
            parts = [filled] if self.kind != "date" else self._date(filled)
        return np.stack([*parts, *([missing] if self.gaps else [])], axis=1).astype(np.float64)

    def _date(self, days: np.ndarray) -> list[np.ndarray]:
        years = days.astype("M8[D]").astype("M8[Y]") if len(days) else np.empty(0, "M8[Y]")
        start, end = ((years + i).astype("M8[D]").astype(np.float64) for i in (0, 1))
        # 1970 began on a Thursday; weeks begin on Mondays.
        phases = [(days - start) / (end - start), (days + 3) / 7, *([days] if self.times else [])]
        waves = [wave(2 * np.pi * phase) for phase in phases for wave in (np.sin, np.cos)]
        return [days - self.low] * self.trend + waves

    def remarks(self, values: np.ndarray) -> Iterator[tuple[int, str]]:
        """The rows whose value is missing, or unlike all values of training, and what is to be said about it."""
        missing = is_gap(values)
        for row in np.flatnonzero(missing).tolist():
            yield row, f"{self.name} is missing"
        if self.kind == "text":
            for row in np.flatnonzero(~missing & ~np.isin(values, list(self.levels))).tolist():
                yield row, f"{self.name} {str(values[row])[:40]!r} is new"
        elif self.kind != "boolean" and self.trend:
            for row in np.flatnonzero((values < self.low) | (values > self.high)).tolist():
                side, end = ("below", self.low) if values[row] < self.low else ("above", self.high)
                yield row, f"{self.name} {self._shown(values[row])} is {side} {self._shown(end)}"

    def far(self, values: np.ndarray) -> np.ndarray:
        """Where a number or date is farther outside the range of training than this range is wide."""
        if self.kind in ("text", "boolean") or not self.trend:
            return np.zeros(len(values), bool)
        return np.maximum(self.low - values, values - self.high) > self.high - self.low

    def decoded(self, features: np.ndarray) -> str:
        """The value that one row's features stand for, as text."""
        if self.gaps and features[-1] > 0.5:
            return "missing"
        if self.kind == "text":
            return self.levels[int(features.argmax())] if features[: len(self.levels)].max() > 0.5 else "new"
        if self.kind == "date" and not self.trend:
            return "a date"
        return self.written((self.low if self.kind == "date" else 0.0) + float(features[0]))

    def written(self, value: float) -> str:
        """A value of the column, as text; a date as exactly as dates are here."""
        if self.kind == "boolean":
            return ("no", "yes")[round(value)]
        return self._shown(value if self.times or self.kind != "date" else round(value))

    def _shown(self, value: float) -> str:
        if self.kind != "date":
            return f"{value:.6g}"
        return str(np.datetime64(round(value * 86400), "s")).replace("T", " ").removesuffix(" 00:00:00")

    @property
    def described(self) -> str:
        """The column in a few words."""
        if self.kind == "text":
            named = ", ".join(level[:20] for level in self.levels[:4])
            return f"text, {len(self.levels)} levels: {named}{', ...' if len(self.levels) > 4 else ''}"
        if self.kind == "boolean":
            return "true or false"
        return f"{self.kind}, {self._shown(self.low)} to {self._shown(self.high)}"


@dataclass(frozen=True)
class Recipe:
    """The columns of a table in order. Plain data: ``dataclasses.asdict`` is its JSON."""

    columns: tuple[Column, ...]

    @property
    def kinds(self) -> dict[str, Kind]:
        return {column.name: column.kind for column in self.columns}

    @property
    def features(self) -> list[Feature]:
        return [feature for column in self.columns for feature in column.features]

    @property
    def is_plain(self) -> bool:
        """Whether every input is a column itself, so that an array of numbers will do."""
        return all(column.kind in ("number", "boolean") and not column.gaps for column in self.columns)

    def encode(self, columns: Mapping[str, np.ndarray]) -> np.ndarray:
        """Inputs of a network in float64, one row per row; a column that is not there is all gaps."""
        rows = len(next(iter(columns.values())))
        return np.concatenate([c.encode(columns.get(c.name, gaps(c.kind, rows))) for c in self.columns], axis=1)

    def notes(self, columns: Mapping[str, np.ndarray]) -> list[str]:
        """What is unusual about each row: gaps, new levels, values outside the range of training. Often nothing."""
        found: list[list[str]] = [[] for _ in next(iter(columns.values()))]
        for column in self.columns:
            if column.name not in columns:
                for notes in found:
                    notes.append(f"there is no column {column.name}")
                continue
            for row, remark in column.remarks(columns[column.name]):
                found[row].append(remark)
        return ["; ".join(notes) for notes in found]

    def far(self, columns: Mapping[str, np.ndarray]) -> np.ndarray:
        """The rows with a value far outside the range of training, where networks may be sure without reason."""
        return np.any([c.far(columns[c.name]) for c in self.columns if c.name in columns], axis=0)


def check_complete(columns: Mapping[str, np.ndarray]) -> None:
    """Raise ``ValueError`` if values are missing, with their number in each column."""
    missing = {name: int(is_gap(values).sum()) for name, values in columns.items()}
    counted = [f"{name} {count}" for name, count in missing.items() if count]
    if counted:
        more = f" and {len(counted) - 20} more columns" if len(counted) > 20 else ""
        raise ValueError(
            f"values are missing in columns: {', '.join(counted[:20])}{more}; fill them in, drop these rows or "
            "columns, or `--impute` (data.impute = true) fills in medians"
        )


def learn(columns: Mapping[str, np.ndarray], kinds: Mapping[str, Kind], ordered_by: str = "") -> Recipe:
    """The recipe for a table, from its training rows.

    Args:
        ordered_by: the column of dates that orders the rows, of which only the season is an input.
    """
    return Recipe(tuple(_learned(name, kinds[name], values, name != ordered_by) for name, values in columns.items()))


def is_gap(values: np.ndarray) -> np.ndarray:
    """Where values are missing."""
    return values == "" if values.dtype.kind == "O" else np.isnan(values)


def gaps(kind: Kind, rows: int) -> np.ndarray:
    """A column without values."""
    return np.full(rows, "", object) if kind == "text" else np.full(rows, np.nan)


def _learned(name: str, kind: Kind, values: np.ndarray, trend: bool) -> Column:
    missing = is_gap(values)
    given = values[~missing]
    if not len(given):
        raise ValueError(f"column {name!r} has no values in the training rows; drop it")
    if kind == "text":
        return _text(name, given.tolist(), bool(missing.any()))
    median = float(np.median(given))
    low, high = float(given.min()), float(given.max())
    fill = float(given.mean() >= 0.5) if kind == "boolean" else median
    times = kind == "date" and bool((given != np.floor(given)).any())
    return Column(name, kind, fill, bool(missing.any()), low, high, times=times, trend=trend)


def _text(name: str, given: Sequence[str], gaps: bool) -> Column:
    counts = Counter(given)
    if len(counts) == len(given) > 2:
        raise ValueError(
            f"column {name!r}: every row has another text, such as {given[0][:40]!r}; if it names the rows: "
            f"`--id-column {name}`, else drop it"
        )
    if len(counts) > MOST_LEVELS:
        raise ValueError(
            f"column {name!r}: {len(counts)} different texts, such as {given[0][:40]!r}; at most {MOST_LEVELS} become "
            "inputs: drop it, or group its values"
        )
    # The first in the order of the alphabet of those that are equally frequent.
    fill = min(counts, key=lambda level: (-counts[level], level))
    return Column(name, "text", fill, gaps, levels=tuple(sorted(counts)))
