"""A finished run, judged: its ensemble on the held-out points, on points of other kinds and on blurred images."""

import json
import math
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import msgspec
import numpy as np

from stein import checkpoint, data, durable, evaluate, predict
from stein.data import corruptions, files
from stein.experiments import config as configs
from stein.experiments import dataset, images
from stein.experiments import folder as folders
from stein.experiments.assemble import Parts, without_auto
from stein.experiments.run import Say, reassemble, set_precision
from stein.experiments.schema import IMAGES, Data
from stein.metrics import classification as scores
from stein.metrics import ood as detection
from stein.metrics import uncertainty
from stein.report import evaluation as figures
from stein.types import Particles

OUTSIDE: dict[str, Callable[[], np.ndarray]] = {"far-from-the-ring": data.far_from_the_ring}
"""Points unlike the data of a built-in set, by name."""
FIGURES = ("reliability", "calibration", "entropies", "corruption", "intervals")
# Of what an evaluation finds, what a terminal has room for; the rest is in evaluation.json.
SHOWN = (
    *("accuracy", "rmse", "nll", "nll_paper", "nll_members", "crps", "brier", "ece", "coverage_50", "coverage_90"),
    *("sigma", "spread", "auroc_spread", "spread_ratio", "baseline_rmse", "baseline_accuracy"),
    *("coverage_95", "member_accuracy", "member_disagreement", "auroc_h", "auroc_md", "auroc_mi", "aupr_h", "fpr95_h"),
    *("h_ratio", "md_ratio", "calibration_area", "calibration_area_perfect", "calibration_coverage97"),
)


class Finished(NamedTuple):
    """What a run left behind: its config, its parts, and the members that are alive."""

    config: configs.Config
    parts: Parts
    particles: Particles


class _About(msgspec.Struct):
    """What the file of an ensemble says about it, as far as predictions need it."""

    alive: list[int]
    standardiser: dict[str, Any] | None


def load(folder: Path, allow_changed_data: bool = False, warn: Say = warnings.warn) -> Finished:
    """The ensemble of a finished run, with the model, the likelihood and the data of its config.

    Args:
        allow_changed_data: take data that changed after training, with the classes and scales of training, and warn.
    """
    config = configs.load_run(folder / "config.toml")
    set_precision(config)
    parts = reassemble(config, folder, allow_changed_data, warn)
    n, path = config.method.particles, folder / "ensemble.safetensors"
    like = jax.eval_shape(lambda key: parts.algorithm.init(key, n), jax.random.key(0)).particles
    particles, metadata = checkpoint.load_export(path, like)
    try:
        about = msgspec.json.decode(metadata.get("stein", ""), type=_About)
    except msgspec.DecodeError as error:
        raise ValueError(f"{path}: does not say how it was made: {error}") from error
    alive = np.isin(np.arange(n), about.alive)
    if not alive.any():
        raise ValueError(f"{path}: no member is alive")
    if not _is_same(parts.data.standardiser, about.standardiser):
        raise ValueError(f"{folder}: its data are no longer those that it was trained on (their means have changed)")
    return Finished(config, parts, predict.living(particles, jnp.asarray(alive)))


def ood_inputs(
    name_or_file: str, section: Data, like: np.ndarray, inputs: Sequence[str] = ()
) -> tuple[np.ndarray, str]:
    """Inputs of another kind, as the run's own are before they are standardised, and what must be said of them.

    Args:
        name_or_file: a set of :data:`OUTSIDE`, a ``.npy`` or ``.npz`` file, a ``.csv`` or ``.parquet`` file with the
            columns of the run's own (without the target, or with it), or, where the run learns images by name, the
            name of another set, or ``other-classes``.
        section: the run's data.
        like: the inputs that the run was trained on: one of the new ones must have their shape.
        inputs: their names.
    """
    note = ""
    if name_or_file in OUTSIDE:
        x = OUTSIDE[name_or_file]()
    elif section.name in IMAGES:
        x, note = images.outside(name_or_file, section, flat=like.ndim == 2)
    elif Path(name_or_file).suffix.lower() in (".npy", ".npz"):
        x = data.load_inputs(Path(name_or_file))
    elif Path(name_or_file).suffix.lower() in (".csv", ".parquet"):
        if not section.target:
            raise ValueError(f"--ood {name_or_file}: the run's own columns have no names; must be a .npy or .npz file")
        x = files.read_table(name_or_file, section.target, section.split_column, inputs, labelled=False).x
    else:
        raise ValueError(
            f"--ood {name_or_file}: neither a .csv, .parquet, .npy or .npz file nor one of {', '.join(OUTSIDE)}"
        )
    if x.shape[1:] != like.shape[1:]:
        kind = "images" if x.ndim in (3, 4) else "rows"
        raise ValueError(f"{name_or_file}: {kind} of shape {x.shape[1:]}; the run was trained on {like.shape[1:]}")
    return x.astype(like.dtype, copy=False), note


def run(
    folder: Path,
    ood: Sequence[str] = (),
    corruption: bool = False,
    data_dir: Path | None = None,
    labelled: Path | None = None,
    allow_changed_data: bool = False,
    warn: Say = warnings.warn,
) -> dict[str, Any]:
    """Evaluate a finished run, whose lock the caller holds, and write evaluation.json, curves.json and figures/.

    Args:
        labelled: a file with the columns of the run's own, to evaluate on in the place of its test points.
        allow_changed_data: as in :func:`load`.

    Returns:
        What is in evaluation.json.
    """
    # The rows of another file do not depend on what became of the run's own.
    finished = load(folder, allow_changed_data or labelled is not None, (lambda line: None) if labelled else warn)
    loaded = finished.parts.data
    test = loaded.test if labelled is None else dataset.labelled(str(labelled), finished.config, loaded)
    if test is None:
        raise ValueError(f"{folder}: has no held-out points to evaluate on (data.test_fraction = 0); `--data FILE` has")
    about: dict[str, Any] = {"test_points": len(test.x), "members": len(jax.tree.leaves(finished.particles)[0])}
    if labelled is not None:
        about["data"] = str(labelled)
    others, about["note"] = _named_sets(finished, ood, data_dir)
    if loaded.kind == "categorical":
        numbers, curves, drawn = _classification(finished, test, others, corruption)
    else:
        if corruption:
            raise ValueError(f"--corruption: is for classifiers; {folder} is a regression")
        numbers, curves, drawn = _regression(finished, test, others)
    numbers |= dataset.baseline(loaded, test)
    found = about | {name: value if math.isfinite(value) else None for name, value in numbers.items()}
    folders.write_json(folder / "evaluation.json", found)
    durable.replace(folder / "curves.json", json.dumps(curves).encode())
    (folder / "figures").mkdir(exist_ok=True)
    for name in FIGURES:
        path = folder / "figures" / f"{name}.png"
        if name in drawn:
            folders.write_figure(path, drawn[name], dpi=150)
        else:
            path.unlink(missing_ok=True)  # of an evaluation with other options
    return found


def table(numbers: dict[str, Any]) -> Any:
    """The numbers that matter most, for people."""
    from rich.table import Table

    shown = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_header=False)
    shown.add_column()
    shown.add_column(justify="right")
    for name in SHOWN:
        if numbers.get(name) is not None:
            shown.add_row(name, f"{numbers[name]:.4g}")
    return shown


def _is_same(now: data.Standardiser | None, then: dict[str, Any] | None) -> bool:
    if now is None or then is None:
        return now is None and then is None
    pairs = [(value, np.asarray(then.get(name))) for name, value in now._asdict().items()]
    return all(a.shape == b.shape and np.allclose(a, b, rtol=1e-6) for a, b in pairs)


def _named_sets(finished: Finished, ood: Sequence[str], data_dir: Path | None) -> tuple[dict[str, np.ndarray], str]:
    section, found, notes = finished.config.data, {}, []
    if data_dir is not None:
        section = msgspec.structs.replace(section, folder=str(data_dir))
    for given in ood:
        name = Path(given).stem
        if name in found:
            raise ValueError(f"--ood {given}: there are two sets called {name!r}")
        path = given if data_dir is None or not (data_dir / given).is_file() else str(data_dir / given)
        x, note = ood_inputs(path, section, finished.parts.data.train.x, finished.parts.data.inputs)
        found[name] = _standardised(finished, x)
        notes += [note] if note else []
    return found, "; ".join(notes)


def _classification(finished: Finished, test: data.Arrays, others: dict[str, np.ndarray], corruption: bool) -> tuple:
    clean = _images(finished, test.x) if corruption else None  # complaints come before work
    said = _predict(finished, test.x)
    outside = {name: _predict(finished, x) for name, x in others.items()}
    numbers = evaluate.classification(said, test.y, outside)
    curves = evaluate.classification_curves(said, test.y, outside)
    entropies = {name: _entropy(logs) for name, logs in outside.items()}
    method = finished.config.method.name + (" stochastic" if finished.config.method.stochastic else "")
    drawn = {
        "reliability": figures.reliability(curves["reliability"], numbers["ece"]),
        "calibration": figures.calibration({method: curves["calibration"]}, disagreement=True),
        "entropies": figures.entropies(_entropy(said), entropies),
    }
    if clean is not None:

        def predict_images(blurred: np.ndarray) -> np.ndarray:
            return _predict(finished, _standardised(finished, blurred.reshape(test.x.shape)))

        rows = evaluate.corruption(predict_images, clean, test.y)
        curves["corruption"] = rows
        numbers |= {f"blur_{row['sigma']:g}_{key}": row[key] for row in rows for key in row if key != "sigma"}
        drawn["corruption"] = figures.corruption({method: [rows]})
    return numbers, curves, drawn


def _regression(finished: Finished, test: data.Arrays, others: dict[str, np.ndarray]) -> tuple:
    """Everything in the units of the targets."""
    loaded = finished.parts.data
    outputs = _predict(finished, test.x, link=None).astype(float)
    scale, mean = (1.0, 0.0) if loaded.units is None else (loaded.units.scale, loaded.units.mean)
    if finished.parts.likelihood.name == "gaussian":
        chosen = without_auto(finished.config, loaded).likelihood.sigma
        means, sigmas = outputs * scale + mean, np.full_like(outputs, chosen)
    else:  # the last output is log sigma
        means = outputs[:, :, :-1] * scale + mean
        sigmas = np.broadcast_to(np.exp(outputs[:, :, -1:]) * scale, means.shape)
    y = test.y.reshape(means.shape[1:]).astype(float) * scale + mean
    curves = evaluate.regression_curves(means, sigmas, y)
    numbers = evaluate.regression(means, sigmas, y) | {"sigma": float(sigmas.mean())}
    width = means.shape[2]
    inside = _spread(outputs[:, :, :width])
    numbers["spread"] = float(_spread(means).mean())
    sets = {
        name: _detection(_spread(_predict(finished, x, link=None).astype(float)[:, :, :width]), inside)
        for name, x in others.items()
    }
    numbers |= next(iter(sets.values()), {})
    if len(sets) > 1:
        numbers |= {f"{name}_{key}": value for name, own in sets.items() for key, value in own.items()}
    return numbers, curves, {"intervals": figures.intervals(curves["coverage"])}


def _spread(means: np.ndarray) -> np.ndarray:
    """How far the members are apart at each point: the standard deviation of their means (n - 1), mean over targets."""
    return means.std(axis=0, ddof=min(1, len(means) - 1)).mean(axis=1)


def _detection(outside: np.ndarray, inside: np.ndarray) -> dict[str, float]:
    """How well the spread tells points of another kind from the test points."""
    return {
        "auroc_spread": detection.auroc(outside, inside),
        "aupr_spread": detection.aupr(outside, inside),
        "fpr95_spread": detection.fpr95(outside, inside),
        "spread_ratio": detection.ratio(outside, inside),
    }


def _entropy(log_probabilities: np.ndarray) -> np.ndarray:
    return uncertainty.entropy(scores.probabilities(log_probabilities).mean(axis=0))


def _predict(finished: Finished, x: np.ndarray, link: predict.Link | None = jax.nn.log_softmax) -> np.ndarray:
    return predict.in_chunks(finished.parts.model, finished.particles, x, chunk=1000 if x.ndim == 2 else 100, link=link)


def _standardised(finished: Finished, x: np.ndarray) -> np.ndarray:
    standardiser = finished.parts.data.standardiser
    return x if standardiser is None else standardiser(x)


def _images(finished: Finished, x: np.ndarray) -> np.ndarray:
    """The test images as they were in the file: a blur of standardised pixels would be another blur."""
    standardiser = finished.parts.data.standardiser
    try:
        return corruptions.as_images(x if standardiser is None else standardiser.undo(x))
    except ValueError as error:
        raise ValueError(f"--corruption: {error}") from None
