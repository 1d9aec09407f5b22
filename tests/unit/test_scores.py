"""Scores of answers after prediction, against scikit-learn, scoringrules, SciPy and by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scoringrules
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.special import log_softmax
from sklearn import metrics as sklearn

from problems import relative_error, rounding
from stein import evaluate, models, predict, predictions
from stein.metrics import classification, regression
from stein.predictions import RegressionPrediction

RANDOM = np.random.default_rng(0)
P = RANDOM.dirichlet(np.ones(4), size=(6, 50))
MEAN = P.mean(axis=0)
Y = RANDOM.integers(0, 4, 50)
MEANS, SIGMAS, TARGETS = RANDOM.normal(size=(7, 30, 2)), RANDOM.uniform(0.2, 2, (7, 30, 2)), RANDOM.normal(size=(30, 2))


def test_nll_brier_and_accuracy_are_scikit_learns():
    """Catches members averaged after the logarithm, a Brier score of the true class alone, and one cut in half."""
    assert classification.nll(np.log(P), Y) == pytest.approx(sklearn.log_loss(Y, MEAN), abs=1e-12)
    brier = sklearn.brier_score_loss(Y, MEAN, labels=range(4), scale_by_half=False)
    assert classification.brier(MEAN, Y) == pytest.approx(brier, abs=1e-12)
    assert classification.right(MEAN, Y).mean() == sklearn.accuracy_score(Y, MEAN.argmax(axis=1))


def test_nll_paper_has_its_logarithm_outside():
    """(0.5 + 0.25)/2. Catches the proper score in its place."""
    logs, y = np.log([[[0.5, 0.5], [0.75, 0.25]]]), np.array([0, 1])
    assert classification.nll_paper(logs, y) == pytest.approx(-np.log(0.375), abs=1e-12)
    assert classification.nll(logs, y) == pytest.approx((np.log(2) + np.log(4)) / 2, abs=1e-12)


def test_a_sure_mistake_has_its_whole_price():
    """Two members, both wrong with logits of hundreds. Catches logarithms of probabilities that are zero in float32."""
    logs = np.array(jax.nn.log_softmax(jnp.array([[[500.0, 0.0]], [[200.0, 0.0]]], jnp.float32)))
    found = evaluate.classification(logs, np.array([1]))
    assert found["nll"] == pytest.approx(200 + np.log(2), rel=rounding(2, "float32"))
    assert found["nll_paper"] == found["nll"]  # of a single point
    assert found["nll_members"] == pytest.approx(350, rel=rounding(2, "float32"))


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 6), st.floats(0.1, 1000))
def test_an_ensemble_is_at_least_as_good_as_its_members(seed, members, sharpness):
    """Jensen, twice, and no number knows the order of members or points. Catches a mean on the wrong side."""
    random = np.random.default_rng(seed)
    logs, y = log_softmax(sharpness * random.normal(size=(members, 20, 3)), axis=2), random.integers(0, 3, 20)
    found = evaluate.classification(logs, y)
    slack = rounding(members * 20 * 3) * (1 + found["nll_members"])
    assert found["nll"] <= found["nll_members"] + slack
    assert found["nll_paper"] <= found["nll"] + slack
    assert 0 <= found["ece"] <= 1
    assert 0 <= found["brier"] <= 2
    order = random.permutation(20)
    other = evaluate.classification(logs[::-1][:, order], y[order])
    assert other == pytest.approx(found, rel=1e-12, abs=1e-12)


def test_members_one_by_one_and_in_pairs():
    """Three members, three points. Catches pairs with oneself counted, and members averaged before they answer."""
    answers = np.array([[0, 1, 1], [0, 0, 1], [0, 0, 2]])
    p = np.eye(3)[answers]
    assert classification.accuracy_of_members(p, np.array([0, 1, 1])).tolist() == pytest.approx([1, 2 / 3, 1 / 3])
    pairs = [(answers[i] != answers[j]).mean() for i in range(3) for j in range(3) if i != j]
    assert classification.pairwise_disagreement(p) == pytest.approx(np.mean(pairs), abs=1e-12)
    assert classification.pairwise_disagreement(p[:1]) == 0


def test_crps_is_scoringrules():
    """Of mixtures with unequal widths, averaged. Catches the half of the second term, widths that are added, and
    1/n."""
    members_last = [np.moveaxis(v, 0, -1) for v in (MEANS, SIGMAS)]
    expected = scoringrules.crps_mixnorm(TARGETS, *members_last).mean()
    assert regression.crps(MEANS, SIGMAS, TARGETS) == pytest.approx(expected, abs=1e-12)
    one = scoringrules.crps_normal(TARGETS, MEANS[0], SIGMAS[0]).mean()
    assert regression.crps(MEANS[:1], SIGMAS[:1], TARGETS) == pytest.approx(one, abs=1e-12)


def test_crps_from_quantiles():
    """Of t distributions, from scoringrules; of counts, by the sum over whole numbers. The midpoint rule with 200
    levels is off by less than 0.5 %, most of it in the tails. Catches an indicator of the other side, and a lost 2."""
    heavy = RegressionPrediction(MEANS[:1], SIGMAS[:1], predictions.student_t(5.0))
    expected = scoringrules.crps_t(TARGETS, 5.0, MEANS[0], SIGMAS[0]).mean()
    assert heavy.crps(TARGETS) == pytest.approx(expected, rel=5e-3)
    rates, y = np.array([[[3.0], [40.0]]]), np.array([[1.0], [44.0]])
    counts = RegressionPrediction(rates, np.sqrt(rates), predictions.POISSON)
    whole = np.arange(200.0)
    squares = (stats.poisson(rates[0]).cdf(whole) - (whole >= y)) ** 2
    assert counts.crps(y) == pytest.approx(squares.sum(axis=1).mean(), rel=5e-3)


def test_regression_nll_is_that_of_the_mixture():
    """Against SciPy's densities. Catches targets averaged instead of added, and members mixed for each target alone."""
    densities = stats.norm(MEANS, SIGMAS).pdf(TARGETS[None]).prod(axis=2)
    expected = -np.log(densities.mean(axis=0)).mean()
    assert regression.nll(MEANS, SIGMAS, TARGETS) == pytest.approx(expected, abs=1e-12)
    assert regression.nll_members(MEANS, SIGMAS, TARGETS) == pytest.approx(-np.log(densities).mean(), abs=1e-12)
    assert regression.rmse(MEANS, TARGETS) == pytest.approx(
        sklearn.root_mean_squared_error(TARGETS.ravel(), MEANS.mean(axis=0).ravel()), abs=1e-12
    )


def test_intervals_hold_what_their_quantiles_enclose():
    """Against the quantiles of many draws of each mixture, and exactly for one Gaussian. Catches one-sided
    intervals."""
    levels = regression.levels(MEANS, SIGMAS, TARGETS)
    np.testing.assert_allclose(levels, stats.norm(MEANS, SIGMAS).cdf(TARGETS[None]).mean(axis=0), rtol=1e-12)
    z = np.array([[0.0], [0.6], [-0.7], [1.7], [-1.9], [3.0]])
    levels = regression.levels(np.zeros((1, 6, 1)), np.ones((1, 6, 1)), z)
    assert [regression.coverage(levels, share) for share in (0.5, 0.9, 0.95)] == pytest.approx([2 / 6, 3 / 6, 5 / 6])
    draws = np.random.default_rng(1).normal(size=(20_000, 1))
    levels = regression.levels(np.zeros((1, 20_000, 1)), np.ones((1, 20_000, 1)), draws)
    found = evaluate.regression(np.zeros((1, 20_000, 1)), np.ones((1, 20_000, 1)), draws)
    for share in (50, 90, 95):
        error = (share / 100 * (1 - share / 100) / 20_000) ** 0.5
        assert abs(found[f"coverage_{share}"] - share / 100) < 4 * error


def test_chunks_change_nothing_but_memory():
    """A last chunk that is not full. Catches points lost or doubled at its end, and outputs that pass a link."""
    model = models.mlp([3, 5, 4])
    particles = jax.vmap(model.init)(jax.random.split(jax.random.key(0), 6))
    x = np.random.default_rng(0).normal(size=(11, 3))
    whole = predict.outputs(model, particles, jnp.asarray(x))
    for chunk in (1, 4, 11, 100):
        said = predict.in_chunks(model, particles, x, chunk=chunk)
        assert (said.shape, said.dtype) == ((6, 11, 4), np.float64)
        assert relative_error(said, whole) <= rounding(3 * 5)
    with pytest.raises(ValueError, match="chunk = 0: must be at least 1"):
        predict.in_chunks(model, particles, x, chunk=0)


def test_activations_of_one_chunk_only():
    """The model is asked for no more than a chunk, and compiled for one size. Catches all inputs at once."""
    sizes = []

    def apply(weights, inputs):
        sizes.append(inputs.shape[0])
        return inputs @ weights

    from stein.types import Model

    model = Model(lambda key: jnp.ones((3, 2)), apply)
    predict.in_chunks(model, jnp.ones((4, 3, 2)), np.ones((25, 3)), chunk=10)
    assert set(sizes) == {10}
