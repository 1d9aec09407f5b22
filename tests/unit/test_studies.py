"""What the studies of the toy tasks run, and how their tables are put together."""


import jax
import numpy as np

from stein import build, data, predict, schedules, train
from stein.experiments import figures, toys
from stein.experiments.variants import Size, Variant

SMALL = Size(particles=0.06, steps=0.001)  # three members, ten steps


def phase(task, method, weights=None, **options):
    """One phase of a cell of seed 42, written out."""
    key_start, key_batches = jax.random.split(jax.random.key(42))
    algorithm = build(method, task.target(), **options)
    batches = data.Batches(task.x, task.y, task.batch_size, key_batches)
    state, _ = train.run(algorithm, algorithm.init(key_start, 3, weights), batches, 10, chunk=10)
    return state.particles


def test_only_the_first_phase_of_the_corrected_noise_is_annealed():
    """Sees a sampling phase whose likelihood is weakened, which samples another distribution than the posterior, and
    a first or only phase that has lost the annealing of its task."""
    task = toys.regression()._replace(anneal=schedules.hyperbolic(20))
    start = phase(task, "de", learning_rate=task.learning_rate, anneal=task.anneal)
    end = phase(task, "psgld", start, learning_rate=1e-4)
    alone, after = Variant("DE", "de"), Variant("pSGLD", "psgld", {"learning_rate": 1e-4}, first="de")
    for variant, weights in ((alone, start), (after, end)):
        right = task.predict(weights)
        assert np.abs(figures.run_cell(task, variant, 42, SMALL) - right).max() < 1e-9 * np.abs(right).max()
