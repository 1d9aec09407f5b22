"""Whether an ensemble on a toy task stays as close to the posterior as it was, and what a user can see of it.

``python benchmarks/lasting.py "mile" "student-fWGD"`` trains rows of ``stein reproduce fig1`` and ``ablation`` with
30,000 gradients of each member (``--gradients``), three times the protocol's, and writes results/lasting/ROW-SEED.json
(TASK-ROW-SEED.json but for the regression): at every thousandth gradient (``--every``) the distance to the posterior,
also of the chains' last states alone if draws are kept, and on the regression task ``far_spread``, which needs no
posterior. It continues where it was interrupted. Without a row it trains nothing. At its end it writes
results/lasting/table.md, the means over the seeds of all files, and figure.png.
"""

import argparse
import json
import shlex
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
from matplotlib.figure import Figure

from stein import hooks, predict, train
from stein.ensembles import members
from stein.paper import reference, toys
from stein.paper.statistics import summary, with_error
from stein.paper.toy_figures import algorithm_of, batches_of, cell_path, judge, steps_of
from stein.paper.variants import Size, Variant, variants
from stein.storage import checkpoint, durable

FOLDER = Path("results/lasting")
FIRST, CHUNK = 10_000, 250
NUMBERS = ("rho_data", "rho_gap", "rho_ext", "E_std", "W1", "last_E_std", "last_W1", "far_spread")
CLASSES = ("H_near", "H_far", "KL", "H_error", "AUROC_H", "last_KL", "last_H_error")
DISTANCES = ("E_std", "W1", "KL", "H_error")
AIMS = {"E_std": 0.12, "W1": 0.20, "KL": 0.18, "H_error": 0.07}


def trained_for(variant: Variant, total: int) -> int:
    """The steps with one gradient of each member: all, but for chains only those before their tuning; then two."""
    chains = "tuning_steps" in variant.options
    return variant.options["burn_in"] - variant.options["tuning_steps"] if chains else total


def gradients_before(task: toys.Task, variant: Variant) -> int:
    """Gradients of each member for the start: a repulsion that is pulled back takes a second one."""
    if variant.first is None:
        return 0
    return steps_of(task, variant.first, Size()) * (1 if variant.first.method == "de" else 2)


def follow(task: toys.Task, variant: Variant, seed: int, total: int, every: int, path: Path, checkpoints: Path) -> None:
    """Train one ensemble with the seeds and batches of its table; its numbers, ``every`` so many gradients, go to
    ``path``."""
    before = gradients_before(task, variant)
    single = trained_for(variant, total) - before
    steps = single + (total - before - single) // 2
    key_start, key_batches = jax.random.split(jax.random.key(seed))
    posterior, batches = reference.posterior(task.name), batches_of(task, variant, key_batches)
    algorithm = algorithm_of(task, variant, variant.target)
    state = train.begin(algorithm, key_start, task.particles)
    found = checkpoint.newest(checkpoints, state, print)
    if found is not None:
        state = found[0]
    elif variant.first:
        start = algorithm_of(task, variant.first, variant.target)
        first_steps = steps_of(task, variant.first, Size())
        trained, _ = train.run(start, train.begin(start, key_start, task.particles), batches, first_steps, chunk=CHUNK)
        state = train.begin(algorithm, key_start, task.particles, predict.living(trained.particles, trained.alive))
    step = int(state.step)
    numbers = {} if found is None else json.loads(path.read_text())["gradients"]

    def measure(moment: train.Moment) -> None:
        spent = before + moment.step + max(0, moment.step - single)
        if spent % every == 0:
            distances = judge(task, task.predict(predict.living(*members(moment.state))), posterior)
            if moment.state.draws:
                last = predict.living(moment.state.particles, moment.state.alive)
                distances |= {f"last_{name}": far for name, far in judge(task, task.predict(last), posterior).items()}
            numbers[str(spent)] = distances | moment.metrics
            command = (
                f"python benchmarks/lasting.py {variant.label!r} --task {task.name} --gradients {total} --every {every}"
            )
            said = {"command": command, "seed": seed, "gradients": numbers}
            durable.replace(path, (json.dumps(said, indent=1) + "\n").encode())
            print(variant.label, spent, {k: round(v, 3) for k, v in numbers[str(spent)].items()}, flush=True)

    watchers = [measure, hooks.Checkpoints(checkpoints, every=4 * CHUNK, keep=2)]
    if not task.has_classes:
        target = task.target(**variant.target)
        watchers.insert(0, hooks.far_spread(task.model, task.likelihood, target, task.x, every=CHUNK, warn=print))
    if step < steps:
        train.run(algorithm, state, batches, steps - step, chunk=CHUNK, hooks=watchers)


def by_row(folder: Path, name: Callable[[Path, dict], str]) -> dict[str, list[dict]]:
    """What was measured on the way, for every seed of every row."""
    rows: dict[str, list[dict]] = {}
    for path in sorted(folder.glob("*.json")):
        found = json.loads(path.read_text())
        rows.setdefault(name(path, found), []).append(found["gradients"])
    return rows


def table(folder: Path) -> str:
    """Mean and standard error over seeds at every ten-thousandth gradient, and the largest value of any seed since the
    first of these: a mean hides a seed that wandered off and came back."""
    rows = by_row(folder, lambda path, _: path.stem.rpartition("-")[0])
    lines = ["`python benchmarks/lasting.py`: mean ± standard error over seeds; worst: of all seeds so far"]
    for row, seeds in rows.items():
        shown = CLASSES if row.startswith("classification") else NUMBERS
        measured = next((steps[str(FIRST)] for steps in seeds if str(FIRST) in steps), {})
        names = [name for name in shown if name in measured]
        worst = [f"worst {name}" for name in DISTANCES if name in names]
        lines += ["", f"**{row}**", "", f"| gradients | seeds | {' | '.join(names + worst)} |"]
        lines.append("|---:" * (2 + len(names + worst)) + "|")
        last = max(int(step) for steps in seeds for step in steps)
        for step in range(FIRST, last + 1, FIRST):
            there = [steps[str(step)] for steps in seeds if str(step) in steps]
            if not there:
                continue
            numbers = summary([{name: found[name] for name in names} for found in there])
            cells = [with_error(*numbers[name], digits=3) for name in names]
            for name in worst:
                since = [at[name.removeprefix("worst ")] for steps in seeds for at in _until(steps, step)]
                cells.append(f"{max(since):.3f}")
            lines.append(f"| {step:,} | {len(there)} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _until(steps: dict[str, dict], last: int) -> list[dict]:
    return [numbers for step, numbers in steps.items() if FIRST <= int(step) <= last]


def figure(folder: Path) -> Figure:
    """Each distance of each row by the gradients that were spent: the mean over the seeds, and all of them."""
    drawn = Figure(figsize=(10, 7), layout="constrained")
    axes = dict(zip(DISTANCES, drawn.subplots(2, 2).flat, strict=True))
    rows = by_row(folder, lambda _, found: shlex.split(found["command"])[2])
    for number, axis in axes.items():
        has_classes = number in CLASSES
        axis.axhline(AIMS[number], color="0.4", ls="--", lw=1, label="aim")
        for i, (label, seeds) in enumerate(rows.items()):
            lines = [{int(k): at[number] for k, at in of.items() if ("H_error" in at) == has_classes} for of in seeds]
            lines = [line for line in lines if line]
            # of a seed that was measured more often than others only what all have, until the others end
            steps = [k for k in sorted(set().union(*lines)) if all(k in line or k > max(line) for line in lines)]
            if steps:
                found = [[line[k] for line in lines if k in line] for k in steps]
                of = {how: [how(values) for values in found] for how in (np.mean, np.min, np.max)}
                axis.plot(steps, of[np.mean], color=f"C{i}", label=f"{label} ({len(lines)})")
                axis.fill_between(steps, of[np.min], of[np.max], color=f"C{i}", alpha=0.2, lw=0)
        axis.set(yscale="log", ylabel=number, xlabel="gradients of each member, thousands")
        axis.set_title("classification" if has_classes else "regression")
        axis.xaxis.set_major_formatter(lambda value, _: f"{value / 1000:.0f}")
    for axis in (axes["W1"], axes["H_error"]):
        axis.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5), title="row (seeds)")
    return drawn


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", nargs="*")
    parser.add_argument("--gradients", type=int, default=30_000)
    parser.add_argument("--every", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--task", choices=toys.TASKS, default="regression")
    chosen = parser.parse_args()
    task = toys.TASKS[chosen.task]()
    known = {
        variant.label: variant for variant in (*variants("ablation", "paper", task), *variants("fig1", "paper", task))
    }
    for label in chosen.rows:
        name = cell_path(Path(), "", label, chosen.seed).stem
        name = f"{task.name}-{name}" if task.has_classes else name
        path = FOLDER / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        follow(task, known[label], chosen.seed, chosen.gradients, chosen.every, path, Path("build/lasting") / name)
    durable.replace(FOLDER / "table.md", table(FOLDER).encode())
    figure(FOLDER).savefig(FOLDER / "figure.png", dpi=120)


if __name__ == "__main__":
    main()
