"""The data of a run: read, checked, split, standardised and cast, in this order. No jax here."""

import dataclasses
import functools
import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from stein import data
from stein.data import files
from stein.runs import images, kinds, record, tables
from stein.runs.schema import IMAGES, Config
from stein.tables import Recipe, learn

BUILT_IN: dict[str, Callable[[int], tuple[np.ndarray, np.ndarray]]] = {
    "regression-1d": data.regression_1d,
    "classification-2d": data.classification_2d,
}


class Loaded(NamedTuple):
    """The data of a run in its precision, and what predictions need to know about them.

    Regression targets are standardised by ``units`` if it is not None; ``facts`` are for data.json. ``inputs`` are the
    names of the columns; ``recipe`` says how they become inputs, and is None if they have no names of their own.
    ``weights`` are those of the training rows, if they have any. ``stream`` makes batches of a size, by a seed, if the
    training data do not fit in memory; ``train`` are then the first rows only.
    """

    train: data.Arrays
    test: data.Arrays | None
    standardiser: data.Standardiser | None
    validation: data.Arrays | None
    units: data.Standardiser | None
    kind: kinds.Kind
    classes: int
    inputs: tuple[str, ...]
    target: str
    notes: tuple[str, ...]
    facts: dict[str, Any]
    weights: np.ndarray | None = None
    recipe: Recipe | None = None
    test_rows: tables.HeldOut | None = None
    stream: Callable[[int, int], data.Stream] | None = None

    def description(self) -> dict[str, Any]:
        """What predictions need to know, without the data themselves."""
        return {
            "kind": self.kind,
            "shape": self.train.x.shape[1:],
            "answers": self.answers,
            "rows": self.rows,
            "inputs": self.inputs,
            "target": self.target,
            "labels": self.train.labels,
            "constant": self.constant,
            **{name: self.facts[name] for name in ("standardiser", "units", "recipe") if name in self.facts},
        }

    @property
    def rows(self) -> int:
        """Number of training rows, in memory or not."""
        return len(self.train.x) if self.stream is None else int(self.facts["split"]["train"])

    @property
    def constant(self) -> float | list[float]:
        """The constant prediction to beat: the most frequent class, or the mean of the training targets."""
        if self.kind == "categorical":
            return int(np.bincount(self.train.y, minlength=self.classes).argmax())
        raw = self.raw_targets(self.train.y)
        return raw.reshape(len(raw), -1).astype(np.float64).mean(axis=0).tolist()

    @property
    def answers(self) -> int:
        """Number of classes, or of targets per row."""
        return self.classes or int(np.prod(self.train.y.shape[1:]))

    def raw_targets(self, y: np.ndarray) -> np.ndarray:
        """Targets in the units of the data, one row per point."""
        if self.units is None or self.kind == "categorical":
            return y
        return self.units.undo(y.reshape(len(y), -1).astype(np.float64))


def load(
    config: Config, before: Mapping[str, Any] | None = None, changed: Callable[[str], None] | None = None
) -> Loaded:
    """The data that a config names.

    Args:
        before: data.json of an existing run, whose classes and scales are reused.
        changed: called with a description of any difference from ``before``; raises to reject the data.
    """
    before = before or {}
    if config.data.name == "arrays":
        raise ValueError(
            "data.name = 'arrays': the data were given in Python and are not kept; fit the estimator again"
        )
    reader = _stream if config.data.stream else tables.read if config.is_table else _by_name
    read = reader(config, before, changed)
    return prepared(config, read, before)


def prepared(
    config: Config, read: tables.Read, before: Mapping[str, Any] | None = None, weights: np.ndarray | None = None
) -> Loaded:
    """Data that were read: standardised and cast.

    Args:
        before: as in :func:`load`.
        weights: of the training rows; standardisation counts a row of weight 2 as two rows.
    """
    before = before or {}
    train, validation, test = read.parts
    section = config.data
    flat_table = config.is_table and train.x.ndim == 2
    wanted = flat_table if section.standardise == "auto" else section.standardise
    standardiser = None
    if wanted:
        standardiser = _recorded(before, "standardiser") or data.standardiser(train.x, weights, section.unskew)
    wanted = config.is_table if section.standardise_targets == "auto" else section.standardise_targets
    units = None
    if wanted and read.kind not in ("categorical", "poisson"):
        units = _recorded(before, "units") or _units(train.y, weights, isinstance(config.likelihood.sigma, float))
    precision = np.dtype(config.train.precision)

    def ready(part: data.Arrays) -> data.Arrays:
        x = part.x if standardiser is None else standardiser(part.x)
        if read.kind == "categorical":
            y = part.y.astype(np.int32)
        elif units is None:
            y = part.y.astype(precision)
        else:
            y = units(part.y.reshape(len(part.y), -1).astype(np.float64)).reshape(part.y.shape).astype(precision)
        return data.Arrays(x.astype(precision, copy=False), y, part.labels)

    classes = 0
    if read.kind == "categorical":
        classes = len(train.labels) or int(train.y.max()) + 1
        _check_classes(read, classes)
    facts = read.facts | {
        "kind": read.kind,
        "target": read.target,
        "classes": list(train.labels),
        "split": {name: len(part.x) for name, part in zip(("train", "validation", "test"), read.parts, strict=True)}
        | read.facts.get("split", {}),
        "standardiser": record.scales(standardiser),
        "units": record.scales(units),
    }

    def batch(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if read.kind == "poisson":
            kinds.check_given(y, read.kind, read.target)
        try:
            y = tables.as_kind(y, read.kind, train.labels, read.target)
        except ValueError as error:
            raise ValueError(f"{error}; data.head_rows must include a row of each class") from None
        return ready(data.Arrays(x, y))[:2]

    stream = None
    if read.source is not None:
        stream = functools.partial(data.Stream, read.source, rows=read.rows, prepare=batch)
    held_out = (ready(part) if len(part.x) else None for part in (test, validation))
    test_part, validation_part = held_out
    return Loaded(
        ready(train), test_part, standardiser, validation_part, units, read.kind, classes, read.inputs, read.target,
        read.notes, facts, weights, read.recipe, read.test_rows, stream,
    )  # fmt: skip


def changed_data(run: str, allowed: bool, warn: Callable[[str], None]) -> Callable[[str], None]:
    """The callback for :func:`load` if the data changed after a run began: reject them, or warn."""

    def changed(what: str) -> None:
        if not allowed:
            raise ValueError(
                f"{run}: its data changed after training began: {what}; `--allow-changed-data` goes on all the same"
            )
        warn(f"the data changed after training began: {what}; test points may have been trained on")

    return changed


def unlabelled(path: str, config: Config, like: Loaded) -> np.ndarray:
    """Unlabelled inputs from a file, prepared like those of training."""
    if path.lower().endswith((".npy", ".npz")):
        x = data.load_inputs(path)
    elif like.recipe is not None:
        x = tables.inputs(path, config.data, like.recipe)
    elif config.data.target:
        x = files.read_table(path, config.data.target, config.data.split_column, like.inputs, labelled=False).x
    else:
        raise ValueError(f"{path}: the columns of the data have no names; must be a .npy or .npz file")
    tables.check_shape(path, x, like.train.x)
    return (x if like.standardiser is None else like.standardiser(x)).astype(like.train.x.dtype)


def describe(loaded: Loaded) -> str:
    """Target, rows and inputs of the data, in one line."""
    parts = [part for part in (loaded.train, loaded.validation, loaded.test) if part is not None]
    rows = " + ".join(map(str, [loaded.rows, *(len(part.x) for part in parts[1:])])) + " rows"
    if loaded.validation is not None:
        rows += " (training, validation, test)" if loaded.test is not None else " (training, validation)"
    inputs = int(np.prod(loaded.train.x.shape[1:]))
    columns = f" from {len(loaded.inputs)} columns" if len(loaded.inputs) not in (0, inputs) else ""
    if loaded.stream is not None:
        rows += f" (a stream; scales and classes are those of the first {len(loaded.train.x)})"
    end = f"{rows}, {inputs} input{'s' if inputs > 1 else ''}{columns}"
    if loaded.kind != "categorical":
        return f"regression on {loaded.target!r}: {end}"
    counts = Counter(number for part in parts for number in part.y.tolist())
    labels = loaded.train.labels or tuple(map(str, range(loaded.classes)))
    shown = ", ".join(f"{labels[c][:20]} {counts[c]}" for c in range(min(loaded.classes, 5)))
    more = ", ..." if loaded.classes > 5 else ""
    return f"classification on {loaded.target!r}: {loaded.classes} classes ({shown}{more}), {end}"


def baseline(constant: float | Sequence[float], y: np.ndarray) -> dict[str, float]:
    """Score of a constant prediction (:attr:`Loaded.constant`) on targets in their own units."""
    if np.issubdtype(y.dtype, np.integer):
        return {"baseline_accuracy": float(np.mean(y == constant))}
    error = y.reshape(len(y), -1).astype(np.float64) - np.asarray(constant)
    return {"baseline_rmse": float(np.sqrt(np.mean(error**2)))}


# -- tables -------------------------------------------------------------------------------------------------


def _check_classes(read: tables.Read, classes: int) -> None:
    """Reject a class without training rows: it cannot be learned, and its probability is meaningless."""
    train, *held_out = read.parts
    known = np.bincount(train.y[train.y >= 0], minlength=classes) > 0
    for name, part in zip(("validation", "test"), held_out, strict=True):
        for c in np.unique(part.y).tolist():
            if c >= classes or (train.labels and not known[c]):
                label = train.labels[c] if train.labels else str(c)
                raise ValueError(
                    f"{read.target!r}: class {label!r} is only in the {name} part; give some of its rows to training"
                    + (", within data.head_rows" if read.source is not None else "")
                )


def _units(y: np.ndarray, weights: np.ndarray | None, one_scale: bool) -> data.Standardiser:
    """The standardiser of targets. If sigma is given in their units, all are divided by the same number."""
    units = data.standardiser(y.reshape(len(y), -1), weights)
    if one_scale:
        units = units._replace(scale=np.full_like(units.scale, np.sqrt(np.mean(units.scale**2))))
    return units


def _recorded(before: Mapping[str, Any], name: str) -> data.Standardiser | None:
    return record.standardiser(before[name]) if before.get(name) else None


# -- streams ------------------------------------------------------------------------------------------------


def _stream(config: Config, before: Mapping[str, Any], changed: Callable[[str], None] | None) -> tables.Read:
    """The first rows of a stream, from which scales, classes and ranges are learned, and its last rows, held out."""
    section = config.data
    source: data.MemoryMapped | data.ParquetRows
    if section.inputs:
        path, target, source = section.inputs, "y", data.MemoryMapped(section.inputs, section.targets)
    else:
        path, target = section.file, section.target
        source = data.ParquetRows(path, target, section.id_columns, section.shuffle_rows)
    total, held_out = int(source.groups.sum()), section.test_rows
    first_test = total - held_out
    rows = first_test - (held_out if config.validation_fraction else 0)
    if rows < 2:
        raise ValueError(f"{path}: has {total} rows; with data.test_rows = {held_out} too few are left to train on")
    difference = record.stream_difference(before.get("stream", {}), source.identity) if before else ""
    if difference and changed is not None:
        changed(f"{path}: {difference}")
    head = min(section.head_rows, rows)
    x, y = source.take(np.concatenate([np.arange(head), np.arange(rows, total)]))
    kind: kinds.Kind = before.get("kind") or kinds.decide(y, config.likelihood, target)
    labels: tuple[str, ...] = ()
    if kind == "categorical":
        labels = tuple(before.get("classes", ())) or kinds.in_order(kinds.names(y))
    y = tables.as_kind(y, kind, labels, target)
    bounds = [0, head, head + first_test - rows, len(x)]
    train, validation, test = (
        data.Arrays(x[low:high], y[low:high], labels) for low, high in itertools.pairwise(bounds)
    )
    facts: dict[str, Any] = {"stream": source.identity, "split": {"train": rows}}
    inputs, recipe = tuple(f"x{i}" for i in range(x.shape[1])) if x.ndim == 2 else (), None
    if isinstance(source, data.ParquetRows):
        inputs = tuple(source.columns)
        columns = dict(zip(inputs, train.x.astype(np.float64).T, strict=True))
        if len(inputs) <= tables.MOST_COLUMNS:
            known = before.get("recipe")
            recipe = msgspec.convert(known, Recipe) if known else learn(columns, source.columns)
            facts["recipe"] = dataclasses.asdict(recipe)
    return tables.Read((train, validation, test), kind, inputs, target, (), facts, recipe, None, source, rows)


# -- sets by name -------------------------------------------------------------------------------------------


def _by_name(config: Config, before: Mapping[str, Any], changed: Callable[[str], None] | None) -> tables.Read:
    """Built-in points and images, whose kind is known."""
    section = config.data
    if section.name in IMAGES:
        train, test = images.load(section, config.model.name == "mlp")
    else:
        train, test = tables.split(*BUILT_IN[section.name](section.seed), section)
    validation = tables.nothing_like(train)
    if config.validation_fraction:
        chosen = data.held_out(len(train.x), config.validation_fraction, [section.seed, 1])
        train, validation = (data.Arrays(train.x[rows], train.y[rows]) for rows in (~chosen, chosen))
    kind: kinds.Kind = "categorical" if train.y.dtype.kind in "iu" else "gaussian"
    if config.likelihood.name != "auto":
        kind = config.likelihood.name
        kinds.check_given(train.y, kind, section.name)
    # The bytes of images are compared with a published digest whenever they are read.
    shapes = [list(part.x.shape) for part in (train, validation, test)]
    facts = {"name": section.name, "shapes": shapes}
    if before and changed is not None and before.get("shapes") != shapes:
        changed(f"{section.name}: its parts have shapes {shapes}, before {before.get('shapes')}")
    return tables.Read((train, validation, test), kind, (), section.name, (), facts)
