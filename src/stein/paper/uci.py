"""The UCI tables on their twenty standard splits: our methods, scikit-learn's models, and published numbers.

A cell is one row of the table on one set; it is one file with a line per split, so an interrupted command continues
with the missing splits. All of our rows have the default setting of :class:`stein.sklearn.SteinRegressor`: only the
method differs. The default was chosen on other data (docs/defaults.md).
"""

import csv
import json
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from scipy.stats import betabinom

from stein import datasets, defaults, evaluate
from stein.calibration import Spread
from stein.datasets.fetch import Progress
from stein.datasets.uci import SPLITS
from stein.paper.statistics import paired, summary, with_error
from stein.report import evaluation
from stein.runs.launchers import Launcher, make_all
from stein.storage import documents

SETS = ("concrete", "energy", "wine-quality-red", "yacht")
BAR = {  # numbers to reach, set beforehand in view of the published ones
    "concrete": {"nll": 2.93, "rmse": 4.8},
    "energy": {"nll": 0.60, "rmse": 0.5},
    "wine-quality-red": {"nll": 0.93, "rmse": 0.62},
    "yacht": {"nll": 0.70, "rmse": 0.65},
}
CONFORMAL = "conformal"
COVERAGE = 0.9
FOLDS = 3
COLUMNS = {"nll": ("NLL", 3), "rmse": ("RMSE", 3), "crps": ("CRPS", 3), "coverage_90": ("90 % holds", 3),
           "seconds": ("CPU s", 1)}  # fmt: skip


class Cell(NamedTuple):
    """One row on one set."""

    row: str
    name: str

    def place(self, folder: Path) -> Path:
        return folder / "cells" / f"{self.name}-{self.row.replace(' ', '-')}.jsonl"


OURS = defaults.for_table("regression", 1000).method


def _peers() -> dict[str, Callable[[int], Any]]:
    """scikit-learn's models with its own settings; those that need standardised data get them."""
    from sklearn.compose import TransformedTargetRegressor
    from sklearn.ensemble import HistGradientBoostingRegressor, RandomForestRegressor
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
    from sklearn.neural_network import MLPRegressor
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    def network(seed: int) -> Any:
        model = MLPRegressor(hidden_layer_sizes=(50, 50), max_iter=1000, random_state=seed)
        return TransformedTargetRegressor(make_pipeline(StandardScaler(), model), transformer=StandardScaler())

    def process(seed: int) -> Any:
        kernel = ConstantKernel() * RBF() + WhiteKernel(0.1)
        return make_pipeline(StandardScaler(), GaussianProcessRegressor(kernel, normalize_y=True, random_state=seed))

    return {
        "sklearn MLP": network,
        "random forest": lambda seed: RandomForestRegressor(random_state=seed),
        "gradient boosting": lambda seed: HistGradientBoostingRegressor(random_state=seed),
        "Gaussian process": process,
    }


PEERS = ("sklearn MLP", "random forest", "gradient boosting", "Gaussian process")
METHODS = ("de", "w-svgd", "f-svgd", "fw-svgd", "h-svgd", "hp-svgd", "rde", "forde", "sghmc", "mile")
TWICE = "de, 20 members"  # as many gradients as a method with two of them a step has for its ten
LARGE = "de, compute of mile"  # as many members as make its gradients, of all rows at once, in batches
SETTINGS: dict[str, dict[str, Any]] = {
    "rde": {"extra_points": 32},  # in the box of the inputs, new ones in every step; there is no default
    TWICE: {"method": "de", "n_particles": 20},
    LARGE: {"method": "de"},
}
RIVALS = {"rde": TWICE, "forde": TWICE, "sghmc": "de", "mile": LARGE}
"""Deep ensembles with about as many gradients (those of forde's repulsion are two more, so that it has three)."""
ROWS = (OURS, "de", CONFORMAL, *PEERS, *(method for method in METHODS if method not in (OURS, "de")), TWICE, LARGE)


def check(rows: Sequence[str]) -> None:
    """Raise ``ValueError`` for a row that does not exist."""
    for row in rows:
        if row not in ROWS:
            raise ValueError(f"--methods {row}: must be one of {', '.join(ROWS)}")


def make(folder: Path, rows: Sequence[str], launcher: Launcher, begin: Progress) -> None:
    """Compute the missing splits of this command's share."""
    cells = launcher.share([Cell(row, name) for row in rows or ROWS for name in SETS])
    for name in SETS:  # before anything is trained: data that are not there fail at once
        datasets.load_uci(name, 0)
    _restore(folder)
    tick = begin(f"{len(cells)} rows of {SPLITS} splits", SPLITS * len(cells))

    def watch() -> None:
        tick(sum(len(_read(cell.place(folder))) for cell in cells))

    missing = [cell for cell in cells if len(_read(cell.place(folder))) < SPLITS]
    make_all(launcher, partial(compute, folder), missing, watch)


def _restore(folder: Path) -> None:
    """Cells of the table that is there, where their files are gone: a row can be added on another machine."""
    (folder / "cells").mkdir(parents=True, exist_ok=True)
    table = folder / "table.json"
    splits = documents.read_json(table)["splits"] if table.exists() else {}
    for name, rows in splits.items():
        for row, lines in rows.items():
            place = Cell(row, name).place(folder)
            if not place.exists():
                place.write_text("".join(json.dumps(line) + "\n" for line in lines))


def compute(folder: Path, cell: Cell) -> None:
    """The splits of one cell that are missing, one line each."""
    place = cell.place(folder)
    done = {line["split"] for line in _read(place)}
    for split in range(SPLITS):
        if split not in done:
            train, test = datasets.load_uci(cell.name, split)
            began = time.process_time()
            if cell.row in PEERS:
                scores = _of_peer(cell.row, train, test, split)
            else:
                scores = _ours(cell.row, train, test, split, Cell(OURS, cell.name).place(folder))
            line = {"split": split, **scores, "seconds": time.process_time() - began}
            with place.open("a") as file:
                file.write(json.dumps(line) + "\n")


def _ours(row: str, train: Any, test: Any, seed: int, found: Path) -> dict[str, Any]:
    """The scores of one of our rows; ``found`` is the cell of :data:`OURS` on the same set."""
    from stein.sklearn import SteinRegressor

    if row == CONFORMAL:
        model = SteinRegressor(calibration="conformal", random_state=seed).fit(train.x, train.y)
        low, high = model.predict_interval(test.x, COVERAGE)
        inside = (low.ravel() <= test.y) & (test.y <= high.ravel())
        calibrated: Any = model.conformal_
        rows = len(calibrated.scores)
        return {"covered": int(inside.sum()), "test": len(test.y), "calibration": rows} | _scores(model, test)
    tried = next((line for line in _read(found) if line["split"] == seed), None)
    settings = {"method": row, "random_state": seed} | SETTINGS.get(row, {})
    if row == LARGE:
        settings["n_particles"] = members_for_mile(len(train.x))
    if tried is None:
        return _scores(SteinRegressor(**settings).fit(train.x, train.y), test)
    # The trials do not depend on the method: with the same seed they would choose the same.
    model = SteinRegressor(**settings, prior=tried["prior"], calibration=None).fit(train.x, train.y)
    if not model.config_.method.draws:  # what deep ensembles are too sure of is not what draws are
        model.spread_ = Spread(tried["width"], tried["degrees"])
    return _scores(model, test)


def members_for_mile(rows: int) -> int:
    """Members of a deep ensemble with as many gradients at single rows as ``mile`` makes with all rows in every step.

    >>> members_for_mile(1000)
    94
    """
    setting, chains = defaults.for_table("regression", rows), defaults.of_chains("mile")
    single = chains["method.burn_in"] - chains["method.tuning_steps"]
    gradients = rows * (single + 2 * (chains["train.steps"] - single))
    return round(setting.particles * gradients / (setting.steps * min(rows, setting.batch_size)))


def _scores(model: Any, test: Any) -> dict[str, Any]:
    prediction = model.prediction(test.x)
    numbers = evaluate.regression(prediction.means, prediction.sigmas, test.y[:, None], prediction.family)
    return numbers | {
        "prior": model.config_.prior.scale,
        "width": model.spread_.width,
        "degrees": model.spread_.degrees,
    }


def _of_peer(row: str, train: Any, test: Any, seed: int) -> dict[str, float]:
    """A Gaussian process has its own standard deviation; for the others it is that of cross-validated residuals."""
    from sklearn.model_selection import KFold, cross_val_predict

    model = _peers()[row](seed)
    if row == "Gaussian process":
        mean, std = model.fit(train.x, train.y).predict(test.x, return_std=True)
    else:
        folds = KFold(FOLDS, shuffle=True, random_state=seed)
        residuals = train.y - cross_val_predict(model, train.x, train.y, cv=folds)
        mean = model.fit(train.x, train.y).predict(test.x)
        std = np.full_like(mean, np.sqrt(np.mean(residuals**2)))
    return evaluate.regression(mean[None, :, None], std[None, :, None], test.y[:, None])


def write(folder: Path, command: str) -> None:
    """table.json, table.md: every finished cell, the published numbers, the comparisons and the coverage."""
    found = {name: {row: lines for row in ROWS if (lines := _read(Cell(row, name).place(folder)))} for name in SETS}
    documents.write_json(folder / "table.json", {"command": command, "splits": found})
    parts = [_table(name, rows) for name, rows in found.items() if rows]
    if parts:
        _figure(found).savefig(folder / "figure.png", dpi=150)
    parts += [_bar(found), _against(found), _later(found), _coverage(found)]
    head = f"`{command}`: mean ± standard error over the splits, which overlap. Rows may be of different machines."
    (folder / "table.md").write_text("\n\n".join([head, *(part for part in parts if part)]) + "\n")


def _figure(found: dict[str, dict[str, list[dict[str, Any]]]]) -> Figure:
    """NLL of every row, published ones too."""

    def mean(lines: list[dict[str, Any]]) -> tuple[float, float | None]:
        return summary([{"nll": line["nll"]} for line in lines])["nll"]

    panels = {name: {row: mean(lines) for row, lines in rows.items()} for name, rows in found.items() if rows}
    others = {
        name: {method: float(v["nll"]) for method, v in _published(name).items() if "nll" in v} for name in panels
    }
    return evaluation.side_by_side(panels, others, {name: bar["nll"] for name, bar in BAR.items()}, "NLL")


def _table(name: str, rows: dict[str, list[dict[str, Any]]]) -> str:
    lines = [f"**{name}**", "", "| row | splits | " + " | ".join(title for title, _ in COLUMNS.values()) + " |"]
    lines.append("|---" * (len(COLUMNS) + 2) + "|")
    for row, numbers in rows.items():
        means = summary([{key: line[key] for key in COLUMNS} for line in numbers])
        shown = (with_error(*means[key], digits) for key, (_, digits) in COLUMNS.items())
        lines.append(f"| {row} | {len(numbers)} | " + " | ".join(shown) + " |")
    for method, values in _published(name).items():
        cells = [values.get(key, "") for key in COLUMNS]
        lines.append(f"| *{method}, published* | | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _published(name: str) -> dict[str, dict[str, str]]:
    """Published numbers for a set, by method and metric, as they were printed."""
    theirs: dict[str, dict[str, str]] = {}
    with (Path(__file__).parent / "published" / "uci.csv").open() as file:
        for line in csv.DictReader(file):
            if line["set"] == name:
                theirs.setdefault(line["method"], {})[line["metric"]] = line["value"]
    return theirs


def _bar(found: dict[str, dict[str, list[dict[str, Any]]]]) -> str:
    """Whether the default setting reaches the best published numbers."""
    row, lines = OURS, []
    for name, rows in found.items():
        for key, bar in BAR[name].items():
            if row in rows:
                mean = float(np.mean([line[key] for line in rows[row]]))
                title = COLUMNS[key][0]
                lines.append(f"| {name} | {title} | {mean:.3f} | {bar} | {'reached' if mean <= bar else 'missed'} |")
    head = [
        f"**The default setting ({row}) against the numbers to reach**",
        "",
        "| set | | ours | bar | |",
        "|---|---|---|---|---|",
    ]
    return "\n".join(head + lines) if lines else ""


def _against(found: dict[str, dict[str, list[dict[str, Any]]]]) -> str:
    """Paired differences of NLL from a deep ensemble of equal size, and from every model of scikit-learn."""
    ours, lines = OURS, []
    for name, rows in found.items():
        for other in (row for row in rows if ours in rows and row not in (ours, CONFORMAL)):
            test = _paired(rows, other, ours, "nll")
            better, error = test["difference"] or 0.0, test["error"] or 0.0
            word = "better" if better > error else "worse" if better < -error else "equal"
            lines.append(f"| {name} | {other} | {-better:+.3f} ± {error:.3f} | {word} | {test['p']:.3f} |")
    head = [
        f"**NLL of {ours} minus that of the others**, on the same splits; better or worse: by more than one standard "
        "error; p: sign flips, one-sided (the splits overlap, so p is too small)",
        "",
        "| set | other | difference | ours is | p |",
        "|---|---|---|---|---|",
    ]
    return "\n".join(head + lines) if lines else ""


def _later(found: dict[str, dict[str, list[dict[str, Any]]]]) -> str:
    """Paired differences of the later methods from deep ensembles with as many gradients."""
    lines = []
    for name, rows in found.items():
        for row, rival in RIVALS.items():
            if row in rows and rival in rows:
                tests = [_paired(rows, row, rival, key) for key in ("nll", "rmse")]
                cells = [with_error(test["difference"] or 0.0, test["error"], 3) for test in tests]
                lines.append(f"| {name} | {row} | {rival} | {' | '.join(cells)} |")
    head = [
        "**Later methods minus deep ensembles with about as many gradients**, on the same splits; below 0: better",
        "",
        "| set | row | minus | NLL | RMSE |",
        "|---|---|---|---|---|",
    ]
    return "\n".join(head + lines) if lines else ""


def _paired(rows: dict[str, list[dict[str, Any]]], first: str, second: str, key: str) -> dict[str, float | None]:
    """The first row minus the second on the splits that both have."""
    pairs = [{line["split"]: line[key] for line in rows[row]} for row in (first, second)]
    both = sorted(pairs[0].keys() & pairs[1].keys())
    return paired(*([pair[split] for split in both] for pair in pairs))


def _coverage(found: dict[str, dict[str, list[dict[str, Any]]]]) -> str:
    """Covered test rows of the conformal intervals against their law, BetaBinomial(test, k, calibration + 1 - k)."""
    lines, outside, total = [], 0, 0
    for name, rows in found.items():
        if CONFORMAL in rows:
            inside = [_is_central(line) for line in rows[CONFORMAL]]
            share = np.mean([line["covered"] / line["test"] for line in rows[CONFORMAL]])
            lines.append(f"| {name} | {len(inside)} | {share:.3f} | {inside.count(False)} |")
            outside, total = outside + inside.count(False), total + len(inside)
    head = [
        f"**Conformal intervals of {COVERAGE:.0%}**: {outside} of {total} splits outside the central 99.9 % of the law "
        "of their coverage",
        "",
        "| set | splits | covered | splits outside |",
        "|---|---|---|---|",
    ]
    return "\n".join(head + lines) if lines else ""


def _is_central(line: dict[str, Any]) -> bool:
    rows = line["calibration"]
    k = int(np.ceil((rows + 1) * COVERAGE - 1e-9))
    law = betabinom(line["test"], k, rows + 1 - k)
    return bool(law.cdf(line["covered"]) > 0.0005 and law.sf(line["covered"] - 1) > 0.0005)


def _read(place: Path) -> list[dict[str, Any]]:
    """The complete lines of a cell."""
    if not place.exists():
        return []
    return [json.loads(line) for line in place.read_text().splitlines(keepends=True) if line.endswith("\n")]
