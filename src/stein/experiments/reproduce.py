"""The paper's toy figures: every method on both tasks, several seeds, beside the posterior, with numbers.

A cell is one method on one task with one seed. Its result is a file, so that a run that was cut goes on with the cells
that are missing, and several processes may share the work.
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

from stein import data, durable, functional_priors, predict, rules, train
from stein.ensembles import build
from stein.experiments import reference, toys
from stein.experiments.toys import Task
from stein.report import plots
from stein.targets import Measurement

SEEDS = (38, 39, 40, 41, 42)
Numbers = dict[str, float]


class Variant(NamedTuple):
    """A method and its settings. ``options`` go to :func:`stein.build`, ``target`` to :func:`stein.posterior`."""

    label: str
    method: str
    options: Mapping[str, Any] = {}
    target: Mapping[str, Any] = {}
    column: bool = False  # whether it has a column in the figure, or only a row in the table
    steps: float = 1.0  # times those of the protocol


class Size(NamedTuple):
    """What a preset makes smaller: members and steps are multiplied by these."""

    particles: float = 1.0
    steps: float = 1.0
    seeds: tuple[int, ...] = SEEDS


SSGE = {"functional_prior": functional_priors.on_points(functional_priors.ssge(draws=50), 10)}
WIDE = {"functional_prior": functional_priors.moment_matched(jitter=0.01)}

DETERMINISTIC = (
    Variant("DE", "de", column=True),
    Variant("w-SVGD", "w-svgd", column=True),
    Variant("f-SVGD", "f-svgd", target=SSGE, column=True),
    Variant("fw-SVGD", "fw-svgd-l", column=True),
    Variant("h-SVGD", "h-svgd-l", column=True),
    Variant("f-SVGD, no prior", "f-svgd"),
    Variant("fw-SVGD, exact", "fw-svgd-l", {"repulsion": "exact"}),
    Variant("h-SVGD, exact", "h-svgd-l", {"repulsion": "exact"}),
)


def _everywhere(task: str) -> Measurement:
    """Fresh points over the whole picture, in every step, beside those of the batch."""
    if task == "regression":
        return Measurement(extra=lambda key: jax.random.uniform(key, (32, 1), minval=0.0, maxval=7.0))
    return Measurement(extra=lambda key: jax.random.uniform(key, (32, 2), minval=-20.0, maxval=20.0))


def variants(figure: str, preset: str, task: str) -> tuple[Variant, ...]:
    """The rows of a figure's table on a task."""
    if figure == "fig1":
        if preset != "corrected":
            return DETERMINISTIC
        wide = {"measurement": _everywhere(task)}
        return (
            *DETERMINISTIC[:2],
            Variant("f-SVGD", "f-svgd", target=wide | WIDE, column=True),
            Variant("fw-SVGD", "fw-svgd-l", target=wide, column=True),
            Variant("h-SVGD", "h-svgd-l", target=wide, column=True),
            Variant("fw-SVGD, exact", "fw-svgd-l", {"repulsion": "exact"}, wide),
            Variant("h-SVGD, exact", "h-svgd-l", {"repulsion": "exact"}, wide),
        )
    published = {"noise": "elementwise-shared", "noise_place": "adam-inside", "stochastic": True}
    if preset != "corrected":
        local = published | {"repulsion": "local"}
        return (
            Variant("SGLD", "sgld", {"noise_place": "adam-inside"}, column=True),
            Variant("w-SVGD", "w-svgd", published, column=True),
            Variant("fw-SVGD", "fw-svgd-l", local, column=True),
            Variant("h-SVGD", "h-svgd-l", local, column=True),
        )
    right = {"stochastic": True}
    unbiased = right | {"repulsion": rules.exact(energy=0.99, probe=True)}
    return (
        Variant("SGLD", "sgld", column=True),
        Variant("w-SVGD", "w-svgd", right, column=True),
        Variant("fw-SVGD", "fw-svgd-l", unbiased, column=True),
        Variant("h-SVGD", "h-svgd-l", unbiased, column=True),
        Variant("pSGLD", "psgld"),
        Variant("hp-SVGD", "hp-svgd", unbiased),
    )


SIZES = {"smoke": Size(0.2, 0.02, (42,)), "paper": Size(), "corrected": Size()}


def run_cell(
    task: Task, variant: Variant, seed: int, size: Size, hooks: Iterable[train.Hook] = (), chunk: int = 250
) -> Float[np.ndarray, "n g c"]:
    """Train one ensemble on a task; returns what its members say at the task's points."""
    options: dict[str, Any] = {"learning_rate": task.learning_rate, "anneal": task.anneal} | dict(variant.options)
    algorithm = build(variant.method, task.target(**variant.target), **options)
    key_start, key_batches = jax.random.split(jax.random.key(seed))
    n, steps = max(2, round(task.particles * size.particles)), steps_of(task, variant, size)
    state, _ = train.run(
        algorithm,
        jax.jit(lambda key: algorithm.init(key, n))(key_start),
        data.Batches(task.x, task.y, task.batch_size, key_batches),
        steps,
        chunk=min(steps, chunk),
        hooks=hooks,
        min_alive=0.0,
    )
    return task.predict(predict.living(state.particles, state.alive))


def steps_of(task: Task, variant: Variant, size: Size) -> int:
    return max(1, round(task.steps * variant.steps * size.steps))


def judge(task: Task, said: Float[np.ndarray, "n g c"], posterior: reference.Posterior) -> Numbers:
    """Compare what members say with the posterior."""
    if task.name == "regression":
        return toys.compare_regression(said[:, :, 0], posterior.draws)
    return toys.compare_classification(said, posterior.mean, task.x)


def save_cell(path: Path, said: np.ndarray) -> None:
    """In half precision where it is probabilities: three digits of them are enough for any table."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, said=said.astype(np.float32 if said.shape[-1] == 1 else np.float16))
    path.parent.mkdir(parents=True, exist_ok=True)
    durable.replace(path, buffer.getvalue())


def load_cell(path: Path) -> np.ndarray:
    with np.load(path) as found:
        return found["said"].astype(np.float32)


def cell_path(folder: Path, task: str, variant: Variant, seed: int) -> Path:
    name = variant.label.lower().replace(", ", "-").replace(" ", "-")
    return folder / "cells" / task / f"{name}-{seed}.npz"


def floor(task: Task, posterior: reference.Posterior) -> list[Numbers]:
    """As many draws of the posterior as the ensemble has members, against the others: what is left to chance."""
    if task.name == "classification":
        return posterior.about["floor"]
    random = np.random.default_rng(0)
    found = []
    for _ in SEEDS:
        chosen = random.choice(len(posterior.draws), task.particles, replace=False)
        rest = np.delete(posterior.draws, chosen, axis=0)
        found.append(toys.compare_regression(posterior.draws[chosen], rest))
    return found


def summary(rows: Iterable[Numbers]) -> dict[str, tuple[float, float]]:
    """Mean and standard error (n - 1) of every number over seeds; the error of a single seed is NaN."""
    rows = list(rows)
    columns = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    error = len(rows) ** -0.5
    return {
        name: (float(v.mean()), float(v.std(ddof=1) * error) if len(rows) > 1 else float("nan"))
        for name, v in columns.items()
    }


def paired(larger: Sequence[float], smaller: Sequence[float]) -> dict[str, float]:
    """Is one method's number larger than the other's? Over the same seeds, by flipping signs.

    ``p`` is the probability of so large a mean difference if the sign of every seed's difference were a coin's: exact,
    without assuming a distribution, and never below 2**-seeds.
    """
    difference = np.array(larger) - np.array(smaller)
    flips = np.array(list(itertools.product((1.0, -1.0), repeat=len(difference))))
    p = float(np.mean(flips @ difference >= difference.sum() - 1e-12))
    error = float(difference.std(ddof=1) / len(difference) ** 0.5) if len(difference) > 1 else float("nan")
    return {"difference": float(difference.mean()), "error": error, "p": p}


def run_cells(
    name: str,
    preset: str,
    folder: Path,
    *,
    tasks: Sequence[str] = ("regression", "classification"),
    labels: Sequence[str] = (),
    seeds: Sequence[int] = (),
    begin: Callable[[str, int], Callable[[int], None]],
) -> None:
    """Run the cells that are missing.

    Args:
        tasks, labels, seeds: the part of the cells to run now; all unless given.
        begin: called with the words for a cell and its number of steps; returns what is told the steps done.
    """
    size = SIZES[preset]
    size = size._replace(seeds=tuple(seeds) or size.seeds)
    for task_name in tasks:
        task = toys.TASKS[task_name]()
        for variant, seed in itertools.product(variants(name, preset, task_name), size.seeds):
            path = cell_path(folder, task_name, variant, seed)
            if path.exists() or (labels and variant.label not in labels):
                continue
            tick = begin(f"{task_name}, {variant.label}, seed {seed}", steps_of(task, variant, size))
            save_cell(path, run_cell(task, variant, seed, size, [partial(_told, tick)]))


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


def results(name: str, preset: str, folder: Path, seeds: Sequence[int]) -> dict[str, Any]:
    """Every number of every row whose seeds are all there, with means, errors, and the strength of the claims."""
    found: dict[str, Any] = {"figure": name, "preset": preset, "seeds": list(seeds), "tasks": {}}
    for task_name, make in toys.TASKS.items():
        task, posterior = make(), reference.posterior(task_name)
        rows = {}
        for variant in variants(name, preset, task_name):
            paths = [cell_path(folder, task_name, variant, seed) for seed in seeds]
            if all(path.exists() for path in paths):
                rows[variant.label] = [judge(task, load_cell(path), posterior) for path in paths]
        claims = [
            {"number": number, "larger": larger, "smaller": smaller}
            | paired(*([row[number] for row in rows[label]] for label in (larger, smaller)))
            for number, larger, smaller in CLAIMS[task_name]
            if {larger, smaller} <= rows.keys()
        ]
        rows[f"HMC, {task.particles} draws"] = floor(task, posterior)
        found["tasks"][task_name] = {
            "rows": {label: {"mean ± error": summary(numbers), "seeds": numbers} for label, numbers in rows.items()},
            "claims": claims,
        }
    return found


def markdown(found: dict[str, Any]) -> str:
    """The results as tables: mean ± standard error over seeds; the paper's claims with their probability."""
    lines = [f"# {found['figure']}, preset {found['preset']}, seeds {', '.join(map(str, found['seeds']))}"]
    for task, part in found["tasks"].items():
        names = list(next(iter(part["rows"].values()))["mean ± error"])
        lines += ["", f"## {task}", "", "| method | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
        for label, row in part["rows"].items():
            cells = [f"{mean:.2f} ± {error:.2f}" for mean, error in row["mean ± error"].values()]
            lines.append(f"| {label} | " + " | ".join(cells) + " |")
        if part["claims"]:
            lines += ["", "| is it larger? | than | in | by | p |", "|---|---|---|---|---|"]
        for claim in part["claims"]:
            by = f"{claim['difference']:.2f} ± {claim['error']:.2f}"
            lines.append(f"| {claim['larger']} | {claim['smaller']} | {claim['number']} | {by} | {claim['p']:.3f} |")
    return "\n".join(lines) + "\n"


def write(name: str, preset: str, folder: Path, seeds: Sequence[int] = ()) -> None:
    """table.json, table.md and figure.png of the cells that are there; the figure shows the last seed."""
    seeds = tuple(seeds) or SIZES[preset].seeds
    found = results(name, preset, folder, seeds)
    durable.replace(folder / "table.json", (json.dumps(found, indent=1) + "\n").encode())
    durable.replace(folder / "table.md", markdown(found).encode())
    shown: dict[str, dict[str, np.ndarray]] = {}
    for task_name in toys.TASKS:
        paths = {
            variant.label: cell_path(folder, task_name, variant, seeds[-1])
            for variant in variants(name, preset, task_name)
            if variant.column
        }
        shown[task_name] = {label: load_cell(path) for label, path in paths.items() if path.exists()}
    columns = [label for label in shown["regression"] if label in shown["classification"]]
    functions = {label: shown["regression"][label][:, :, 0] for label in columns}
    maps = {label: shown["classification"][label][:, : toys.SIDE**2].mean(axis=0) for label in columns}
    regression, classification = toys.regression(), toys.classification()
    plots.toys(
        toys.GRID,
        functions | {"HMC": reference.posterior("regression").draws},
        (regression.x[:, 0], regression.y[:, 0]),
        toys.AXIS,
        maps | {"HMC": reference.posterior("classification").mean},
        (classification.x, classification.y),
    ).savefig(folder / "figure.png", dpi=160)
