"""Tables that a run learns from: read, examined and split. No jax here."""

import dataclasses
import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from stein import data, datasets
from stein.data import files
from stein.data.cells import Survey, column
from stein.data.columns import Frame, Roles
from stein.data.columns import read as read_columns
from stein.runs import kinds, record
from stein.runs.schema import UCI, Config, Data
from stein.tables import Recipe, by_group, by_time, check_complete, is_gap, learn

TRAIN, VALIDATION, TEST = range(3)
MOST_COLUMNS = 5000  # that a recipe describes
FAR = 1e4  # times the distance between the quartiles: a value from which a column is no longer learned well
# The values of a split column.
PARTS = {"train": TRAIN, "0": TRAIN, "validation": VALIDATION, "test": TEST, "1": TEST}


class HeldOut(NamedTuple):
    """The rows of the test part: their names, by id columns or positions, and what is unusual about each."""

    names: tuple[str, ...]
    notes: tuple[str, ...]


class Read(NamedTuple):
    """The data in three parts; targets are class numbers from 0, or floating point.

    ``recipe`` and ``test_rows`` are of tables with named columns, otherwise None. With a ``source``, its first ``rows``
    are the training part, and the first of these are in ``parts``.
    """

    parts: tuple[data.Arrays, data.Arrays, data.Arrays]
    kind: kinds.Kind
    inputs: tuple[str, ...]
    target: str
    notes: tuple[str, ...]
    facts: dict[str, Any]
    recipe: Recipe | None = None
    test_rows: HeldOut | None = None
    source: data.streams.Source | None = None
    rows: int = 0


class _Files(NamedTuple):
    """The file of a run and its test file: as recorded, and with named columns if they have them.

    ``parts`` is the part of every row, or None if it is not given.
    """

    tables: dict[str, files.Table]
    frames: list[Frame]
    parts: np.ndarray | None


def read(config: Config, before: Mapping[str, Any], changed: Callable[[str], None] | None) -> Read:
    section = config.data
    known = msgspec.convert(before["recipe"], Recipe) if before.get("recipe") else None
    tables, frames, parts = _uci(section) if section.name in UCI else _files(section, known)
    facts: dict[str, Any] = {name: record.facts(table) for name, table in tables.items()}
    differences = {name: record.difference(before[name], table) for name, table in tables.items() if name in before}
    for name, difference in differences.items():
        if difference and changed is not None:
            changed(f"{getattr(section, name, '') or section.inputs or section.name}: {difference}")
    first = next(iter(tables.values()))
    x = np.concatenate([table.x for table in tables.values()])
    y = _together([table.y for table in tables.values()], section.test_file)
    if section.reading == "as-before":
        return _as_before(config, x, y, first, facts)
    if section.name in UCI and config.likelihood.name == "auto":
        kind: kinds.Kind = "gaussian"
    else:
        kind = before.get("kind") or kinds.decide(y, config.likelihood, first.target)
    labels: tuple[str, ...] = ()
    notes: list[str] = []
    if kind == "categorical":
        labels = tuple(before.get("classes", ())) or kinds.in_order(kinds.names(y))
        y = as_kind(y, kind, labels, first.target)
        once = [labels[c] for c in np.flatnonzero(np.bincount(y) == 1)]
        if once and parts is None:
            notes.append(f"class {', '.join(once[:5])} has one row, which stays in training")
    else:
        y = as_kind(y, kind, labels, first.target)
    parts = _parts(config, parts, frames, y if kind == "categorical" else None, len(x))
    rows_of = [np.flatnonzero(parts == part) for part in (TRAIN, VALIDATION, TEST)]
    facts["split"] = {"digest": hashlib.sha256(parts.astype(np.uint8).tobytes()).hexdigest()}
    recorded = before.get("split", {}).get("digest", facts["split"]["digest"])
    if recorded != facts["split"]["digest"] and not any(differences.values()) and changed is not None:
        changed("the rows are split into other training and test rows")
    recipe, test_rows = None, None
    if frames:
        recipe, x, test_rows = _encoded(section, frames, rows_of, known)
        if recipe.is_plain and len(recipe.columns) > MOST_COLUMNS:  # its description would fill the export's header
            recipe = None
        else:
            facts["recipe"] = dataclasses.asdict(recipe)
        notes += _doubts(recipe, frames[0]) if recipe and not known else []
        if kind != "categorical" and not known:
            notes += _outlier(frames[0], first.target, frames[0].y.astype(float))
    three = tuple(data.Arrays(x[rows], y[rows], labels) for rows in rows_of)
    return Read(three, kind, first.inputs, first.target, tuple(notes), facts, recipe, test_rows)  # type: ignore[arg-type]


def _parts(
    config: Config, parts: np.ndarray | None, frames: list[Frame], classes: np.ndarray | None, rows: int
) -> np.ndarray:
    """The part of every row: as given, or held out at random, by time or by group."""
    section = config.data

    def held_out(among: np.ndarray, fraction: float, seed: Any) -> np.ndarray:
        try:
            if section.time_column:
                return by_time(_times(frames[0], section.time_column)[among], fraction)
            if section.group_column:
                return by_group(frames[0].aside[section.group_column][among], fraction, seed)
            return data.held_out(len(among), fraction, seed, None if classes is None else classes[among])
        except ValueError as error:
            name = section.time_column or section.group_column
            where = section.file or section.inputs or section.name
            raise ValueError(f"{where}: {f'column {name!r}: ' if name else ''}{error}") from None

    if parts is None:
        parts = np.full(rows, TRAIN)
        if section.test_fraction:
            parts[held_out(np.arange(rows), section.test_fraction, section.seed)] = TEST
    if config.validation_fraction and not (parts == VALIDATION).any():
        among = np.flatnonzero(parts == TRAIN)
        parts[among[held_out(among, config.validation_fraction, [section.seed, 1])]] = VALIDATION
    return parts


def _times(frame: Frame, name: str) -> np.ndarray:
    """The column that orders the rows: numbers or dates, without gaps."""
    if name in frame.inputs:  # dates, which are inputs too
        times = frame.inputs[name]
    else:
        times = column(frame.aside[name].tolist(), "number", lambda row: frame.where.cell(row, name))
    for row in np.flatnonzero(np.isnan(times))[:1].tolist():
        raise ValueError(f"{frame.where(row)} has no time; fill it in or drop the row")
    return times


def _encoded(
    section: Data, frames: list[Frame], rows_of: list[np.ndarray], known: Recipe | None
) -> tuple[Recipe, np.ndarray, HeldOut]:
    """The recipe, learned from the training rows unless it is known; all rows as it encodes them."""
    names = list(frames[0].inputs)
    columns = {name: np.concatenate([frame.inputs[name] for frame in frames]) for name in names}
    train, _, test = rows_of
    try:
        if not section.impute:
            check_complete(columns)
        trained_on = {name: values[train] for name, values in columns.items()}
        recipe = known or learn(trained_on, frames[0].kinds, section.time_column)
        if len(columns) > MOST_COLUMNS and not recipe.is_plain:
            raise ValueError(f"has {len(columns)} columns; at most {MOST_COLUMNS} if some are not numbers: drop some")
    except ValueError as error:
        raise ValueError(f"{frames[0].path}: {error}") from None
    notes = recipe.notes({name: values[test] for name, values in columns.items()}) if len(test) else []
    return recipe, recipe.encode(columns), HeldOut(tuple(_names(section, frames, test)), tuple(notes))


def _names(section: Data, frames: list[Frame], rows: np.ndarray) -> list[str]:
    ends = np.cumsum([frame.where.rows for frame in frames])
    found = []
    for row in rows.tolist():
        number = int(np.searchsorted(ends, row, side="right"))
        frame, own = frames[number], row - int(ends[number] - frames[number].where.rows)
        ids = [f"{name} {frame.aside[name][own]}" for name in section.id_columns if name in frame.aside]
        found.append(", ".join(ids) or frame.where(own))
    return found


def _doubts(recipe: Recipe, frame: Frame) -> list[str]:
    """Columns that are probably no inputs."""
    notes = []
    for known in recipe.columns:
        values = frame.inputs[known.name]
        if known.kind == "number" and len(values) > 2 and (np.diff(values) == 1).all():
            notes.append(f"column {known.name!r} counts the rows; if it is no input: `--id-column {known.name}`")
        elif (known.low == known.high and known.kind != "text") or len(known.levels) == 1:
            notes.append(f"column {known.name!r} has one value in all training rows: nothing can be learned from it")
        elif known.kind == "number":
            notes += _outlier(frame, known.name, values)
    return notes


def _outlier(frame: Frame, name: str, values: np.ndarray) -> list[str]:
    """A value beside which all others look the same: they do to a network too."""
    low, middle, high = np.nanquantile(values, (0.25, 0.5, 0.75))
    row = int(np.nanargmax(np.abs(values - middle)))
    if not 0 < FAR * (high - low) < abs(values[row] - middle):
        return []
    return [
        f"{frame.where.cell(row, name)}: {values[row]:g} is far from all others, half of which are between {low:g} "
        f"and {high:g}; networks cannot tell these apart: correct it or drop the row if it is a mistake"
    ]


def _files(section: Data, known: Recipe | None) -> _Files:
    if not section.target or section.reading == "as-before":
        return _unnamed(section)
    kinds_of = known.kinds if known else None
    roles = roles_of(section)
    frame = _with_time(read_columns(Path(section.file), roles, kinds_of), section, known)
    tables, frames = {"file": _recorded(frame, section.split_column)}, [frame]
    if section.test_file:
        frames.append(read_columns(Path(section.test_file), roles, frame.kinds))
        tables["test_file"] = _recorded(frames[1])
        parts = np.repeat([TRAIN, TEST], [frame.where.rows, frames[1].where.rows])
        return _Files(tables, frames, parts)
    return _Files(tables, frames, _given_parts(section, frame))


def roles_of(section: Data, labelled: bool = True) -> Roles:
    """The roles of a table's columns in a config."""
    names = (section.split_column, section.time_column, section.group_column)
    return Roles(section.target, *names, section.id_columns, section.text_columns, labelled)


def inputs(path: Path | str, section: Data, recipe: Recipe) -> np.ndarray:
    """Inputs from a file with the columns of a run, encoded; the target may be missing, other columns may not."""
    frame = _frame(Path(path), section, recipe, labelled=False)
    return recipe.encode(frame.inputs)


def labelled(path: Path | str, section: Data, recipe: Recipe) -> tuple[np.ndarray, np.ndarray]:
    """Encoded inputs and raw targets from a file with the columns of a run."""
    frame = _frame(Path(path), section, recipe, labelled=True)
    return recipe.encode(frame.inputs), frame.y


def _frame(path: Path, section: Data, recipe: Recipe, labelled: bool) -> Frame:
    time = recipe.kinds.get(section.time_column)
    roles = roles_of(section, labelled)
    frame = read_columns(path, roles._replace(time="") if time else roles, recipe.kinds)
    missing = [name for name, values in frame.inputs.items() if is_gap(values).any()]
    if missing and not section.impute:
        raise ValueError(f"{path}: values of {missing[0]!r} are missing; fill them in, or drop these rows")
    return frame


def _with_time(frame: Frame, section: Data, known: Recipe | None) -> Frame:
    """The frame, with the column that orders its rows among the inputs if it holds dates."""
    name = section.time_column
    if not name or (known is not None and name not in known.kinds):
        return frame
    cells, survey = frame.aside[name].tolist(), Survey()
    survey.add(cells, frame.where)
    try:
        kind = survey.kind(name)
    except ValueError as error:
        raise ValueError(f"{frame.path}: {error}") from None
    if kind == "number":
        return frame
    if kind != "date":
        raise ValueError(
            f"{frame.where.cell(0, name)}: {cells[0][:40]!r}: a time must be a number or a date as 2024-12-31"
        )
    days = column(cells, "date", lambda row: frame.where.cell(row, name))
    return frame._replace(inputs=frame.inputs | {name: days}, kinds=frame.kinds | {name: kind})


def _recorded(frame: Frame, split_column: str = "") -> files.Table:
    """A table of numbers as data.json records it; text is represented by its digest."""
    x = np.column_stack([record.as_numbers(values) for values in frame.inputs.values()])
    parts = frame.aside[split_column].astype(str) if split_column else None
    return files.Table(x, frame.y, tuple(frame.inputs), frame.target, parts)


def _unnamed(section: Data) -> _Files:
    """Arrays, whose columns have no names; and tables as stein 0.1 read them, which must be numbers."""
    if section.file:
        table = files.read_table(section.file, section.target, section.split_column)
    else:
        table = files.read_pair(section.inputs, section.targets)
    if not section.test_file:
        return _Files({"file": table}, [], None)
    test = files.read_table(section.test_file, section.target)
    check_shape(section.test_file, test.x, table.x)
    parts = np.repeat([TRAIN, TEST], [len(table.x), len(test.x)])
    return _Files({"file": table, "test_file": test}, [], parts)


def _given_parts(section: Data, frame: Frame) -> np.ndarray | None:
    """The part of every row by the split column, or None if there is no such column."""
    if not section.split_column:
        return None
    texts = [text.lower().removesuffix(".0") for text in frame.aside[section.split_column]]
    for row, text in enumerate(texts):
        if text not in PARTS:
            raise ValueError(
                f"{frame.where.cell(row, section.split_column)}: {text[:60]!r}: "
                "must be train, validation or test, or 0 for training and 1 for test"
            )
    parts = np.array([PARTS[text] for text in texts])
    if not (parts == TRAIN).any():
        raise ValueError(f"{section.file}: column {section.split_column!r}: no row is for training")
    return parts


def _uci(section: Data) -> _Files:
    train, test = datasets.load_uci(section.name, section.split, section.folder or None)
    names = tuple(f"x{i}" for i in range(train.x.shape[1]))
    x, y = (np.concatenate(pair) for pair in zip(train[:2], test[:2], strict=True))
    parts = np.repeat([TRAIN, TEST], [len(train.x), len(test.x)])
    return _Files({"file": files.Table(x, y, names, section.name)}, [], parts)


def _as_before(config: Config, x: np.ndarray, y: np.ndarray, table: files.Table, facts: dict[str, Any]) -> Read:
    """Tables as stein 0.1 read them: whole numbers are class numbers, and splits are not stratified."""
    labels: tuple[str, ...] = ()
    if y.dtype.kind == "U":
        found, y = np.unique(y, return_inverse=True)
        labels = tuple(map(str, found))
    kind: kinds.Kind = "categorical" if y.dtype.kind in "iu" else "gaussian"
    if config.likelihood.name != "auto":
        kind = config.likelihood.name
        kinds.check_given(y, kind, table.target)
    train, test = (part._replace(labels=labels) for part in split(x, y, config.data))
    return Read((train, nothing_like(train), test), kind, table.inputs, table.target, (), facts)


def _together(targets: list[np.ndarray], test_file: str) -> np.ndarray:
    """The targets of a file and of its test file: both numbers or both text."""
    if len({y.dtype.kind == "U" for y in targets}) > 1:
        raise ValueError(f"{test_file}: its targets are {'text' if targets[1].dtype.kind == 'U' else 'numbers'}, those "
                         "of data.file are not; must be alike")  # fmt: skip
    if len({y.shape[1:] for y in targets}) > 1:
        targets = [y.reshape(len(y), -1) for y in targets]
    if len({y.shape[1:] for y in targets}) > 1:
        raise ValueError(f"{test_file}: y has another number of columns than that of the training file")
    return np.concatenate(targets)


def as_kind(y: np.ndarray, kind: kinds.Kind, labels: tuple[str, ...], where: str) -> np.ndarray:
    """Raw targets as class numbers, or in floating point."""
    if kind == "categorical":
        return codes(y, labels, where)
    return y if y.dtype.kind == "f" else y.astype(np.float64)


def codes(y: np.ndarray, labels: tuple[str, ...], where: str) -> np.ndarray:
    """The number of every row's class, from 0."""
    number = {label: i for i, label in enumerate(labels)}
    given = kinds.names(y)
    for label in given:
        if label not in number:
            raise ValueError(f"{where}: class {label!r} is unknown; the classes are {', '.join(labels[:10])}")
    return np.array([number[label] for label in given], np.int64)


def check_shape(path: str, x: np.ndarray, like: np.ndarray) -> None:
    if x.shape[1:] != like.shape[1:]:
        raise ValueError(f"{path}: rows of shape {x.shape[1:]}; the run is trained on {like.shape[1:]}")


def split(x: np.ndarray, y: np.ndarray, section: Data) -> tuple[data.Arrays, data.Arrays]:
    return data.split(x, y, section.test_fraction, section.seed)


def nothing_like(like: data.Arrays) -> data.Arrays:
    return data.Arrays(like.x[:0], like.y[:0], like.labels)
