"""Where an ensemble begins, how much memory a step takes, what is collected and compiled on the way."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from stein import data, kernels, likelihoods, models, priors, rules, samples, steps, targets, train
from stein.ensembles import build, ensemble
from stein.types import Batch

X, Y = data.regression_1d()
NETWORK = models.mlp([1, 8, 1])
TARGET = targets.posterior(NETWORK, likelihoods.gaussian(), priors.normal(2.0), len(X))


def test_prior_draws_or_the_models_own_initialiser():
    draws = {how: build("de", TARGET, start=how).init(jax.random.key(0), 2000) for how in ("prior", "model")}
    first = {how: np.asarray(state.particles[0].weight) for how, state in draws.items()}
    assert abs(first["prior"].std() - 2.0) < 0.05  # 16,000 draws: 4.5 standard errors
    assert np.abs(first["model"]).max() <= 1.0  # uniform, fan-in 1


def test_starting_from_one_network_or_from_an_ensemble():
    algo = build("w-svgd", TARGET)
    pretrained = NETWORK.init(jax.random.key(3))
    copies = algo.init(jax.random.key(0), 5, weights=pretrained, spread=0.1)
    apart = jax.tree.map(lambda many, one: many - one[None], copies.particles, pretrained)
    spread = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(apart)])
    assert abs(spread.std() - 0.1) < 0.03  # 125 draws
    same = algo.init(jax.random.key(9), 5, weights=copies.particles)
    for a, b in zip(jax.tree.leaves(same.particles), jax.tree.leaves(copies.particles), strict=True):
        np.testing.assert_array_equal(a, b)


def test_particles_over_the_last_layer_of_a_pretrained_network():
    """The trunk is shared and does not move; the head is an ensemble."""
    pretrained = NETWORK.init(jax.random.key(3))
    head, start = models.split(NETWORK, pretrained, "last-layer", example=X[:4])
    target = targets.posterior(head, likelihoods.gaussian(), priors.normal(), len(X))
    algo = build("fw-svgd", target, learning_rate=0.05)
    state = algo.init(jax.random.key(0), 4, weights=start)
    trained, info = train.run(algo, state, data.Batches(X, Y, 32, jax.random.key(1)), 200)
    assert sum(leaf[0].size for leaf in jax.tree.leaves(trained.particles)) == 9
    assert float(info.log_likelihood[-1].mean()) > float(info.log_likelihood[0].mean()) + 0.5


def test_a_learned_noise_finds_the_noise_of_the_data():
    """Data with noise 0.25; a network that fits it learns log sigma near log 0.25. Catches a wrong score of log
    sigma."""
    network = models.with_log_sigma(models.mlp([1, 20, 20, 1]))
    target = targets.posterior(network, likelihoods.gaussian(None), priors.normal(), len(X))
    algo = build("de", target, learning_rate=0.01, start="model")
    state, _ = train.run(algo, algo.init(jax.random.key(0), 4), data.Batches(X, Y), 2000)
    sigma = np.exp(np.asarray(state.particles["log_sigma"]))
    assert sigma.min() > 0.2
    assert sigma.max() < 0.3


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_identical_particles_do_not_fly_apart(dtype):
    """The median distance is zero and the bandwidth at its floor. Catches a division by it."""
    x = jnp.full((5, 3), 7.3, dtype)
    gram, _ = kernels.rbf()(x, jnp.ones(5, bool), ())
    assert float(jnp.abs(gram.repulsion(x)).max()) < 1e-3


def test_a_w_svgd_step_needs_at_most_eight_times_the_particles():
    """n = 100 networks of 99,710 weights in float32, Adam. Catches any n x n x d array (100 times the particles)."""
    network = models.mlp([784, 100, 100, 100, 10])
    in_float32 = network._replace(
        init=lambda key: jax.tree.map(lambda leaf: leaf.astype(jnp.float32), network.init(key))
    )
    target = targets.posterior(in_float32, likelihoods.categorical(), priors.normal(), 60_000)
    algo = ensemble(target, rules.w_svgd(), optax.adam(1e-3))
    state = jax.eval_shape(lambda: algo.init(jax.random.key(0), 100))
    batch = Batch(jax.ShapeDtypeStruct((256, 784), jnp.float32), jax.ShapeDtypeStruct((256,), jnp.int32))
    memory = jax.jit(algo.step, donate_argnums=0).lower(state, batch).compile().memory_analysis()
    particles = sum(leaf.size * 4 for leaf in jax.tree.leaves(state.particles))
    assert particles == 100 * 99_710 * 4
    beyond_the_state = memory.temp_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes
    assert beyond_the_state <= 8 * particles


def test_samples_are_thinned_after_burn_in_and_go_to_arviz():
    """Chains are particles; the run goes on where the samples end, as if nobody had looked."""
    target = targets.density(lambda w: -0.5 * jnp.sum(w["a"] ** 2), lambda key: {"a": jax.random.normal(key, (3,))})
    algo = ensemble(target, rules.w_svgd(kernels.rbf(1.0), rules.cholesky()), steps.langevin(0.05))
    state = algo.init(jax.random.key(0), 4)
    last, kept = samples.collect(algo, state, None, burn_in=10, draws=5, thin=3)
    straight, _ = train.run(algo, state, None, 25)
    np.testing.assert_allclose(last.particles["a"], straight.particles["a"], rtol=1e-9)
    np.testing.assert_array_equal(kept.particles["a"][-1], last.particles["a"])
    assert kept.particles["a"].shape == (5, 4, 3)

    dead = kept._replace(alive=kept.alive.at[-1, 1].set(False))
    posterior = samples.to_arviz(dead).posterior
    assert dict(posterior.sizes)["chain"] == 3
    assert dict(posterior.sizes)["draw"] == 5
    np.testing.assert_array_equal(posterior["a"].values[1, 2], kept.particles["a"][2, 2])


def test_training_again_does_not_compile_again():
    """Catches a jit made anew on every call of ``train.run``."""
    algo = build("de", TARGET)
    batches = data.Batches(X, Y, 32, jax.random.key(1))
    state, _ = train.run(algo, algo.init(jax.random.key(0), 2), batches, 4, chunk=2)
    before = train._jitted_advance()._cache_size()
    train.run(algo, state, data.Batches(X + 1, Y, 32, jax.random.key(2)), 6, chunk=2)
    assert train._jitted_advance()._cache_size() == before
