"""The paper's toy figures: every method on both tasks, several seeds, beside the posterior, with numbers.

A cell is one method on one task with one seed. Its result is a file, so that an interrupted command continues with
the missing cells, and several processes may share the work.
"""

import io
import itertools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float

from stein import data, methods, predict, train
from stein.datasets.fetch import Progress
from stein.ensembles import Algorithm, build, members
from stein.paper import reference, toys
from stein.paper.protocols import SEEDS
from stein.paper.statistics import Numbers, paired, summary, with_error
from stein.paper.toys import Task
from stein.paper.variants import SIZES, Size, Variant, variants
from stein.report import plots
from stein.runs.launchers import Launcher, make_all
from stein.storage import durable
from stein.types import Key, Particles


def run_cell(
    task: Task, variant: Variant, seed: int, size: Size, hooks: Iterable[train.Hook] = (), chunk: int = 250
) -> Float[np.ndarray, "n g c"]:
    """Train one ensemble on a task; returns its members' predictions at the task's points."""
    key_start, key_batches = jax.random.split(jax.random.key(seed))
    n, hooks = max(2, round(task.particles * size.particles)), tuple(hooks)
    batches = batches_of(task, variant, key_batches)

    def trained(phase: Variant, weights: Particles | None = None) -> Particles:
        algorithm, steps = algorithm_of(task, phase, variant.target), steps_of(task, phase, size)
        state = train.begin(algorithm, key_start, n, weights)
        state, _ = train.run(algorithm, state, batches, steps, chunk=min(steps, chunk), hooks=hooks)
        return predict.living(*members(state))

    return task.predict(trained(variant, trained(variant.first) if variant.first else None))


def algorithm_of(task: Task, variant: Variant, target: Mapping[str, Any]) -> Algorithm:
    """The algorithm of a row, or of the phase before it. A phase after another samples the whole posterior: only the
    first is annealed."""
    options: dict[str, Any] = {"learning_rate": task.learning_rate, "anneal": task.anneal} | dict(variant.options)
    if variant.first:
        del options["anneal"]
    return build(variant.method, task.target(**target), **options)


def batches_of(task: Task, variant: Variant, key: Key) -> data.Batches:
    """The minibatches of the protocol, or all data at once for chains that need them."""
    whole = methods.lookup(variant.method).dynamics == "microcanonical"
    return data.Batches(task.x, task.y, None if whole else task.batch_size, key)


def steps_of(task: Task, variant: Variant, size: Size) -> int:
    return max(1, round(task.steps * variant.steps * size.steps))


def judge(task: Task, said: Float[np.ndarray, "n g c"], posterior: reference.Posterior) -> Numbers:
    """Compare members' predictions with the posterior."""
    if task.has_classes:
        return toys.compare_classification(said, posterior.mean)
    return toys.compare_regression(said[:, :, 0], posterior.draws)


def save_cell(path: Path, said: np.ndarray) -> None:
    """Probabilities are saved in half precision: three digits are enough for any table."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, said=said.astype(np.float32 if said.shape[-1] == 1 else np.float16))
    path.parent.mkdir(parents=True, exist_ok=True)
    durable.replace(path, buffer.getvalue())


def load_cell(path: Path) -> np.ndarray:
    with np.load(path) as found:
        return found["said"].astype(np.float32)


def cell_path(folder: Path, task: str, label: str, seed: int) -> Path:
    name = label.lower().replace(", ", "-").replace(" ", "-")
    return folder / "cells" / task / f"{name}-{seed}.npz"


def floor(task: Task, posterior: reference.Posterior) -> list[Numbers]:
    """As many posterior draws as the ensemble has members, against the other draws: the sampling error."""
    if task.has_classes:
        return posterior.about["floor"]
    random = np.random.default_rng(0)
    found = []
    for _ in SEEDS:
        chosen = random.choice(len(posterior.draws), task.particles, replace=False)
        rest = np.delete(posterior.draws, chosen, axis=0)
        found.append(toys.compare_regression(posterior.draws[chosen], rest))
    return found


class Cell(NamedTuple):
    """The name of one ensemble of a table: what a process needs to train it."""

    figure: str
    preset: str
    task: str
    label: str
    seed: int

    def words(self) -> str:
        return f"{self.task}, {self.label}, seed {self.seed}"


def cells(figure: str, preset: str, tasks: Sequence[str], labels: Sequence[str], seeds: Sequence[int]) -> list[Cell]:
    """The cells of these tasks, labels and seeds (default: all)."""
    known = {task: [variant.label for variant in variants(figure, preset, toys.TASKS[task]())] for task in tasks}
    for label in labels:
        if not any(label in rows for rows in known.values()):
            rows = ", ".join(map(repr, dict.fromkeys(itertools.chain(*known.values()))))
            raise ValueError(f"--methods = {label!r}: not in this table; it has {rows}")
    return [
        Cell(figure, preset, task, label, seed)
        for task, seed in itertools.product(tasks, tuple(seeds) or SIZES[preset].seeds)
        for label in known[task]
        if not labels or label in labels
    ]


def run_cells(folder: Path, wanted: Sequence[Cell], launcher: Launcher, begin: Progress) -> None:
    """Train the missing cells of this command's share."""
    mine = {cell_path(folder, cell.task, cell.label, cell.seed): cell for cell in launcher.share(wanted)}
    missing = {path: cell for path, cell in mine.items() if not path.exists()}
    if launcher.here:
        for cell in missing.values():
            task, variant, size = _found(cell)
            tick = begin(cell.words(), steps_of(task, variant, size))
            _run_and_save(folder, cell, [partial(_told, tick)])
        return
    tick = begin(f"{len(missing)} ensembles", len(missing))

    def watch() -> None:
        tick(sum(path.exists() for path in missing))

    make_all(launcher, partial(_run_and_save, folder), list(missing.values()), watch)


def _found(cell: Cell) -> tuple[Task, Variant, Size]:
    task = toys.TASKS[cell.task]()
    (variant,) = (v for v in variants(cell.figure, cell.preset, task) if v.label == cell.label)
    return task, variant, SIZES[cell.preset]


def _run_and_save(folder: Path, cell: Cell, hooks: Iterable[train.Hook] = ()) -> None:
    task, variant, size = _found(cell)
    save_cell(cell_path(folder, cell.task, cell.label, cell.seed), run_cell(task, variant, cell.seed, size, hooks))


def _told(tick: Callable[[int], None], moment: train.Moment) -> None:
    tick(moment.step)


# The paper's claims about the pictures: number, the method with the larger one, the method with the smaller one.
FUNCTIONAL = ("f-SVGD", "fw-SVGD", "h-SVGD")
CLAIMS = {
    "regression": [
        *[("rho_gap", method, other) for method in FUNCTIONAL for other in ("DE", "w-SVGD")],
        *[("E_std", "DE", method) for method in ("w-SVGD", *FUNCTIONAL)],
        *[("W1", "DE", method) for method in ("w-SVGD", *FUNCTIONAL)],
        *[("E_std", f"{method}, exact", method) for method in ("fw-SVGD", "h-SVGD")],
    ],
    "classification": [
        *[("H_far", method, other) for method in FUNCTIONAL for other in ("DE", "w-SVGD")],
        *[("KL", "DE", method) for method in ("w-SVGD", *FUNCTIONAL)],
        *[("KL", f"{method}, exact", method) for method in ("fw-SVGD", "h-SVGD")],
    ],
}


# Is the method closer with noise? Per number, the row of fig1 against that of fig-stochastic.
DISTANCES = {"regression": ("E_std", "W1"), "classification": ("KL", "H_error")}


def noise_against_none(rows: Mapping[str, Mapping[int, Numbers]], other: Any, task: str) -> list[dict[str, Any]]:
    """The evidence for "noise brings a method closer", over the seeds that both tables have.

    Args:
        other: the content of fig1's table.json.
    """
    claims = []
    for number, label in itertools.product(DISTANCES[task], rows):
        without = "DE" if "SGLD" in label else label
        before = other["tasks"].get(task, {"rows": {}})["rows"].get(without, {"seeds": {}})["seeds"]
        common = [seed for seed in rows[label] if str(seed) in before]
        if common:
            numbers = [before[str(seed)][number] for seed in common], [rows[label][seed][number] for seed in common]
            claims.append({"number": number, "larger": f"{without} without noise", "smaller": label} | paired(*numbers))
    return claims


def results(name: str, preset: str, folder: Path, seeds: Sequence[int]) -> dict[str, Any]:
    """All numbers of all existing cells, with means, errors, and the evidence for the claims.

    Numbers of the folder's table whose cells no longer exist are kept and named in ``kept``, so that some rows of a
    table can be recomputed without the others.
    """
    before = _table_before(name, preset, folder)
    seeds = sorted({*seeds, *before.get("seeds", ())})
    beside = folder.parent / "fig1" / "table.json"
    deterministic = json.loads(beside.read_bytes()) if name == "fig-stochastic" and beside.exists() else None
    found: dict[str, Any] = {"figure": name, "preset": preset, "seeds": seeds, "tasks": {}}
    for task_name, make in toys.TASKS.items():
        task, posterior = make(), reference.posterior(task_name)
        rows: dict[str, dict[int, Numbers]] = {}
        kept: dict[str, list[int]] = {}
        old_rows = before.get("tasks", {}).get(task_name, {"rows": {}})["rows"]
        labels = [variant.label for variant in variants(name, preset, task)]
        for label in dict.fromkeys([*labels, *(label for label in old_rows if not label.startswith("HMC"))]):
            old = old_rows.get(label, {"seeds": {}})["seeds"]
            paths = {seed: cell_path(folder, task_name, label, seed) for seed in seeds}
            cells = {
                seed: judge(task, load_cell(path), posterior) if path.exists() else old[str(seed)]
                for seed, path in paths.items()
                if path.exists() or str(seed) in old
            }
            if cells:
                rows[label] = cells
                kept[label] = [seed for seed in cells if not paths[seed].exists()]
        claims = [
            {"number": number, "larger": larger, "smaller": smaller}
            | paired(*([rows[label][seed][number] for seed in common] for label in (larger, smaller)))
            for number, larger, smaller in CLAIMS[task_name]
            if (common := sorted(rows.get(larger, {}).keys() & rows.get(smaller, {}).keys()))
        ]
        if deterministic:
            claims += noise_against_none(rows, deterministic, task_name)
        if rows:
            rows[f"HMC, {task.particles} draws"] = dict(enumerate(floor(task, posterior)))
            found["tasks"][task_name] = {
                "rows": {
                    label: {"mean ± error": summary(cells.values()), "seeds": cells} for label, cells in rows.items()
                },
                "claims": claims,
                "kept": {label: kept_seeds for label, kept_seeds in kept.items() if kept_seeds},
            }
    return found


def _table_before(name: str, preset: str, folder: Path) -> dict[str, Any]:
    path = folder / "table.json"
    before: dict[str, Any] = json.loads(path.read_bytes()) if path.exists() else {}
    same = (before.get("figure"), before.get("preset")) == (name, preset)
    return before if same else {}


def markdown(found: dict[str, Any]) -> str:
    """The results as tables: mean ± standard error over seeds; the paper's claims with their probability."""
    lines = [f"# {found['figure']}, preset {found['preset']}, seeds {', '.join(map(str, found['seeds']))}"]
    for task, part in found["tasks"].items():
        names = list(next(iter(part["rows"].values()))["mean ± error"])
        lines += [
            "",
            f"## {task}",
            "",
            "| method | seeds | " + " | ".join(names) + " |",
            "|---" * (len(names) + 2) + "|",
        ]
        for label, row in part["rows"].items():
            cells = [with_error(*numbers) for numbers in row["mean ± error"].values()]
            lines.append(f"| {label} | {len(row['seeds'])} | " + " | ".join(cells) + " |")
        if part["kept"]:
            made = {
                label: [str(seed) for seed in row["seeds"] if seed not in part["kept"].get(label, ())]
                for label, row in part["rows"].items()
                if not label.startswith("HMC")
            }
            again = "; ".join(f"{label} (seed {', '.join(seeds)})" for label, seeds in made.items() if seeds)
            if again:
                lines += ["", f"Made last: {again}. The other rows and seeds are those of the table before."]
        if part["claims"]:
            lines += ["", "| is it larger? | than | in | by | p |", "|---|---|---|---|---|"]
        for claim in part["claims"]:
            by = with_error(claim["difference"], claim["error"])
            lines.append(f"| {claim['larger']} | {claim['smaller']} | {claim['number']} | {by} | {claim['p']:.3f} |")
    return "\n".join(lines) + "\n"


def write(name: str, preset: str, folder: Path, seeds: Sequence[int] = ()) -> bool:
    """Write table.json, table.md and figure.png of the existing cells; the figure shows the last seed.

    Returns whether the figure was drawn: it is not changed if a cell of one of its columns is missing.
    """
    found = results(name, preset, folder, tuple(seeds) or SIZES[preset].seeds)
    durable.replace(folder / "table.json", (json.dumps(found, indent=1) + "\n").encode())
    durable.replace(folder / "table.md", markdown(found).encode())
    return name != "ablation" and _draw(found, folder)


def _draw(found: dict[str, Any], folder: Path) -> bool:
    """figure.png of the last seed: the columns that both tasks have."""
    seed, tasks = found["seeds"][-1], found["tasks"]
    columns = [v.label for v in variants(found["figure"], found["preset"], toys.regression()) if v.column]
    rows = [tasks[task]["rows"] if task in tasks else {} for task in toys.TASKS]
    both = [label for label in columns if all(label in of and seed in of[label]["seeds"] for of in rows)]
    paths = {task: {label: cell_path(folder, task, label, seed) for label in both} for task in toys.TASKS}
    if not all(path.exists() for of_task in paths.values() for path in of_task.values()):
        return False
    shown = {task: {label: load_cell(path) for label, path in of_task.items()} for task, of_task in paths.items()}
    functions = {label: shown["regression"][label][:, :, 0] for label in both}
    maps = {label: shown["classification"][label][:, : toys.SIDE**2].mean(axis=0) for label in both}
    regression, classification = toys.regression(), toys.classification()
    plots.toys(
        toys.GRID,
        functions | {"HMC": reference.posterior("regression").draws},
        (regression.x[:, 0], regression.y[:, 0]),
        toys.AXIS,
        maps | {"HMC": reference.posterior("classification").mean},
        (classification.x, classification.y),
    ).savefig(folder / "figure.png", dpi=160)
    return True
