"""The toy tasks: their data, the comparison with the posterior on hand-made inputs, and what comes with the package."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stein import data, functional_priors
from stein.paper import reference, statistics, toy_figures, toys
from stein.runs import launchers


def test_generators_reproduce_their_seeds():
    """The published recipe for regression, by hand; sees another generator, order of draws, or noise scale."""
    random = np.random.RandomState(42)
    first, second = random.uniform(1.5, 2.5, (45, 1)), random.uniform(4.5, 6.0, (45, 1))
    x = np.concatenate([first, second])
    made = data.regression_1d()
    np.testing.assert_array_equal(made[0], x.astype(np.float32))
    np.testing.assert_array_equal(made[1], (x * np.sin(x) + random.normal(0, 0.25, (90, 1))).astype(np.float32))
    for make in (data.regression_1d, data.classification_2d, lambda seed: (data.far_from_the_ring(seed),)):
        assert all(np.array_equal(a, b) for a, b in zip(make(seed=7), make(seed=7), strict=True))
        assert not np.array_equal(make(seed=7)[0], make(seed=8)[0])


def test_points_far_from_the_ring():
    """Catches a radius drawn uniformly (the mean radius would be 20.5) and a scale that is a standard deviation of
    0.4."""
    many = np.stack([data.far_from_the_ring(seed) for seed in range(100)])
    radius = np.linalg.norm(many[:, :200], axis=2)
    assert radius.min() >= 11
    assert radius.max() <= 30
    expected = 2 / 3 * (30**3 - 11**3) / (30**2 - 11**2)  # 22.0
    assert abs(radius.mean() - expected) < 4 * radius.std() / radius.size**0.5
    centre = many[:, 200:]
    assert abs(centre.var() - 0.4) < 4 * 0.4 * (2 / centre.size) ** 0.5


def test_regression_numbers_of_a_shrunken_posterior():
    """Half the spread everywhere: every ratio is 1/2 and E_std log 2. Catches variances for spreads, and their
    inverse."""
    draws = reference.posterior("regression").draws
    half = draws.mean(axis=0) + 0.5 * (draws - draws.mean(axis=0))
    numbers = toys.compare_regression(half, draws)
    for name in ("rho_data", "rho_gap", "rho_ext"):
        assert numbers[name] == pytest.approx(0.5, rel=1e-4)
    assert numbers["E_std"] == pytest.approx(np.log(2), rel=1e-4)
    assert numbers["coverage"] == 1
    assert numbers["KL"] == pytest.approx(np.log(2) + 1 / 8 - 1 / 2, rel=1e-3)


def test_classification_numbers_by_hand():
    """Members sure near the data and at a loss elsewhere. Catches near and far, test and OOD points exchanged."""
    near, far = toys.near_and_far()
    assert not (near & far).any()
    g = len(toys.classification().points)
    sure = np.zeros((2, g, 5))
    sure[..., 0] = 1
    loss = np.full((2, g, 5), 0.2)
    knows = loss.copy()
    knows[:, : toys.SIDE**2][:, near] = sure[:, : toys.SIDE**2][:, near]
    knows[:, toys.TEST_POINTS] = sure[:, toys.TEST_POINTS]
    mean = knows[0, : toys.SIDE**2]
    numbers = toys.compare_classification(knows, mean)
    assert (numbers["H_near"], numbers["H_far"], numbers["H_far_above_half"]) == pytest.approx((0, 1, 1))
    assert numbers["AUROC_H"] == numbers["AUROC_H_centre"] == 1
    assert numbers["AUROC_MD"] == 0.5  # all members agree everywhere
    assert (numbers["KL"], numbers["H_error"]) == pytest.approx((0, 0), abs=1e-12)
    assert numbers["H_correlation"] == pytest.approx(1)
    doubting = toys.compare_classification(loss, mean)
    assert doubting["KL"] == pytest.approx(near.mean() * np.log(5))
    assert doubting["H_error"] == pytest.approx(near.mean())
    assert doubting["H_correlation"] == 0


def test_signs_are_flipped():
    """p of five differences of one sign is 1/32. Catches a two-sided test, and pairs that are torn apart."""
    a, b = [2.0, 3.0, 4.0, 5.0, 6.0], [1.0, 1.0, 1.0, 1.0, 1.0]
    assert statistics.paired(a, b)["p"] == 1 / 32
    assert statistics.paired(b, a)["p"] == 1
    assert statistics.paired(a, b)["difference"] == 3
    assert statistics.paired(a, b)["error"] == pytest.approx(np.std([1, 2, 3, 4, 5], ddof=1) / 5**0.5)


def test_the_committed_posteriors_are_converged_and_small():
    """What every comparison rests on: R-hat and effective draws in function space, inside the range of the data."""
    posterior = reference.posterior("regression")
    inside = (toys.GRID >= 1.5) & (toys.GRID <= 6.0)
    found = {name: np.array(values) for name, values in posterior.about["diagnostics"].items()}
    assert found["rhat"][inside].max() <= 1.05
    assert min(found["ess_bulk"][inside].min(), found["ess_tail"][inside].min()) >= 400
    assert posterior.draws.shape == (1600, 141)
    assert "stein reproduce hmc" in posterior.about["command"]
    classes = reference.posterior("classification").about
    assert classes["floor_against"].startswith("the mean of the other draws")
    assert len(classes["floor"]) == 5


def test_fifty_draws_are_the_floor():
    """What is left to chance is small and not nothing; catches a reference compared with itself."""
    rows = toy_figures.floor(toys.regression(), reference.posterior("regression"))
    numbers = statistics.summary(rows)
    assert 0.05 < numbers["E_std"][0] < 0.13
    assert 0.1 < numbers["W1"][0] < 0.25
    assert numbers["rho_gap"][0] == pytest.approx(1, abs=0.1)


def test_the_moment_matched_prior_takes_functions_of_any_scale():
    """Smooth functions of scale 100 at 70 points, in float32. Catches a jitter that is too small to be felt there."""
    inputs = jnp.linspace(0, 7, 70, dtype=jnp.float32)[:, None]

    def draw(key, number, at):
        weights = jax.random.normal(key, (number, 1, 4), jnp.float32)
        return (
            100
            * jnp.sum(weights * jnp.sin(at * jnp.arange(1.0, 5.0, dtype=jnp.float32)[None])[None], axis=2)[..., None]
        )

    features = draw(jax.random.key(1), 5, inputs)
    score = functional_priors.moment_matched()(jax.random.key(0), features, jnp.ones(5, bool), inputs, draw)
    assert bool(jnp.isfinite(score).all())
    assert float(jnp.sum(score * features)) < 0  # towards the mean


def test_noise_is_compared_over_the_seeds_that_both_have():
    """SGLD's other half is the deep ensemble. Catches a difference with the wrong sign, and a seed of one table
    only."""
    rows = {"SGLD": {1: {"E_std": 1.0, "W1": 0.0}, 2: {"E_std": 2.0, "W1": 0.0}, 3: {"E_std": 9.0, "W1": 9.0}}}
    before = {"1": {"E_std": 2.0, "W1": 0.0}, "2": {"E_std": 4.0, "W1": 0.0}}
    other = {"tasks": {"regression": {"rows": {"DE": {"seeds": before}}}}}
    first, second = toy_figures.noise_against_none(rows, other, "regression")
    assert (first["larger"], first["smaller"], first["number"]) == ("DE without noise", "SGLD", "E_std")
    assert (first["difference"], first["p"]) == (1.5, 0.25)
    assert second["difference"] == 0
    assert toy_figures.noise_against_none({"h-SVGD": rows["SGLD"]}, other, "regression") == []


def test_a_cell_that_fails_does_not_stop_the_others(tmp_path):
    """Catches a pool that gives up at the first error, and an error that nobody hears of."""
    files = [tmp_path / "a", tmp_path / "missing" / "b", tmp_path / "c"]
    with pytest.raises(FileNotFoundError, match="missing"):
        launchers.make_all(launchers.local(2), Path.touch, files, watch=lambda: None)
    assert [file.exists() for file in files] == [True, False, True]
