"""What an ensemble predicts, against SciPy, by simulation and by hand."""

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from stein import likelihoods
from stein.predictions import POISSON, ClassPrediction, RegressionPrediction, student_t

RANDOM = np.random.default_rng(0)
MEANS, SIGMAS = RANDOM.normal(size=(4, 5, 2)), RANDOM.uniform(0.2, 2.0, size=(4, 5, 2))
MIXTURE = RegressionPrediction(MEANS, SIGMAS)


def test_mean_and_parts_of_the_variance():
    """Against draws of the mixture. Catches variances that are averaged as deviations, and members weighted unequally.

    Monte-Carlo error of a standard deviation from 200,000 draws: 0.2 %, six of them are allowed.
    """
    draws = MIXTURE.sample(200_000, seed=1)
    np.testing.assert_allclose(MIXTURE.mean, draws.mean(axis=0), atol=6 * 3 / 200_000**0.5)
    np.testing.assert_allclose(MIXTURE.std, draws.std(axis=0), rtol=0.012)
    np.testing.assert_allclose(MIXTURE.std**2, MIXTURE.aleatoric**2 + MIXTURE.epistemic**2, rtol=1e-12)
    np.testing.assert_allclose(MIXTURE.epistemic, MEANS.std(axis=0), rtol=1e-12)


@pytest.mark.parametrize("level", [1e-6, 0.05, 0.5, 0.95])
def test_quantiles_invert_the_distribution(level):
    """Catches a quantile of the mean normal, and a mean of the members' quantiles."""
    found = MIXTURE.quantile(level)
    below = scipy.stats.norm.cdf(found, MEANS, SIGMAS).mean(axis=0)
    np.testing.assert_allclose(below, level, rtol=1e-9)


def test_certain_members_have_quantiles_too():
    """Sigma zero: the quantile is one of the members' numbers."""
    certain = RegressionPrediction(np.array([[[1.0]], [[2.0]], [[3.0]]]), np.zeros((3, 1, 1)))
    assert certain.quantile(0.5).item() == pytest.approx(2.0)
    assert certain.quantile(0.99).item() == pytest.approx(3.0)


def test_an_interval_holds_what_it_promises():
    low, high = MIXTURE.interval(0.8)
    inside = scipy.stats.norm.cdf(high, MEANS, SIGMAS) - scipy.stats.norm.cdf(low, MEANS, SIGMAS)
    np.testing.assert_allclose(inside.mean(axis=0), 0.8, rtol=1e-9)
    with pytest.raises(ValueError, match=r"coverage = 90: must be between 0 and 1"):
        MIXTURE.interval(90)


def test_targets_of_a_draw_belong_together():
    """Two members that disagree in both targets. Catches a member drawn for each target on its own."""
    two = RegressionPrediction(np.array([[[-9.0, -9.0]], [[9.0, 9.0]]]), np.full((2, 1, 2), 0.1))
    draws = two.sample(200)[:, 0]
    assert (np.sign(draws[:, 0]) == np.sign(draws[:, 1])).all()


FAMILIES = {
    "student-t": (RegressionPrediction(MEANS, SIGMAS, student_t(5.0)), scipy.stats.t(5.0, MEANS, SIGMAS)),
    "poisson": (
        RegressionPrediction(np.exp(MEANS), np.exp(MEANS / 2), POISSON),
        scipy.stats.poisson(np.exp(MEANS)),
    ),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_other_families_against_scipy_and_draws(name):
    """Catches the scale of a t distribution taken for its standard deviation, and quantiles of counts between counts.

    Monte-Carlo error of a standard deviation from 400,000 draws with a kurtosis of at most 9: 0.23 %; six are allowed.
    """
    prediction, members = FAMILIES[name]
    draws = prediction.sample(400_000, seed=2)
    np.testing.assert_allclose(prediction.mean, draws.mean(axis=0), atol=6 * 4 / 400_000**0.5)
    np.testing.assert_allclose(prediction.std, draws.std(axis=0), rtol=0.014)
    np.testing.assert_allclose(prediction.aleatoric**2, members.var().mean(axis=0), rtol=1e-12)
    for level in (0.01, 0.5, 0.975):
        found = prediction.quantile(level)
        if name == "poisson":
            assert (found == np.round(found)).all()
            assert (members.cdf(found).mean(axis=0) >= level).all()
            assert (members.cdf(found - 1).mean(axis=0) < level).all()
        else:
            np.testing.assert_allclose(members.cdf(found).mean(axis=0), level, rtol=1e-9)


def test_levels_of_counts_are_in_the_middle_of_their_step():
    """Catches F(y), whose mean over counts of a calibrated prediction is above a half."""
    counts = RegressionPrediction(np.full((1, 40_000, 1), 1.5), np.full((1, 40_000, 1), 1.5**0.5), POISSON)
    levels = counts.levels(np.random.default_rng(5).poisson(1.5, 40_000))
    assert abs(levels.mean() - 0.5) < 6 * 0.29 / 40_000**0.5


def test_only_a_finite_variance_and_no_units_of_counts():
    with pytest.raises(ValueError, match=r"degrees = 2: must be above 2"):
        student_t(2)
    with pytest.raises(ValueError, match="counts have no other units"):
        FAMILIES["poisson"][0].in_units(2.0, 0.0)


def test_units():
    scaled = MIXTURE.in_units(np.array([10.0, 100.0]), np.array([5.0, -5.0]))
    np.testing.assert_allclose(scaled.mean, MIXTURE.mean * [10, 100] + [5, -5], rtol=1e-12)
    np.testing.assert_allclose(scaled.std, MIXTURE.std * [10, 100], rtol=1e-12)
    y = RANDOM.normal(size=(5, 2))
    shift = scaled.scores(y * [10, 100] + [5, -5])["nll"] - MIXTURE.scores(y)["nll"]
    assert shift == pytest.approx(np.log(1000.0), rel=1e-9)


LOGS = np.log(RANDOM.dirichlet(np.ones(3), size=(4, 6)))
CLASSES = ClassPrediction(LOGS, ("a", "b", "c"))


def test_probabilities_are_means_of_probabilities():
    """Catches the softmax of mean logits."""
    np.testing.assert_allclose(CLASSES.probabilities, np.exp(LOGS).mean(axis=0), rtol=1e-12)
    assert CLASSES.named == [CLASSES.labels[c] for c in np.exp(LOGS).mean(axis=0).argmax(axis=1)]
    assert ClassPrediction(LOGS).named == [str(c) for c in CLASSES.chosen]


def test_sets_are_the_smallest_that_hold_enough():
    """By hand for one point, by sums for all. Catches one class too few, or too many."""
    one = ClassPrediction(np.log([[[0.5, 0.3, 0.2]]]))
    assert one.sets(0.5).tolist() == [[True, False, False]]
    assert one.sets(0.51).tolist() == [[True, True, False]]
    for coverage in (0.4, 0.9):
        sets, p = CLASSES.sets(coverage), CLASSES.probabilities
        assert ((sets * p).sum(axis=1) >= coverage).all()
        least = np.where(sets, p, np.inf).min(axis=1)
        assert ((sets * p).sum(axis=1) - least < coverage).all()


def test_scores():
    """By hand. Catches members averaged after the logarithm."""
    logs = np.log(np.array([[[0.2, 0.8], [0.5, 0.5]], [[0.6, 0.4], [0.1, 0.9]]]))
    found = ClassPrediction(logs).scores([0, 0])
    assert found["nll"] == pytest.approx(-np.mean(np.log([0.4, 0.3])))
    assert found["nll_members"] == pytest.approx(-np.mean(np.log([0.2, 0.5, 0.6, 0.1])))
    assert found["accuracy"] == 0
    means = np.array([[[1.0], [2.0]], [[3.0], [2.0]]])
    assert RegressionPrediction(means, np.ones_like(means)).scores([2.0, 5.0])["rmse"] == pytest.approx(4.5**0.5)


def test_a_temperature_changes_what_the_ensemble_says_and_not_its_members():
    """By hand; at 1 to the byte as without. Catches a number that forgets the temperature, or members that have it."""
    mean = np.exp(LOGS).mean(axis=0)
    p = mean**0.5 / (mean**0.5).sum(axis=1, keepdims=True)
    y, soft = np.array([0, 1, 2, 0, 1, 2]), CLASSES._replace(temperature=2.0)
    np.testing.assert_allclose(soft.probabilities, p, rtol=1e-12)
    np.testing.assert_allclose(soft.entropy, -(p * np.log(p)).sum(axis=1) / np.log(3), rtol=1e-9)
    np.testing.assert_array_equal(soft.sets(0.8), ClassPrediction(np.log(p)[None]).sets(0.8))
    assert soft.scores(y)["nll"] == pytest.approx(-np.log(p[np.arange(6), y]).mean(), rel=1e-12)
    assert soft.scores(y)["nll_members"] == CLASSES.scores(y)["nll_members"]
    for same in ("chosen", "mutual_information", "disagreement", "members"):
        np.testing.assert_array_equal(getattr(soft, same), getattr(CLASSES, same))
    np.testing.assert_array_equal(CLASSES.probabilities, CLASSES.members.mean(axis=0))


def test_a_temperature_reaches_probabilities_that_are_zero_in_floating_point():
    """Catches a power of the probability itself."""
    sure = ClassPrediction(np.array([[[0.0, -800.0]], [[0.0, -900.0]]]), temperature=50.0)
    assert sure.probabilities[0, 1] == pytest.approx(np.exp(-800 / 50) * 0.5 ** (1 / 50), rel=1e-6)
    assert sure.scores([1])["nll"] == pytest.approx(16 + np.log(2) / 50, rel=1e-6)


LIKELIHOODS = {
    "gaussian": likelihoods.gaussian(0.7),
    "learned sigma": likelihoods.gaussian(None),
    "heteroscedastic": likelihoods.heteroscedastic(),
    "student-t": likelihoods.student_t(0.7, 3.0),
    "student-t, learned sigma": likelihoods.student_t(),
    "poisson": likelihoods.poisson(2.5),
}


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_a_likelihood_predicts_what_it_is_the_likelihood_of(name):
    """The density of the prediction is that of training. Catches log sigma among the means, and a lost sigma."""
    likelihood = LIKELIHOODS[name]
    outputs = RANDOM.normal(size=(3, 5, 4))
    y = RANDOM.poisson(3.0, size=(5, likelihood.predictive(outputs).mean.shape[1])).astype(float)
    members = np.stack([np.asarray(likelihood.log_prob(jnp.asarray(each), jnp.asarray(y))) for each in outputs])
    scores = likelihood.predictive(outputs).scores(y)
    assert scores["nll_members"] == pytest.approx(-members.mean(), rel=1e-9)
    assert scores["nll"] == pytest.approx(-np.log(np.exp(members).mean(axis=0)).mean(), rel=1e-9)


@pytest.mark.parametrize("name", ["heteroscedastic", "learned sigma"])
def test_far_from_all_data_the_noise_is_still_a_number(name):
    """Catches an overflow, after which nothing can be calibrated."""
    found = LIKELIHOODS[name].predictive(np.array([[[1e30, 1e5]], [[-1e30, 2.0]]]))
    assert np.isfinite(found.std).all()
    assert np.isfinite(found.scores([[0.0]])["nll"])
    assert np.isfinite(found.interval(0.9)).all()


def test_a_classifier_predicts_what_it_is_the_likelihood_of():
    outputs, y = RANDOM.normal(size=(3, 5, 4)), RANDOM.integers(0, 4, 5)
    likelihood = likelihoods.categorical()
    members = np.stack([np.asarray(likelihood.log_prob(jnp.asarray(each), jnp.asarray(y))) for each in outputs])
    assert likelihood.predictive(outputs).scores(y)["nll_members"] == pytest.approx(-members.mean(), rel=1e-9)
