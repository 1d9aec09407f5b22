"""Tables with named columns: the roles of the columns, and their values."""

import difflib
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from stein.data.arrays import Table
from stein.data.blocks import Block, Source, source
from stein.data.cells import GAPS, Kind, Survey, Where, as_text, column
from stein.data.values import as_inputs, as_targets, is_number, typed


class Roles(NamedTuple):
    """The columns of a file that are no inputs, or are read in a special way; empty if there are none.

    ``time`` is a role and, if it holds dates, an input too. ``texts`` are inputs that are read as text, whatever they
    look like.
    """

    target: str
    split: str = ""
    time: str = ""
    group: str = ""
    ids: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()
    labelled: bool = True

    @property
    def aside(self) -> tuple[str, ...]:
        """The columns that are no inputs, the target not included."""
        return tuple(name for name in (self.split, self.time, self.group, *self.ids) if name)


class Frame(NamedTuple):
    """A file as it was read: columns by name, each as :func:`stein.data.cells.column` returns it.

    ``y`` holds raw targets, with no columns if the file has none; ``aside`` the columns that are no inputs, as text;
    ``where`` is the position of a row in the file.
    """

    path: Path
    inputs: dict[str, np.ndarray]
    kinds: dict[str, Kind]
    y: np.ndarray
    target: str
    aside: dict[str, np.ndarray]
    where: "Places"


class Places:
    """The position of each row of a file, for messages."""

    def __init__(self, path: Path):
        self._path = path
        self._starts: list[int] = []
        self._blocks: list[Block] = []
        self.rows = 0

    def add(self, block: Block) -> None:
        self._starts.append(self.rows)
        self._blocks.append(block._replace(cells={}))
        self.rows += block.rows

    def __call__(self, row: int) -> str:
        """ "line 17" of a CSV, "row 16" of others."""
        block = bisect_right(self._starts, row) - 1
        return self._blocks[block].where(row - self._starts[block])

    def cell(self, row: int, name: str) -> str:
        return f"{self._path}: {self(row)}, column {name!r}"


def read(path: Path, roles: Roles, like: Mapping[str, Kind] | None = None) -> Frame:
    """A table with numbers, booleans, dates, text and gaps.

    Args:
        like: kinds of the inputs, if they are known: exactly these columns must exist, in any order; role columns other
            than the target are optional then. Otherwise the kinds are found in a first pass over the file.
    """
    opened = source(path, tuple(like or ()) or (roles.target,))
    inputs = _inputs(opened, roles, tuple(like or ()))
    kinds = {name: like[name] for name in inputs} if like else _survey(opened, roles, inputs)
    return _read(opened, roles, kinds)


def read_numbers(path: Path, roles: Roles, like: Sequence[str]) -> Table:
    """A table whose inputs must be numbers, without gaps."""
    opened = source(path, tuple(like) or (roles.target,))
    inputs = _inputs(opened, roles, tuple(like))
    for name in inputs:
        if opened.types.get(name, "bool").startswith(("string", "large_string", "date", "time", "list", "dict")):
            raise ValueError(f"{path}: column {name!r} has type {opened.types[name]}: must be numbers")
    frame = _read(opened, roles, dict.fromkeys(inputs, "number"), gaps=False)
    x = np.column_stack([frame.inputs[name] for name in inputs])
    parts = frame.aside[roles.split].astype(str) if roles.split in frame.aside else None
    return Table(as_inputs(x, lambda row, i: frame.where.cell(row, inputs[i])), frame.y, inputs, roles.target, parts)


def position(name: str, names: Sequence[str], path: Path) -> int:
    """The position of a column; if it is missing, the error names the nearest one."""
    if name not in names:
        near = difflib.get_close_matches(name, names, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(names[:20])}"
        raise ValueError(f"{path}: no column {name!r}; {hint}")
    return list(names).index(name)


def _inputs(opened: Source, roles: Roles, like: tuple[str, ...]) -> tuple[str, ...]:
    """The names of the inputs in a file; all columns that a role needs are there."""
    path, names = opened.path, opened.names
    if roles.labelled:
        position(roles.target, names, path)
    if not like:
        for name in (*roles.aside, *roles.texts):
            position(name, names, path)
    inputs = tuple(name for name in names if name not in (roles.target, *roles.aside))
    if not inputs:
        raise ValueError(f"{path}: {roles.target!r} is the only column; nothing is left for the inputs")
    if like:
        for name in inputs:
            if name not in like:
                raise ValueError(f"{path}: column {name!r}: is not an input of the run; drop it")
        for name in like:
            position(name, names, path)
    return like or inputs


def _survey(opened: Source, roles: Roles, inputs: Sequence[str]) -> dict[str, Kind]:
    surveys = {name: Survey() for name in inputs if name not in roles.texts}
    rows = 0
    for block in opened.blocks(list(surveys)):
        rows += block.rows
        for name, survey in surveys.items():
            survey.add(block.cells[name], block.where)
    if not rows:
        _empty(opened)
    kinds: dict[str, Kind] = dict.fromkeys(inputs, "text")
    try:
        return kinds | {name: survey.kind(name) for name, survey in surveys.items()}
    except ValueError as error:
        raise ValueError(f"{opened.path}: {error}") from None


def _read(opened: Source, roles: Roles, kinds: Mapping[str, Kind], gaps: bool = True) -> Frame:
    path, places = opened.path, Places(opened.path)
    aside = [name for name in dict.fromkeys(roles.aside) if name in opened.names]
    target = [roles.target] if roles.target in opened.names else []
    inputs: dict[str, list[np.ndarray]] = {name: [] for name in kinds}
    others: dict[str, list[np.ndarray]] = {name: [] for name in (*aside, *target)}
    for block in opened.blocks(list(dict.fromkeys([*inputs, *others]))):
        places.add(block)
        for name, values in inputs.items():
            values.append(column(block.cells[name], kinds[name], _in_column(path, block, name), gaps))
        for name, values in others.items():
            cells = block.cells[name]
            values.append(cells if isinstance(cells, np.ndarray) else np.array([c.strip() for c in cells], object))
    if not places.rows:
        _empty(opened)
    joined = {name: np.concatenate(values) for name, values in (inputs | others).items()}
    y = _targets(joined[target[0]], opened, places, target[0], gaps) if target else np.empty((places.rows, 0))
    texts = {name: column(joined[name], "text", places) for name in aside}
    return Frame(path, {name: joined[name] for name in kinds}, dict(kinds), y, roles.target, texts, places)


def _in_column(path: Path, block: Block, name: str) -> Where:
    return lambda row: f"{path}: {block.where(row)}, column {name!r}"


def _targets(values: np.ndarray, opened: Source, places: Places, name: str, gaps: bool) -> np.ndarray:
    def place(row: int, *_: int) -> str:
        return places.cell(row, name)

    if gaps:
        _check_targets_given(values, opened.path, places, name)
    if values.dtype.kind == "O" and not opened.types:
        return as_targets(typed(values.tolist(), place), place)
    if values.dtype.kind == "O":
        for row in (row for row, value in enumerate(values) if not isinstance(value, str)):
            raise ValueError(f"{place(row)}: {values[row]!r:.60}: must be a number or text")
        values = values.astype(str)
    return as_targets(values, place)


def _check_targets_given(values: np.ndarray, path: Path, places: Places, name: str) -> None:
    """Reject missing targets, with their number."""
    if values.dtype.kind == "f":
        missing = np.flatnonzero(np.isnan(values)).tolist()
    elif values.dtype.kind != "O":
        return
    else:
        cells = [cell.strip().lower() for cell in as_text(values)]
        missing = [row for row, cell in enumerate(cells) if cell in GAPS]
        if "" not in cells and not all(is_number(cell) for cell in cells if cell not in GAPS):
            return  # among texts, "none" is a class
    if missing:
        raise ValueError(
            f"{path}: {len(missing)} of {len(values)} targets are missing, the first in {places(missing[0])}, column "
            f"{name!r}; fill them in or drop the rows"
        )


def _empty(opened: Source) -> None:
    has = "columns" if opened.types else "a header"
    raise ValueError(f"{opened.path}: has {has} and no rows")
