"""The paper's two toy problems as tasks: data, network, protocol, and the comparison with the posterior."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from stein import data, likelihoods, models, predict, priors
from stein.likelihoods import Likelihood
from stein.metrics import divergence, ood, uncertainty
from stein.priors import Prior
from stein.schedules import Schedule, constant, hyperbolic
from stein.targets import Target, posterior
from stein.types import Model, Particles

GRID = np.linspace(0.0, 7.0, 141)
REGIONS = {
    "data": (GRID >= 1.5) & (GRID <= 2.5) | (GRID >= 4.5) & (GRID <= 6.0),
    "gap": (GRID >= 2.8) & (GRID <= 4.2),
    "ext": (GRID <= 1.0) | (GRID >= 6.5),
}
SIDE = 100
AXIS = np.linspace(-20.0, 20.0, SIDE)
PLANE = np.stack(np.meshgrid(AXIS, AXIS), axis=-1).reshape(-1, 2)


class Task(NamedTuple):
    """A toy problem at the paper's settings. ``points`` are the inputs where ensembles are compared."""

    name: str
    x: Float[np.ndarray, "N p"]
    y: np.ndarray
    points: Float[np.ndarray, "g p"]
    model: Model
    likelihood: Likelihood
    prior: Prior
    particles: int
    steps: int
    learning_rate: float
    anneal: Schedule
    batch_size: int = 64

    @property
    def has_classes(self) -> bool:
        return "probabilities" in self.likelihood.features

    def target(self, **options: Any) -> Target:
        """The posterior of the task; ``options`` are those of :func:`stein.posterior`."""
        return posterior(self.model, self.likelihood, self.prior, len(self.x), **options)

    def predict(self, particles: Particles) -> Float[np.ndarray, "n g c"]:
        """Members' predictions at the task's points: values, or class probabilities."""
        weights = jax.tree.leaves(particles)[0]
        outputs = predict.outputs(self.model, particles, jnp.asarray(self.points, weights.dtype))
        return np.asarray(jax.nn.softmax(outputs) if self.has_classes else outputs)


def regression() -> Task:
    """45 + 45 points of x sin x with a gap between them, a 1-50-50-1 network, Gaussian likelihood of scale 1."""
    x, y = data.regression_1d()
    model, likelihood = models.mlp([1, 50, 50, 1]), likelihoods.gaussian(1.0)
    return Task(
        "regression", x, y, GRID[:, None], model, likelihood, priors.normal(), 50, 10_000, 1e-3, constant()
    )  # fmt: skip


TEST_POINTS, FAR_POINTS, CENTRE_POINTS = slice(SIDE**2, SIDE**2 + 100), slice(-250, -50), slice(-50, None)


def classification() -> Task:
    """Five Gaussians on a ring, a 2-50-50-5 network. ``points`` are the plane, 100 test points and 250 OOD points."""
    x, y = data.classification_2d()
    test, _ = data.classification_2d(seed=43, per_class=20)
    points = np.concatenate([PLANE, test, data.far_from_the_ring()])
    model, likelihood = models.mlp([2, 50, 50, 5]), likelihoods.categorical()
    return Task(
        "classification", x, y, points, model, likelihood, priors.normal(), 100, 5_000, 1e-2, hyperbolic(2000)
    )  # fmt: skip


TASKS = {"regression": regression, "classification": classification}


def compare_regression(functions: Float[np.ndarray, "n g"], reference: Float[np.ndarray, "m g"]) -> dict[str, float]:
    r"""Members on :data:`GRID` against draws of the posterior: 1 is ideal for :math:`\rho`, 0 for the distances."""
    ratios = {f"rho_{name}": divergence.spread_ratio(functions, reference, at) for name, at in REGIONS.items()}
    return ratios | {
        "E_std": divergence.log_spread_error(functions, reference),
        "W1": divergence.wasserstein(functions, reference),
        "KL": divergence.gaussian_kl(functions, reference),
        "energy": divergence.energy_distance(functions, reference),
        "coverage": divergence.coverage(functions, reference),
    }


def compare_classification(
    probabilities: Float[np.ndarray, "n g c"], reference: Float[np.ndarray, "p c"]
) -> dict[str, float]:
    """Members at the task's points against the mean probabilities of the posterior on the plane.

    ``H_near`` and ``H_far`` are mean entropies (1: uniform) within 1 of a training point and beyond 5 of all of them;
    ``AUROC_*`` by entropy (H) and model disagreement (MD), of all OOD points and of those between the classes.
    """
    mean = probabilities.mean(axis=0)
    entropy, spread = uncertainty.entropy(mean), uncertainty.disagreement(probabilities)
    on_plane, right = entropy[: SIDE**2], uncertainty.entropy(reference)
    near, far = near_and_far()
    safe = np.clip(mean[: SIDE**2], 1e-12, None)
    kl = (reference * (np.log(np.clip(reference, 1e-12, None)) - np.log(safe))).sum(axis=1)
    numbers = {
        "H_near": on_plane[near].mean(),
        "H_far": on_plane[far].mean(),
        "H_far_above_half": (on_plane[far] > 0.5).mean(),
        "KL": kl.mean(),
        "H_error": np.abs(on_plane - right).mean(),
        "H_correlation": ood.rank_correlation(on_plane, right),
    }
    for name, score in (("H", entropy), ("MD", spread)):
        inside, centre = score[TEST_POINTS], score[CENTRE_POINTS]
        numbers[f"AUROC_{name}"] = ood.auroc(np.concatenate([score[FAR_POINTS], centre]), inside)
        numbers[f"AUROC_{name}_centre"] = ood.auroc(centre, inside)
    return {name: float(value) for name, value in numbers.items()}


@functools.cache
def near_and_far() -> tuple[Bool[np.ndarray, " p"], Bool[np.ndarray, " p"]]:
    """Which points of the plane are within 1 of a training point, and which are farther than 5 from all."""
    x, _ = data.classification_2d()
    distance = np.min(np.linalg.norm(PLANE[:, None] - x[None], axis=2), axis=1)
    return distance < 1, distance > 5
