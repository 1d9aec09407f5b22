"""Runs as their files tell them, for reports: any file may be missing, cut short, or written by a stranger. No jax."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from stein.report import style
from stein.report.page import Key, shortened
from stein.runs import configs
from stein.runs.folder import RunFolder, RunState
from stein.runs.schema import IMAGES, Config
from stein.storage import documents

Numbers = list[float | None]
T = TypeVar("T")


class Shares(msgspec.Struct):
    edges: list[float]
    shares: dict[str, list[float]]


class Roc(msgspec.Struct):
    false: list[float]
    found: list[float]


class Binned(msgspec.Struct):
    predicted: list[float]
    true: list[float]
    error: Numbers


class Dependence(msgspec.Struct):
    column: str
    x: list[float | str]
    mean: list[list[float]]
    std: list[list[float]]
    levels: bool = False


class Grid(msgspec.Struct):
    x: list[float]
    y: list[float] = []


class Snapshot(msgspec.Struct):
    step: int
    members: list[int]
    weights: Numbers
    functions: Numbers
    drawn: list[Numbers] = []
    entropy: list[list[float]] = []


class Views(msgspec.Struct):
    """views.json, as :mod:`stein.runs.portrait` writes it."""

    kind: str
    target: str = ""
    labels: list[str] = []
    points: int = 0
    images: bool = False
    errors: dict[str, float | None] = {}
    histograms: dict[str, Shares] = {}
    roc: dict[str, dict[str, Roc]] = {}
    binned: list[Binned] = []
    dependence: list[Dependence] = []
    function: Grid | None = None
    snapshots: list[Snapshot] = []


class Predicted(msgspec.Struct):
    true: list[float]
    mean: list[float]
    low: list[float]
    high: list[float]
    coverage: float
    of: int


class Points(msgspec.Struct):
    x: list[list[float]]
    y: list[float]


class Near(msgspec.Struct):
    distance: float
    true: str
    image: str = ""
    values: dict[str, str] = {}


class Row(msgspec.Struct):
    name: str
    score: float | None
    true: str
    said: str
    truth: float | None = None
    votes: dict[str, int] = {}
    members: list[float] = []
    image: str = ""
    values: dict[str, str] = {}
    near: list[Near] = []


class Rows(msgspec.Struct):
    """rows.json: the only file with single rows of the data."""

    predicted: Predicted | None = None
    least: list[Row] = []
    most: list[Row] = []
    points: Points | None = None


class Reliability(msgspec.Struct):
    points: list[int]
    confidence: Numbers
    accuracy: Numbers


class Ranked(msgspec.Struct):
    points: list[int]
    accuracy: list[float]
    accuracy_md: list[float] = []
    perfect: list[float] = []


class Coverage(msgspec.Struct):
    wanted: list[float]
    found: list[float]


class Curves(msgspec.Struct):
    """curves.json, as :func:`stein.runs.assess.run` writes it."""

    reliability: Reliability | None = None
    calibration: dict[str, Ranked] = {}
    coverage: Coverage | None = None
    corruption: list[dict[str, float | None]] = []


class Score(msgspec.Struct):
    name: str
    error: float | None
    nll: float | None
    remark: str = ""


class Comparison(msgspec.Struct):
    """comparison.json of `stein fit`: the ensemble and other models on the same test rows."""

    measure: str
    scores: list[Score]


class Subject(NamedTuple):
    """One run. ``key`` is that of all runs which differ from it in their seeds only; ``name`` is shown for them."""

    folder: RunFolder
    config: Config
    state: RunState
    reason: str
    log: list[dict[str, float]]
    numbers: dict[str, float]
    evaluation: dict[str, float]
    curves: Curves | None
    views: Views | None
    rows: Rows | None
    comparison: Comparison | None
    environment: dict[str, str]
    data: dict[str, Any]
    key: Key

    @property
    def method(self) -> str:
        return self.config.method.title

    @property
    def snapshots(self) -> list[Snapshot]:
        return self.views.snapshots if self.views is not None else []

    @property
    def target(self) -> str:
        return (self.views.target if self.views is not None else "") or "target"

    def named(self, number: int) -> str:
        """The name of a class."""
        labels = self.views.labels if self.views is not None else []
        return labels[number] if number < len(labels) else f"class {number}"

    @property
    def is_classifier(self) -> bool:
        return "accuracy" in self.scores or self.data.get("kind") == "categorical"

    @property
    def has_images(self) -> bool:
        return self.config.data.name in IMAGES or (self.views is not None and self.views.images)

    @property
    def scores(self) -> dict[str, float]:
        """The numbers of the evaluation; before there is one, those on test rows at the end, or so far."""
        if self.evaluation:
            return self.evaluation
        rows = [row for row in self.log if any(name.startswith("test_") for name in row)]
        found = self.numbers or (rows[-1] if rows else {})
        return {name.removeprefix("test_"): value for name, value in found.items() if name.startswith(_HELD_OUT)}

    @property
    def steps(self) -> int:
        return int(self.log[-1].get("step", 0)) if self.log else 0

    @property
    def alive(self) -> int | None:
        return int(self.log[-1]["alive"]) if self.log and "alive" in self.log[-1] else None


_HELD_OUT = ("test_", "baseline_")


def subjects(places: Sequence[Path], with_rows: bool = True) -> list[Subject]:
    """The runs at these places, or in the directories that hold some, in the order of their methods."""
    folders = [RunFolder(place) for given in places for place in _runs_at(given)]
    written = {folder: configs.load_run(folder.config) for folder in folders}
    keys = _keys(written)
    found = [_subject(folder, config, keys[folder], with_rows) for folder, config in written.items()]
    order = style.ordered(subject.method for subject in found)
    return sorted(found, key=lambda subject: order.index(subject.method))


def _runs_at(place: Path) -> list[Path]:
    inside = sorted(p for p in place.iterdir() if (p / "config.toml").is_file()) if place.is_dir() else []
    if (place / "config.toml").is_file() or not inside:
        RunFolder(place).check_is_run()
        return [place]
    return inside


def _subject(folder: RunFolder, config: Config, key: Key, with_rows: bool) -> Subject:
    state = folder.state
    return Subject(
        folder,
        config,
        state,
        folder.reason if state == "failed" else "",
        log(folder),
        _finite(documents.read_json(folder.numbers)),
        _finite(documents.read_json(folder.evaluation)),
        _read(folder.curves, Curves),
        _read(folder.views, Views),
        _read(folder.rows_shown, Rows) if with_rows else None,
        _read(folder.comparison, Comparison),
        {str(name): str(value) for name, value in documents.read_json(folder.environment).items()},
        documents.read_json(folder.data),
        key,
    )


def _keys(written: Mapping[RunFolder, Config]) -> dict[RunFolder, Key]:
    """Runs that differ in seeds only have one key. It is called by its method, if no other has the same."""
    groups: dict[bytes, list[RunFolder]] = {}
    for folder, config in written.items():
        document = msgspec.to_builtins(config)
        for section in ("train", "data"):
            document[section].pop("seed", None)
        groups.setdefault(msgspec.json.encode(document, order="sorted"), []).append(folder)
    methods = [written[folders[0]].method.title for folders in groups.values()]
    names = []
    for method, folders in zip(methods, groups.values(), strict=True):
        own = shortened(folders[0].path.resolve().name)
        names.append(method if methods.count(method) == 1 else f"{method} ({own})")
    looks = style.looks(style.ordered(names))
    return {
        folder: Key(f"m{i}", names[i], looks[names[i]])
        for i, folders in enumerate(groups.values())
        for folder in folders
    }


def log(folder: RunFolder) -> list[dict[str, float]]:
    """The numbers of the log; none if it cannot be read."""
    try:
        rows = folder.rows()
    except (ValueError, OSError):
        return []
    return [_finite(row) for row in rows if isinstance(row, dict)]


def _finite(document: Mapping[str, Any]) -> dict[str, float]:
    """The numbers among the values."""
    return {
        str(name): value
        for name, value in document.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    }


def _read(path: Path, schema: type[T]) -> T | None:
    """A file that is as it should be, or nothing."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=schema)
    except (OSError, msgspec.DecodeError):  # a ValidationError is one
        return None
