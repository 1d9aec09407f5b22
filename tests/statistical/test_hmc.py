"""The gold standard against posteriors that are known in closed form."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stein import hmc, likelihoods, priors, samples, train
from stein.storage import checkpoint
from stein.types import Model

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(12, 3)) * np.array([1.0, 0.3, 2.0])
Y = X @ np.array([[1.0], [-2.0], [0.5]]) + 0.5 * RANDOM.normal(size=(12, 1))
LINEAR = Model(lambda key: {"w": jax.random.normal(key, (3, 1))}, lambda weights, x: x @ weights["w"])
LOG_PROB = hmc.log_posterior(LINEAR, likelihoods.gaussian(0.5), priors.normal(1.3), jnp.asarray(X), jnp.asarray(Y))
COVARIANCE = np.linalg.inv(X.T @ X / 0.25 + np.eye(3) / 1.69)
MEAN = (COVARIANCE @ X.T @ Y / 0.25)[:, 0]
CHAINS = 4


@pytest.fixture(scope="module")
def tuned():
    algorithm = hmc.nuts(LOG_PROB, max_doublings=5)
    start = {"w": jnp.asarray(RANDOM.normal(size=(CHAINS, 3, 1)) * 3)}
    state = algorithm.init(jax.random.key(0), CHAINS, start)
    return algorithm, hmc.warm_up(LOG_PROB, state, 300, max_doublings=5)


def test_linear_model_has_its_analytic_posterior(tuned):
    """2000 draws: the mean to 0.1 sd and the sd to 10 % (five standard errors of a chain without memory). Catches a
    prior dropped or counted twice, sigma for sigma squared, and a sum over the data that is a mean."""
    algorithm, state = tuned
    _, drawn = samples.collect(algorithm, state, None, burn_in=0, draws=500)
    w = np.asarray(drawn.particles["w"])[..., 0].reshape(-1, 3)
    sd = np.sqrt(np.diag(COVARIANCE))
    np.testing.assert_allclose((w.mean(axis=0) - MEAN) / sd, 0, atol=0.1)
    np.testing.assert_allclose(w.std(axis=0) / sd, 1, atol=0.1)
    correlation = COVARIANCE / np.outer(sd, sd)
    np.testing.assert_allclose(np.corrcoef(w.T), correlation, atol=0.1)

    f = np.einsum("gd,tcdk->ctg", X[:5], np.asarray(drawn.particles["w"]))
    found = samples.diagnose_functions(f)
    assert found["rhat"].max() < 1.03
    assert min(found["ess_bulk"].min(), found["ess_tail"].min()) > 400


def test_chains_that_disagree_are_noticed():
    """Two chains half a standard deviation apart. Catches an R-hat over the wrong axis."""
    f = np.random.default_rng(1).normal(size=(4, 400, 2))
    f[:2, :, 1] += 1.0
    rhat = samples.diagnose_functions(f)["rhat"]
    assert rhat[0] < 1.02
    assert rhat[1] > 1.1


def test_every_chain_finds_a_step_size_and_the_scales_of_its_weights(tuned):
    """Catches one tuning for all chains, and a mass matrix that stays where it began.

    The last window of the warm-up has 100 draws: a variance is known to 14 %, of which five are allowed.
    """
    tuning = tuned[1].opt_state
    assert len(set(np.asarray(tuning.step_size).tolist())) == CHAINS
    np.testing.assert_allclose(tuning.inverse_mass / np.diag(COVARIANCE)[None], 1, atol=0.75)
    _, info = train.run(*tuned, None, 100)
    assert 0.6 < float(info.more["acceptance"].mean()) < 0.97
    assert not bool(info.more["diverged"].any())


def test_chains_are_saved_and_resumed_as_any_ensemble(tuned, tmp_path):
    algorithm, state = tuned
    half, _ = train.run(algorithm, state, None, 5)
    checkpoint.save(tmp_path, half)
    loaded, _ = checkpoint.load(tmp_path / checkpoint.name_of(5), like=state)
    whole, resumed = (train.run(algorithm, s, None, n, chunk=5)[0] for s, n in ((state, 10), (loaded, 5)))
    np.testing.assert_array_equal(whole.particles["w"], resumed.particles["w"])


def test_what_cannot_start_is_told():
    algorithm = hmc.nuts(LOG_PROB)
    with pytest.raises(ValueError, match="chains start from given weights"):
        algorithm.init(jax.random.key(0), 4)
    with pytest.raises(ValueError, match=r"leading axis of \[3\]; must be num_particles = 4"):
        algorithm.init(jax.random.key(0), 4, {"w": jnp.ones((3, 3, 1))})
    with pytest.raises(ValueError, match="max_doublings = 0"):
        hmc.nuts(LOG_PROB, 0)
    with pytest.raises(ValueError, match="steps = 5"):
        hmc.warm_up(LOG_PROB, algorithm.init(jax.random.key(0), 4, {"w": jnp.ones((4, 3, 1))}), 5)
