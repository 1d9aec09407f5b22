"""The main job on a fresh machine: five ensembles beside the posterior on the paper's regression task, in a minute."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from stein import durable, predict, train
from stein.experiments import figures, reference, toys, variants
from stein.experiments.folder import write_json
from stein.report import html, plots

# Less than the paper's 50 members and 10,000 steps, so that it takes a minute.
PARTICLES, STEPS, LEARNING_RATE = 20, 5000, 2e-3
FRAMES = 20
SHOWN = ("rho_gap", "rho_data", "rho_ext", "E_std", "W1")
Members = Float[np.ndarray, "n g"]


class Result(NamedTuple):
    """The members' functions on the grid at the end, those of the posterior among them, and during training."""

    task: toys.Task
    members: dict[str, Members]
    frames: list[tuple[int, dict[str, Members]]]
    numbers: dict[str, dict[str, float]]


def run(*, steps: int = STEPS, seed: int = 42, begin: Callable[[str, int], Callable[[int], None]]) -> Result:
    """Train every method of the figure on the same data from the same prior draws.

    Args:
        begin: called with a method and its number of steps; returns what is told the steps done.
    """
    task = toys.regression()._replace(particles=PARTICLES, steps=steps, learning_rate=LEARNING_RATE)
    posterior = reference.posterior("regression")
    members: dict[str, Members] = {}
    frames: dict[int, dict[str, Members]] = {}
    for variant in variants.DETERMINISTIC:
        if not variant.column:
            continue
        tick = begin(variant.label, steps)

        def watch(moment: train.Moment, label: str = variant.label, tick: Callable[[int], None] = tick) -> None:
            tick(moment.step)
            functions = task.predict(predict.living(moment.state.particles, moment.state.alive))[:, :, 0]
            frames.setdefault(moment.step, {})[label] = functions

        chunk = max(1, steps // FRAMES)
        members[variant.label] = figures.run_cell(task, variant, seed, variants.Size(), [watch], chunk)[:, :, 0]
    numbers = {label: toys.compare_regression(f, posterior.draws) for label, f in members.items()}
    members["HMC"] = posterior.draws
    numbers[f"HMC, {task.particles} draws"] = figures.floor(task, posterior)[0]
    return Result(task, members, sorted(frames.items()), numbers)


def table(result: Result) -> tuple[list[str], list[list[str]]]:
    """Header and rows: 1 is right for the ratios of spreads (rho), 0 for the distances."""
    rows = [[label, *(f"{row[name]:.2f}" for name in SHOWN)] for label, row in result.numbers.items()]
    return ["method", *SHOWN], rows


def write(result: Result, folder: Path) -> None:
    """regression.png, training.gif, numbers.json and report.html."""
    task = result.task
    x, y = task.x[:, 0], task.y[:, 0]
    picture, film = folder / "regression.png", folder / "training.gif"
    plots.regression(toys.GRID, result.members, x, y).savefig(picture, dpi=150)
    plots.animation(film, toys.GRID, result.frames, x, y)
    write_json(folder / "numbers.json", result.numbers)
    sections = [
        (
            "What the ensembles say",
            html.text(
                f"Each panel shows {task.particles} networks trained on the same 90 points. HMC is the posterior: "
                "the right answer for this network and prior. Look at the gap between the two clouds of points, where "
                "nothing was seen: a deep ensemble is too sure there, the methods that repel functions are less so."
            )
            + html.image(picture, "predictive mean, bands and members of every method"),
        ),
        (
            "In numbers",
            html.text(
                "rho is the spread of the members over that of the posterior in the gap, at the data and outside (1 is "
                "right); E_std, the mean absolute log-ratio of the spreads, and W1, the Wasserstein distance of the "
                "predictions, are 0 for the posterior itself. The last row is what as many of its own draws reach."
            )
            + html.table(*table(result)),
        ),
        ("How they got there", html.image(film, "the members during training")),
    ]
    page = html.page("stein: does an ensemble know what it does not know?", sections)
    durable.replace(folder / "report.html", page.encode())
