"""Calibration errors, reliability diagrams and calibration curves, against scikit-learn and by hand."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.calibration import calibration_curve

from stein.metrics import calibration

RANDOM = np.random.default_rng(0)
CONFIDENCE = RANDOM.uniform(0.1, 1, 500)
RIGHT = RANDOM.random(500) < CONFIDENCE**2
ANSWERS = st.lists(st.tuples(st.integers(0, 40), st.booleans()), min_size=1, max_size=40)


def columns(answers: list[tuple[int, bool]]) -> tuple[np.ndarray, np.ndarray]:
    values, right = zip(*answers, strict=True)
    return np.array(values) / 40, np.array(right)


def test_reliability_is_scikit_learns():
    """Catches bins of another width, and a mean over all points for one over a bin."""
    found = calibration.reliability(CONFIDENCE, RIGHT)
    some = found.points > 0
    accuracy, confidence = calibration_curve(RIGHT, CONFIDENCE, n_bins=30)
    np.testing.assert_allclose(found.accuracy[some], accuracy, rtol=1e-12)
    np.testing.assert_allclose(found.confidence[some], confidence, rtol=1e-12)
    assert (len(found.points), found.points.sum()) == (30, 500)


def test_ece_weighs_bins_by_their_points():
    """Bins (0.9, 0.95; both right) and (0.6; wrong): sees equal weights of bins, and signs that cancel."""
    assert calibration.ece(np.array([0.9, 0.95, 0.6]), np.array([True, True, False]), 10) == pytest.approx(
        2 / 3 * 0.075 + 1 / 3 * 0.6, abs=1e-12
    )
    accuracy, confidence = calibration_curve(RIGHT, CONFIDENCE, n_bins=30)
    counts = np.histogram(CONFIDENCE, 30, (0, 1))[0]
    expected = (counts[counts > 0] * np.abs(accuracy - confidence)).sum() / 500
    assert calibration.ece(CONFIDENCE, RIGHT) == pytest.approx(expected, abs=1e-12)


def test_certainty_belongs_to_the_last_bin():
    """Catches 1.0 in a bin of its own, and one that rounding has put above 1. 0.5 begins a bin of two."""
    found = calibration.reliability(np.array([1.0, 1.0 + 1e-7, 0.5, 0.0]), np.array([True] * 4), 2)
    assert found.points.tolist() == [1, 3]


@settings(max_examples=100, deadline=None)
@given(ANSWERS, st.randoms(use_true_random=False))
def test_ece_is_a_distance_and_knows_no_order(answers, random):
    """Catches a sum for a mean, and anything that depends on the order of the points."""
    value = calibration.ece(*columns(answers))
    random.shuffle(answers)
    assert 0 <= value <= 1
    assert calibration.ece(*columns(answers)) == pytest.approx(value, abs=1e-12)


def test_the_curve_by_hand():
    """The surest first. Catches points sorted the other way, and accuracies that are not cumulative."""
    uncertainty, right = np.array([0.3, 0.1, 0.4, 0.2]), np.array([False, True, True, True])
    np.testing.assert_allclose(calibration.curve(uncertainty, right), [1, 1, 2 / 3, 3 / 4], rtol=1e-12)
    assert len(calibration.curve(uncertainty, right, 2)) == 2


@settings(max_examples=100, deadline=None)
@given(ANSWERS, st.randoms(use_true_random=False))
def test_equal_uncertainties_share_and_no_ranking_beats_the_perfect_one(answers, random):
    """Many ties. Catches ties in the order of the data, and a reference that is no upper bound."""
    uncertainty, right = columns(answers)
    curve = calibration.curve(uncertainty, right)
    random.shuffle(answers)
    np.testing.assert_allclose(calibration.curve(*columns(answers)), curve, atol=1e-12)
    best = calibration.perfect(int(right.sum()), len(right))
    assert (curve <= best + 1e-12).all()
    assert curve[-1] == pytest.approx(best[-1]) == pytest.approx(right.mean())


def test_points_of_another_kind_are_wrong_and_cost_area_only_where_they_are_sure():
    """Nine right points and nine from outside. Catches outside points left out, and an area over all of the pool."""
    right = np.array([True] * 9 + [False] * 9)
    last, first = np.arange(18.0), np.concatenate([np.arange(9.0) + 9, np.arange(9.0)])
    assert calibration.area(calibration.curve(last, right, 9)) == 1
    assert calibration.area(calibration.curve(first, right, 9)) == 0


def test_area_of_the_perfect_ranking_follows_from_accuracy():
    """8 of 10 right: 1 for eight points, then 8/9 and 8/10. Catches a curve that drops to zero."""
    assert calibration.area(calibration.perfect(8, 10)) == pytest.approx((8 + 8 / 9 + 8 / 10) / 10, abs=1e-12)


def test_coverage_is_the_last_place_above():
    """The curve dips below and comes back. Catches the first crossing, and 97 of 100 refused for rounding."""
    assert calibration.coverage(np.array([1.0, 0.9, 0.98, 0.5])) == 3
    assert calibration.coverage(np.array([0.5, 0.9])) == 0
    right = np.ones(100, bool)
    right[[3, 50, 70]] = False
    assert calibration.coverage(calibration.curve(np.arange(100.0), right)) == 100
    assert calibration.coverage(np.array([1.0, 0.9, 0.98, 0.5]), 0.5) == 4


def test_rises_count_what_goes_up_and_skip_the_first_points():
    """k = 2, 3, 4, 5 with s = 1: up by 0.1 and by 0.2. Catches falls that cancel, and the noisy beginning counted."""
    curve = np.array([0.0, 0.9, 1.0, 0.7, 0.9])
    assert calibration.rises(curve, 1) == pytest.approx(0.3, abs=1e-12)
    assert calibration.rises(np.linspace(1, 0.5, 1000)) == 0
    assert calibration.rises(np.linspace(0, 1, 1000)) == pytest.approx(800 / 999, abs=1e-12)
