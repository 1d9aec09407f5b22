"""Forces whose product with the inputs is put off are the forces themselves."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from problems import relative_error, rounding
from stein import likelihoods, models, predict, priors, rules, targets, train
from stein.ensembles import build
from stein.types import Batch

MEMBERS, INPUTS = 3, 7  # with as many members as inputs nothing would be put off
WITH = models.mlp([INPUTS, 5, 4, 2])
WITHOUT = WITH._replace(first=None)
RANDOM = np.random.default_rng(0)
BATCH = Batch(
    jnp.asarray(RANDOM.normal(size=(6, INPUTS))),
    jnp.asarray(RANDOM.integers(0, 2, 6)),
    jnp.asarray(RANDOM.normal(size=(4, INPUTS))),
)
POINTS = {
    "batch": targets.Measurement(),
    "a part of it": targets.Measurement(subset=3),
    "another batch": targets.Measurement("independent"),
    "elsewhere": targets.Measurement("extra", extra=jnp.asarray(RANDOM.normal(size=(3, INPUTS)))),
    "batch and more": targets.Measurement(extra=jnp.asarray(RANDOM.normal(size=(3, INPUTS)))),
}
EXACT = {"repulsion": rules.exact(0.9, probe=True)}
CASES = [
    *(("batch", name, {}) for name in ("de", "f-svgd", "h-svgd-l")),
    ("another batch", "h-svgd-s", {}),
    ("batch and more", "h-svgd-s", {}),
    ("batch", "fw-svgd-l", EXACT),
    ("elsewhere", "rde", {}),
]
FURTHER = [
    *(("batch", name, {}) for name in ("w-svgd", "fw-svgd-s", "hs-svgd")),
    *((points, "h-svgd-s", {}) for points in ("a part of it", "elsewhere")),
    ("batch", "hp-svgd", EXACT),
    ("batch", "h-svgd-l", {"stochastic": True}),
    ("batch", "fw-svgd-l", {"space": "hidden-1"}),
]


def moved(model, name, points="batch", broken=None, **options):
    """The ensemble after a step, and who is alive. ``broken``: a number added to a weight of member 1."""
    target = targets.posterior(model, likelihoods.categorical(), priors.normal(), 60, measurement=POINTS[points])
    options = {"optimiser": optax.sgd, "learning_rate": 1e-3, **options}
    algorithm = build(name, target, **options)
    state = algorithm.init(jax.random.key(0), MEMBERS)
    if broken is not None:
        particles = eqx.tree_at(WITH.first.weight, state.particles, replace_fn=lambda w: w.at[1, 0, 0].add(broken))
        state = state._replace(particles=particles)
    state, _ = train.run(algorithm, state, lambda step: BATCH, 1, min_alive=0)
    return np.concatenate([leaf.ravel() for leaf in jax.tree.leaves(state.particles)]), np.asarray(state.alive)


@pytest.mark.parametrize(
    ("points", "name", "options"), [*CASES, *(pytest.param(*case, marks=pytest.mark.long) for case in FURTHER)]
)
def test_a_product_that_is_put_off_changes_no_step(points, name, options):
    """Catches the inputs of other points, a force that is counted twice or not at all, and a mask that is missing."""
    expected, found = (moved(model, name, points, **options)[0] for model in (WITHOUT, WITH))
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("broken", [np.nan, 1e200])
@pytest.mark.parametrize("name", ["w-svgd", "h-svgd-l"])
def test_the_dead_are_left_out(name, broken):
    """Catches 0 * NaN in the product, and a gradient that is not checked before it."""
    (expected, alive), (found, too) = (moved(model, name, broken=broken) for model in (WITHOUT, WITH))
    assert alive.tolist() == too.tolist() == [True, False, True]
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("scale", "alive"), [(1e100, True), (1e200, False)])
@pytest.mark.parametrize("model", [WITH, WITHOUT])
def test_a_gradient_that_is_too_large_only_after_the_product(model, scale, alive):
    """Outputs and the gradients in the products are of order one. Catches a check that forgets the inputs."""
    target = targets.posterior(model, likelihoods.categorical(), priors.normal(), 60)
    members = jax.vmap(model.init)(jax.random.split(jax.random.key(0), MEMBERS))
    members = jax.tree.map(lambda leaf: leaf / scale if leaf.shape[-1] == INPUTS else leaf, members)
    batch = BATCH._replace(x=scale * BATCH.x)
    ids, everyone = jnp.arange(MEMBERS), jnp.ones(MEMBERS, bool)
    look = jax.jit(target.view, static_argnums=(6, 7))
    view = look(jax.random.key(0), members, batch, ids, everyone, jnp.ones(()), "outputs", False)
    assert view.alive.tolist() == [alive] * MEMBERS


@pytest.mark.parametrize("chunk", [4, 50])
def test_predictions_with_a_shared_first_product_are_those_of_each_network(chunk):
    """In one call, and in a loop over chunks whose last is not full. Catches members, points or units exchanged when
    the product of all is taken apart."""
    particles = jax.vmap(WITH.init)(jax.random.split(jax.random.key(1), MEMBERS))
    x = RANDOM.normal(size=(18, INPUTS))
    said = predict.in_chunks(WITH, particles, x, chunk=chunk)
    for i in range(MEMBERS):
        alone = WITHOUT.apply(jax.tree.map(lambda leaf, i=i: leaf[i], particles), jnp.asarray(x))
        assert relative_error(said[i], alone) <= rounding(INPUTS * 5)
