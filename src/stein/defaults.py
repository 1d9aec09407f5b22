"""What "auto" means for a table: one setting for all data, whose sizes follow the number of rows. No jax here.

docs/defaults.md has the tables and numbers that chose it.
"""

from typing import Literal, NamedTuple

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
