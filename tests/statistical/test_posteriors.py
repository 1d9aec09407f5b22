"""Real posteriors with known answers, for every method that claims one (``stein.rules.METHODS[...].posterior``).

The problems: a normal mean (each observation measures one of two coordinates) and a linear regression with correlated
posterior, both conjugate and run side by side, and a logistic regression in two weights by quadrature. Everything is
measured in units of the true posterior standard deviations.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import chains
from stein import ensembles, functional_priors, kernels, likelihoods, priors, rules, steps, targets
from stein.types import Batch, Model

SIGMA, N = 1.0, 12


class Problem(NamedTuple):
    """Data, and the first two moments of the posterior. Leaves may have a leading axis, a problem for each replica."""

    x: np.ndarray
    y: np.ndarray
    mean: np.ndarray
    sd: np.ndarray
    corr: np.ndarray


def conjugate(x, y):
    covariance = np.linalg.inv(x.T @ x / SIGMA**2 + np.eye(2))
    mean = covariance @ x.T @ y[:, 0] / SIGMA**2
    sd = np.sqrt(np.diag(covariance))
    return Problem(x, y, mean, sd, covariance / np.outer(sd, sd))


def gaussian_problems():
    rng = np.random.default_rng(0)
    noise = SIGMA * rng.normal(size=(N, 1))
    truth = np.array([[1.0], [-0.7]])
    single = np.tile(np.eye(2), (N // 2, 1))
    angle = rng.uniform(0, 2 * np.pi, N)
    design = np.stack([np.cos(angle), 0.7 * np.cos(angle) + 0.9 * np.sin(angle)], axis=1)
    return {"mean": conjugate(single, single @ truth + noise), "regression": conjugate(design, design @ truth + noise)}


def logistic_problem():
    rng = np.random.default_rng(1)
    x = np.stack([rng.normal(size=N), np.ones(N)], axis=1)
    y = (rng.uniform(size=N) < 1 / (1 + np.exp(-x @ np.array([1.5, 0.5])))).astype(int)
    grid = np.linspace(-8, 8, 401)
    w = np.stack(np.meshgrid(grid, grid, indexing="ij"), axis=-1).reshape(-1, 2)
    margin = (w @ x.T) * (2 * y - 1)
    log_density = -np.logaddexp(0, -margin).sum(axis=1) - 0.5 * (w**2).sum(axis=1)
    p = np.exp(log_density - log_density.max())
    p /= p.sum()
    mean = p @ w
    covariance = (w - mean).T @ ((w - mean) * p[:, None])
    sd = np.sqrt(np.diag(covariance))
    return Problem(x, y, mean, sd, covariance / np.outer(sd, sd))


GAUSSIAN = gaussian_problems()
LOGISTIC = {"logistic": logistic_problem()}


def target_of(problems, dtype, **options):
    size = len(next(iter(problems.values())).x)
    if problems is LOGISTIC:
        model = Model(
            lambda key: jnp.zeros(2, dtype), lambda w, x: jnp.stack([jnp.zeros(x.shape[0], x.dtype), x @ w], axis=1)
        )
        return targets.posterior(model, likelihoods.categorical(), priors.normal(1.0), size, **options)
    model = Model(lambda key: jnp.zeros(2, dtype), lambda w, x: (x @ w)[:, None])
    return targets.posterior(model, likelihoods.gaussian(SIGMA), priors.normal(1.0), size, **options)


def stacked(problems, dtype, each):
    """The problems one after the other, each of them ``each`` times."""

    def leaf(*values):
        values = np.repeat(np.stack(values), each, axis=0)
        return jnp.asarray(values, jnp.int32 if values.dtype.kind == "i" else dtype)

    return jax.tree.map(leaf, *problems.values())


def full_batch(key, step, problem):
    return Batch(problem.x, problem.y)


# -- samplers -----------------------------------------------------------------------------------------------


def standardised_moments(w, problem):
    z = (w - problem.mean[None]) / problem.sd[None]
    return jnp.mean(z, axis=0), z.T @ z / z.shape[0]


W, F, S = kernels.rbf(0.6), kernels.rbf(0.4), kernels.rbf(0.1)
SAMPLERS = {
    "sgld": (rules.make("sgld"), steps.langevin(0.006)),
    # V starts at zero, so that with the published 1e-5 a chain near a zero of the gradient is kicked far away.
    "psgld": (
        rules.make("psgld"),
        steps.langevin(0.003, steps.rms(epsilon=0.3, shared=False, freeze_after=200)),
    ),
    "w-svgd": (rules.w_svgd(W, rules.cholesky()), steps.langevin(0.016)),
    "fw-svgd-l": (rules.fw_svgd(F, rules.exact(1.0), rules.cholesky()), steps.langevin(0.02)),
    "fw-svgd-s": (
        rules.fw_svgd(S, rules.exact(1.0), rules.cholesky(), space="probabilities"),
        steps.langevin(0.02),
    ),
    "hp-svgd": (rules.hp_svgd(W, F, rules.exact(1.0), rules.cholesky()), steps.langevin(0.02)),
}


def sample(method, problems, replicas, duration):
    """[(name, mean and its error, covariance and its error, problem)]: four particles in each replica."""
    rule, step = SAMPLERS[method]
    algorithm = ensembles.ensemble(target_of(problems, jnp.float32), rule, step)
    _, (first, second) = chains.run(
        lambda _: algorithm, standardised_moments, seed=0, replicas=replicas * len(problems), particles=4,
        burn_in=duration // 3, steps=duration - duration // 3, batch_at=full_batch,
        parameters=stacked(problems, jnp.float32, replicas),
    )  # fmt: skip
    blocks = zip(problems.items(), np.split(first, len(problems)), np.split(second, len(problems)), strict=True)
    return [(name, chains.estimate(m), chains.estimate(c), problem) for (name, problem), m, c in blocks]


@pytest.mark.parametrize(("method", "replicas", "tolerance"), [
    ("w-svgd", 800, 0.03), pytest.param("fw-svgd-l", 800, 0.03, marks=pytest.mark.long),
    # The stationary laws of SGLD and pSGLD are tested exactly, in test_variance_law.
    pytest.param("sgld", 380, 0.05, marks=pytest.mark.long), pytest.param("psgld", 380, 0.05, marks=pytest.mark.long),
    pytest.param("hp-svgd", 380, 0.05, marks=pytest.mark.long),
])  # fmt: skip
def test_samplers_reach_conjugate_posteriors(method, replicas, tolerance):
    """Mean within 0.05 sd; covariance entries within 0.05 sd^2 (sd ratios 0.975 to 1.025), 0.03 for w and fw.

    SGLD's own discretisation is worth 1/(1 - epsilon lambda/2), +2 %. Catches N/B missing, the prior counted per batch
    or dropped, sqrt(2), 1/n, and a correlation with the wrong sign. It does not see the local pull-back: the model is
    linear."""
    problems = {"regression": GAUSSIAN["regression"]} if method in ("fw-svgd-l", "hp-svgd") else GAUSSIAN  # time
    for name, mean, covariance, problem in sample(method, problems, replicas, 900):
        chains.check(f"{method} {name} mean", mean, np.zeros(2), 0.05)
        chains.check(f"{method} {name} covariance", covariance, problem.corr, tolerance, sigmas=3.8)


@pytest.mark.parametrize("method", [
    "w-svgd",
    pytest.param("fw-svgd-s", marks=pytest.mark.long),
    pytest.param("sgld", marks=pytest.mark.long), pytest.param("psgld", marks=pytest.mark.long),
    pytest.param("fw-svgd-l", marks=pytest.mark.long), pytest.param("hp-svgd", marks=pytest.mark.long),
])  # fmt: skip
def test_samplers_reach_a_logistic_posterior(method):
    """Mean within 0.05 sd, sd ratio 0.95 to 1.05, against quadrature. Skewed, so a sign error in an odd term shows; and
    for fw-svgd-s the features are nonlinear, so the local pull-back shows too."""
    for name, mean, covariance, _ in sample(method, LOGISTIC, 800 if method == "sgld" else 400, 900):
        chains.check(f"{method} {name} mean", mean, np.zeros(2), 0.05)
        variance = (np.diag(covariance[0]), np.diag(covariance[1]))
        chains.check(f"{method} {name} variance", variance, np.ones(2), 0.09)


# -- deterministic methods ----------------------------------------------------------------------------------

# method: rule, particles, sd ratios, error of the correlation. Median bandwidth, two dimensions, n = 50.
# SVGD's own finite-n loss is 4 % at 100 particles and 6 % at 50. The product kernel is narrower and reaches less far.
# kde-wgd matches the *smoothed* density q * k to the target, so that q has the covariance Sigma - (h/2) I: too narrow
# by about 15 %, and too correlated where the target is correlated. blob smooths twice and loses less.
DETERMINISTIC = {
    "w-svgd": (rules.make("w-svgd"), 100, (0.85, 1.05), 0.05),
    "fw-svgd-l": (rules.make("fw-svgd", repulsion="exact"), 50, (0.85, 1.05), 0.05),
    "hp-svgd": (rules.make("hp-svgd"), 50, (0.83, 1.0), 0.05),
    "kde-wgd": (rules.make("kde-wgd"), 50, (0.74, 0.92), 0.2),
    "sge-wgd": (rules.make("sge-wgd"), 50, (0.88, 1.0), 0.05),
    "ssge-wgd": (rules.make("ssge-wgd"), 50, (0.88, 1.0), 0.05),
    "blob": (rules.make("blob"), 50, (0.9, 1.02), 0.12),
}


def descend(rule, problems, particles, **options):
    """Final particles (problems, n, 2) after Adam with a cosine decay: converged to two digits or better."""
    total = 400
    optimiser = optax.adam(optax.cosine_decay_schedule(0.1, total))
    algorithm = ensembles.ensemble(target_of(problems, jnp.float64, **options), rule, optimiser)
    state, _ = chains.run(
        lambda _: algorithm, lambda w, _: (), seed=3, replicas=len(problems), particles=particles,
        burn_in=0, steps=total, batch_at=full_batch, parameters=stacked(problems, jnp.float64, 1),
    )  # fmt: skip
    return np.asarray(state.particles)


CASES = [(method, GAUSSIAN) for method in DETERMINISTIC] + [(method, LOGISTIC) for method in DETERMINISTIC]
LONG = [*((method, GAUSSIAN) for method in ("kde-wgd", "sge-wgd", "ssge-wgd", "blob")), *CASES[len(DETERMINISTIC) :]]


def check_particles(label, w, mean, covariance, sd_ratios, corr_error):
    """Mean within 0.05 sd, sd ratios in their range, correlation within ``corr_error``."""
    sd = np.sqrt(np.diag(covariance))
    offset, ratio = (w.mean(axis=0) - mean) / sd, w.std(axis=0, ddof=1) / sd
    corr = np.corrcoef(w.T)[0, 1] - covariance[0, 1] / sd.prod()
    print(f"S5 {label}: mean {offset.round(3)} sd, sd ratio {ratio.round(3)}, corr error {corr:.3f}")
    assert np.abs(offset).max() < 0.05
    assert np.all((sd_ratios[0] < ratio) & (ratio < sd_ratios[1]))
    assert abs(corr) < corr_error


@pytest.mark.parametrize(
    ("method", "problems"),
    [pytest.param(*case, marks=pytest.mark.long if case in LONG else ()) for case in CASES],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_deterministic_methods_approach_the_posterior(method, problems):
    """No Monte Carlo but the start. Catches the repulsion's sign or scale (the particles meet at the mode, or fly
    apart), N/B, the prior counted per batch."""
    rule, particles, sd_ratios, corr_error = DETERMINISTIC[method]
    for (name, problem), w in zip(problems.items(), descend(rule, problems, particles), strict=True):
        covariance = problem.corr * np.outer(problem.sd, problem.sd)
        check_particles(f"{method} {name}", w, problem.mean, covariance, sd_ratios, corr_error)


SQUARE = {"square": conjugate(np.array([[1.0, 0.3], [-0.4, 1.2]]), np.array([[1.0], [-2.0]]))}


@pytest.mark.parametrize(("method", "sd_ratios", "corr_error"), [
    ("f-svgd", (0.85, 1.05), 0.05),
    ("kde-fwgd", (0.74, 0.92), 0.2),
    pytest.param("sge-fwgd", (0.88, 1.0), 0.05, marks=pytest.mark.long),
    pytest.param("ssge-fwgd", (0.88, 1.0), 0.05, marks=pytest.mark.long),
    pytest.param("f-blob", (0.9, 1.02), 0.12, marks=pytest.mark.long),
])  # fmt: skip
def test_functional_methods_approach_the_pushed_forward_posterior(method, sd_ratios, corr_error):
    """With an invertible design f = X w and the exact Gaussian-process prior N(0, X X'), the functional posterior is
    the weight posterior pushed forward, in units of which mean and sd of f are tested. Catches a functional prior
    dropped, doubled or of the wrong sign, and N/B in output space."""
    prior = functional_priors.gaussian_process(lambda a, b: a @ b.T, jitter=1e-9)
    problem = SQUARE["square"]
    w = descend(rules.make(method), SQUARE, 50, functional_prior=prior)[0]
    covariance = problem.x @ (problem.corr * np.outer(problem.sd, problem.sd)) @ problem.x.T
    check_particles(method, w @ problem.x.T, problem.x @ problem.mean, covariance, sd_ratios, corr_error)
