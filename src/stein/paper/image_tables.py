"""The paper's image tables: every row is a run that can be resumed, evaluated beside the paper's numbers.

::

    cells/h-svgd-l-42/    a run directory, with evaluation.json and curves.json; not for committing
    table.json            a list with one entry per row and seed; entries whose runs are gone stay
    table.md, table.tex   means and standard errors beside the paper's
    calibration.md, corruption.md
    about.json            the command, the config of every row, the training times
    learning.png, calibration.png, corruption.png
"""

import csv
import json
from collections.abc import Callable, Sequence
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from stein.data import corruptions
from stein.datasets.fetch import Progress
from stein.paper import protocols
from stein.paper.protocols import Preset, Row
from stein.paper.statistics import summary, with_error
from stein.report import evaluation
from stein.runs import assess, build, configs, images
from stein.runs.folder import RunFolder
from stein.runs.launchers import Launcher
from stein.runs.pool import make_missing, seconds, trained
from stein.runs.schema import FORMER
from stein.storage import documents

Columns = dict[str, tuple[str, int]]
"""The columns of a table: title and digits by the number's name."""
SHOWN: Columns = {
    "accuracy": ("accuracy", 3), "auroc_h": ("AUROC(H)", 3), "auroc_md": ("AUROC(MD)", 3), "h_ratio": ("Ho/Ht", 2),
    "md_ratio": ("MDo/MDt", 2), "ece": ("ECE", 3), "nll_paper": ("NLL, paper's", 3), "nll": ("NLL", 3),
}  # fmt: skip
CALIBRATION: Columns = {
    "calibration_area": ("area", 3), "calibration_area_perfect": ("area, perfect ranking", 3),
    "calibration_coverage97": ("points at 97 %", 0), "calibration_coverage97_perfect": ("perfect ranking", 0),
    "calibration_rises": ("rises", 3), "calibration_outside_points": ("points of another kind", 0),
}  # fmt: skip
BLURRED: dict[str, Columns] = {
    title: {f"blur_{sigma:g}_{number}": (f"σ = {sigma:g}", 3) for sigma in corruptions.SIGMAS}
    for number, title in (("accuracy", "Accuracy"), ("ece", "ECE"), ("auroc_h", "AUROC(H), blurred against clean"))
}
Published = dict[tuple[str, bool], dict[str, float]]
"""The paper's numbers by label and noise."""


class Cell(NamedTuple):
    """One run of a table: what a process needs to make it."""

    table: str
    preset: Preset
    row: Row
    seed: int

    def place(self, folder: Path) -> Path:
        return folder / "cells" / f"{self.row.name}-{self.seed}"


def cells(table: str, preset: Preset, methods: Sequence[str] = (), seeds: Sequence[int] = ()) -> list[Cell]:
    """The cells of a table; every row's first seed before any row's second."""
    chosen = protocols.rows(table, preset, methods)
    return [
        Cell(table, preset, row, seed)
        for seed in (seeds or protocols.protocol(table, preset).seeds)
        for row in chosen
    ]  # fmt: skip


def make(folder: Path, wanted: Sequence[Cell], launcher: Launcher, begin: Progress) -> None:
    """Train and evaluate the unfinished cells of this command's share."""
    mine = {cell.place(folder): cell for cell in launcher.share(wanted)}
    missing = {place: cell for place, cell in mine.items() if not RunFolder(place).evaluation.exists()}
    budgets = [protocols.protocol(cell.table, cell.preset) for cell in missing.values()]
    for section, outside in {(budget.data, budget.outside) for budget in budgets}:
        images.obtain(section, outside, begin)  # now, not after hours of training
    steps = sum(budget.steps for budget in budgets)
    make_missing(partial(make_cell, folder), missing, steps, launcher, begin)


def make_cell(folder: Path, cell: Cell, show: bool = False) -> None:
    """Train one run to its end, from wherever it was, and evaluate it."""
    config, place = protocols.config(cell.table, cell.preset, cell.row, cell.seed), cell.place(folder)
    with trained(config, place, show):
        assess.run(RunFolder(place), protocols.protocol(cell.table, cell.preset).outside, corruption=True)


# -- what a table shows ---------------------------------------------------------------------------------------------


def write(folder: Path, wanted: Sequence[Cell], command: str) -> list[str]:
    """Write tables and figures of the finished cells, and learning curves of those that have begun.

    Entries of the folder's table whose runs are gone stay in the tables, and are named in ``kept`` of about.json.
    Figures need the runs: they show the seeds that have one, and are those of the table before while a row has none.

    Returns:
        The entries of the table before that are left out, because the settings of their rows are others now.
    """
    begun = [cell for cell in wanted if RunFolder(cell.place(folder)).config.exists()]
    if not begun:
        return []
    finished = [cell for cell in begun if RunFolder(cell.place(folder)).evaluation.exists()]
    used = {
        cell.row.name: msgspec.to_builtins(configs.load_run(RunFolder(cell.place(folder)).config))
        for cell in {cell.row: cell for cell in begun}.values()
    }
    rows = protocols.protocol(wanted[0].table, wanted[0].preset).rows
    names = {(row.label, row.stochastic): row.name for row in rows}
    made = {(cell.row.name, cell.seed) for cell in begun}
    before, kept = _kept(folder, names, used, made)
    left_out = _left_out(folder, names, kept, made)
    found = [_row(folder, cell) for cell in finished] + kept
    found.sort(key=lambda row: (row["seed"], list(names).index((row["label"], row["stochastic"]))))
    learned = {cell: _learned(folder, cell) for cell in begun}
    documents.write_text(folder / "table.json", json.dumps(found, indent=1))
    if found:
        published = _published(wanted[0].table)
        documents.write_text(folder / "table.md", markdown(found, {"": SHOWN}, published) + differences(found))
        documents.write_text(folder / "table.tex", latex(found, published))
        documents.write_text(folder / "calibration.md", markdown(found, {"": CALIBRATION}))
        documents.write_text(folder / "corruption.md", markdown(found, BLURRED))
    about = {
        "command": command,
        "note": sorted({row["note"] for row in found if row["note"]}),
        "seconds": sum(row["seconds"] for row in found),
        "unfinished": {
            cell.place(folder).name: _so_far(folder, cell, learned[cell]) for cell in begun if cell not in finished
        },
        "kept": [f"{names[row['label'], row['stochastic']]}-{row['seed']}" for row in kept],
        "configs": before | used,
    }
    documents.write_text(folder / "about.json", json.dumps(about, indent=1))
    if {(row["label"], row["stochastic"]) for row in kept} <= {
        (cell.row.label, cell.row.stochastic) for cell in finished
    }:
        draw(folder, learned, finished)
    return left_out


def _left_out(
    folder: Path, names: dict[tuple[str, bool], str], kept: Sequence[dict[str, Any]], begun: set[tuple[str, int]]
) -> list[str]:
    """Entries of the table before that are neither kept nor of the ``begun`` runs."""
    lost = [(name or row["label"], row["seed"]) for name, row in _entries(folder, names) if row not in kept]
    return [f"{name}-{seed}" for name, seed in lost if (name, seed) not in begun]


def _entries(folder: Path, names: dict[tuple[str, bool], str]) -> list[tuple[str | None, dict[str, Any]]]:
    """The entries of the folder's table, if there is one, each with the name of its row."""
    table = folder / "table.json"
    found = json.loads(table.read_bytes()) if table.exists() else []
    return [(names.get((row["label"], row["stochastic"])), row) for row in found]


def _kept(
    folder: Path, names: dict[tuple[str, bool], str], used: dict[str, Any], begun: set[tuple[str, int]]
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Configs and entries of the table before that are not of the ``begun`` runs: other seeds, or other machines.

    Entries with other settings than ``used`` has for their row now are not kept: they would not be the same row.
    """
    table, about = folder / "table.json", folder / "about.json"
    if not (table.exists() and about.exists()):
        return {}, []
    configs_before = documents.read_json(about).get("configs")
    if configs_before is None:
        raise ValueError(f"{about}: lacks the settings of table.json; move both away, or give another --out")
    same = {name: config for name, config in configs_before.items() if _agree(config, used.get(name, config), about)}
    return same, [row for name, row in _entries(folder, names) if name in same and (name, row["seed"]) not in begun]


def _agree(before: dict[str, Any], now: dict[str, Any], where: Path) -> bool:
    """Whether two configs mean the same but for the training seed, however they are spelled. Keys that configs did not
    have yet have their defaults."""
    filled = {section: values | before.get(section, {}) for section, values in now.items()}
    return _meaning(filled, where) == _meaning(now, where)


def _meaning(config: dict[str, Any], where: Path) -> dict[str, Any]:
    """What the config of an image run says, with what ``"auto"`` stands for."""
    meant = msgspec.to_builtins(build.resolved(configs.checked(config, where, {}), "categorical", rows=0))
    meant["data"] = {key: FORMER[f"data.{key}"] if value == "auto" else value for key, value in meant["data"].items()}
    del meant["train"]["seed"]
    return meant


def _learned(folder: Path, cell: Cell) -> list[dict[str, Any]]:
    """The test metrics during training."""
    return [row for row in RunFolder(cell.place(folder)).rows() if "test_accuracy" in row]


def _so_far(folder: Path, cell: Cell, learned: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The progress of an unfinished run."""
    last = {key: row[key] for row in learned[-1:] for key in ("step", "test_accuracy", "test_nll")}
    return {"seconds": seconds(cell.place(folder)), "of": protocols.protocol(cell.table, cell.preset).steps} | last


def _row(folder: Path, cell: Cell) -> dict[str, Any]:
    place = cell.place(folder)
    run = RunFolder(place)
    numbers, trained = (documents.read_json(file) for file in (run.evaluation, run.numbers))
    about = {"method": cell.row.method, "stochastic": cell.row.stochastic, "seed": cell.seed, "label": cell.row.label}
    notes = (protocols.protocol(cell.table, cell.preset).note, numbers.pop("note", ""))
    spent = {"steps": trained["steps"], "members": numbers.pop("members"), "note": "; ".join(filter(None, notes))}
    return about | spent | {"seconds": seconds(place)} | numbers


def _published(table: str) -> Published:
    """The paper's numbers by label and noise; none for the digits."""
    path = resources.files("stein.paper") / "published" / f"{table}.csv"
    if not path.is_file():
        return {}
    rows = {}
    for line in csv.DictReader(path.read_text().splitlines()):
        key = line.pop("method"), line.pop("stochastic") == "1"
        rows[key] = {name: float(value) for name, value in line.items()}
        rows[key]["accuracy"] = rows[key].pop("acc") / 100
    return rows


def _summaries(
    found: Sequence[dict[str, Any]], columns: Columns
) -> dict[tuple[str, bool], dict[str, tuple[float, float | None]]]:
    """Mean and standard error over seeds, by label and noise."""
    groups: dict[tuple[str, bool], list[dict[str, float]]] = {}
    for row in found:
        groups.setdefault((row["label"], row["stochastic"]), []).append({name: row[name] for name in columns})
    return {key: summary(rows) for key, rows in groups.items()}


def markdown(found: Sequence[dict[str, Any]], tables: dict[str, Columns], published: Published | None = None) -> str:
    """Ours, and the paper's in brackets; tables by their titles."""
    members, steps, points = (max(row[key] for row in found) for key in ("members", "steps", "test_points"))
    seeds = ", ".join(map(str, sorted({row["seed"] for row in found})))
    lines = [
        f"{members} members, {steps} steps, seeds {seeds}, {points} test points; ± is a standard error over seeds"
        + ("; in brackets the paper's number, made with its own budget." if published else "."),
    ]
    for title, columns in tables.items():
        lines += ["", f"**{title}**"] if title else []
        lines += ["", "| noise | method | " + " | ".join(name for name, _ in columns.values()) + " |"]
        lines += ["|---" * (len(columns) + 2) + "|"]
        for (label, noisy), numbers in _summaries(found, columns).items():
            paper = (published or {}).get((label, noisy), {})
            shown = [
                with_error(*numbers[name], digits) + (f" ({paper[name]:.{digits}f})" if name in paper else "")
                for name, (_, digits) in columns.items()
            ]
            lines.append(f"| {'yes' if noisy else 'no'} | {label} | " + " | ".join(shown) + " |")
    notes = sorted({row["note"] for row in found if row["note"]})
    return "\n".join([*lines, *(["", *notes] if notes else [])])


def differences(found: Sequence[dict[str, Any]], baseline: str = "DE") -> str:
    """Every row minus the baseline, seed by seed: a mean hides whether seeds agree. Empty for a single seed."""
    columns = {name: SHOWN[name] for name in ("accuracy", "auroc_h", "auroc_md", "ece", "nll")}
    base = {row["seed"]: row for row in found if row["label"] == baseline and not row["stochastic"]}
    seeds = sorted(base)
    if len(seeds) < 2:
        return ""
    lines = [
        f"\n\n**Minus {baseline} of the same seed: {', '.join(map(str, seeds))}**\n",
        "| noise | method | " + " | ".join(title for title, _ in columns.values()) + " |",
        "|---" * (len(columns) + 2) + "|",
    ]
    rows: dict[tuple[str, bool], dict[int, dict[str, Any]]] = {}
    for row in found:
        if row["seed"] in base and base[row["seed"]] is not row:
            rows.setdefault((row["label"], row["stochastic"]), {})[row["seed"]] = row
    for (label, noisy), by_seed in rows.items():
        cells = [
            ", ".join(
                f"{by_seed[seed][name] - base[seed][name]:+.{digits}f}" if seed in by_seed else "–" for seed in seeds
            )
            for name, (_, digits) in columns.items()
        ]
        lines.append(f"| {'yes' if noisy else 'no'} | {label} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def latex(found: Sequence[dict[str, Any]], published: Published) -> str:
    """The same as a LaTeX tabular (booktabs)."""
    lines = [
        rf"\begin{{tabular}}{{ll{'r' * len(SHOWN)}}}",
        r"\toprule",
        "noise & method & " + " & ".join(title for title, _ in SHOWN.values()) + r" \\",
        r"\midrule",
    ]
    for (label, noisy), numbers in _summaries(found, SHOWN).items():
        shown = [with_error(*numbers[name], digits).replace("±", r"$\pm$") for name, (_, digits) in SHOWN.items()]
        lines.append(f"{'yes' if noisy else 'no'} & {label} & " + " & ".join(shown) + r" \\")
        paper = published.get((label, noisy), {})
        if paper:
            theirs = [f"{paper[name]:.{digits}f}" if name in paper else "" for name, (_, digits) in SHOWN.items()]
            lines.append(r" & \emph{published} & " + " & ".join(theirs) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"])


NOISE = {False: "without noise (β = 0)", True: "with noise (β = 1)"}


def draw(folder: Path, learned: dict[Cell, list[dict[str, Any]]], finished: Sequence[Cell]) -> None:
    """Learning curves, calibration and corruption of every row; without noise on the left, with noise on the right.

    Curves are of the last seed; those of the corruption are means over seeds.
    """

    def panels(cells: Sequence[Cell], read: Callable[[Cell], Any]) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {}
        for cell in sorted(cells, key=lambda cell: cell.row.stochastic):
            found.setdefault(NOISE[cell.row.stochastic], {})[cell.row.label] = read(cell)
        return found

    def curves(cell: Cell) -> dict[str, Any]:
        return documents.read_json(RunFolder(cell.place(folder)).curves)

    def calibration(cell: Cell) -> dict[str, Any]:
        (first, *_) = curves(cell)["calibration"].values()  # the main set of the table
        return first

    shown = {}
    measured = [cell for cell, rows in learned.items() if rows]
    if measured:
        shown["learning"] = evaluation.learning(panels(measured, learned.__getitem__))
    if finished:
        shown["calibration"] = evaluation.calibration(panels(finished, calibration))
    labels = [cell.row.label for cell in finished]
    for noisy, suffix in ((False, ""), (True, "-stochastic")):
        seeds: dict[str, list[Any]] = {}
        for cell in finished:
            if cell.row.stochastic == noisy:
                seeds.setdefault(cell.row.label, []).append(curves(cell)["corruption"])
        if seeds:
            shown[f"corruption{suffix}"] = evaluation.corruption(seeds, among=labels)
    for name, figure in shown.items():
        documents.write_figure(folder / f"{name}.png", figure, dpi=110)
