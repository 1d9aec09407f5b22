"""What a step costs by XLA's own account, which no other program on the machine changes."""

import runpy
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from stein import data, functional_priors, likelihoods, models, priors, rules, targets, train
from stein.ensembles import build

MEMBERS, BATCH, CURVE, WIDE = 50, 64, (1, 50, 50, 1), (200, 20, 10)
COSTS = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "costs.py"))
METHODS = [("de", None), ("w-svgd", None), ("f-svgd", None), ("fw-svgd", None), ("h-svgd", None), ("fw-svgd", 1)]


@pytest.mark.parametrize("widths", [CURVE, WIDE])
@pytest.mark.parametrize(("method", "r"), METHODS)
def test_a_step_does_the_operations_of_its_equation(method, r, widths):
    """Catches one more product of n x n and n x d, at least an eighth of all operations, and one more backward pass.

    XLA counts element-wise operations too, a tenth of all: hence the 1.2."""
    options = {} if r is None else {"repulsion": rules.exact(energy=1, directions=r, probe=False)}
    prior = {"functional_prior": functional_priors.none()} if method == "f-svgd" else {}
    with jax.enable_x64(False):
        x, y = jnp.zeros((100, widths[0])), jnp.zeros((100, widths[-1]))
        target = targets.posterior(models.mlp(widths), likelihoods.gaussian(1.0), priors.normal(), len(x), **prior)
        batches = data.Batches(x, y, BATCH, jax.random.key(1))
        algorithm = build(method, target, **options)
        state = jax.eval_shape(lambda key: algorithm.init(key, MEMBERS), jax.random.key(0))
        program = train.compiled(algorithm, state, batches, batches.indices(batches.cursor(0), 1))
    counted = COSTS["operations"](method, MEMBERS, widths, BATCH, r)
    assert 1 <= program.cost_analysis()["flops"] / counted < 1.2


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


def test_activations_of_large_layers_are_stored_once(monkeypatch):
    """Catches the products of a layer that are kept beside its activations, so that these can be computed again."""

    def temporaries(large: int) -> int:
        monkeypatch.setattr(sys.modules["stein.models.mlp"], "LARGE", large)
        target = targets.posterior(models.mlp([100, 100, 100, 10]), likelihoods.categorical(), priors.normal(), 300)
        algorithm = build("de", target)
        state = jax.eval_shape(lambda key: algorithm.init(key, 10), jax.random.key(0))
        batches = data.Batches(jnp.zeros((300, 100)), jnp.zeros(300, jnp.int32), 256, jax.random.key(1))
        program = train.compiled(algorithm, state, batches, batches.indices(batches.cursor(0), 1))
        return program.memory_analysis().temp_size_in_bytes

    with jax.enable_x64(False):
        assert temporaries(large=1) <= temporaries(large=2**30) - 4 * 10 * 100 * 256


def test_methods_share_the_program_that_shuffles():
    """Catches the rows of batches compiled again for every method."""
    x, y = data.regression_1d()
    target = targets.posterior(models.mlp([1, 3, 1]), likelihoods.gaussian(1.0), priors.normal(), len(x))
    rows = data.Batches(x, y, 7, jax.random.key(1))
    before = train._jitted_rows()._cache_size()
    for method in ("de", "w-svgd"):
        algorithm = build(method, target)
        train.run(algorithm, algorithm.init(jax.random.key(0), 2), rows, 3)
    assert train._jitted_rows()._cache_size() == before + 1
