"""Uncertainty of classifiers and scores of out-of-distribution detection, by hand and against SciPy."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn import metrics as sklearn

from stein.metrics import ood, uncertainty

RANDOM = np.random.default_rng(0)
P = RANDOM.dirichlet(np.ones(4), size=(6, 9))


def test_entropy_is_scipys_and_goes_from_zero_to_one():
    np.testing.assert_allclose(uncertainty.entropy(P[0]), stats.entropy(P[0].T, base=4), rtol=1e-12)
    assert uncertainty.entropy(np.array([[0.25] * 4, [1.0, 0, 0, 0]])).tolist() == [1.0, 0.0]


def test_disagreement_is_the_mean_of_standard_deviations():
    """Catches the root of a mean of variances, and n for n - 1."""
    p = np.array([[[0.9, 0.1]], [[0.5, 0.5]], [[0.7, 0.3]]])
    assert uncertainty.disagreement(p).tolist() == pytest.approx([0.2])
    q = np.array([[[0.8, 0.1, 0.1]], [[0.4, 0.1, 0.5]]])
    assert uncertainty.disagreement(q)[0] == pytest.approx((0.4 + 0 + 0.4) / np.sqrt(2) / 3)


def test_mutual_information_of_members_that_are_nearly_certain_is_finite():
    """Catches a mean that is rounded to zero where a probability is the smallest number: it diverges by inf."""
    sure = np.array([[[1.0, 0.0]], [[1.0, 5e-324]], [[1.0, 0.0]]])
    assert uncertainty.mutual_information(sure).tolist() == [0]


def test_mutual_information_is_what_members_do_not_share():
    """Zero for members that agree, all of the entropy for members that are each certain of something else."""
    same, torn = np.repeat(P[:1], 3, axis=0), np.eye(4)[:, None]
    np.testing.assert_array_equal(uncertainty.mutual_information(same), 0)  # exactly, as its docstring promises
    np.testing.assert_allclose(uncertainty.mutual_information(torn), 1)
    expected = stats.entropy(P.mean(axis=0).T, base=4) - stats.entropy(P, axis=2, base=4).mean(axis=0)
    np.testing.assert_allclose(uncertainty.mutual_information(P), expected, rtol=1e-10)


def test_auroc_by_hand_and_by_counting():
    assert ood.auroc(np.array([2.0, 3.0]), np.array([0.0, 1.0])) == 1.0
    assert ood.auroc(np.array([0.0, 1.0]), np.array([2.0, 3.0])) == 0.0
    assert ood.auroc(np.array([1.0, 1.0]), np.array([1.0, 0.0, 1.0])) == pytest.approx(4 / 6)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=20), st.lists(st.integers(0, 5), min_size=1, max_size=20))
def test_auroc_counts_pairs(outside, inside):
    """With many ties. Catches ties that count whole or not at all."""
    pairs = [(o > i) + 0.5 * (o == i) for o in outside for i in inside]
    assert ood.auroc(np.array(outside, float), np.array(inside, float)) == pytest.approx(np.mean(pairs), abs=1e-12)


def test_ranks_are_scipys():
    values = RANDOM.integers(0, 5, 30).astype(float)
    np.testing.assert_array_equal(ood.ranks(values), stats.rankdata(values))


def test_bad_scores_are_told():
    with pytest.raises(ValueError, match="0 points outside"):
        ood.auroc(np.array([]), np.array([1.0]))
    with pytest.raises(ValueError, match="not finite"):
        ood.auroc(np.array([np.nan]), np.array([1.0]))


def test_rank_correlation_is_spearmans():
    """Against SciPy, with ties. Catches a correlation of the values themselves."""
    random = np.random.default_rng(3)
    a, b = random.integers(0, 6, 40).astype(float), random.normal(size=40) ** 3
    assert ood.rank_correlation(a, b) == pytest.approx(stats.spearmanr(a, b).statistic, rel=1e-12)
    assert ood.rank_correlation(a, np.exp(a)) == pytest.approx(1)
    assert ood.rank_correlation(a, np.ones(40)) == 0


def test_rms_disagreement_is_the_root_of_the_mean():
    """Against NumPy, and another order than the mean of roots. Catches one in place of the other. One member:
    nothing."""
    np.testing.assert_allclose(uncertainty.rms_disagreement(P), np.sqrt(P.var(axis=0, ddof=1).mean(axis=1)), rtol=1e-12)
    np.testing.assert_allclose(uncertainty.disagreement(P), P.std(axis=0, ddof=1).mean(axis=1), rtol=1e-12)
    assert uncertainty.disagreement(P[:1]).tolist() == uncertainty.rms_disagreement(P[:1]).tolist() == [0] * 9


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=20), st.lists(st.integers(0, 5), min_size=1, max_size=20))
def test_aupr_and_fpr95_are_scikit_learns(outside, inside):
    """With many ties. Catches thresholds between equal scores, an interpolated area, and inside for outside."""
    labels, scores = [1] * len(outside) + [0] * len(inside), outside + inside
    pair = np.array(outside, float), np.array(inside, float)
    assert ood.aupr(*pair) == pytest.approx(sklearn.average_precision_score(labels, scores), abs=1e-12)
    false_alarms, found, _ = sklearn.roc_curve(labels, scores, drop_intermediate=False)
    assert ood.fpr95(*pair) == pytest.approx(false_alarms[np.argmax(found >= 0.95 - 1e-9)], abs=1e-12)
    assert ood.auroc(*pair) == pytest.approx(sklearn.roc_auc_score(labels, scores), abs=1e-12)


def test_fpr95_by_hand():
    """Nineteen of twenty are enough. Catches all of them asked for."""
    outside, inside = np.array([*range(10, 29), 0.0]), np.array([1.0, 11.0, 2.0, 3.0])
    assert ood.fpr95(outside, inside) == 0.25
    assert ood.fpr95(outside, inside, 1.0) == 1.0


def test_ratio_is_of_means():
    """Catches a mean of ratios, and zero over zero as a crash."""
    assert ood.ratio(np.array([1.0, 3.0]), np.array([0.5, 1.5])) == 2
    assert np.isnan(ood.ratio(np.array([1.0]), np.array([0.0])))
