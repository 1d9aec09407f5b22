r"""P4: the exact repulsion between functions: its cost over a deep ensemble's step, and its error.

.. math:: R_i = \sum_j J_j^\top \nabla_{f_j} k(f_i, f_j)

is n^2 backward passes as it stands. It is computed here as it stands, in float64, and what the library makes of it is
compared with that on real functions, at initialisation (draws from the prior) and after training.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from harness import paired
from works import WIDTHS, Steps, Work, method, work_m

from stein import models, rules, train
from stein.ensembles import build
from stein.types import Batch, Particles

STEPS, PAIRS = 2, 5
TRAINED = 300


class Setting(NamedTuple):
    """Options of ``rules.exact``, the number of measurement points (None: the batch), and the promise."""

    words: str
    options: dict[str, Any]
    points: int | None
    limit: float | None
    methods: tuple[str, ...] = ("fw-svgd",)


SETTINGS = [
    Setting("4 directions + probe", {"directions": 4, "probe": True}, None, 4.0, ("fw-svgd", "h-svgd")),
    Setting("probe alone", {"energy": 0.0, "probe": True}, None, None),
    Setting("all directions, 32 measurement points", {"energy": 1.0}, 32, 10.0, ("fw-svgd", "h-svgd")),
    Setting("default", {}, None, None),
]


def step() -> list[dict]:
    work = work_m()
    alone = Steps(method("de", work), work, STEPS)
    rows = []
    for when, start in {"at initialisation": begun(work), f"after {TRAINED} steps": trained(work)}.items():
        found = errors(start)
        rows += [
            timed(name, setting, when, start, alone, found[setting.words])
            for setting in SETTINGS
            for name in setting.methods
        ]
    return rows


def begun(work: Work) -> Particles:
    """Draws from the prior, as the paper's tables start."""
    return train.begin(build("de", work.target), jax.random.key(0), work.members).particles


def trained(work: Work) -> Particles:
    """By fw-SVGD with the local repulsion: the exact one would take minutes."""
    algorithm = build("fw-svgd", work.target, repulsion="local", learning_rate=1e-3)
    state = train.begin(algorithm, jax.random.key(0), work.members)
    return train.run(algorithm, state, work.batches, TRAINED, chunk=100)[0].particles


def timed(name: str, setting: Setting, when: str, start: Particles, alone: Steps, found: str) -> dict:
    work = work_m(subset=setting.points)
    ours = Steps(method(name, work, repulsion=rules.exact(**setting.options)), work, STEPS, start)
    return paired(
        f"P4 exact {name} step / deep-ensemble step, {setting.words}, {when}", work.words, ours, alone, setting.limit,
        PAIRS, unit="seconds per step", compile_seconds=ours.compile_seconds, note=found,
    )  # fmt: skip


# -- errors --------------------------------------------------------------------------------------------------------


def errors(particles: Particles) -> dict[str, str]:
    """|ours - the n^2 sum| / |the n^2 sum| in words, on one batch: at the same points, and at the whole batch."""
    with jax.enable_x64(True):
        particles = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), particles)
        batch = work_m().batches.at(0)
        batch = batch._replace(x=batch.x.astype(jnp.float64))
        sums = {points: n_squared(particles, batch.x[:points]) for points in {s.points for s in SETTINGS}}
        return {setting.words: error(setting, particles, batch, sums) for setting in SETTINGS}


def error(setting: Setting, particles: Particles, batch: Batch, sums: dict[int | None, Particles]) -> str:
    ours = repulsion(work_m(subset=setting.points), particles, batch, setting.options)
    words = f"relative error of the repulsion {apart(ours, sums[setting.points]):.2g}"
    if setting.points:
        words += f" at its own points, {apart(ours, sums[None]):.2g} against the sum at the whole batch"
    return words + (", one draw of the probe" if setting.options.get("probe") else "")


def repulsion(work: Work, particles: Particles, batch: Batch, options: dict[str, Any]) -> Particles:
    """The library's R: with an annealing of zero nothing else moves the particles, so a step of rate n is R itself."""
    settings = {"optimiser": optax.sgd, "learning_rate": float(work.members), "anneal": 0.0}
    algorithm = build("fw-svgd", work.target, repulsion=rules.exact(**options), **settings)
    start = algorithm.init(jax.random.key(0), work.members, particles)
    moved, _ = train.run(algorithm, start, lambda step: batch, 1)
    return jax.tree.map(jnp.subtract, moved.particles, start.particles)


@jax.jit  # with its arrays as arguments: XLA would fold constants for minutes
def rows_of_the_sum(particles: Particles, x: jax.Array, h: jax.Array) -> Particles:
    """For every i one gradient of sum_j k(f_i, f(w_j)) in all w_j: the sum over j is R_i."""
    outputs = jax.vmap(models.mlp(WIDTHS).apply, (0, None))

    def to_all(w: Particles, f_i: jax.Array) -> jax.Array:
        apart = outputs(w, x) - f_i[None]
        return jnp.sum(jnp.exp(-jnp.sum(apart**2, axis=(1, 2)) / len(x) / h))

    def row(f_i: jax.Array) -> Particles:
        return jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), jax.grad(to_all)(particles, f_i))

    return jax.lax.map(row, outputs(particles, x))


def n_squared(particles: Particles, x: jax.Array) -> Particles:
    f = jax.vmap(models.mlp(WIDTHS).apply, (0, None))(particles, x)
    return rows_of_the_sum(particles, x, bandwidth(f))


def bandwidth(f: jax.Array) -> float:
    """The median heuristic over all ordered pairs, on distances that are means over the points."""
    flat = np.asarray(f).reshape(len(f), -1)
    squared = np.array([np.sum((flat - one) ** 2, axis=1) for one in flat]) / f.shape[1]
    return float(np.median(squared) / np.log(len(f) + 1))


def apart(ours: Particles, reference: Particles) -> float:
    ours, reference = (jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(t)]) for t in (ours, reference))
    return float(jnp.linalg.norm(ours - reference) / jnp.linalg.norm(reference))
