"""The rows of the toy tables: which method with which settings, by figure and preset."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import optax

from stein import functional_priors, kernels, measurements, rules, schedules
from stein.paper.protocols import SEEDS
from stein.paper.toys import Task
from stein.targets import Measurement


class Variant(NamedTuple):
    """A method and its settings. ``options`` go to :func:`stein.build`, ``target`` to :func:`stein.posterior`."""

    label: str
    method: str
    options: Mapping[str, Any] = {}
    target: Mapping[str, Any] = {}
    column: bool = False  # whether it has a column in the figure, or only a row in the table
    steps: float = 1.0  # relative to the protocol
    first: "Variant | None" = None  # trains the start, in additional steps


class Size(NamedTuple):
    """The size of a preset: members and steps are multiplied by these."""

    particles: float = 1.0
    steps: float = 1.0
    seeds: tuple[int, ...] = SEEDS


SSGE = {"functional_prior": functional_priors.on_points(functional_priors.ssge(draws=50), 10)}
EXACT = {"repulsion": rules.exact(energy=1.0)}  # all directions: nothing is left out

DE = Variant("DE", "de", column=True)
DETERMINISTIC = (
    DE,
    Variant("w-SVGD", "w-svgd", column=True),
    Variant("f-SVGD", "f-svgd", target=SSGE, column=True),
    Variant("fw-SVGD", "fw-svgd-l", column=True),
    Variant("h-SVGD", "h-svgd-l", column=True),
    Variant("f-SVGD, no prior", "f-svgd"),
    Variant("fw-SVGD, exact", "fw-svgd-l", EXACT),
    Variant("h-SVGD, exact", "h-svgd-l", EXACT),
)


def in_the_box_of(x: np.ndarray, number: int) -> dict[str, Measurement]:
    """Extra measurement points in the smallest box that contains the inputs: the gap, but nothing outside."""
    return {"measurement": Measurement(extra=measurements.box(x, number))}


def variants(figure: str, preset: str, task: Task) -> tuple[Variant, ...]:
    """The rows of a figure's table on a task."""
    if figure == "ablation":
        return _ablation(task)
    corrected = preset == "corrected"
    if figure == "fig1":
        return recommended(task, min(task.learning_rate, 1e-3)) if corrected else (*DETERMINISTIC, *_later(task))
    return _corrected_noise(task) if corrected else PUBLISHED_NOISE


def recommended(task: Task, learning_rate: float) -> tuple[Variant, ...]:
    """The settings closest to the posterior in the ablation: a point in the box, and steps that members can follow."""
    point, rate = in_the_box_of(task.x, 1), {"learning_rate": learning_rate}
    return (
        *DETERMINISTIC[:2],
        Variant("fw-SVGD", "fw-svgd-l", rate, point, column=True),
        Variant("h-SVGD", "h-svgd-l", rate, point, column=True),
    )


def _later(task: Task) -> tuple[Variant, ...]:
    """Methods that are newer than the paper, with as many gradients of a member's network as the others have steps.

    SGHMC starts at a deep ensemble of half the steps; its rate was the best of four on seed 7 of each task. mile takes
    two gradients a step, of all data: half of the steps train, 1,500 in 10,000 tune, 1,000 sample. Its second row is
    tuned as published, to another energy variance, with 130,000 gradients. A gradient of FoRDE's repulsion
    costs as much as two of the network, one of fw-SVGD's as much as one.
    """
    apart = Measurement("extra", extra=measurements.box(task.x, 1))
    half, rate = task.steps // 2, 3e-4 if task.has_classes else 3e-5
    falling = {"learning_rate": optax.exponential_decay(rate, half, 1 / 30)}
    chains = {"burn_in": 1.3 * half, "tuning_steps": 0.3 * half, "thin": half / 100}
    return (
        Variant("RDE", "rde", {"space": "probabilities"} if task.has_classes else {}, {"measurement": apart}),
        Variant("FoRDE", "forde", steps=1 / 3),
        Variant("SGHMC", "sghmc", falling, steps=0.5, first=DE._replace(steps=0.5)),
        after_repulsion(task),
        Variant(
            "mile",
            "mile",
            {k: round(v) for k, v in chains.items()} | {"draws": 20, "energy_variance": 1e-4},
            steps=0.75,
        ),
        Variant(
            "mile, as published",
            "mile",
            {"burn_in": 60_000, "tuning_steps": 50_000, "draws": 20, "thin": 500},
            steps=70_000 / task.steps,
        ),
    )


def after_repulsion(task: Task) -> Variant:
    """fw-SVGD spreads the members, momentum with little friction keeps them there: minibatches all the way.

    Half of the gradients are for each. Rates and friction were chosen on seed 7 of each task; the repulsion's rate
    is that of the recommended setting.
    """
    spread = Variant("fw-SVGD", "fw-svgd-l", {"learning_rate": 1e-3}, steps=0.25)
    rate = 1e-4 if task.has_classes else 1e-5
    kept = {"draws": 20, "thin": max(1, task.steps // 80)}  # of the last quarter of the gradients
    return Variant(
        "fw-SVGD, then SGHMC", "sghmc", {"learning_rate": rate, "friction": 0.01} | kept, steps=0.5, first=spread
    )


_INSIDE = {"noise": "elementwise-shared", "noise_place": "adam-inside", "stochastic": True}
PUBLISHED_NOISE = (
    Variant("SGLD", "sgld", {"noise_place": "adam-inside"}, column=True),
    Variant("w-SVGD", "w-svgd", _INSIDE, column=True),
    Variant("fw-SVGD", "fw-svgd-l", _INSIDE | {"repulsion": "local"}, column=True),
    Variant("h-SVGD", "h-svgd-l", _INSIDE | {"repulsion": "local"}, column=True),
)


def _corrected_noise(task: Task) -> tuple[Variant, ...]:
    """Decreasing Langevin steps from a trained start: long ones reach the gap, short ones are accurate at the data.

    Rates of coupled rules are larger because their drift and noise are divided by n.
    """

    def rates(first: float, last: float) -> dict[str, Any]:
        return {"learning_rate": optax.exponential_decay(first, task.steps, last / first)}

    alone, coupled = rates(3e-4, 1e-5), rates(1e-2, 3e-4) | {"stochastic": True}
    unbiased = coupled | {"repulsion": rules.exact(energy=0.99, probe=True)}
    return (
        Variant("pSGLD", "psgld", alone, column=True, first=DE),
        Variant("w-SVGD", "w-svgd", coupled, column=True, first=Variant("w-SVGD", "w-svgd")),
        Variant("fw-SVGD", "fw-svgd-l", unbiased, column=True, first=Variant("fw-SVGD", "fw-svgd-l")),
        Variant("h-SVGD", "h-svgd-l", unbiased, column=True, first=Variant("h-SVGD", "h-svgd-l")),
        Variant("SGLD", "sgld", rates(1e-4, 1e-5), first=DE),
    )


def _ablation(task: Task) -> tuple[Variant, ...]:
    """fw-SVGD of the paper with one setting changed at a time, and the settings that came closest to the posterior."""

    def kernel(factor: float) -> dict[str, Any]:
        return {"kernel": kernels.rbf(kernels.median(factor=factor))}

    def rate(factor: float) -> dict[str, Any]:
        return {"learning_rate": factor * task.learning_rate}

    best, half = after_repulsion(task), DE._replace(steps=0.5)
    kept = {name: best.options[name] for name in ("draws", "thin")}
    falling = {"learning_rate": schedules.polynomial(3e-4, offset=1000, power=1.0)}
    common = (
        Variant("fw-SVGD", "fw-svgd-l"),
        Variant("bandwidth x 3", "fw-svgd-l", kernel(3.0)),
        Variant("bandwidth over 3", "fw-svgd-l", kernel(1 / 3)),
        Variant("1 point in the box", "fw-svgd-l", target=in_the_box_of(task.x, 1)),
        best._replace(label="DE, then SGHMC", first=half),
        best._replace(label="DE, then SGHMC, friction x 10", options={**best.options, "friction": 0.1}, first=half),
        Variant("DE, then pSGLD", "psgld", falling | kept, steps=0.5, first=half),
    )
    if task.has_classes:
        return (
            *common,
            Variant("bandwidth over 10", "fw-svgd-l", kernel(0.1)),
            Variant("rate over 10", "fw-svgd-l", rate(0.1)),
            Variant("rate over 10, steps x 3", "fw-svgd-l", rate(0.1), steps=3),
            Variant("rate over 10, 1 point in the box", "fw-svgd-l", rate(0.1), in_the_box_of(task.x, 1)),
            Variant("fw-SVGD-s", "fw-svgd-s"),
            Variant("h-SVGD, rate over 10", "h-svgd-l", rate(0.1)),
        )
    two, four = in_the_box_of(task.x, 2), in_the_box_of(task.x, 4)
    picture = np.array([[0.0], [7.0]])
    lasting = in_the_box_of(picture, 8) | {"functional_prior": functional_priors.infinite_width([1, 50, 50, 1])}
    slower = {"learning_rate": schedules.polynomial(task.learning_rate, offset=3000, power=1.0)}
    return (
        *common,
        Variant("rate x 10", "fw-svgd-l", rate(10)),
        Variant("steps x 3", "fw-svgd-l", steps=3),
        Variant("steps x 3, 1 point in the box", "fw-svgd-l", target=in_the_box_of(task.x, 1), steps=3),
        Variant("2 points in the box", "fw-svgd-l", target=two),
        Variant("4 points in the box", "fw-svgd-l", target=four),
        Variant("4 points everywhere", "fw-svgd-l", target=in_the_box_of(picture, 4)),
        Variant("4 points in the box, exact", "fw-svgd-l", EXACT, four),
        Variant("h-SVGD, 4 points in the box", "h-svgd-l", target=four),
        Variant("f-SVGD, 4 points in the box", "f-svgd",
                target=four | {"functional_prior": functional_priors.moment_matched()}),
        Variant("hp-SVGD", "hp-svgd"),
        Variant("student-fWGD", "student-fwgd", slower, lasting),
        Variant("student-fWGD, constant rate", "student-fwgd", target=lasting),
        Variant("gaussian-fWGD", "student-fwgd", slower | {"tails": np.inf}, lasting),
    )  # fmt: skip


SIZES = {"smoke": Size(0.2, 0.02, (42,)), "paper": Size(), "corrected": Size()}
