"""The method's keys that only Python had: each changes the result, is what Python's option is, or is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stein import kernels, train
from stein.runs import configs
from stein.runs.build import _functional_prior, _rule_options, assemble, resolved

SMALL = """
[data]
name = "{data}"
test_fraction = 0
[model]
hidden = [4]
[train]
precision = "float64"
batch_size = 8
steps = 100
[method]
particles = 5
{method}
[likelihood]
{likelihood}
"""


def settings(method="", likelihood="", data="regression-1d"):
    return configs.parse(SMALL.format(data=data, method=method, likelihood=likelihood))


def trained(chosen, steps=6):
    """The particles after a few steps, flat."""
    parts = assemble(chosen)
    state = parts.algorithm.init(jax.random.key(0), chosen.method.particles)
    state, _ = train.run(parts.algorithm, state, parts.batches, steps, chunk=steps)
    return np.concatenate([np.asarray(leaf).ravel() for leaf in jax.tree.leaves(state.particles)])


def no_draws(key, number, inputs):
    raise AssertionError("a Gaussian process draws no networks")


NOISY = 'name = "w-svgd"\nstochastic = true\n'
GP = 'name = "f-svgd"\nfunctional_prior = "gaussian-process"\n'
PAIRS = {
    "repulsion_energy": ('name = "fw-svgd"\nrepulsion = "exact"\nrepulsion_energy = 1\n', "repulsion_energy = 0.5"),
    "repulsion_directions": (
        'name = "fw-svgd"\nrepulsion = "exact"\nrepulsion_energy = 1\n',
        "repulsion_energy = 1\nrepulsion_directions = 1",
    ),
    "repulsion_probe": (
        'name = "fw-svgd"\nrepulsion = "exact"\nrepulsion_energy = 0.5\n',
        "repulsion_energy = 0.5\nrepulsion_probe = true",
    ),
    "freeze_bandwidth_after": ('name = "w-svgd"\n', "freeze_bandwidth_after = 1"),
    "freeze_bandwidth_after, both kernels": ('name = "h-svgd"\n', "freeze_bandwidth_after = 1"),
    "freeze_preconditioner_after": (NOISY, "freeze_preconditioner_after = 1"),
    "freeze_preconditioner_after, own": ('name = "psgld"\n', "freeze_preconditioner_after = 1"),
    "measurement_subset": ('name = "fw-svgd"\n', "measurement_subset = 2"),
    "functional_prior": ('name = "f-svgd"\nfunctional_prior = "none"\n', 'functional_prior = "gaussian-process"'),
    "gp_scale": (GP, "gp_scale = 0.1"),
    "gp_length": (GP, "gp_length = 0.1"),
}


SHORT = ("repulsion_energy", "freeze_bandwidth_after", "freeze_preconditioner_after", "measurement_subset", "gp_scale")


@pytest.mark.parametrize("name", [pytest.param(p, marks=() if p in SHORT else pytest.mark.long) for p in PAIRS])
def test_the_key_changes_the_result(name):
    """Catches a key that is read and forgotten on its way to the rule, the step or the target."""
    before, change = PAIRS[name]
    replaced = {line.split(" = ")[0] for line in change.splitlines()}
    kept = [line for line in before.splitlines() if line.split(" = ")[0] not in replaced]
    changed = settings("\n".join([*kept, change]))
    assert configs.parse(configs.dump(changed)) == changed
    plain, other = trained(settings(before)), trained(changed)
    assert np.isfinite([plain, other]).all()
    assert np.abs(plain - other).max() > 1e-9


def test_centred_logits_change_the_result():
    plain, centred = (
        trained(settings('name = "fw-svgd"', f"center_logits = {on}", "classification-2d")) for on in ("false", "true")
    )
    assert np.abs(plain - centred).max() > 1e-9
    with pytest.raises(ValueError, match="center_logits = true: the targets are numbers, not classes"):
        assemble(settings('name = "fw-svgd"', "center_logits = true"))


def test_the_frozen_bandwidth_is_that_of_the_last_adapted_step():
    """Two steps of memory; the third set of points is ten times as wide and changes nothing."""
    kernel = _rule_options(settings('name = "w-svgd"\nfreeze_bandwidth_after = 2'))["kernel"]
    alive, memory = jnp.ones(3, bool), kernel.memory
    found = []
    for width in (1.0, 2.0, 10.0, 20.0):
        gram, memory = kernel(width * jnp.arange(3.0)[:, None], alive, memory)
        found.append(float(gram.bandwidth))
    median = float(kernels.rbf()(jnp.arange(3.0)[:, None], alive, ())[0].bandwidth)
    assert found == pytest.approx([median, 4 * median, 4 * median, 4 * median], rel=1e-12)


def test_the_gaussian_process_is_an_rbf_covariance():
    """Against the score of the same Gaussian written out, with the jitter of a thousandth of its variance."""
    prior = _functional_prior(settings(GP + "gp_scale = 2.0\ngp_length = 0.5"))
    x = jnp.linspace(-1.0, 1.0, 5)[:, None]
    features = jax.random.normal(jax.random.key(1), (3, 5, 1))
    score = prior(jax.random.key(0), features, jnp.ones(len(features), bool), x, no_draws)
    covariance = 4.0 * (np.exp(-((x - x.T) ** 2) / 0.5) + 1e-3 * np.eye(5))
    expected = -np.linalg.solve(covariance, np.asarray(features[..., 0]).T).T[..., None]
    np.testing.assert_allclose(score, expected, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("name", ["gaussian-process", "infinite-width"])
@pytest.mark.parametrize("points", [90, 500])
def test_the_gaussian_process_survives_float32(points, name):
    """Catches a covariance of a full batch that is singular in float32: NaN from its Cholesky factor."""
    prior = _functional_prior(resolved(settings(GP.replace("gaussian-process", name)), "gaussian", points), (1,))
    x = jnp.linspace(-1.0, 1.0, points, dtype=jnp.float32)[:, None]
    score = prior(jax.random.key(0), jnp.ones((2, points, 1), jnp.float32), jnp.ones(2, bool), x, no_draws)
    assert np.isfinite(np.asarray(score)).all()


def test_the_prior_for_classes_outweighs_a_label():
    """At logits of 1,000 it pulls by more than N/B = 31, the most that a label can push: no runaway to 0 and 1.

    Catches the prior of N(0, 1) weights, whose pull there is 0.0008, and one that is estimated from ten draws.
    """
    random = np.random.default_rng(0)
    x, y = random.normal(size=(64, 196)), random.integers(0, 10, 64)
    logits = 1000 * np.eye(10)[y][None]
    text = SMALL.replace("hidden = [4]", "hidden = [50, 50, 50]")
    config = configs.parse(text.format(data="classification-2d", method='name = "f-svgd"', likelihood=""))
    prior = _functional_prior(resolved(config, "categorical", 2000), (196,), "categorical")
    score = prior(jax.random.key(0), jnp.asarray(logits), jnp.ones(1, bool), jnp.asarray(x), no_draws)
    assert -np.asarray(score)[0, np.arange(64), y].mean() > 2000 / 64


def test_auto_leaves_the_repulsion_to_the_registry():
    assert "repulsion" not in _rule_options(settings('name = "fw-svgd"'))
    assert "repulsion" not in _rule_options(settings('name = "hp-svgd"'))


CONFLICTS = [
    ('name = "fw-svgd"\nrepulsion_energy = 0.9', "method.repulsion_energy: is for the exact repulsion"),
    ('name = "w-svgd"\nrepulsion_energy = 0.9', "method.repulsion_energy: is for the exact repulsion"),
    ('name = "fw-svgd"\nrepulsion_directions = 4', "method.repulsion_directions: is for the exact repulsion"),
    (
        'name = "fw-svgd"\nstochastic = true\nrepulsion_directions = 4',
        "method.repulsion_directions: got 4; must be 0, or method.repulsion_probe true",
    ),
    ('name = "fw-svgd"\nrepulsion_probe = true', "method.repulsion_probe: is for the exact repulsion"),
    ('name = "hp-svgd"\nrepulsion_probe = true', "method.repulsion_probe: adds what is left out; must be false"),
    (
        'name = "fw-svgd"\nstochastic = true\nrepulsion_energy = 0.9',
        "method.repulsion_energy: got 0.9; must be 1 or auto, or method.repulsion_probe true",
    ),
    ('name = "hp-svgd"\nrepulsion_energy = 1.5', "method.repulsion_energy: got 1.5; must be auto or a number above 0"),
    ('name = "de"\nfreeze_bandwidth_after = 5', "method.freeze_bandwidth_after: de has no kernel; must be 0"),
    ("bandwidth = 1.0\nfreeze_bandwidth_after = 5", "method.freeze_bandwidth_after: method.bandwidth is a number"),
    ("freeze_bandwidth_after = 100", "method.freeze_bandwidth_after: got 100; must be below train.steps = 100"),
    (
        'name = "w-svgd"\nfreeze_preconditioner_after = 5',
        "method.freeze_preconditioner_after: w-svgd without noise has no preconditioner",
    ),
    ('name = "sgld"\nfreeze_preconditioner_after = 5', "method.freeze_preconditioner_after: sgld has no precond"),
    (
        NOISY + 'noise_place = "adam-inside"\nfreeze_preconditioner_after = 5',
        "method.freeze_preconditioner_after: only Langevin steps",
    ),
    ('name = "w-svgd"\nmeasurement_subset = 2', "method.measurement_subset: w-svgd looks at the whole batch"),
    ('name = "f-svgd"\nmeasurement_subset = 2', "method.measurement_subset: f-svgd looks at the whole batch"),
    ("measurement_subset = 9", "method.measurement_subset: got 9; must be at most train.batch_size = 8"),
    ('name = "fw-svgd"\nfunctional_prior = "gaussian-process"', "method.functional_prior: fw-svgd has a prior over w"),
    (
        GP.replace("gaussian-process", "infinite-width") + "prior_draws = 50",
        "method.prior_draws: a Gaussian process needs",
    ),
    (GP + "prior_draws = 50", "method.prior_draws: a Gaussian process needs no draws; must be auto"),
    ('name = "f-svgd"\ngp_scale = 2', "method.gp_scale: is for method.functional_prior = 'gaussian-process'"),
    ('name = "f-svgd"\ngp_length = 2', "method.gp_length: is for method.functional_prior"),
]


@pytest.mark.parametrize(("method", "complaint"), CONFLICTS)
def test_a_key_that_does_nothing_is_refused(method, complaint):
    with pytest.raises(configs.ConfigError) as caught:
        settings(method)
    assert str(caught.value).startswith(f"config: {complaint}")


@pytest.mark.parametrize(
    ("method", "likelihood", "complaint"),
    [
        ('name = "fw-svgd-s"', "", "fw-svgd-s does not compare logits; must be false"),
        ('name = "w-svgd"', "", "w-svgd does not compare logits; must be false"),
        ('name = "fw-svgd"', 'name = "gaussian"\n', "likelihood.name = 'gaussian' has no logits; must be false"),
    ],
)
def test_logits_are_centred_only_where_they_are_compared(method, likelihood, complaint):
    with pytest.raises(configs.ConfigError) as caught:
        settings(method, f"{likelihood}center_logits = true", "classification-2d")
    assert str(caught.value) == f"config: likelihood.center_logits: {complaint}"


def test_the_first_rows_of_a_file_are_no_sample_of_it():
    """Without batches the subset would be the same rows in every step, whatever the file is sorted by."""
    text = SMALL.format(data="regression-1d", method="measurement_subset = 2", likelihood="")
    with pytest.raises(configs.ConfigError, match="would be the first rows of the data in every step"):
        configs.parse(text.replace("batch_size = 8", "batch_size = 0"))
    independent = 'measurement_subset = 2\nmeasurement = "independent"'
    assert configs.parse(
        SMALL.format(data="regression-1d", method=independent, likelihood="").replace("batch_size = 8", "")
    )
