"""Tables with named columns: CSV and Parquet."""

import csv
import difflib
from array import array
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import numpy as np

from stein.data.arrays import Table
from stein.data.values import as_inputs, as_targets, is_number, readable, typed


class Columns(NamedTuple):
    """The roles of a file's columns; see :func:`read_table`."""

    path: Path
    target: str
    split: str
    like: tuple[str, ...]
    labelled: bool

    def find(self, names: list[str]) -> tuple[list[int], int | None, int | None]:
        """The positions of the inputs, the target and the split column in a checked header."""
        _check_header(names, self.like or (self.target,), self.path)
        target = _position(self.target, names, self.path) if self.labelled or self.target in names else None
        split = None
        if self.split and (self.split in names or not self.like):
            split = _position(self.split, names, self.path)
        inputs = [i for i in range(len(names)) if i not in (target, split)]
        if not inputs:
            raise ValueError(f"{self.path}: {self.target!r} is the only column; nothing is left for the inputs")
        if self.like:
            for name in (names[i] for i in inputs):
                if name not in self.like:
                    raise ValueError(f"{self.path}: column {name!r}: is not an input of the run; drop it")
            inputs = [_position(name, names, self.path) for name in self.like]
        return inputs, target, split


def read_csv(columns: Columns) -> Table:
    path = columns.path
    lines: list[int] = []  # last line of each row: quoted cells may span lines
    targets: list[str] = []
    parts: list[str] = []
    values = array("d")
    with (
        readable(path, OSError, csv.Error, UnicodeError),
        path.open(encoding="utf-8-sig", newline="") as file,
    ):
        _check_separator(file.readline(), columns.target, path)
        file.seek(0)
        reader = csv.reader(file, strict=True)
        names = [name.strip() for name in next(reader, [])]
        inputs, target, split = columns.find(names)
        for row in filter(None, reader):  # skips blank lines
            if len(row) != len(names):
                raise ValueError(f"{path}: line {reader.line_num}: {len(row)} values; the header has {len(names)}")
            lines.append(reader.line_num)
            if target is not None:
                targets.append(row[target].strip())
            if split is not None:
                parts.append(row[split].strip())
            for i in inputs:
                try:
                    values.append(float(row[i]))
                except ValueError:
                    raise ValueError(
                        f"{path}: line {lines[-1]}, column {names[i]!r}: {row[i][:60]!r}: must be a number"
                    ) from None

    def place(row: int, column: int | None = None) -> str:
        return f"{path}: line {lines[row]}, column {(columns.target if column is None else names[inputs[column]])!r}"

    if not lines:
        raise ValueError(f"{path}: has a header and no rows")
    x = as_inputs(np.frombuffer(values, np.float64).reshape(len(lines), len(inputs)), place)
    y = np.empty((len(x), 0)) if target is None else as_targets(typed(targets, place), place)
    kinds = None if split is None else np.array(parts)
    return Table(x, y, tuple(names[i] for i in inputs), columns.target, kinds)


def read_parquet(columns: Columns) -> Table:
    path = columns.path
    try:
        import pyarrow.parquet
    except ImportError:
        raise ImportError(f"{path}: Parquet needs pyarrow: pip install 'stein[parquet]'") from None
    with readable(path, Exception):  # Arrow may raise any error too
        table = pyarrow.parquet.read_table(path)
        found = [column.to_numpy() for column in table.columns]  # a missing number becomes NaN, and is rejected
    names = table.column_names
    inputs, target, split = columns.find(names)

    def place(row: int, column: int | None = None) -> str:
        return f"{path}: row {row + 1}, column {(columns.target if column is None else names[inputs[column]])!r}"

    if not table.num_rows:
        raise ValueError(f"{path}: has columns and no rows")
    for i in inputs:
        if found[i].dtype.kind not in "fiub":
            raise ValueError(f"{path}: column {names[i]!r} has type {table.schema.field(i).type}: must be numbers")
    y = np.empty((table.num_rows, 0)) if target is None else found[target]
    if y.dtype.kind == "O":
        for row in (row for row, value in enumerate(y) if not isinstance(value, str)):
            raise ValueError(f"{place(row)}: {y[row]!r:.60}: must be a number or text")
        y = y.astype(str)
    x = as_inputs(np.column_stack([found[i] for i in inputs]).astype(np.float64), place)
    kinds = None if split is None else found[split].astype(str)
    return Table(x, as_targets(y, place), tuple(names[i] for i in inputs), columns.target, kinds)


def _check_separator(line: str, target: str, path: Path) -> None:
    """Reject other separators than commas: such tables often use 1.500 or 1,5 with another meaning."""
    for separator, name in ((";", "';'"), ("\t", "tabs"), ("|", "'|'")):
        cells = [cell.strip().strip('"').strip() for cell in line.split(separator)]
        numbers = all(is_number(cell.replace(",", ".")) for cell in cells)
        if len(cells) > 1 and (target in cells or "," not in line or numbers):
            raise ValueError(
                f"{path}: is separated by {name}; save it with commas between the columns and points in the numbers"
            )


def _check_header(names: list[str], expected: tuple[str, ...], path: Path) -> None:
    """Reject an invalid header, such as a first line of data, which would be lost.

    Column numbers are valid, because pandas writes them, and so is a line with the ``expected`` names.
    """
    if not names:
        raise ValueError(f"{path}: is empty; must have a header with the names of the columns")
    numbers = [is_number(name) for name in names]
    numbered = names == [str(i) for i in range(len(names))]
    if not numbered and (all(numbers) or (any(numbers) and not set(expected) <= set(names))):
        raise ValueError(f"{path}: has no header; add a first line with the column names, {expected[0]!r} among them")
    if "" in names:
        raise ValueError(f"{path}: column {names.index('') + 1} has no name; a row number is no input: drop it")
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise ValueError(f"{path}: two columns are called {twice[0]!r}")


def _position(name: str, names: list[str], path: Path) -> int:
    if name not in names:
        near = difflib.get_close_matches(name, names, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(names[:20])}"
        raise ValueError(f"{path}: no column {name!r}; {hint}")
    return names.index(name)
