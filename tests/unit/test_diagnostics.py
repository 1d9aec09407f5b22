"""Numbers about the ensemble, against their definitions in plain NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from problems import CHAINS
from stein import data, likelihoods, models, priors, rules, steps, targets
from stein.ensembles import build, ensemble
from stein.kernels import rbf
from stein.metrics import diagnostics
from stein.types import Batch

RANDOM = np.random.default_rng(0)
ALIVE = np.array([True, True, False, True, True])
X = {"a": RANDOM.normal(size=(5, 3)), "b": RANDOM.normal(size=(5, 2, 2))}
G = {"a": RANDOM.normal(size=(5, 3)), "b": RANDOM.normal(size=(5, 2, 2))}


def flat(tree):
    return np.concatenate([leaf.reshape(5, -1) for leaf in tree.values()], axis=1)[ALIVE]


def test_stein_discrepancy_is_its_double_sum():
    """Catches a sign, a missing 1/h, a dead member that counts."""
    x, g = flat(X), flat(G)
    n, d = x.shape
    squared = ((x[:, None] - x[None]) ** 2).sum(axis=-1)
    h = squared.mean() / np.log(n + 1)
    total = 0.0
    for i in range(n):
        for j in range(n):
            r = x[i] - x[j]
            bracket = g[i] @ g[j] + 2 / h * (g[i] - g[j]) @ r + 2 * d / h - 4 / h**2 * (r @ r)
            total += np.exp(-(r @ r) / h) * bracket
    arrays = [jax.tree.map(jnp.asarray, tree) for tree in (X, G)]
    found = diagnostics.stein_discrepancy(*arrays, jnp.asarray(ALIVE))
    np.testing.assert_allclose(found, np.sqrt(total) / n, rtol=1e-10)


def test_stein_discrepancy_falls_towards_the_target():
    """Draws of N(0, I) against its own score, and against that of a shifted one. Catches the sign of the score."""
    draws = jnp.asarray(np.random.default_rng(1).normal(size=(200, 2)))
    alive = jnp.ones(200, bool)
    right, wrong = (float(diagnostics.stein_discrepancy(draws, shift - draws, alive)) for shift in (0.0, 1.0))
    assert right < 0.3 * wrong


def test_effective_rank_counts_different_functions():
    functions = RANDOM.normal(size=(5, 40, 1))
    everyone = jnp.ones(5, bool)
    orthogonal = np.linalg.qr(RANDOM.normal(size=(40, 5)))[0].T[:, :, None]
    line = np.arange(5.0)[:, None, None] * functions[:1]
    assert float(diagnostics.effective_rank(jnp.asarray(orthogonal), everyone)) == pytest.approx(4)
    assert float(diagnostics.effective_rank(jnp.asarray(line), everyone)) == pytest.approx(1)
    wild = functions.copy()
    wild[2] = 1e6
    some = diagnostics.effective_rank(jnp.asarray(wild), jnp.asarray(ALIVE))
    np.testing.assert_allclose(some, diagnostics.effective_rank(jnp.asarray(functions[ALIVE]), jnp.ones(4, bool)))


def test_the_spread_that_data_leave_is_that_of_the_conditional_gaussian():
    """Against the textbook's formula. Catches a noise that is not squared, draws that are not centred."""
    draws = RANDOM.normal(size=(40, 9)) @ RANDOM.normal(size=(9, 9)) + 3.0
    S = np.cov(draws, rowvar=False)
    left = S[5:, 5:] - S[5:, :5] @ np.linalg.solve(S[:5, :5] + 0.3**2 * np.eye(5), S[:5, 5:])
    found = diagnostics.conditional_spread(draws[:, :5], draws[:, 5:], 0.3)
    np.testing.assert_allclose(found, np.sqrt(np.diag(left)), rtol=1e-9)


def classification(method, **options):
    x, y = data.classification_2d(per_class=4)
    model = models.mlp([2, 4, 5])
    where = (
        targets.Measurement("extra", extra=x[:3] + 1.0) if rules.METHODS[method].unlabelled else targets.Measurement()
    )
    target = targets.posterior(model, likelihoods.categorical(), priors.normal(), len(x), measurement=where)
    algorithm = build(method, target, **CHAINS.get(method, {}), **options)
    return algorithm, algorithm.init(jax.random.key(0), 4), Batch(jnp.asarray(x), jnp.asarray(y))


KINDS = ("de", "w-svgd", "fw-svgd-s", "h-svgd-l", "f-blob")  # the rest compiles for seconds and is left to test-long


@pytest.mark.parametrize(
    "method", [pytest.param(name, marks=() if name in KINDS else pytest.mark.long) for name in rules.METHODS]
)
def test_every_method_reports_what_it_has(method):
    """Catches a rule that forgets its kernel or its repulsion, and a part that is not part of the drift."""
    algorithm, state, batch = classification(method, temperature=2.0)
    found = jax.jit(algorithm.diagnose)(state, batch)
    assert all(np.isfinite(value) for value in found.values()), found
    spaces = {name.removeprefix("similarity_") for name in found if name.startswith("similarity_")}
    if not rules.METHODS[method].kernels:
        expected = set()
    elif method.startswith("h"):
        expected = {"weights", "functions"}
    else:
        expected = {"functions"} if rules.METHODS[method].compares else {"weights"}
    assert spaces == expected
    assert ("force_ratio" in found) == bool(expected or rules.METHODS[method].compares)
    assert all(f"bandwidth_{space}" in found and f"row_sum_{space}" in found for space in spaces)


def test_the_force_ratio_is_that_of_the_equation():
    """w-SVGD on a normal target, by hand. Catches a repulsion that is not over n, or not taken out of the drift."""
    target = targets.density(lambda w: -0.5 * jnp.sum(w**2), lambda key: jax.random.normal(key, (2,)))
    algorithm = ensemble(target, rules.w_svgd(rbf(1.5)), steps.langevin(1e-3))
    state = algorithm.init(jax.random.key(0), 5)
    w = np.asarray(state.particles)
    difference = w[:, None] - w[None]
    k = np.exp(-(difference**2).sum(axis=-1) / 1.5)
    drive, apart = -k @ w, (2 / 1.5 * k[:, :, None] * difference).sum(axis=1)
    found = algorithm.diagnose(state, None)
    np.testing.assert_allclose(found["force_ratio"], np.linalg.norm(apart) / np.linalg.norm(drive), rtol=1e-9)
    np.testing.assert_allclose(found["row_sum_weights"], k.sum() / 5, rtol=1e-9)
    np.testing.assert_allclose(found["similarity_weights"], (k.sum() - 5) / 20, rtol=1e-9)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ({"similarity_weights": 0.999, "force_ratio": 1.0}, ["collapsed", "weights"]),
        ({"similarity_functions": 1e-6, "force_ratio": 1.0}, ["no longer see each other", "functions"]),
        ({"similarity_weights": 0.05, "force_ratio": 1e-5}, ["0.001 % of the pull", "a functional method"]),
        (
            {"similarity_functions": 0.05, "force_ratio": 1e-5},
            ["more spread needs noise where there is none, or fewer weights"],
        ),
        ({"similarity_weights": 0.05, "force_ratio": 0.1}, []),
        ({}, []),
    ],
)
def test_trouble_is_said_in_words(found, words):
    told = " ".join(diagnostics.troubles(found, 20).values())
    assert all(word in told for word in words)
    assert bool(told) == bool(words)
