"""The work that the rows share: M (images, a perceptron), T (a curve), C (images, a ResNet-32), as our side does it.

Our side is the product: ``train.run``, its compiled chunk of steps, Adam, data in memory, a new batch at every step.
"""

from __future__ import annotations  # benchmarks/against.py runs this with older versions of stein

import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from stein import data, likelihoods, models, priors, targets, train
from stein.datasets import load_images, to_floats
from stein.ensembles import Algorithm, build
from stein.types import Batch, Model, Particles

WIDTHS = (784, 100, 100, 100, 10)
ROWS = 10_000  # of the data: a chunk shuffles all of them, and the chunks of a measurement are shorter than a user's
RATE = 1e-3


class Work(NamedTuple):
    """A model, its posterior and the data; ``words`` say what it is."""

    words: str
    model: Model
    target: targets.Target
    batches: data.Batches | data.Stream
    members: int


class Steps:
    """Steps of the training loop, compiled once, each from where the last one ended: a side of a comparison."""

    def __init__(
        self, algorithm: Algorithm, work: Work, steps: int, start: Particles | None = None, chunk: int | None = None
    ):
        self._algorithm, self._batches, self._steps, self._chunk = algorithm, work.batches, steps, chunk or steps
        self.state = train.begin(algorithm, jax.random.key(0), work.members, start)
        first, second = self(), self()
        self.compile_seconds = max(0.0, (first - second) * steps)

    def __call__(self) -> float:
        began = time.perf_counter()
        moved = train.run(self._algorithm, self.state, self._batches, self._steps, chunk=self._chunk)
        self.state, _ = jax.block_until_ready(moved)
        return (time.perf_counter() - began) / self._steps


def images(rows: int = ROWS) -> tuple[np.ndarray, np.ndarray, str]:
    """FashionMNIST if it is on this machine, or random numbers; the last answer says which."""
    try:
        found = load_images("fashion-mnist", offline=True)
    except (ValueError, OSError):  # ConnectionError, with `offline`, is one
        random = np.random.default_rng(0)
        return random.random((rows, WIDTHS[0]), np.float32), random.integers(0, 10, rows), "random inputs"
    return to_floats(found, flat=True)[:rows], found.y[:rows], "FashionMNIST"


def work_m(members: int = 50, subset: int | None = None) -> Work:
    """M: 784-100-100-100-10, batches of 256. ``subset``: measurement points of the functional kernel."""
    x, y, source = images()
    model = models.mlp(WIDTHS)
    measured = targets.Measurement(subset=subset)
    target = targets.posterior(model, likelihoods.categorical(), priors.normal(), len(x), measurement=measured)
    words = f"784-100-100-100-10, n = {members}, B = 256, {len(x)} rows of {source}, float32, Adam"
    return Work(words, model, target, data.Batches(x, y, 256, jax.random.key(1)), members)


def work_t(members: int = 50, rows: int | None = None) -> Work:
    """T: 1-D regression, 1-50-50-1, batches of 64. ``rows``: as many, the same again and again."""
    x, y = (np.resize(values, (rows or len(values), *values.shape[1:])) for values in data.regression_1d())
    model = models.mlp([1, 50, 50, 1])
    target = targets.posterior(model, likelihoods.gaussian(1.0), priors.normal(), len(x))
    words = f"1-50-50-1, n = {members}, B = 64"
    return Work(words, model, target, data.Batches(x, y, 64, jax.random.key(1)), members)


def work_c(members: int = 4) -> Work:
    """C: ResNet-32 on random images of 32 x 32, batches of 64."""
    random = np.random.default_rng(0)
    x, y = random.random((512, 32, 32, 3), np.float32), random.integers(0, 10, 512)
    model = models.resnet32()
    target = targets.posterior(model, likelihoods.categorical(), priors.normal(), len(x))
    words = f"ResNet-32, n = {members}, B = 64, random images of 32 x 32, float32, Adam"
    return Work(words, model, target, data.Batches(x, y, 64, jax.random.key(1)), members)


def method(name: str, work: Work, **options: Any) -> Algorithm:
    """A method as the rows train it. Members start at the model's own initialiser, where weights, functions and
    gradients are of order one, so that directions can be compared."""
    return build(name, work.target, **{"learning_rate": RATE, "start": "model", **options})


def first_particles(work: Work) -> Particles:
    return train.begin(method("de", work), jax.random.key(0), work.members).particles


def away_from_kinks(particles: Particles, x: np.ndarray, margin: float = 2e-5) -> Particles:
    """Perceptrons none of whose hidden units is nearly zero at a point of ``x``: the biases of such units go up a bit.

    Of millions of units some are zero to rounding, on in one library and off in another, and a gradient differs by
    1e-3 there. Without them two libraries agree to seven digits, and a check can tell a wrong constant.
    """
    leaves, structure = jax.tree.flatten(particles)
    leaves = [np.array(leaf) for leaf in leaves]
    hidden = np.broadcast_to(x.astype(float), (len(leaves[0]), *x.shape))
    for layer in range(0, len(leaves) - 2, 2):
        linear = hidden @ leaves[layer].swapaxes(1, 2).astype(float)
        near = True
        while np.any(near):
            values = linear + leaves[layer + 1][:, None]
            near = np.any(np.abs(values) < margin, axis=1)
            leaves[layer + 1][near] += 5 * margin
        hidden = np.maximum(values, 0)
    return jax.tree.unflatten(structure, [jnp.asarray(leaf) for leaf in leaves])


def direction(name: str, work: Work, particles: Particles, batch: Batch, **options: Any) -> Particles:
    """Where a step of plain gradient ascent at rate 1 takes the particles: the method's force itself."""
    algorithm = method(name, work, optimiser=optax.sgd, learning_rate=1.0, **options)
    start = algorithm.init(jax.random.key(0), work.members, particles)
    moved, _ = train.run(algorithm, start, lambda step: batch, 1)
    return jax.tree.map(jnp.subtract, moved.particles, start.particles)


def batch_rows(work: Work, batches: int = 16) -> np.ndarray:
    """Rows of the batches that a peer cycles through; at the first of them directions are compared."""
    return np.random.default_rng(2).integers(0, work.batches.num_data, (batches, work.batches.size))


def compared_particles(work: Work) -> Particles:
    """Perceptrons at which directions are compared."""
    return away_from_kinks(first_particles(work), np.asarray(work.batches.x)[batch_rows(work)[0]])


def problem(work: Work, particles: Particles, **more: Any) -> dict[str, Any]:
    """What a peer needs: weights leaf by leaf, the data, and the rows of every batch."""
    leaves = {f"leaf{i}": np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(particles))}
    x, y = np.asarray(work.batches.x), np.asarray(work.batches.y)
    return leaves | {"x": x, "y": y, "rows": batch_rows(work), "rate": RATE, **more}


def first_batch(given: dict[str, Any]) -> Batch:
    """The batch at which directions are compared."""
    rows = given["rows"][0]
    return Batch(jnp.asarray(given["x"][rows]), jnp.asarray(given["y"][rows]))


def median_bandwidth(particles: Particles) -> float:
    """h = med |w_i - w_j|^2 / log(n + 1) over all ordered pairs, as the default kernel has it."""
    flat = np.concatenate([np.asarray(leaf, float).reshape(len(leaf), -1) for leaf in jax.tree.leaves(particles)], 1)
    norms = np.sum(flat**2, axis=1)
    squared = np.maximum(norms[:, None] + norms[None] - 2 * flat @ flat.T, 0)
    np.fill_diagonal(squared, 0)
    return float(np.median(squared) / np.log(len(flat) + 1))
