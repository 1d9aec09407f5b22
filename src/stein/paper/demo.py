"""The demo: four ensembles beside the posterior on the paper's regression task, in about a minute.

They are the rows of `stein reproduce fig1 --preset corrected`, with fewer members. f-SVGD is not included: with few
members it is far too wide at the data, and the draws of its functional prior make it the slowest.
"""

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from markupsafe import Markup

from stein import predict, train
from stein.datasets.fetch import Progress
from stein.paper import reference, toy_figures, toys, variants
from stein.paper.statistics import Numbers
from stein.report import charts, page, plots, style
from stein.report.page import Cell, Head, Key, Line, Section
from stein.storage import durable
from stein.storage.documents import write_json

# The paper's steps and rate, for which docs/findings.md holds, with fewer than its 50 members: a minute on two cores.
PARTICLES, STEPS, LEARNING_RATE = 30, 10_000, 1e-3
FRAMES = 20
RECOMMENDED = "fw-SVGD"
Members = Float[np.ndarray, "n g"]

COLUMNS = {
    "rho_data": (
        "width at the data",
        "How widely the members spread where the data are, over how widely the posterior does. 1 is right, less is too "
        "sure, more is too unsure.",
    ),
    "rho_gap": ("width in the gap", "The same between the two clouds of points, where nothing was seen."),
    "rho_ext": ("width outside", "The same to the left and to the right of all points."),
    "E_std": (
        "width error",
        "How wrong the width is, on average over the whole picture (E_std, the mean absolute logarithm of the ratio). "
        "0 is right, 0.1 is a tenth too wide or too narrow, 0.7 is twice or half.",
    ),
    "W1": (
        "distance",
        "How far the predictions are from those of the posterior, in units of its width (W1, the Wasserstein "
        "distance). 0 is right.",
    ),
}
WHERE = {"rho_data": "at the data", "rho_gap": "in the gap", "rho_ext": "outside"}
NARROW, WIDE = 0.8, 1.25

BEFORE_NEXT = (
    "Next, on a table of your own, for example houses.csv with a column price (after make demo, run "
    "source .venv/bin/activate first)"
)
NEXT = (
    "stein fit houses.csv --target price",
    "stein predict runs/houses new_houses.csv",
)


class Result(NamedTuple):
    """The members' functions on the grid, at the end (with draws from the posterior) and during training."""

    task: toys.Task
    members: dict[str, Members]
    frames: list[tuple[int, dict[str, Members]]]
    numbers: dict[str, Numbers]
    floor: Numbers  # of as many draws of the posterior as there are members

    @property
    def rows(self) -> dict[str, Numbers]:
        """The numbers of every method, then those of the posterior draws."""
        return self.numbers | {f"{self.task.particles} draws of the posterior": self.floor}


def run(*, steps: int = STEPS, seed: int = 42, begin: Progress) -> Result:
    """Train every method on the same data from the same prior draws, two at a time.

    Args:
        begin: called with a method and its number of steps; returns a function to report the steps done.
    """
    task = toys.regression()._replace(particles=PARTICLES, steps=steps, learning_rate=LEARNING_RATE)
    posterior = reference.posterior("regression")
    rows = sorted(variants.recommended(task, LEARNING_RATE), key=lambda row: row.label == RECOMMENDED)  # beside HMC
    frames: dict[int, dict[str, Members]] = {}
    stopped = threading.Event()

    def trained(variant: variants.Variant) -> Members:
        tick = begin(variant.label, steps)

        def watch(moment: train.Moment) -> None:
            if stopped.is_set():
                raise InterruptedError
            tick(moment.step)
            functions = task.predict(predict.living(moment.state.particles, moment.state.alive))[:, :, 0]
            frames.setdefault(moment.step, {})[variant.label] = functions

        return toy_figures.run_cell(task, variant, seed, variants.Size(), [watch], max(1, steps // FRAMES))[:, :, 0]

    members = _two_at_a_time(trained, rows, stopped)
    numbers = {label: toys.compare_regression(f, posterior.draws) for label, f in members.items()}
    floor = {
        name: float(np.mean([draw[name] for draw in toy_figures.floor(task, posterior)]))
        for name in next(iter(numbers.values()))
    }
    film = [(step, {label: frames[step][label] for label in members}) for step in sorted(frames)]
    return Result(task, members | {"posterior": posterior.draws}, film, numbers, floor)


def _two_at_a_time(
    trained: Callable[[variants.Variant], Members], rows: Sequence[variants.Variant], stopped: threading.Event
) -> dict[str, Members]:
    """In threads, since XLA releases the GIL while it computes. The last rows take longest and start first."""
    with ThreadPoolExecutor(2) as pool:
        work = {pool.submit(trained, variant): variant.label for variant in reversed(rows)}
        try:
            made = {work[future]: future.result() for future in as_completed(work)}
        except BaseException:  # Ctrl-C or a failure: the others stop after their chunk
            stopped.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return {variant.label: made[variant.label] for variant in rows}


def table(result: Result) -> tuple[list[str], list[list[str]]]:
    """Header and rows: the columns are explained by :data:`COLUMNS`."""
    return (
        ["method", *(words for words, _ in COLUMNS.values())],
        [[label, *(f"{row[name]:.2f}" for name in COLUMNS)] for label, row in result.rows.items()],
    )


def sentences(numbers: Mapping[str, Numbers], floor: Numbers) -> list[str]:
    """The numbers in words: which method is closest to the posterior, and where methods are too narrow or wide."""
    return [*_who_is_closest(numbers, floor), *(_widths(label, row) for label, row in numbers.items())]


def _who_is_closest(numbers: Mapping[str, Numbers], floor: Numbers) -> list[str]:
    def best(name: str) -> float:
        return min(row[name] for row in numbers.values())

    first, second = (sorted(numbers, key=lambda label: numbers[label][name])[:2] for name in ("E_std", "W1"))
    width, distance = first[0], second[0]
    off = f"its width is off by {_percent(numbers[width]['E_std'])} on average"
    than = f"the next, {first[1]}, by {_percent(numbers[first[1]]['E_std'])}"
    far = f"{numbers[distance]['W1']:.2f}, the next, {second[1]}, has {numbers[second[1]]['W1']:.2f}"
    chance = (
        f"As many random draws of the posterior itself are off by {_percent(floor['E_std'])} and have a distance of "
        f"{floor['W1']:.2f}."
    )
    closer = [words for name, words in (("E_std", "width"), ("W1", "distance")) if best(name) < floor[name]]
    if closer:
        chance += f" An ensemble can lie closer to it than random draws, as here in {_and(closer)}."
    if width == distance:
        said = [f"{width} is closest to the posterior: {off} ({than}), and its distance is {far}."]
    else:
        said = [
            f"No method is closest in both numbers. By width {width} is: {off} ({than}).",
            f"By distance {distance} is: its distance is {far}.",
        ]
    if RECOMMENDED in numbers and not width == distance == RECOMMENDED:
        said.append(f"So {RECOMMENDED}, which is recommended at {STEPS:,} steps, is not the closest in this run.")
    return [*said, chance]


def _percent(error: float) -> str:
    """A mean log ratio as a percentage or a factor."""
    factor = math.exp(error)
    return f"{factor - 1:.0%}" if factor < 2 else f"a factor of {factor:.1f}"


def _widths(label: str, row: Numbers) -> str:
    narrow = [f"{where} ({row[name]:.2f})" for name, where in WHERE.items() if row[name] < NARROW]
    wide = [f"{where} ({row[name]:.2f})" for name, where in WHERE.items() if row[name] > WIDE]
    parts = [
        f"{judgement} {_and(places)}" for judgement, places in (("too sure", narrow), ("too unsure", wide)) if places
    ]
    return f"{label} is {', and '.join(parts) or 'about as wide as the posterior everywhere'}."


def _and(words: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def write(result: Result, folder: Path) -> None:
    """Write regression.png and .svg, training.gif, numbers.json and report.html."""
    x, y = result.task.x[:, 0], result.task.y[:, 0]
    figure = plots.regression(toys.GRID, result.members, x, y)
    for kind in ("png", "svg"):
        figure.savefig(folder / f"regression.{kind}", dpi=150)
    plots.animation(folder / "training.gif", toys.GRID, result.frames, x, y)
    write_json(folder / "numbers.json", result.rows)
    durable.replace(folder / "report.html", report(result))


def report(result: Result) -> bytes:
    """The page: what the ensembles say and how they got there, the numbers, and what to try next."""
    task, keys = result.task, _keys(result.rows)
    shown = (
        f"Each panel shows {task.particles} networks that were trained on the same {len(task.x)} points for "
        f"{task.steps:,} steps. The last panel is the posterior, by Hamiltonian Monte Carlo (HMC): the right answer "
        "for this network and this prior. Look at the gap between the two clouds of points, where nothing was seen. "
        "The slider shows how they got there."
    )
    settings = (
        "fw-SVGD and h-SVGD run with the setting that docs/findings.md recommends: every step also compares the "
        "members at one input drawn between the smallest and the largest of the data. DE (a deep ensemble: networks "
        "trained apart) and w-SVGD (a kernel on the weights) do not compare functions. f-SVGD is left out: with so "
        "few members it is far too wide at the data, and it is the slowest of all."
    )
    more = "stein methods lists the methods, docs/findings.md compares them, and stein report RUN shows a run of yours."
    said = page.items(sentences(result.numbers, result.floor))
    numbers = page.join(_sortable(result, keys), page.terms(COLUMNS.values()), page.paragraphs([settings]))
    sections = [
        Section(
            "functions", "What the ensembles say", page.join(page.paragraphs([shown]), _panels(result, keys), said)
        ),
        Section("numbers", "In numbers", numbers),
        Section(
            "next",
            "Try it on your own data",
            page.join(page.paragraphs([f"{BEFORE_NEXT}:"]), page.commands(NEXT), page.paragraphs([more])),
        ),
    ]
    return page.page("stein: does an ensemble know what it does not know?", sections, list(keys.values())[:-1])


def _keys(rows: Mapping[str, Numbers]) -> dict[str, Key]:
    looks = style.looks(rows)
    return {label: Key(f"m{i}", label, looks[label]) for i, label in enumerate(rows)}


def _panels(result: Result, keys: Mapping[str, Key]) -> Markup:
    x, y = result.task.x[:, 0].tolist(), result.task.y[:, 0].tolist()
    some = np.arange(0, len(toys.GRID), 2)  # half of the points are enough on a screen
    grid, draws = toys.GRID[some].tolist(), result.members["posterior"]
    panels = []
    for label, members in result.members.items():
        snapshots = [frame[label][:, some] for _, frame in result.frames if label in frame]
        look = keys[label].look if label in keys else style.Look(4, "-")
        reference = None if label == "posterior" else ("the posterior", draws[:, some])
        panel = charts.functions(
            label, grid, [*snapshots[:-1], members[:, some]], "x", "y", plots.YLIM, (x, y), look, 15, reference
        )
        panels.append(page.switched(panel, keys[label].key) if label in keys else panel)
    return page.frames("Step", [f"{step:,}" for step, _ in result.frames], panels)


def _sortable(result: Result, keys: Mapping[str, Key]) -> Markup:
    _, rows = table(result)
    lines = []
    for label, *cells in rows:
        numbers = [Cell(text, float(text)) for text in cells]
        own = label in result.numbers
        lines.append(Line([Cell(label), *numbers], keys[label].key if own else "", keys[label].look if own else None))
    return page.table("Beside the posterior", [Head("method"), *(Head(*words) for words in COLUMNS.values())], lines)
