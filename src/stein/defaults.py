"""What "auto" means for a table: one setting for all data, whose sizes follow the number of rows. No jax here.

docs/defaults.md has the tables and numbers that chose it.
"""

import numbers
from typing import Any, Literal, NamedTuple

from stein import methods

PRIORS = (1.2, 2.0, 3.3)
"""Scales of the prior of which the best is chosen, on held-out rows."""
TRIAL_MEMBERS = 4
"""Members that try a prior."""


class Setting(NamedTuple):
    """The settings of an ensemble for a table.

    Args:
        noise: ``"learned"``, the same for all rows, or ``"input-dependent"``.
        modulation: how strongly the inputs change the noise (:func:`stein.models.with_log_sigma`).
        prior: scale of the prior by fan-in (:func:`stein.priors.fan_in`), where none is chosen from :data:`PRIORS`.
        learning_rate: of Adam at the start; it falls to a hundredth.
    """

    method: str
    particles: int
    hidden: tuple[int, ...]
    activation: str
    noise: str
    modulation: float
    prior: float
    steps: int
    batch_size: int
    learning_rate: float


def for_table(kind: Literal["regression", "classes"], rows: int) -> Setting:
    """The setting for a table of numbers with this many training rows.

    >>> for_table("regression", 1000).method
    'fw-svgd'
    """
    return Setting(
        method="fw-svgd",
        particles=10,
        hidden=(50, 50),
        activation="silu",
        noise="input-dependent",
        modulation=0.3,
        prior=1.2 if kind == "regression" else 2.0,
        steps=5000 if rows < 20_000 else 10_000,
        batch_size=128 if rows < 2000 else 256,
        learning_rate=0.01,
    )


DRAWS = 20
"""Kept draws of each chain of a sampler with momentum."""


def of_chains(method: Any, steps: Any = None) -> dict[str, Any]:
    """Keys of a config with which a sampler with momentum learns a table in ``steps`` steps (default: chosen here).

    ``mile`` trains a deep ensemble for half of its steps, tunes for a quarter and draws in the last, each time with all
    rows. ``sghmc`` draws in the last two fifths, with little friction and short steps. Nothing for other methods, or
    for what will be rejected.

    >>> of_chains("mile", 4000)["method.burn_in"], of_chains("de")
    (3000, {})
    """
    is_whole = isinstance(steps, numbers.Integral) and not isinstance(steps, bool) and int(steps) > 0
    if not isinstance(method, str) or method not in methods.names() or not (steps is None or is_whole):
        return {}
    dynamics = methods.lookup(method).dynamics
    if dynamics == "langevin":
        return {}
    total = int(steps or (4000 if dynamics == "microcanonical" else 5000))
    sampling = max(1, total // 4 if dynamics == "microcanonical" else total * 2 // 5)
    draws = min(DRAWS, sampling)
    chains: dict[str, Any] = {
        "train.steps": total,
        "method.draws": draws,
        "method.thin": sampling // draws,
        "method.burn_in": total - sampling,
    }
    if dynamics == "microcanonical":
        return chains | {"method.tuning_steps": total // 4, "method.energy_variance": 1e-3, "train.batch_size": 0}
    return chains | {"method.friction": 0.01, "optimiser.learning_rate": 1e-3}
