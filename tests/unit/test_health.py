"""One particle that is not finite must not touch the others (A5)."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from problems import close
from stein import data, likelihoods, models, priors, rules, steps, targets, train
from stein.ensembles import build, ensemble
from stein.types import Batch, Model

X, Y = data.regression_1d()
NETWORK = models.mlp([1, 8, 1])
TARGET = targets.posterior(NETWORK, likelihoods.gaussian(0.5), priors.normal(), len(X))
N = 6
# The contract tests kill a member of every kind of rule; here it is a network in a run.
METHODS = [
    ("w-svgd", False),
    ("w-svgd", True),
    *(pytest.param(name, False, marks=pytest.mark.long) for name in ("de", "h-svgd")),
]


BATCHES = data.Batches(X, Y, 32, jax.random.key(7))


@functools.cache
def algorithm(method, noisy=False, **options):
    return build(method, TARGET, stochastic=noisy, **options)


def run(algo, state, min_alive=0.1):
    """Five steps: always five, so that each algorithm is compiled once for each number of particles."""
    return train.run(algo, state, BATCHES, 5, min_alive=min_alive)[0]


def start(algo, n=N):
    return algo.init(jax.random.key(0), n)


def with_value(state, rows, value):
    """The state with one weight of the given particles replaced."""
    head = state.particles[-1]
    broken = head.weight.at[jnp.asarray(rows), 0, 0].set(value)
    layers = (*state.particles[:-1], jax.tree_util.tree_map(lambda leaf: leaf, head))
    layers[-1].__dict__["weight"] = broken
    return state._replace(particles=layers)


def without(state, rows):
    keep = np.setdiff1d(np.arange(N), rows)
    return jax.tree.map(lambda leaf: leaf[keep] if leaf.ndim and leaf.shape[0] == N else leaf, state)


@pytest.mark.parametrize("value", [np.nan, pytest.param(-np.inf, marks=pytest.mark.long), 1e200])
@pytest.mark.parametrize(("method", "noisy"), METHODS)
def test_survivors_equal_the_run_without_the_dead(method, noisy, value):
    """Injected before step 0, and mid-run. Catches 0 * NaN in a sum, and a dead row in a median or a mean."""
    algo = algorithm(method, noisy)
    dead = [1, 2, 4]
    for state in (start(algo), run(algo, start(algo))):
        broken = run(algo, with_value(state, dead, value))
        assert broken.alive.tolist() == [i not in dead for i in range(N)]
        reduced = run(algo, without(state, dead))
        close(without(broken, dead).particles, reduced.particles, 1e-12 if method == "de" else 1e-6)


def test_only_one_survivor_is_the_run_alone():
    algo = algorithm("w-svgd")
    dead = [0, 1, 2, 4, 5]
    broken = run(algo, with_value(start(algo), dead, np.nan))
    alone = run(algo, without(start(algo), dead))
    close(without(broken, dead).particles, alone.particles, 1e-6)


def exploding_target():
    """Particle whose weight exceeds 3 has an infinite gradient; weights and values stay finite."""

    def log_prob(w):
        zero_where_large = jnp.where(w > 3, 0.0 * w, 1.0)
        return -0.5 * jnp.sum(w**2) + jnp.sum(jnp.where(w > 3, jnp.sqrt(zero_where_large), 0.0))

    return targets.density(log_prob, lambda key: jax.random.normal(key, (2,)))


@pytest.mark.parametrize(("method", "noisy"), METHODS)
def test_a_gradient_that_is_not_finite_kills_its_particle_only(method, noisy):
    """The weights were finite, so the mask must come from the score itself, before it is mixed."""
    algo = build(method, exploding_target(), stochastic=noisy, learning_rate=1e-2)
    state = start(algo)
    state = state._replace(particles=state.particles.at[3].set(4.0))
    moved, _ = jax.jit(algo.step)(state, None)
    assert moved.alive.tolist() == [True, True, True, False, True, True]
    np.testing.assert_array_equal(moved.particles[3], [4.0, 4.0])
    reduced, _ = jax.jit(algo.step)(without(state, [3]), None)
    close(without(moved, [3]).particles, reduced.particles, 1e-9)


def test_a_network_whose_gradient_is_not_finite_is_out_before_it_is_mixed():
    """Outputs and likelihood are finite, the vjp is not. Catches a posterior that checks its values but not its
    score."""

    def apply(w, x):
        zero_where_large = jnp.where(w > 3, 0.0 * w, 1.0)
        return x * w[None] + jnp.where(w > 3, jnp.sqrt(zero_where_large), 0.0)[None]

    network = Model(lambda key: jax.random.normal(key, (1,)), apply)
    target = targets.posterior(network, likelihoods.gaussian(), priors.normal(), 8)
    algo = ensemble(target, rules.w_svgd(), steps.langevin(1e-3))
    state = start(algo)
    state = state._replace(particles=state.particles.at[3].set(4.0))
    batch = Batch(jnp.linspace(-1.0, 1.0, 8)[:, None], jnp.ones((8, 1)))
    moved, info = jax.jit(algo.step)(state, batch)
    assert bool(jnp.isfinite(info.log_likelihood[3]))
    assert moved.alive.tolist() == [True, True, True, False, True, True]
    reduced, _ = jax.jit(algo.step)(without(state, [3]), batch)
    close(without(moved, [3]).particles, reduced.particles, 1e-9)


def test_a_move_that_overflows_leaves_its_particle_where_it_was():
    """Catches a move that is made before it is known to be finite."""
    algo = ensemble(exploding_target(), rules.independent(), steps.descend(optax.sgd(1e200, momentum=0.9)))
    state = start(algo)
    state = state._replace(particles=state.particles.at[0].set(0.0))
    moved, info = algo.step(state, None)
    assert info.alive.tolist() == [True] + [False] * (N - 1)
    np.testing.assert_array_equal(moved.particles, state.particles)


@pytest.mark.parametrize("step", [steps.descend(optax.adam(1e-2)), steps.langevin(1e-3, steps.rms(shared=False))])
def test_resampled_particles_start_again_with_a_fresh_optimiser(step):
    algo = ensemble(TARGET, rules.independent(), step, on_nan="resample")
    healthy = run(algo, start(algo))
    broken = with_value(healthy, [2], np.nan)
    batch = BATCHES.at(5)
    advance = jax.jit(algo.step)
    once, info = advance(broken, batch)
    assert info.alive.tolist() == [True, True, False, True, True, True]
    assert bool(once.alive.all())
    assert bool(jnp.isfinite(once.particles[-1].weight).all())
    close(advance(broken, batch)[0].particles, once.particles, 0)
    fresh = step.init(once.particles)
    for new, begun in zip(jax.tree.leaves(once.opt_state), jax.tree.leaves(fresh), strict=True):
        np.testing.assert_array_equal(new[2], begun[2])
    close(without(once, [2]).particles, without(advance(healthy, batch)[0], [2]).particles, 0)


def test_stop_stops_everyone_and_says_which_and_when():
    algo = algorithm("w-svgd", on_nan="stop")
    state = run(algo, start(algo))
    broken = with_value(state, [4], np.nan)
    moved, _ = jax.jit(algo.step)(broken, BATCHES.at(5))
    close(without(moved, [4]).particles, without(broken, [4]).particles, 0)
    assert int(moved.step) == 5
    with pytest.raises(train.ParticlesDiedError, match=r"particles 4 are not finite \(5 of 6 alive\)"):
        run(algo, broken)


def test_too_few_survivors_end_the_run_with_step_and_ids():
    algo = algorithm("de")
    state = run(algo, start(algo))
    broken = with_value(state, [0, 1, 2, 5], np.nan)
    with pytest.raises(train.ParticlesDiedError, match=r"step 5: particles 0, 1, 2, 5 are not finite \(2 of 6 alive\)"):
        run(algo, broken, min_alive=0.5)
    run(algo, with_value(state, [0, 1, 2], np.nan), min_alive=0.5)  # half is enough
