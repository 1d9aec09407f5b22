"""Predictions for the rows of a file, written as CSV: read, predicted and written block by block in constant memory."""

import csv
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from stein.calibration import Conformal
from stein.data import cells
from stein.data.blocks import ROWS, SUFFIXES, source
from stein.predictions import ClassPrediction, Prediction
from stein.runs.calibrated import epistemic_score
from stein.runs.exported import Exported
from stein.storage import durable

Say = Callable[[str], None]


class _Rows(NamedTuple):
    """Some rows of a file: what names them, their inputs, remarks about each, the share of the file done, and which
    are far from training."""

    ids: dict[str, list[str]]
    x: np.ndarray
    notes: list[str] | None
    done: float
    far: np.ndarray | bool = False


def write_predictions(
    finished: Exported,
    path: Path,
    out: Path,
    coverage: float = 0.9,
    warn: Say = print,
    progress: Callable[[float], None] = lambda done: None,
) -> int:
    """Write one row of predictions per row of a file; returns their number.

    The output appears under its name when it is complete.

    Args:
        coverage: of the intervals or sets.
        warn: called with one line about columns that are missing or not used, and about intervals.
        progress: called with the share of the file that is done.
    """
    conformal = usable_conformal(finished, coverage, warn)
    written = 0
    with durable.replacing(out) as file:
        writer = csv.writer(file, lineterminator="\n")
        for rows in _rows(finished, path, warn):
            number = len(rows.x)
            # Always a whole block, so that no number depends on where the blocks end.
            padded = np.concatenate([rows.x, np.repeat(rows.x[-1:], max(0, ROWS - number), axis=0)])
            prediction = finished.predict_prepared(finished.inputs(padded))
            predicted = answers(finished, prediction, coverage, conformal, rows.far)
            columns = {_apart(name, {*predicted, "notes"}, "id"): values for name, values in rows.ids.items()}
            columns |= {name: values[:number] for name, values in predicted.items()}
            if rows.notes is not None:
                columns["notes"] = rows.notes
            if not written:
                writer.writerow(columns)
            writer.writerows(zip(*columns.values(), strict=True))
            written += number
            progress(rows.done)
    return written


# -- reading ------------------------------------------------------------------------------------------------


def _rows(finished: Exported, path: Path, warn: Say) -> Iterator[_Rows]:
    if finished.recipe is None or path.suffix.lower() not in SUFFIXES:
        x = finished.read(path)
        for start in range(0, len(x), ROWS):
            part = x[start : start + ROWS]
            yield _Rows({}, part, None, (start + len(part)) / len(x))
        return
    recipe, section = finished.recipe, finished.config.data
    opened = source(path, tuple(recipe.kinds))
    used = used_columns(finished, opened.names, f"{opened.path}: ", warn)
    ids = [name for name in section.id_columns if name in opened.names]
    seen = False
    for block in opened.blocks(list(dict.fromkeys([*ids, *used]))):
        seen = True
        columns = {
            name: cells.column(block.cells[name], recipe.kinds[name], _in_file(path, block.where, name))
            for name in used
        }
        named = {name: [cell.strip() for cell in cells.as_text(block.cells[name])] for name in ids}
        yield _Rows(named, recipe.encode(columns), recipe.notes(columns), block.done, recipe.far(columns))
    if not seen:
        raise ValueError(f"{path}: has {'columns' if opened.types else 'a header'} and no rows")


def used_columns(finished: Exported, names: Sequence[str], where: str, warn: Say) -> list[str]:
    """The columns of the recipe that a table has. Warns about others, and about those that it does not have.

    Args:
        names: of the table's columns.
        where: what messages begin with.
    """
    assert finished.recipe is not None  # noqa: S101
    section, kinds = finished.config.data, finished.recipe.kinds
    known = {section.target, section.split_column, section.time_column, section.group_column, *section.id_columns}
    used = [name for name in kinds if name in names]
    if not used:
        raise ValueError(f"{where}has none of the run's columns, {_some(list(kinds))}; it has {_some(names)}")
    if missing := [name for name in kinds if name not in names]:
        warn(
            f"{where}no column {_some(missing)}: filled with the median or the most frequent level of "
            "training; every row says so in its notes"
        )
    if other := [name for name in names if name not in known and name not in used]:
        warn(f"{where}column {_some(other)} was not there in training: ignored")
    return used


def _in_file(path: Path, where: cells.Where, name: str) -> cells.Where:
    return lambda row: f"{path}: {where(row)}, column {name!r}"


def _some(names: Sequence[str]) -> str:
    return ", ".join(repr(name) for name in names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


# -- writing ------------------------------------------------------------------------------------------------


def usable_conformal(finished: Exported, coverage: float, warn: Say) -> Conformal | None:
    """The conformal calibration of a run, if it has one with enough rows for this coverage; else warns."""
    conformal = None if finished.calibration is None else finished.calibration.conformal
    if conformal is not None and not np.isfinite(conformal.threshold(coverage)).all():
        warn(
            f"{len(conformal.scores)} calibration rows are too few for conformal intervals of {coverage:.0%}: "
            "those of the ensemble itself are written"
        )
        return None
    return conformal


def _apart(name: str, taken: Container[str], what: str) -> str:
    """The name of a user's own column in the output; with a word behind it if a column of ours has this name."""
    return f"{name} ({what})" if name in taken else name


def answers(
    finished: Exported, prediction: Prediction, coverage: float, conformal: Conformal | None, far: np.ndarray | bool
) -> Mapping[str, list[Any]]:
    """The columns of ``predictions.csv`` by name, without ids and notes; docs/tables.md describes them.

    Args:
        conformal: what intervals or sets are by; those of the ensemble itself if None.
        far: which rows are far from training; the rows after them fill a block.
    """
    columns: dict[str, list[Any]] = {}
    percent = f"{100 * coverage:g}"
    if isinstance(prediction, ClassPrediction):
        names = class_names(finished, prediction)
        columns |= {f"p({name})": p.tolist() for name, p in zip(names, prediction.probabilities.T, strict=True)}
        sets = prediction.sets(coverage) if conformal is None else conformal.sets(prediction, coverage)
        columns[f"set_{percent}"] = [" | ".join(np.array(names)[inside]) for inside in sets]
        columns |= {"entropy": prediction.entropy.tolist(), "epistemic": prediction.mutual_information.tolist()}
        columns = {_apart(finished.target, {*columns, "unusual", "notes"}, "class"): prediction.named} | columns
    else:
        low, high = prediction.interval(coverage) if conformal is None else conformal.interval(prediction, coverage)
        numbers = {
            "mean": prediction.mean,
            "std": prediction.std,
            "epistemic": prediction.epistemic,
            "aleatoric": prediction.aleatoric,
            f"low_{percent}": low,
            f"high_{percent}": high,
        }
        targets = prediction.mean.shape[1]
        columns = {
            name if targets == 1 else f"{name}_{k}": values[:, k].tolist()
            for k in range(targets)
            for name, values in numbers.items()
        }
    if finished.calibration is not None:
        unusual = epistemic_score(prediction, finished.units) > finished.calibration.unusual
        unusual[: np.size(far)] |= far
        columns["unusual"] = ["true" if flag else "false" for flag in unusual]
    return columns


def class_names(finished: Exported, prediction: ClassPrediction) -> tuple[str, ...]:
    """The names of the classes; their numbers if they have none."""
    return finished.labels or tuple(map(str, range(prediction.probabilities.shape[1])))
