"""Rounding does not rank: equal points have equal scores, and confidences on the edge of a bin stay in it."""

import numpy as np
import pytest
from scipy.special import log_softmax

from problems import rounding
from stein import evaluate
from stein.metrics import calibration, ood, ties, uncertainty

RANDOM = np.random.default_rng(0)
Y = RANDOM.integers(0, 10, 50)
LOGS = {
    "undecided": log_softmax(RANDOM.normal(size=(20, 50, 10)), axis=2),
    "sure": log_softmax(60 * RANDOM.normal(size=(20, 50, 10)).astype(np.float32), axis=2),
    "votes": log_softmax(1e4 * np.eye(10)[RANDOM.integers(0, 4, (20, 50))], axis=2),
    "alike": np.repeat(log_softmax(RANDOM.normal(size=(1, 50, 10)), axis=2), 20, axis=0),
}
ORDER = RANDOM.permutation(50)
COPIES = {
    "itself": lambda logs: logs.copy(),
    "points shuffled": lambda logs: logs[:, ORDER],
    "Fortran's order": np.asfortranarray,
    "members backwards": lambda logs: logs[::-1],
    "classes backwards": lambda logs: logs[:, :, ::-1],
}


@pytest.mark.parametrize("copy", COPIES)
@pytest.mark.parametrize("kind", LOGS)
def test_a_set_is_not_told_from_itself(kind, copy):
    """Every score, of members that are undecided, sure, vote, or all say the same. Catches an order of points that only
    rounding makes: sums in another order, and differences that should be zero."""
    found = evaluate.classification(LOGS[kind], Y, {"copy": COPIES[copy](LOGS[kind])})
    for score in ("h", "md", "md_rms", "mi"):
        assert found[f"auroc_{score}"] == 0.5, score
    for score in ("h", "md", "mi"):
        if not np.isnan(found[f"{score}_ratio"]):
            assert found[f"{score}_ratio"] == pytest.approx(1, rel=1e-12)


def test_members_who_agree_have_nothing_to_disagree_about():
    """Exactly zero, not rounding. Catches a mean of equal numbers that is not that number."""
    p = np.exp(LOGS["alike"])
    p /= p.sum(axis=2, keepdims=True)
    assert uncertainty.disagreement(p).tolist() == uncertainty.mutual_information(p).tolist() == [0] * 50


def test_entropies_of_the_sure_have_all_their_digits():
    """Two classes, the other with 1e-12 to 1e-25, against the series e (1 - log e). Catches the largest probability's
    own digits, which end at 1e-16."""
    e = 10.0 ** -np.arange(12, 26)
    found = uncertainty.entropy(np.stack([1 - e, e], axis=1)) * np.log(2)
    np.testing.assert_allclose(found, e * (1 - np.log(e)), rtol=1e-11)


def test_scores_are_as_different_as_rounding_allows():
    """Catches a tolerance that is absolute, or so wide that it makes ties of different scores."""
    eps = np.finfo(float).eps
    assert ties.groups(np.array([1.0, 1 + eps, 1 + 1000 * eps, 1e-30, 2e-30, 0.0])).tolist() == [3, 3, 4, 1, 2, 0]
    assert ties.groups(np.array([-2.0, -2 * (1 + eps), 5.0])).tolist() == [0, 0, 1]
    close = 1 + 1e-12 * np.arange(100)
    assert ood.auroc(close + 5e-13, close) == pytest.approx(np.mean([(i >= j) for i in range(100) for j in range(100)]))
    assert ties.groups(np.array([])).size == 0


def test_one_ulp_below_an_edge_is_on_it():
    """Thirty points of 18 in 30 sure votes each, half of them an ulp lower, of either precision. Catches them in two
    bins: ECE then is larger by 0.03 and more."""
    right = np.arange(30) % 2 == 0
    on = np.full(30, 0.6)
    for dtype in (np.float64, np.float32):
        below = np.where(right, on, np.nextafter(dtype(0.6), dtype(0)))
        assert calibration.ece(below, right) == pytest.approx(calibration.ece(on, right), abs=rounding(30, dtype))
        assert calibration.reliability(below, right).points[18] == 30


@pytest.mark.parametrize("bins", [7, 10, 15, 30])
def test_every_vote_is_in_the_bin_that_it_begins(bins):
    """k of `bins` sure members. Catches k/bins rounded down into the bin before."""
    votes = np.arange(1, bins)
    points = calibration.reliability(votes / bins, np.ones(bins - 1, bool), bins).points
    assert points.tolist() == [0] + [1] * (bins - 1)


# -- the calibration curve by disagreement ------------------------------------------------------------------


def test_the_curve_by_disagreement_by_hand():
    """Four points whose disagreement orders them otherwise than their entropy. Catches entropy in its place, and
    outside points that are left out or count as right."""
    sure, torn = [[0.5, 0.5], [0.5, 0.5]], [[1.0, 0.0], [0.8, 0.2]]  # by member; entropy 1 and 0.47
    inside = np.log(np.maximum(np.array([sure, torn]).swapaxes(0, 1), 1e-300))
    found = evaluate.classification(inside, np.array([0, 1]))  # of equal probabilities the first class is the answer
    assert found["calibration_md_area"] == pytest.approx((1 + 0.5) / 2)
    assert found["calibration_area"] == pytest.approx((0 + 0.5) / 2)
    assert (found["calibration_md_coverage97"], found["calibration_coverage97"]) == (1, 0)
    other = evaluate.classification(inside, np.array([0, 1]), {"far": inside[:, :1]})
    assert other["calibration_md_area"] == pytest.approx((0.5 + 0.5) / 2)  # a tie of a right and an outside point
    curves = evaluate.classification_curves(inside, np.array([0, 1]))["calibration"]["test"]
    assert curves["accuracy_md"] == pytest.approx([1, 0.5])
    assert curves["accuracy"] == pytest.approx([0, 0.5])


def test_the_figure_shows_both_curves():
    from stein.report import evaluation as figures

    curve = evaluate.classification_curves(LOGS["undecided"], Y)["calibration"]["test"]
    drawn = [line.get_ydata() for line in figures.calibration({"h": {"test": curve}}, disagreement=True).axes[0].lines]
    assert any(list(line) == curve["accuracy_md"] for line in drawn)
    assert any(list(line) == curve["accuracy"] for line in drawn)
    assert curve["accuracy_md"] != curve["accuracy"]
