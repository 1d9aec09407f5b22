"""The method's keys that only Python had: each changes the result, is what Python's option is, or is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stein import kernels, train
from stein.runs import configs
from stein.runs.build import assemble, resolved
from stein.runs.named import functional_prior, rule_options

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
    "friction": ('name = "sghmc"\n', "friction = 0.9"),
    "measurement_subset": ('name = "fw-svgd"\n', "measurement_subset = 2"),
    "functional_prior": ('name = "f-svgd"\nfunctional_prior = "none"\n', 'functional_prior = "gaussian-process"'),
    "gp_scale": (GP, "gp_scale = 0.1"),
    "gp_length": (GP, "gp_length = 0.1"),
}


SHORT = (
    "repulsion_energy",
    "freeze_bandwidth_after",
    "freeze_preconditioner_after",
    "friction",
    "measurement_subset",
    "gp_scale",
)


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


def test_draws_are_all_that_a_run_has_of_its_chains():
    """From a config. Catches a ring of another size, and a burn-in or a thinning that is read and forgotten."""
    chosen = settings('name = "sgld"\ndraws = 4\nthin = 2\nburn_in = 1')
    parts = assemble(chosen)
    state = parts.algorithm.init(jax.random.key(0), 5)
    state, _ = train.run(parts.algorithm, state, parts.batches, 6, chunk=6)
    assert (int(state.draws.taken), jax.tree.leaves(state.draws.particles)[0].shape[:2]) == (2, (5, 4))


@pytest.mark.long
def test_the_phases_of_mile_are_those_of_the_config():
    """Catches a start of another length, and minibatches where all points are needed."""
    text = SMALL.format(data="regression-1d", method=MILE + "burn_in = 103\ntuning_steps = 100", likelihood="")
    text = text.replace("steps = 100\n[method]", "steps = 108\n[method]")
    with pytest.raises(configs.ConfigError, match="mile needs all points in every step; must be 0"):
        configs.parse(text)
    chosen = configs.parse(text.replace("batch_size = 8", ""))
    parts = assemble(chosen)
    state = parts.algorithm.init(jax.random.key(0), 5)
    state, _ = train.run(parts.algorithm, state, parts.batches, 3, chunk=3)
    assert not np.asarray(state.opt_state[1].momentum).any()
    state, _ = train.run(parts.algorithm, state, parts.batches, 3, chunk=3)
    np.testing.assert_allclose(np.linalg.norm(state.opt_state[1].momentum, axis=1), 1, rtol=1e-9)
    assert int(state.opt_state[0][0].count[0]) == 3


def cyclical(method, *keys):
    return settings(method, "\n".join(["[optimiser]", 'schedule = "cyclical"', *keys]))


def test_cycles_and_their_exploration_change_the_result():
    """Catches cycles of a fixed number, and noise that stays on. Of 100 steps in 20 cycles the sixth is a first one."""
    plain = trained(cyclical('name = "sghmc"'))
    assert np.abs(trained(cyclical('name = "sghmc"', "cycles = 20")) - plain).max() > 1e-9
    assert np.abs(trained(cyclical('name = "sghmc"\nexploration = 0.1')) - plain).max() > 1e-9
    for method, keys, complaint in (
        ('name = "de"\nexploration = 0.5', (), "method.exploration: de without noise has none to turn off"),
        ('name = "sghmc"', ("cycles = 101",), "optimiser.cycles: got 101; must be at most train.steps = 100"),
        ('name = "sghmc"', ("warmup_steps = 5",), "optimiser.warmup_steps: every cycle begins with its longest step"),
    ):
        with pytest.raises(configs.ConfigError, match=complaint):
            cyclical(method, *keys)


def test_centred_logits_change_the_result():
    plain, centred = (
        trained(settings('name = "fw-svgd"', f"center_logits = {on}", "classification-2d")) for on in ("false", "true")
    )
    assert np.abs(plain - centred).max() > 1e-9
    with pytest.raises(ValueError, match="center_logits = true: the targets are numbers, not classes"):
        assemble(settings('name = "fw-svgd"', "center_logits = true"))


def test_the_frozen_bandwidth_is_that_of_the_last_adapted_step():
    """Two steps of memory; the third set of points is ten times as wide and changes nothing."""
    kernel = rule_options(settings('name = "w-svgd"\nfreeze_bandwidth_after = 2'))["kernel"]
    alive, memory = jnp.ones(3, bool), kernel.memory
    found = []
    for width in (1.0, 2.0, 10.0, 20.0):
        gram, memory = kernel(width * jnp.arange(3.0)[:, None], alive, memory)
        found.append(float(gram.bandwidth))
    median = float(kernels.rbf()(jnp.arange(3.0)[:, None], alive, ())[0].bandwidth)
    assert found == pytest.approx([median, 4 * median, 4 * median, 4 * median], rel=1e-12)


def test_the_gaussian_process_is_an_rbf_covariance():
    """Against the score of the same Gaussian written out, with the jitter of a thousandth of its variance."""
    prior = functional_prior(settings(GP + "gp_scale = 2.0\ngp_length = 0.5"))
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
    prior = functional_prior(resolved(settings(GP.replace("gaussian-process", name)), "gaussian", points), (1,))
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
    prior = functional_prior(resolved(config, "categorical", 2000), (196,), "categorical")
    score = prior(jax.random.key(0), jnp.asarray(logits), jnp.ones(1, bool), jnp.asarray(x), no_draws)
    assert -np.asarray(score)[0, np.arange(64), y].mean() > 2000 / 64


def test_auto_leaves_the_repulsion_to_the_registry():
    assert "repulsion" not in rule_options(settings('name = "fw-svgd"'))
    assert "repulsion" not in rule_options(settings('name = "hp-svgd"'))


MILE = 'name = "mile"\ndraws = 5\n'
CONFLICTS = [
    ('name = "de"\ndraws = 5', "method.draws: de without noise is no sampler; must be 0"),
    ('name = "sgld"\nthin = 5', "method.thin: is for method.draws above 0; must be left out"),
    ('name = "sgld"\nburn_in = 5', "method.burn_in: is for method.draws above 0; must be left out"),
    ('name = "sgld"\ndraws = 5\nthin = 18\nburn_in = 11', "train.steps: got 100; must be at least 101: method.burn_in"),
    ('name = "sgld"\ntuning_steps = 5', "method.tuning_steps: sgld tunes nothing; must be left out, or use mile"),
    (
        'name = "sgld"\nenergy_variance = 1.0',
        "method.energy_variance: sgld tunes nothing; must be left out, or use mile",
    ),
    ('name = "mile"', "method.draws: got 0; must be at least 1: the draws of its chains are the ensemble of mile"),
    (MILE, "method.tuning_steps: got 0; must be at least 100"),
    (MILE + "tuning_steps = 100", "method.burn_in: got 0; must be at least method.tuning_steps = 100"),
    ('name = "sgld"\nfriction = 0.5', "method.friction: sgld has no momentum; must be left out, or use sghmc"),
    ('name = "sghmc"\nfriction = 0.0', "method.friction: got 0.0; must be a number above 0"),
    ('name = "sghmc"\nnoise_place = "adam-inside"', "method.noise_place: sghmc has momenta of its own"),
    ('name = "sghmc"\nexploration = 0.5', "method.exploration: is for optimiser.schedule = 'cyclical'"),
    ('name = "de"\nexploration = 0.5', "method.exploration: is for optimiser.schedule = 'cyclical'"),
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
