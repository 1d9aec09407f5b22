"""What a step costs by XLA's own account, which no other program on the machine changes."""

import jax
import jax.numpy as jnp
import pytest

from stein import data, likelihoods, models, priors, targets, train
from stein.ensembles import build

MEMBERS, BATCH, WEIGHTS = 50, 64, 50 + 50 + 2500 + 50 + 50 + 1
FORWARD = 2 * MEMBERS * BATCH * (50 + 2500 + 50)
BACKWARD = FORWARD + 2 * MEMBERS * BATCH * (2500 + 50)  # the inputs need no gradient
PRODUCT = 2 * MEMBERS**2 * WEIGHTS  # of an n x n and an n x d matrix
OPERATIONS = {
    "de": FORWARD + BACKWARD,
    "w-svgd": FORWARD + BACKWARD + 2 * PRODUCT,  # distances, K(G - 2X/h)
    "h-svgd": FORWARD + 2 * BACKWARD + 2 * PRODUCT,  # distances, K G
}


@pytest.mark.parametrize("method", OPERATIONS)
def test_a_step_does_the_operations_of_its_equation(method):
    """Catches one more product of n x n and n x d, at least an eighth of all operations, and one more backward pass.

    XLA counts element-wise operations too, a tenth of all: hence the 1.2."""
    with jax.enable_x64(False):
        x, y = data.regression_1d()
        target = targets.posterior(models.mlp([1, 50, 50, 1]), likelihoods.gaussian(1.0), priors.normal(), len(x))
        batches = data.Batches(x, y, BATCH, jax.random.key(1))
        algorithm = build(method, target)
        state = jax.eval_shape(lambda key: algorithm.init(key, MEMBERS), jax.random.key(0))
        program = train.compiled(algorithm, state, batches, batches.indices(batches.cursor(0), 1))
    found = program.cost_analysis()
    assert 1 <= found["flops"] / OPERATIONS[method] < 1.2


def test_a_step_keeps_two_ensembles_beside_its_own():
    """The gradient, and what is being computed. Catches an old optimiser state that is kept beside the new one, and a
    copy of all weights without the dead: one more each."""
    with jax.enable_x64(False):
        target = targets.posterior(models.mlp([784, 100, 10]), likelihoods.categorical(), priors.normal(), 100)
        algorithm = build("w-svgd", target)
        state = jax.eval_shape(lambda key: algorithm.init(key, 20), jax.random.key(0))
        batches = data.Batches(jnp.zeros((100, 784)), jnp.zeros(100, jnp.int32), 4, jax.random.key(1))
        program = train.compiled(algorithm, state, batches, batches.indices(batches.cursor(0), 2))
    particles = sum(4 * leaf.size for leaf in jax.tree.leaves(state.particles))
    assert program.memory_analysis().temp_size_in_bytes / particles < 2.5


def test_methods_share_the_program_that_shuffles():
    """Catches the rows of batches compiled again for every method."""
    from stein import batches as module

    x, y = data.regression_1d()
    target = targets.posterior(models.mlp([1, 3, 1]), likelihoods.gaussian(1.0), priors.normal(), len(x))
    rows = data.Batches(x, y, 7, jax.random.key(1))
    before = module._stream._cache_size()
    for method in ("de", "w-svgd"):
        algorithm = build(method, target)
        train.run(algorithm, algorithm.init(jax.random.key(0), 2), rows, 3)
    assert module._stream._cache_size() == before + 1
