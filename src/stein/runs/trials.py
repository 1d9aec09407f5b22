"""Runs the trials of a search: each is a run that can be resumed; the best one becomes a config to train.

::

    trials/007/    a run directory; with failed.json if too many members died; not for committing
    optuna.journal what an adaptive search has tried, for Optuna
    slurm/         scripts and logs of jobs, with --slurm
    sweep.json     a list: settings, status, numbers on held-out points and seconds of each trial
    sweep.md       the same as a table, the best first
    best.toml      the config of the best trial, for `stein train`
    sweep.png      the metric against each key
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from stein.datasets.fetch import Progress
from stein.report import plots
from stein.runs import configs
from stein.runs.folder import RunFolder
from stein.runs.launchers import Launcher
from stein.runs.pool import make_missing, seconds, trained
from stein.runs.schema import Train
from stein.runs.search import Plan, Trial, place
from stein.storage import documents
from stein.train import Hook, ParticlesDiedError

# Which points the numbers refer to, by whether there are test points that no trial has used.
NOTES = {
    True: "`test_*` are of training images held out for the choice; no trial has read the test images.",
    False: "`validation_*` are of training points held out for the choice; the test points had no part in it.",
}


def make(folder: Path, plan: Plan, launcher: Launcher, begin: Progress) -> None:
    """Train the trials that are neither finished nor failed; this command's share of them."""
    numbers = [n for n in launcher.share(range(plan.length)) if not RunFolder(place(folder, n)).has_ended]
    if plan.is_adaptive:
        steps = len(numbers) * plan.base.get("train", {}).get("steps", Train().steps)
        missing: Mapping[Path, Any] = {place(folder, number): number for number in numbers}
        make_missing(partial(make_adaptive_trial, folder, plan), missing, steps, launcher, begin)
    else:
        missing = {place(folder, number): plan.trials[number] for number in numbers}
        steps = sum(trial.config.train.steps for trial in missing.values())
        make_missing(partial(make_trial, folder), missing, steps, launcher, begin)


def make_trial(folder: Path, trial: Trial, show: bool = False, also: Sequence[Hook] = ()) -> None:
    """Train one trial to its end, from wherever it was. A trial whose members die has ended too."""
    place = trial.place(folder)
    try:
        with trained(trial.config, place, show, also):
            pass
    except ParticlesDiedError as error:
        documents.write_json(RunFolder(place).failure, {"reason": str(error)})


def make_adaptive_trial(folder: Path, plan: Plan, number: int, show: bool = False) -> None:
    """Train one trial whose settings follow from those that have ended."""
    from stein.runs.adaptive import Study  # Optuna is optional

    study = Study(folder, plan, number)
    trial = study.propose()
    make_trial(folder, trial, show, [study.hook(trial)] if plan.search.halving else [])
    study.tell()


def finished(folder: Path, plan: Plan) -> Plan | None:
    """The search with the trials that were made; None if some have not ended."""
    if not all(RunFolder(place(folder, number)).has_ended for number in range(plan.length)):
        return None
    made = (plan.begun(number, folder) for number in range(plan.length))
    return plan._replace(trials=tuple(trial for trial in made if trial)) if plan.is_adaptive else plan


def write(folder: Path, plan: Plan, command: str) -> dict[str, Any]:
    """Write sweep.json, sweep.md, best.toml and sweep.png when all trials have ended; returns the best trial's row."""
    found = [_row(folder, trial, plan.metric) for trial in plan.trials]
    documents.write_text(folder / "sweep.json", json.dumps(found, indent=1))
    metric, sign = plan.metric, plan.search.sign
    judged = sorted(  # the first of equals
        (row for row in found if metric in row["metrics"] and row["status"] != "pruned"),
        key=lambda row: sign * row["metrics"][metric],
    )
    rest = [row for row in found if row not in judged]
    documents.write_text(folder / "sweep.md", markdown([*judged, *rest], plan, command))
    if not judged:
        raise RuntimeError(f"no trial has a finite {metric}; {folder / 'sweep.json'} says how they ended")
    config = plan.trials[int(judged[0]["trial"])].config
    section = msgspec.structs.replace(config.data, validate=False)
    if not plan.unseen and not section.split_column:  # train on all training points again
        section = msgspec.structs.replace(section, validation_fraction="auto")
    config = msgspec.structs.replace(config, data=section)
    documents.write_text(
        folder / "best.toml",
        f"# Trial {judged[0]['trial']} of {command}, the best of {len(found)}.\n\n{configs.dump(config)}",
    )
    values = [row["metrics"].get(metric) for row in found]
    figure = plots.search([row["settings"] for row in found], values, metric, best=int(judged[0]["trial"]))
    documents.write_figure(folder / "sweep.png", figure, dpi=130)
    return judged[0]


def markdown(rows: Sequence[dict[str, Any]], plan: Plan, command: str) -> str:
    """A table in the order of ``rows``."""
    metric, keys = plan.metric, list(plan.trials[0].settings)
    others = sorted({name for row in rows for name in row["metrics"]} - {metric})
    ends = Counter(row["status"] for row in rows)
    pruned = f", {ends['pruned']} ended early" if ends["pruned"] else ""
    lines = [
        f"`{command}`: {len(rows)} trials, {ends['failed']} failed{pruned}, the best {metric} first.",
        NOTES[plan.unseen],
        "",
        f"| trial | {' | '.join(keys)} | {' | '.join([metric, *others])} | seconds |",
        "|---" * (len(keys) + len(others) + 3) + "|",
    ]
    for row in rows:
        numbers = [
            f"{row['metrics'][name]:.4f}" if name in row["metrics"] else row["status"] for name in [metric, *others]
        ]
        settings = [_shown(value) for value in row["settings"].values()]
        lines.append(f"| {row['trial']} | {' | '.join(settings)} | {' | '.join(numbers)} | {row['seconds']:.0f} |")
    return "\n".join(lines)


def _row(folder: Path, trial: Trial, metric: str) -> dict[str, Any]:
    place = trial.place(folder)
    run = RunFolder(place)
    numbers = documents.read_json(run.numbers)
    part = metric.partition("_")[0]
    row = {
        "trial": trial.name,
        "settings": trial.settings,
        "status": "pruned" if run.pruned.exists() else run.state,
        "metrics": {name: value for name, value in numbers.items() if name.startswith(f"{part}_")},
        "seconds": seconds(place),
    }
    return row | documents.read_json(run.failure)


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
