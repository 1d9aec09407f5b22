"""Evaluate a finished run: on held-out points, out-of-distribution points and blurred images."""

import json
import math
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import msgspec
import numpy as np

from stein import data, evaluate, metrics
from stein.data import corruptions, files
from stein.data.blocks import SUFFIXES
from stein.predictions import ClassPrediction
from stein.report import evaluation
from stein.runs import configs, dataset, images, tables
from stein.runs.exported import Exported
from stein.runs.folder import RunFolder
from stein.runs.portrait import portrait
from stein.runs.schema import IMAGES, Data
from stein.runs.training import Say
from stein.storage import documents, durable
from stein.tables import Recipe

OUTSIDE: dict[str, Callable[[], np.ndarray]] = {"far-from-the-ring": data.far_from_the_ring}
"""Points unlike the data of a built-in set, by name."""
FIGURES = ("reliability", "calibration", "entropies", "corruption", "intervals")
# The numbers that fit in a terminal; the rest is in evaluation.json.
SHOWN = (
    *("accuracy", "rmse", "nll", "nll_paper", "nll_members", "crps", "brier", "ece", "coverage_50", "coverage_90"),
    *("sigma", "spread", "auroc_spread", "spread_ratio", "baseline_rmse", "baseline_accuracy"),
    *("coverage_95", "member_accuracy", "member_disagreement", "auroc_h", "auroc_md", "auroc_mi", "aupr_h", "fpr95_h"),
    *("h_ratio", "md_ratio", "calibration_area", "calibration_area_perfect", "calibration_coverage97"),
)


def held_out(
    finished: Exported, allow_changed_data: bool = False, warn: Say = warnings.warn
) -> tuple[data.Arrays, dataset.Loaded]:
    """The held-out points of a run, inputs as the network takes them, targets in their units; and all of its data.

    Args:
        allow_changed_data: if the data changed after training, warn, and use the classes and scales of training.
    """
    folder = finished.folder
    changed = dataset.changed_data(str(folder), allow_changed_data, warn)
    loaded = dataset.load(configs.load_run(folder.config), documents.read_json(folder.data), changed)
    if not _is_same(loaded.standardiser, finished.standardiser):
        raise ValueError(f"{folder}: its data are no longer those that it was trained on (their means have changed)")
    if loaded.test is None:
        raise ValueError(f"{folder}: has no held-out points to evaluate on (data.test_fraction = 0); `--data FILE` has")
    return data.Arrays(loaded.test.x, loaded.raw_targets(loaded.test.y)), loaded


def ood_inputs(
    name_or_file: str,
    section: Data,
    shape: tuple[int, ...],
    inputs: Sequence[str] = (),
    recipe: Recipe | None = None,
) -> tuple[np.ndarray, str]:
    """Out-of-distribution inputs, not yet standardised, and a note about them (may be empty).

    Args:
        name_or_file: a set of :data:`OUTSIDE`, a ``.npy`` or ``.npz`` file, a table with the columns of the run's own
            (with or without the target), or, if the run learns images by name, the name of
            another set, or ``other-classes``.
        section: the run's data.
        shape: of one training input; each new input must have it.
        inputs: names of the training inputs.
        recipe: how the columns of a table become inputs, if they have names of their own.
    """
    note = ""
    if name_or_file in OUTSIDE:
        x = OUTSIDE[name_or_file]()
    elif section.name in IMAGES:
        x, note = images.outside(name_or_file, section, flat=len(shape) == 1)
    elif Path(name_or_file).suffix.lower() in (".npy", ".npz"):
        x = data.load_inputs(Path(name_or_file))
    elif Path(name_or_file).suffix.lower() in SUFFIXES:
        if not section.target:
            raise ValueError(f"--ood {name_or_file}: the run's own columns have no names; must be a .npy or .npz file")
        if recipe is not None:
            return tables.inputs(name_or_file, section, recipe), note
        x = files.read_table(name_or_file, section.target, section.split_column, inputs, labelled=False).x
    else:
        raise ValueError(
            f"--ood {name_or_file}: neither a {', '.join(SUFFIXES)}, .npy or .npz file nor one of {', '.join(OUTSIDE)}"
        )
    if x.shape[1:] != shape:
        kind = "images" if x.ndim in (3, 4) else "rows"
        raise ValueError(f"{name_or_file}: {kind} of shape {x.shape[1:]}; the run was trained on {shape}")
    return x, note


def run(
    folder: RunFolder,
    ood: Sequence[str] = (),
    corruption: bool = False,
    data_dir: Path | None = None,
    labelled: Path | None = None,
    allow_changed_data: bool = False,
    warn: Say = warnings.warn,
) -> dict[str, Any]:
    """Evaluate a finished run and write evaluation.json, curves.json, figures/, and for reports views.json and
    rows.json. The caller holds its lock.

    Args:
        labelled: a file with the run's columns, to evaluate on instead of its test points; the run's own data are not
            needed then.
        allow_changed_data: as in :func:`held_out`.

    Returns:
        The content of evaluation.json.
    """
    finished = Exported(folder)
    test, loaded = (
        held_out(finished, allow_changed_data, warn) if labelled is None else (finished.labelled(labelled), None)
    )
    about: dict[str, Any] = {"test_points": len(test.x), "members": len(jax.tree.leaves(finished.members)[0])}
    if labelled is not None:
        about["data"] = str(labelled)
    others, about["note"] = _named_sets(finished, ood, data_dir)
    if corruption and finished.kind != "categorical":
        raise ValueError(f"--corruption: is for classifiers; {folder} is a regression")
    clean = _images(finished, test.x) if corruption else None  # errors come before work
    prediction = finished.predict_prepared(test.x)
    outside = {name: finished.predict_prepared(x) for name, x in others.items()}
    if isinstance(prediction, ClassPrediction):
        numbers, curves, drawn = _classification(finished, test, prediction, outside, clean)
    else:
        numbers, curves, drawn = _regression(finished, test, prediction, outside)
    numbers |= dataset.baseline(finished.constant, test.y)
    evaluated = about | {name: value if math.isfinite(value) else None for name, value in numbers.items()}
    documents.write_json(folder.evaluation, evaluated)
    durable.replace(folder.curves, json.dumps(curves).encode())
    drawn_from = portrait(finished, test, prediction, outside, loaded)
    durable.replace(folder.views, json.dumps(drawn_from.views).encode())
    durable.replace(folder.rows_shown, json.dumps(drawn_from.rows).encode())
    folder.figures.mkdir(exist_ok=True)
    for path in (folder.figures / f"{name}.{kind}" for name in FIGURES for kind in ("png", "svg")):
        if path.stem in drawn:
            documents.write_figure(path, drawn[path.stem], dpi=150)
        else:
            path.unlink(missing_ok=True)  # from an evaluation with other options
    return evaluated


def table(numbers: dict[str, Any]) -> Any:
    """The most important numbers, as a rich table."""
    from rich.table import Table

    shown = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_header=False)
    shown.add_column()
    shown.add_column(justify="right")
    for name in SHOWN:
        if numbers.get(name) is not None:
            shown.add_row(name, f"{numbers[name]:.4g}")
    return shown


def _is_same(now: data.Standardiser | None, then: data.Standardiser | None) -> bool:
    if now is None or then is None:
        return now is None and then is None
    flat = [[now.mean, now.scale, *(now.unskewing or ())], [then.mean, then.scale, *(then.unskewing or ())]]
    return len(flat[0]) == len(flat[1]) and all(
        a.shape == b.shape and np.allclose(a, b, rtol=1e-6) for a, b in zip(*flat, strict=True)
    )


def _named_sets(finished: Exported, ood: Sequence[str], data_dir: Path | None) -> tuple[dict[str, np.ndarray], str]:
    """Out-of-distribution inputs by name, prepared for the network, and notes about them."""
    section, sets, notes = finished.config.data, {}, []
    if data_dir is not None:
        section = msgspec.structs.replace(section, folder=str(data_dir))
    for given in ood:
        name = Path(given).stem
        if name in sets:
            raise ValueError(f"--ood {given}: there are two sets called {name!r}")
        path = given if data_dir is None or not (data_dir / given).is_file() else str(data_dir / given)
        x, note = ood_inputs(path, section, finished.shape, finished.columns, finished.recipe)
        sets[name] = finished.inputs(x)
        notes += [note] if note else []
    return sets, "; ".join(notes)


def _classification(
    finished: Exported, test: data.Arrays, prediction: ClassPrediction, outside: dict[str, Any], clean: Any
) -> tuple:
    logs = {name: other.log_probabilities for name, other in outside.items()}
    numbers = evaluate.classification(prediction.log_probabilities, test.y, logs, finished.temperature)
    curves = evaluate.classification_curves(prediction.log_probabilities, test.y, logs, finished.temperature)
    method = finished.config.method.title
    drawn = {
        "reliability": evaluation.reliability(curves["reliability"], numbers["ece"]),
        "calibration": evaluation.calibration({method: curves["calibration"]}, disagreement=True),
        "entropies": evaluation.entropies(prediction.entropy, {name: p.entropy for name, p in outside.items()}),
    }
    if clean is not None:

        def predict_images(blurred: np.ndarray) -> np.ndarray:
            x = finished.inputs(blurred.reshape(test.x.shape).astype(test.x.dtype))
            blurry: Any = finished.predict_prepared(x)
            return metrics.classification.tempered(blurry.log_probabilities, finished.temperature)

        rows = evaluate.corruption(predict_images, clean, test.y)
        curves["corruption"] = rows
        numbers |= {f"blur_{row['sigma']:g}_{key}": row[key] for row in rows for key in row if key != "sigma"}
        drawn["corruption"] = evaluation.corruption({method: [rows]})
    return numbers, curves, drawn


def _regression(finished: Exported, test: data.Arrays, prediction: Any, outside: dict[str, Any]) -> tuple:
    """Everything in the units of the targets."""
    means, sigmas, family = prediction
    y = test.y.reshape(means.shape[1:]).astype(float)
    curves = evaluate.regression_curves(means, sigmas, y, family)
    spread = _spread(means)
    numbers = evaluate.regression(means, sigmas, y, family)
    numbers |= {"sigma": float(sigmas.mean()), "spread": float(spread.mean())}
    units = 1.0 if finished.units is None else finished.units.scale  # all targets count alike, whatever their scale
    inside = _spread(means / units)
    sets = {name: _detection(_spread(other.means / units), inside) for name, other in outside.items()}
    numbers |= next(iter(sets.values()), {})
    if len(sets) > 1:
        numbers |= {f"{name}_{key}": value for name, own in sets.items() for key, value in own.items()}
    return numbers, curves, {"intervals": evaluation.intervals(curves["coverage"])}


def _spread(means: np.ndarray) -> np.ndarray:
    """Spread of the members at each point: standard deviation of their means (n - 1), averaged over targets."""
    return means.std(axis=0, ddof=min(1, len(means) - 1)).mean(axis=1)


def _detection(outside: np.ndarray, inside: np.ndarray) -> dict[str, float]:
    """How well the spread separates out-of-distribution points from the test points."""
    return {
        "auroc_spread": metrics.ood.auroc(outside, inside),
        "aupr_spread": metrics.ood.aupr(outside, inside),
        "fpr95_spread": metrics.ood.fpr95(outside, inside),
        "spread_ratio": metrics.ood.ratio(outside, inside),
    }


def _images(finished: Exported, x: np.ndarray) -> np.ndarray:
    """The test images as they were in the file, since blurring standardised pixels gives a different result."""
    try:
        return corruptions.as_images(x if finished.standardiser is None else finished.standardiser.undo(x))
    except ValueError as error:
        raise ValueError(f"--corruption: {error}") from None
