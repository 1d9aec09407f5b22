"""What a report shows of an ensemble beyond its numbers, computed once by `stein evaluate`, and small.

``views.json`` holds no single row of the data. ``rows.json`` holds some, and no other file of a run does: a page
without rows does not read it.
"""

import base64
import io
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from scipy.spatial.distance import pdist
from scipy.special import logsumexp

from stein import data, metrics, predict
from stein.data import corruptions
from stein.predictions import ClassPrediction, Prediction, RegressionPrediction
from stein.runs import configs
from stein.runs.build import begin, parts, resolved, shapes
from stein.runs.dataset import Loaded
from stein.runs.environment import precision
from stein.runs.exported import Exported
from stein.storage import checkpoint
from stein.storage.untrusted import CheckpointError
from stein.types import Particles

BINS = 40
ROC_POINTS = 150
MOST_MEMBERS = 40  # in the matrices of distances and in pictures of single members
MOST_POINTS = 256  # where members are compared
MOST_SNAPSHOTS = 24
SCATTERED = 400  # rows of "predicted against true"
SURE = 6  # rows on each side of "most and least sure"
NEIGHBOURS, SEARCHED = 3, 20_000  # training rows beside each of them, and among how many they are looked for
COLUMNS, SHOWN_COLUMNS, GRID, AVERAGED = 30, 8, 20, 100  # partial dependence: tried, kept, values, rows
LEVELS = 12
LINE, SIDE = 80, 40  # points of a function of one input, and along each side of a map of two
CLASSES = 6  # whose probabilities are shown as functions


class Portrait(NamedTuple):
    """The contents of views.json and rows.json."""

    views: dict[str, Any]
    rows: dict[str, Any]


def portrait(
    finished: Exported,
    test: data.Arrays,
    prediction: Prediction,
    others: Mapping[str, Prediction],
    loaded: Loaded | None,
) -> Portrait:
    """Everything that a report shows of an ensemble on its test points.

    Args:
        test: prepared inputs, and targets in their units.
        prediction, others: at the test points, and at out-of-distribution points by name.
        loaded: the run's data, if they were read; without them there are no snapshots and no neighbours.
    """
    y = test.y if isinstance(prediction, ClassPrediction) else test.y.reshape(prediction.mean.shape).astype(float)
    views: dict[str, Any] = {
        "kind": finished.kind,
        "target": finished.target,
        "labels": list(finished.labels),
        "points": len(test.x),
        "images": _as_images(finished, test.x[:1]) is not None,
        "errors": _errors(prediction, y),
        **_uncertainties(prediction, others, finished),
        "dependence": _dependence(finished, test.x),
    }
    if isinstance(prediction, RegressionPrediction):
        views["binned"] = _binned(prediction, y)
    view = _view(finished, test.x if loaded is None else loaded.train.x)
    if view:
        views["function"] = {name: value for name, value in view.items() if name != "inputs"}
    if loaded is not None:
        views["snapshots"] = _snapshots(finished, loaded, test.x, view)
    return Portrait(_plain(views), _plain(_rows(finished, test, y, prediction, loaded, view)))


# -- numbers ------------------------------------------------------------------------------------------------


def _errors(prediction: Prediction, y: np.ndarray) -> dict[str, float]:
    """Standard errors of the scores, over the test points."""

    def error(values: np.ndarray) -> float:
        return float(values.std(ddof=1) / len(values) ** 0.5) if len(values) > 1 else float("nan")

    if isinstance(prediction, ClassPrediction):
        logs = metrics.classification.tempered(prediction.log_probabilities, prediction.temperature)
        nll = np.log(len(logs)) - logsumexp(logs[:, np.arange(len(y)), y].astype(float), axis=0)
        wrong = prediction.probabilities - np.eye(prediction.probabilities.shape[1])[y]
        right = (prediction.chosen == y).astype(float)
        return {"accuracy": error(right), "nll": error(nll), "brier": error((wrong**2).sum(axis=1))}
    each = prediction.family.log_density(prediction.means, prediction.sigmas, y)
    squares = np.square(prediction.mean - y).mean(axis=1)
    rmse = float(np.sqrt(squares.mean()))
    # d rmse = d mse / (2 rmse)
    return {
        "nll": error(np.log(len(each)) - logsumexp(each, axis=0)),
        "rmse": error(squares) / (2 * rmse) if rmse else 0.0,
    }


def _uncertainties(prediction: Prediction, others: Mapping[str, Prediction], finished: Exported) -> dict[str, Any]:
    """Histograms of the uncertainty at test and at other points, and how well it tells them apart."""
    every = {"test": prediction, **others}
    scores: dict[str, dict[str, np.ndarray]] = {}
    if isinstance(prediction, ClassPrediction):
        of_classes: dict[str, Any] = every
        scores["entropy"] = {name: each.entropy for name, each in of_classes.items()}
        scores["disagreement"] = {name: each.disagreement for name, each in of_classes.items()}
    else:
        units = 1.0 if finished.units is None else finished.units.scale
        of_numbers: dict[str, Any] = every
        scores["spread"] = {name: (each.epistemic / units).mean(axis=1) for name, each in of_numbers.items()}
    histograms: dict[str, Any] = {}
    roc: dict[str, dict[str, Any]] = {}
    for score, sets in scores.items():
        top = 1.0 if score == "entropy" else float(np.quantile(np.concatenate([*sets.values()]), 0.995)) or 1.0
        bins = min(BINS, max(10, int(2 * min(map(len, sets.values())) ** 0.5)))
        edges = np.linspace(0, top, bins + 1)
        counted = {name: np.histogram(np.minimum(values, top), edges)[0] / len(values) for name, values in sets.items()}
        histograms[score] = {"edges": edges, "shares": counted}
        for name, values in sets.items():
            if name != "test":
                roc.setdefault(name, {})[score] = _roc(values, sets["test"])
    return {"histograms": histograms, "roc": roc}


def _roc(outside: np.ndarray, inside: np.ndarray) -> dict[str, np.ndarray]:
    """Shares of both sets above every threshold, from the highest down; ties are one step."""
    thresholds = np.unique(np.concatenate([outside, inside]))
    found, false = (
        1 - np.searchsorted(np.sort(values), thresholds, side="left") / len(values) for values in (outside, inside)
    )
    chosen = np.unique(np.linspace(0, len(thresholds) - 1, ROC_POINTS).round().astype(int))[::-1]
    return {"false": np.concatenate([[0], false[chosen]]), "found": np.concatenate([[0], found[chosen]])}


def _binned(prediction: RegressionPrediction, y: np.ndarray) -> list[dict[str, np.ndarray]]:
    """For tenths of the rows, ordered by prediction: mean prediction, mean target, and its standard error."""
    found = []
    for mean, target in zip(prediction.mean.T, y.T, strict=True):
        groups = [rows for rows in np.array_split(np.argsort(mean, kind="stable"), 10) if len(rows) > 1]
        found.append(
            {
                "predicted": np.array([mean[rows].mean() for rows in groups]),
                "true": np.array([target[rows].mean() for rows in groups]),
                "error": np.array([target[rows].std(ddof=1) / len(rows) ** 0.5 for rows in groups]),
            }
        )
    return found


# -- functions ----------------------------------------------------------------------------------------------


def _raw(finished: Exported, x: np.ndarray) -> np.ndarray:
    """Inputs before they were standardised."""
    return x.astype(float) if finished.standardiser is None else finished.standardiser.undo(x.astype(float))


def _dependence(finished: Exported, x: np.ndarray) -> list[dict[str, Any]]:
    """Mean prediction as one column takes other values and all others stay as they are: the most important columns.

    The band is the standard deviation over members.
    """
    if x.ndim != 2 or _as_images(finished, x[:1]) is not None:
        return []  # a picture has no columns
    raw = _raw(finished, x[np.linspace(0, len(x) - 1, min(AVERAGED, len(x))).astype(int)])
    found: list[dict[str, Any]] = []
    for column in _tried(finished, raw):
        moved = np.repeat(raw[None], len(column.shown), axis=0)
        moved[:, :, column.place] = column.inputs[:, None]
        prediction = finished.predict(moved.reshape(-1, raw.shape[1]))
        values = prediction.members if isinstance(prediction, ClassPrediction) else prediction.means
        members = values.reshape(len(values), len(column.shown), len(raw), -1).mean(axis=2)
        mean, std = members.mean(axis=0), members.std(axis=0)
        matters = float(np.sqrt(mean.var(axis=0).mean()))
        about = {"column": column.name, "x": column.shown, "levels": column.levels, "matters": matters}
        found.append(about | {"mean": mean.T[:CLASSES], "std": std.T[:CLASSES]})
    return sorted(found, key=lambda each: -each["matters"])[:SHOWN_COLUMNS]


class _Tried(NamedTuple):
    """A column and the values to try: where its inputs are, the values as shown, the inputs that they become, and
    whether they are levels without an order."""

    name: str
    place: slice
    shown: list[Any]
    inputs: np.ndarray
    levels: bool = False


def _tried(finished: Exported, raw: np.ndarray) -> Iterator[_Tried]:
    def between(column: int) -> np.ndarray:
        low, high = np.quantile(raw[:, column], [0.02, 0.98]).tolist()
        return np.linspace(low, high, GRID)

    if finished.recipe is None:
        for i in range(min(raw.shape[1], COLUMNS)):
            name = finished.columns[i] if len(finished.columns) == raw.shape[1] else f"input {i + 1}"
            yield _Tried(name, slice(i, i + 1), between(i).tolist(), between(i)[:, None])
        return
    start = 0
    for column in finished.recipe.columns[:COLUMNS]:
        place = slice(start, start + len(column.features))
        if column.kind == "text":
            grid: np.ndarray = np.array(column.levels[:LEVELS], object)
        elif column.kind == "number":
            grid = between(start)
        else:
            grid = np.array([0.0, 1.0]) if column.kind == "boolean" else np.linspace(column.low, column.high, GRID)
        shown = [column.written(value) for value in grid] if column.kind in ("date", "boolean") else grid.tolist()
        if column.kind != "date" or column.trend:
            yield _Tried(column.name, place, shown, column.encode(grid), column.kind in ("text", "boolean"))
        start = place.stop


def _view(finished: Exported, x: np.ndarray) -> dict[str, Any]:
    """Where to draw an ensemble of one or two inputs as a function; empty for all others."""
    if finished.shape == (1,):
        low, high = (float(edge) for edge in np.quantile(_raw(finished, x)[:, 0], [0, 1]))
        line = np.linspace(low - 0.3 * (high - low), high + 0.3 * (high - low), LINE)
        return {"x": line, "inputs": finished.inputs(line[:, None])}
    if finished.shape == (2,) and finished.kind == "categorical":
        edges = np.quantile(_raw(finished, x), [0, 1], axis=0)
        low, high = edges[0] - 0.4 * np.ptp(edges, axis=0), edges[1] + 0.4 * np.ptp(edges, axis=0)
        first, second = (np.linspace(low[i], high[i], SIDE) for i in (0, 1))
        square = np.stack([a.ravel() for a in np.meshgrid(first, second)], axis=1)
        return {"x": first, "y": second, "inputs": finished.inputs(square)}
    return {}


# -- snapshots ----------------------------------------------------------------------------------------------


def _snapshots(finished: Exported, loaded: Loaded, x: np.ndarray, view: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The members at the start, at every checkpoint that was kept, and at the end.

    Distances are between every two of the first 40 living members: in weights, and root mean square in functions at up
    to 256 test points. Of one or two inputs also the functions themselves.
    """
    x = x[np.linspace(0, len(x) - 1, min(MOST_POINTS, len(x))).astype(int)]
    found = [
        {"step": step, "members": numbers, **_compared(finished, particles, x), **_drawn(finished, particles, view)}
        for step, numbers, particles in _states(finished, loaded)
    ]
    return sorted(found, key=lambda each: each["step"])


def _states(finished: Exported, loaded: Loaded) -> Iterator[tuple[int, list[int], Particles]]:
    """Steps, numbers of the living members that are shown, and their weights."""
    folder, config = finished.folder, resolved(configs.load_run(finished.folder.config), finished.kind, finished.rows)

    def some(particles: Particles, alive: Sequence[int]) -> tuple[list[int], Particles]:
        chosen = np.array(alive[:MOST_MEMBERS])
        # On the host: jax would compile a program for every leaf.
        return chosen.tolist(), jax.tree.map(lambda leaf: np.asarray(leaf)[chosen], particles)

    last = folder.steps_done
    with precision(config):
        made = parts(config, loaded)
        yield 0, *some(begin(made.algorithm, config).particles, range(config.method.particles))
        like = shapes(made.algorithm, config)
        kept = [path for path in checkpoint.steps(folder.checkpoints) if path.name != checkpoint.name_of(last)]
        for path in kept[:: -(-len(kept) // MOST_SNAPSHOTS) or 1]:
            try:
                state, _ = checkpoint.load(path, like)
            except (CheckpointError, OSError):  # damaged, or of another version: one picture less
                continue
            yield int(state.step), *some(state.particles, np.flatnonzero(np.asarray(state.alive)).tolist())
        members = range(len(jax.tree.leaves(finished.members)[0]))
        yield last, finished.alive[:MOST_MEMBERS], some(finished.members, members)[1]


def _compared(finished: Exported, particles: Particles, x: np.ndarray) -> dict[str, Any]:
    functions = _functions(finished, particles, x)
    flat = functions.reshape(len(functions), -1)
    leaves = (np.asarray(leaf, float).reshape(len(flat), -1) for leaf in jax.tree.leaves(particles))
    squared = sum(pdist(leaf, "sqeuclidean") for leaf in leaves)
    return {"weights": np.sqrt(squared), "functions": pdist(flat) / flat.shape[1] ** 0.5}


def _functions(finished: Exported, particles: Particles, x: np.ndarray) -> np.ndarray:
    """Of every member: probabilities, or means in units of the targets' standard deviation."""
    with precision(finished.config):
        outputs = predict.in_chunks(finished.model, particles, x, full=True, all_members=True)
    prediction = finished.likelihood.predictive(np.nan_to_num(outputs))
    return prediction.members if isinstance(prediction, ClassPrediction) else prediction.means


def _drawn(finished: Exported, particles: Particles, view: Mapping[str, Any]) -> dict[str, Any]:
    if not view:
        return {}
    values = _functions(finished, particles, view["inputs"])
    if finished.kind == "categorical":
        if "y" in view:
            return {"entropy": metrics.uncertainty.entropy(values.mean(axis=0)).reshape(SIDE, SIDE)}
        return {"drawn": values[:, :, 1 if values.shape[2] == 2 else 0]}
    units = finished.units
    return {"drawn": (values if units is None else values * units.scale + units.mean)[:, :, 0]}


# -- single rows --------------------------------------------------------------------------------------------


def _rows(
    finished: Exported,
    test: data.Arrays,
    y: np.ndarray,
    prediction: Prediction,
    loaded: Loaded | None,
    view: Mapping[str, Any],
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if isinstance(prediction, RegressionPrediction):
        found["predicted"] = _scatter(finished, prediction, y)
        score = (prediction.std / (1.0 if finished.units is None else finished.units.scale)).mean(axis=1)
    else:
        score = prediction.entropy
    order = np.argsort(-score, kind="stable")
    half = min(SURE, len(order) // 2)
    near = _Neighbours(finished, loaded)
    for name, chosen in (("least", order[:half]), ("most", order[::-1][:half])):
        found[name] = [_row(finished, test.x[row], y, prediction, row, score[row], near) for row in chosen.tolist()]
    if view and loaded is not None:
        x, targets = _raw(finished, loaded.train.x), loaded.raw_targets(loaded.train.y)
        some = np.linspace(0, len(x) - 1, min(SCATTERED, len(x))).astype(int)
        found["points"] = {"x": x[some], "y": targets.reshape(len(targets), -1)[some, 0]}
    return found


def _scatter(finished: Exported, prediction: RegressionPrediction, y: np.ndarray) -> dict[str, Any]:
    coverage = finished.config.evaluation.coverage
    some = np.linspace(0, len(y) - 1, min(SCATTERED, len(y))).astype(int)
    part = prediction._replace(means=prediction.means[:, some], sigmas=prediction.sigmas[:, some])
    low, high = part.interval(coverage)
    conformal = finished.calibration.conformal if finished.calibration is not None else None
    if conformal is not None and np.isfinite(conformal.threshold(coverage)).all():
        low, high = conformal.interval(part, coverage)
    first = {"true": y[some], "mean": part.mean, "low": low, "high": high}
    return {name: values[:, 0] for name, values in first.items()} | {"coverage": coverage, "of": len(y)}


class _Neighbours:
    """The nearest training rows, by distance of standardised inputs; and the names of test rows."""

    def __init__(self, finished: Exported, loaded: Loaded | None):
        self._finished, self._loaded = finished, loaded
        if loaded is not None:
            self._rows = np.linspace(0, len(loaded.train.x) - 1, min(SEARCHED, len(loaded.train.x))).astype(int)

    def name(self, row: int) -> str:
        """What a test row is called."""
        if self._loaded is not None and self._loaded.test_rows is not None:
            return self._loaded.test_rows.names[row]
        return f"test row {row + 1}"

    def __call__(self, x: np.ndarray) -> list[dict[str, Any]]:
        loaded = self._loaded
        if loaded is None:
            return []
        known = loaded.train.x[self._rows].reshape(len(self._rows), -1)
        distance = np.sqrt(np.square(known - x.reshape(-1)).mean(axis=1))
        found = []
        for i in np.argsort(distance, kind="stable")[:NEIGHBOURS].tolist():
            row = int(self._rows[i])
            target = loaded.raw_targets(loaded.train.y[row : row + 1])[0]
            shown = {"distance": distance[i], "true": _target(self._finished, target)}
            found.append(shown | _shown(self._finished, loaded.train.x[row]))
        return found


def _row(
    finished: Exported, x: np.ndarray, y: np.ndarray, prediction: Prediction, row: int, score: float, near: _Neighbours
) -> dict[str, Any]:
    found: dict[str, Any] = {"name": near.name(row), "score": score, "true": _target(finished, y[row])}
    if isinstance(prediction, ClassPrediction):
        said = prediction.probabilities[row]
        found["said"] = f"{prediction.named[row]} ({said.max():.0%})"
        votes = np.bincount(prediction.members[:, row].argmax(axis=1), minlength=len(said))
        found["votes"] = {_target(finished, c): votes[c] for c in np.argsort(-votes, kind="stable") if votes[c]}
    else:
        pairs = zip(prediction.mean[row], prediction.std[row], strict=True)
        found["said"] = "; ".join(f"{_number(mean)} ± {_number(std, 2)}" for mean, std in pairs)
        found["truth"] = y[row, 0]
        found["members"] = np.sort(prediction.means[:, row, 0])[:: -(-len(prediction.means) // MOST_MEMBERS)]
    return found | _shown(finished, x) | {"near": near(x)}


def _target(finished: Exported, y: Any) -> str:
    if finished.kind == "categorical":
        return finished.labels[int(y)] if finished.labels else str(int(y))
    return "; ".join(map(_number, np.atleast_1d(y)))


def _number(value: float, digits: int = 4) -> str:
    return f"{float(f'{value:.{digits}g}'):,.10g}"


def _shown(finished: Exported, x: np.ndarray) -> dict[str, Any]:
    """A row as a person reads it: a small picture, or its columns."""
    image = _as_images(finished, x[None])
    if image is not None:
        return {"image": image}
    raw = _raw(finished, x[None])[0].reshape(-1)
    if finished.recipe is None:
        named = len(finished.columns) == len(raw)
        names = finished.columns if named else [f"input {i + 1}" for i in range(len(raw))]
        return {"values": {name: _number(value) for name, value in list(zip(names, raw, strict=True))[:LEVELS]}}
    values, start = {}, 0
    for column in finished.recipe.columns[:LEVELS]:
        values[column.name] = column.decoded(raw[start : start + len(column.features)])
        start += len(column.features)
    return {"values": values}


def _as_images(finished: Exported, x: np.ndarray) -> str | None:
    """The first row as a PNG in base64, if rows are images."""
    if finished.recipe is not None:
        return None
    try:
        pixels = corruptions.as_images(_raw(finished, x))[0]
    except ValueError:
        return None
    if pixels.shape[2] not in (1, 3):
        return None
    from PIL import Image

    low, high = float(pixels.min()), float(pixels.max())
    levels = ((pixels - low) / ((high - low) or 1.0) * 255).round().astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(levels[:, :, 0] if levels.shape[2] == 1 else levels).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


def _plain(value: Any) -> Any:
    """As JSON takes it: four digits are enough for a picture, and null is what is not finite."""
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if isinstance(value, (float, np.floating)):
        return float(f"{value:.4g}") if np.isfinite(value) else None
    return int(value) if isinstance(value, np.integer) else value
