"""The page of a study of `stein reproduce`: its table with every seed, its curves and its figures, from its files."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from markupsafe import Markup

from stein import __version__
from stein.report import charts, numbers, page, style
from stein.report.charts import Series
from stein.report.numbers import Standing, best, over_seeds, written
from stein.report.page import Cell, Head, Key, Line, Missing, Section

MOST_BYTES = 900_000  # of a picture in a page
PICTURES = {
    "figure": "every method beside the posterior on the toy tasks: bands and members above, entropy below",
    "learning": "accuracy on test points over training steps, one line per method",
    "calibration": "accuracy on the most certain points, one line per method, without and with noise",
}
# What is shown of an image table, and which way is better.
NUMBERS = {
    "accuracy": ("accuracy", "high"),
    "nll": ("NLL", "low"),
    "nll_paper": ("NLL, paper's", "low"),
    "ece": ("ECE", "low"),
    "brier": ("Brier", "low"),
    "auroc_h": ("AUROC, entropy", "high"),
    "auroc_md": ("AUROC, disagreement", "high"),
    "h_ratio": ("entropy, outside over test", "high"),
    "md_ratio": ("disagreement, outside over test", "high"),
    "calibration_area": ("area of the ranking", "high"),
}
# Distances from the posterior: 0 is right. Ratios of widths: 1 is right, and neither way is better.
DISTANCES = ("E_std", "W1", "KL", "H_error")


class _Cells(msgspec.Struct):
    seeds: dict[str, dict[str, float]]


class _Task(msgspec.Struct):
    rows: dict[str, _Cells]


class _Figure(msgspec.Struct):
    """table.json of a toy figure."""

    figure: str
    preset: str
    tasks: dict[str, _Task]


class _Row(msgspec.Struct):
    """One seed of a row in table.json of an image table; its numbers are beside these."""

    label: str
    stochastic: bool
    seed: int


def is_study(folder: Path) -> bool:
    """Whether a directory holds the results of a figure or an image table."""
    return (folder / "table.json").is_file() and not (folder / "config.toml").is_file()


def page_of(folder: Path, command: str) -> bytes:
    """The page of a study; ``command`` is how it was made."""
    try:
        document = json.loads((folder / "table.json").read_bytes())
        if isinstance(document, list):
            rows = msgspec.convert(document, list[_Row])
            return _image_table(folder, rows, document, command)
        return _toy_figure(folder, msgspec.convert(document, _Figure), command)
    except (msgspec.ValidationError, json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError) as error:
        why = " ".join(str(error).split())[:120]
        raise ValueError(
            f"{folder}: its table.json is not that of a figure or an image table ({why}); give run directories"
        ) from None


# -- toy figures --------------------------------------------------------------------------------------------


def _toy_figure(folder: Path, found: _Figure, command: str) -> bytes:
    names = style.ordered(label for task in found.tasks.values() for label in task.rows)
    keys = _keys(names)
    sections = [Section("summary", "In a few sentences", page.paragraphs(_closest(found)))]
    for task, part in found.tasks.items():
        standings = {
            label: {name: over_seeds([seed[name] for seed in row.seeds.values() if name in seed]) for name in first}
            for label, row in part.rows.items()
            if (first := next(iter(row.seeds.values()), {}))
        }
        better = dict.fromkeys(DISTANCES, "low")
        table = _table(f"{task}: distances from the posterior", standings, better, keys)
        picture = _distances(task, standings, keys)
        sections.append(Section(f"task-{len(sections)}", f"In numbers: {task}", page.join(table, picture)))
    sections.append(Section("picture", "What the ensembles say", _pictures(folder, ["figure"])))
    again = f"stein reproduce {found.figure}" + ("" if found.preset == "paper" else f" --preset {found.preset}")
    sections.append(Section("made", "How to make it again", page.commands([again])))
    return page.page(f"{found.figure}, preset {found.preset}", sections, list(keys.values()), (), _footer(command))


def _closest(found: _Figure) -> list[str]:
    said = []
    for task, part in found.tasks.items():
        for name in DISTANCES[:2] if "E_std" in str(part.rows) else DISTANCES[2:]:
            values = {
                label: over_seeds([seed[name] for seed in row.seeds.values() if name in seed])
                for label, row in part.rows.items()
                if not label.startswith("HMC") and any(name in seed for seed in row.seeds.values())
            }
            if len(values) > 1:
                first, second = sorted(values, key=lambda label: values[label].mean)[:2]
                one, other = values[first], values[second]
                sure = best(values, "low") == first
                said.append(
                    f"On the {task} task {first} is closest to the posterior by {name}: "
                    f"{written(one.mean, one.error)}; the next, {second}, has {written(other.mean, other.error)}"
                    + ("." if sure else ", which is within the standard error.")
                )
    return said


def _distances(task: str, standings: Mapping[str, Mapping[str, Standing]], keys: Mapping[str, Key]) -> Markup:
    """Every method's distances as dots with their errors, one place per method."""
    figures = []
    for name in DISTANCES:
        rows = {label: row[name] for label, row in standings.items() if name in row}
        if len(rows) < 2:
            continue
        labels = list(rows)
        series = [
            Series(
                label,
                [i],
                [rows[label].mean],
                keys[label].look,
                keys[label].key,
                error=[rows[label].error or 0.0],
                points=True,
                labels=[label],
            )
            for i, label in enumerate(labels)
        ]
        title = f"{name}: 0 is the posterior"
        figures.append(charts.chart(title, series, "method", name, names=labels, xlim=(-0.5, len(labels) - 0.5)))
    return page.grid(figures)


# -- image tables -------------------------------------------------------------------------------------------


def _image_table(folder: Path, rows: Sequence[_Row], document: Sequence[Mapping[str, Any]], command: str) -> bytes:
    groups: dict[str, list[Mapping[str, float]]] = {}
    for row, found in zip(rows, document, strict=True):
        finite = {k: v for k, v in found.items() if isinstance(v, (int, float)) and not isinstance(v, bool)}
        groups.setdefault(f"{row.label}, noise" if row.stochastic else row.label, []).append(finite)
    standings = {
        label: {name: over_seeds([seed[name] for seed in seeds]) for name in NUMBERS if all(name in s for s in seeds)}
        for label, seeds in groups.items()
    }
    keys = _keys(style.ordered(groups))
    ordered = {label: standings[label] for label in keys}
    better = {name: way for name, (_, way) in NUMBERS.items()}
    about = _about(folder)
    made = about.get("command")
    sections = [
        Section("summary", "In a few sentences", page.paragraphs(_winners(ordered))),
        Section("methods", "In numbers", _table("Test points", ordered, better, keys)),
        Section("corruption", "When images get worse", _blurred(groups, keys)),
        Section("pictures", "Curves", _pictures(folder, ["learning", "calibration"])),
        Section("made", "How to make it again", page.commands([str(made)] if isinstance(made, str) else [])),
    ]
    return page.page(folder.resolve().name, sections, list(keys.values()), (), _footer(command))


def _about(folder: Path) -> Mapping[str, Any]:
    try:
        found = json.loads((folder / "about.json").read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _winners(standings: Mapping[str, Mapping[str, Standing]]) -> list[str]:
    said = []
    for name in ("nll", "accuracy", "auroc_md"):
        words, better = NUMBERS[name]
        values = {label: row[name] for label, row in standings.items() if name in row}
        if len(values) < 2:
            continue
        first, second = sorted(values, key=lambda label: values[label].mean, reverse=better == "high")[:2]
        one, other = values[first], values[second]
        if one.error is None or other.error is None:
            end = "one seed: this may be chance."
        else:
            end = (
                f"{'more' if best(values, better) == first else 'not more'} than the standard error of the difference."
            )
        said.append(
            f"{first} has the {'highest' if better == 'high' else 'lowest'} {words}: {written(one.mean, one.error)}; "
            f"the next, {second}, has {written(other.mean, other.error)}: {end}"
        )
    return said


def _blurred(groups: Mapping[str, Sequence[Mapping[str, float]]], keys: Mapping[str, Key]) -> Markup:
    names = {name for seeds in groups.values() for seed in seeds for name in seed}
    sigmas = sorted({float(found[1]) for name in names if (found := re.fullmatch(r"blur_([\d.]+)_accuracy", name))})
    if not sigmas:
        return page.missing([Missing("No image was blurred:", "stein reproduce corruption")])
    figures = []
    for key, title in charts.BLURRED.items():
        series = [
            charts.over_seeds(
                keys[label], sigmas, [[seed.get(f"blur_{s:g}_{key}", np.nan) for s in sigmas] for seed in groups[label]]
            )
            for label in keys
        ]
        figures.append(charts.chart(title, series, "standard deviation of the blur (pixels)", title, legend=False))
    return page.grid(figures)


# -- both ---------------------------------------------------------------------------------------------------


def _keys(names: Sequence[str]) -> dict[str, Key]:
    looks = style.looks(names)
    return {name: Key(f"m{i}", name, looks[name]) for i, name in enumerate(names)}


def _table(
    caption: str, standings: Mapping[str, Mapping[str, Standing]], better: Mapping[str, str], keys: Mapping[str, Key]
) -> Markup:
    names = list(dict.fromkeys(name for row in standings.values() for name in row))
    rivals = {label: row for label, row in standings.items() if not label.startswith("HMC")}
    winners = {
        name: best({label: row[name] for label, row in rivals.items() if name in row}, better.get(name, ""))
        for name in names
    }
    lines = []
    for label, row in standings.items():
        cells = [Cell(label)]
        for name in names:
            standing = row.get(name)
            if standing is None:
                cells.append(Cell("–"))
            else:
                cells.append(Cell(written(standing.mean, standing.error), standing.mean, winners[name] == label))
        cells.append(Cell(str(max(s.seeds for s in row.values())), max(s.seeds for s in row.values())))
        lines.append(Line(cells, keys[label].key, keys[label].look))
    header = [Head("method"), *(Head(NUMBERS[name][0] if name in NUMBERS else name) for name in names), Head("seeds")]
    return page.table(caption, header, lines, f"± is a standard error over seeds. {numbers.BOLD}")


def _pictures(folder: Path, names: Sequence[str]) -> Markup:
    parts, lines = [], []
    for name in names:
        path = folder / f"{name}.png"
        if not path.is_file():
            lines.append(Missing(f"{name}.png is not there; the command below makes it."))
        elif path.stat().st_size > MOST_BYTES:
            lines.append(Missing(f"{name}.png is too large for a page; it is beside table.json."))
        else:
            parts.append(page.picture(path, PICTURES[name]))
    return page.join(*parts, page.missing(lines))


def _footer(command: str) -> str:
    return f"Written by stein {__version__}: {command}"
