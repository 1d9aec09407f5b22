"""Tables that a run learns from: read, examined and split. No jax here."""

import hashlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from stein import data, datasets
from stein.data import files
from stein.runs import kinds, record
from stein.runs.schema import UCI, Config, Data

TRAIN, VALIDATION, TEST = range(3)
# The values of a split column.
PARTS = {"train": TRAIN, "0": TRAIN, "validation": VALIDATION, "test": TEST, "1": TEST}


class Read(NamedTuple):
    """The data in three parts; targets are class numbers from 0, or floating point."""

    parts: tuple[data.Arrays, data.Arrays, data.Arrays]
    kind: kinds.Kind
    inputs: tuple[str, ...]
    target: str
    notes: tuple[str, ...]
    facts: dict[str, Any]


def read(config: Config, before: Mapping[str, Any], changed: Callable[[str], None] | None) -> Read:
    section = config.data
    tables, parts = _uci(section) if section.name in UCI else _files(section)
    facts = {name: record.facts(table) for name, table in tables.items()}
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
        y = codes(y, labels, first.target)
        once = [labels[c] for c in np.flatnonzero(np.bincount(y) == 1)]
        if once and parts is None:
            notes.append(f"class {', '.join(once[:5])} has one row, which stays in training")
    else:
        y = y.astype(np.float64) if y.dtype.kind != "f" else y
    classes = y if kind == "categorical" else None
    if parts is None:
        parts = np.where(data.held_out(len(x), section.test_fraction, section.seed, classes), TEST, TRAIN)
    if config.validation_fraction and not (parts == VALIDATION).any():
        rows = np.flatnonzero(parts == TRAIN)
        chosen = data.held_out(
            len(rows), config.validation_fraction, [section.seed, 1], None if classes is None else classes[rows]
        )
        parts[rows[chosen]] = VALIDATION
    rows_of = [np.flatnonzero(parts == part) for part in (TRAIN, VALIDATION, TEST)]
    facts["split"] = {"digest": hashlib.sha256(parts.astype(np.uint8).tobytes()).hexdigest()}
    recorded = before.get("split", {}).get("digest", facts["split"]["digest"])
    if recorded != facts["split"]["digest"] and not any(differences.values()) and changed is not None:
        changed("the rows are split into other training and test rows")
    three = tuple(data.Arrays(x[rows], y[rows], labels) for rows in rows_of)
    return Read(three, kind, first.inputs, first.target, tuple(notes), facts)  # type: ignore[arg-type]


def _files(section: Data) -> tuple[dict[str, files.Table], np.ndarray | None]:
    """The file of a run and its test file; and the part of every row, or None if it is not given."""
    if section.file:
        table = files.read_table(section.file, section.target, section.split_column)
    else:
        table = files.read_pair(section.inputs, section.targets)
    if section.test_file:
        like = table.inputs if section.target else ()
        test = files.read_table(section.test_file, section.target, like=like)
        check_shape(section.test_file, test.x, table.x)
        parts = np.repeat([TRAIN, TEST], [len(table.x), len(test.x)])
        return {"file": table, "test_file": test}, parts
    if table.parts is None:
        return {"file": table}, None
    texts = [text.lower() for text in table.parts.tolist()]
    for row, text in enumerate(texts):
        if text not in PARTS:
            raise ValueError(
                f"{section.file}: row {row + 1}, column {section.split_column!r}: {table.parts[row][:60]!r}: "
                "must be train, validation or test, or 0 for training and 1 for test"
            )
    parts = np.array([PARTS[text] for text in texts])
    if not (parts == TRAIN).any():
        raise ValueError(f"{section.file}: column {section.split_column!r}: no row is for training")
    return {"file": table}, parts


def _uci(section: Data) -> tuple[dict[str, files.Table], np.ndarray]:
    train, test = datasets.load_uci(section.name, section.split, section.folder or None)
    names = tuple(f"x{i}" for i in range(train.x.shape[1]))
    x, y = (np.concatenate(pair) for pair in zip(train[:2], test[:2], strict=True))
    parts = np.repeat([TRAIN, TEST], [len(train.x), len(test.x)])
    return {"file": files.Table(x, y, names, section.name)}, parts


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
