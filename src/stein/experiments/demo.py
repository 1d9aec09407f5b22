"""The 1-D regression problem of the paper at the paper's settings: what does an ensemble say where it saw nothing?"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Float

from stein import data, likelihoods, models, predict, priors, train
from stein.ensembles import build
from stein.targets import posterior

GRID = np.linspace(0.0, 7.0, 141)
REGIONS = {
    "at the data": (GRID >= 1.5) & (GRID <= 2.5) | (GRID >= 4.5) & (GRID <= 6.0),
    "in the gap": (GRID >= 2.8) & (GRID <= 4.2),
    "outside": (GRID <= 1.0) | (GRID >= 6.5),
}


class Regression(NamedTuple):
    """The members' functions on :data:`GRID`, one row each, and the data that they were trained on."""

    x: Float[np.ndarray, " N"]
    y: Float[np.ndarray, " N"]
    members: dict[str, Float[np.ndarray, "n g"]]

    def spread(self) -> dict[str, dict[str, float]]:
        """For each method, the standard deviation over members, averaged over each region."""
        return {
            method: {name: float(f.std(axis=0, ddof=1)[where].mean()) for name, where in REGIONS.items()}
            for method, f in self.members.items()
        }


def run(
    methods: tuple[str, ...] = ("de", "w-svgd"),
    *,
    steps: int = 10_000,
    particles: int = 50,
    seed: int = 42,
    progress: Callable[[str, int], None] = lambda method, done: None,
) -> Regression:
    """Train each method on the same data from the same prior draws.

    Args:
        progress: called with the method and the number of steps done, a few times a second.
    """
    x, y = data.regression_1d()
    model = models.mlp([1, 50, 50, 1])
    target = posterior(model, likelihoods.gaussian(1.0), priors.normal(1.0), len(x))
    key_start, key_batches = jax.random.split(jax.random.key(seed))

    def functions(method: str) -> np.ndarray:
        algorithm = build(method, target, learning_rate=1e-3)
        state, _ = train.run(
            algorithm,
            algorithm.init(key_start, particles),
            data.Batches(x, y, 64, key_batches),
            steps,
            chunk=min(steps, 250),
            hooks=[lambda moment: progress(method, moment.step)],
        )
        living = predict.living(state.particles, state.alive)
        return np.asarray(predict.outputs(model, living, GRID[:, None].astype(x.dtype)))[:, :, 0]

    return Regression(x[:, 0], y[:, 0], {method: functions(method) for method in methods})
