"""Conformal intervals and sets against the law of their coverage; temperatures against known ones."""

import numpy as np
import pytest
import scipy.stats

from stein import calibration, predictions
from stein.calibration import Conformal
from stein.predictions import ClassPrediction, RegressionPrediction

LARGEST = 2.2
"""Of √r times the Kolmogorov distance of r draws: exceeded with probability 1e-4."""


def distance(levels: np.ndarray) -> float:
    return float(scipy.stats.kstest(levels, "uniform").statistic * len(levels) ** 0.5)


def one(means: np.ndarray, stds: np.ndarray) -> RegressionPrediction:
    return RegressionPrediction(means[None], stds[None])


def test_coverage_of_intervals_given_the_calibration_rows_is_beta():
    """25 rows for 90 %: k = ⌈26 · 0.9⌉ = 24, coverage ~ Beta(24, 2).

    Catches n for n + 1 and the floor for the ceiling (both 23), the other end of the sorted scores, residuals that
    are not divided by sigma.
    """
    random, rows, coverage = np.random.default_rng(0), 25, 0.9
    found = []
    for _ in range(1500):
        means, stds = random.normal(size=(rows, 1)), random.uniform(0.1, 5, size=(rows, 1))
        y = means + stds * random.normal(size=(rows, 1))
        threshold = calibration.conformal(one(means, stds), y).threshold(coverage).item()
        found.append(2 * scipy.stats.norm.cdf(threshold) - 1)  # the coverage of new rows, exactly
    assert distance(scipy.stats.beta(24, 2).cdf(found)) < LARGEST
    assert distance(scipy.stats.beta(23, 3).cdf(found)) > 3 * LARGEST  # the test would see it


def test_an_interval_is_the_threshold_times_sigma():
    """Both targets on their own. Catches one threshold for all targets, and low and high exchanged."""
    calibrated = Conformal(np.array([[1.0, 10.0], [2.0, 20.0], [3.0, 30.0]]))
    prediction = one(np.array([[5.0, 5.0]]), np.array([[1.0, 0.1]]))
    low, high = calibrated.interval(prediction, 0.5)
    np.testing.assert_allclose([low, high], [[[3.0, 3.0]], [[7.0, 7.0]]])


def test_too_few_rows_promise_everything():
    """The threshold is infinite; also where sigma is zero, and 0 · ∞ would be no number."""
    calibrated = Conformal(np.array([[1.0], [2.0]]))
    low, high = calibrated.interval(one(np.zeros((2, 1)), np.array([[1.0], [0.0]])), 0.9)
    assert (low == -np.inf).all()
    assert (high == np.inf).all()
    assert Conformal(np.zeros((2, 1))).sets(ClassPrediction(np.log([[[0.9, 0.1]]])), 0.9).all()


def test_rounding_does_not_move_the_rank():
    """100 · 0.55 is 55.00000000000001 in floating point. Catches the 56th for the 55th score."""
    assert Conformal(np.arange(1.0, 100.0)[:, None]).threshold(0.55).item() == 55


def test_coverage_of_sets_given_the_calibration_rows_is_beta():
    """30 rows for 50 %: k = 16. The covered count of 1,000 new rows is BetaBinomial(1000, 16, 15), made uniform by a
    random number between its steps. Ten classes of small probabilities, so that no set would be empty.

    Catches n for n + 1 and the floor (both 15), and a total without the class itself.
    """
    random, rows, new = np.random.default_rng(1), 30, 1000
    law = scipy.stats.betabinom(new, 16, 15)
    levels, emptiest = [], 10
    for _ in range(300):
        p = random.dirichlet(np.full(10, 5.0), size=rows + new)
        y = (p.cumsum(axis=1) > random.random((rows + new, 1))).argmax(axis=1)
        calibrated = calibration.conformal(ClassPrediction(np.log(p[None, :rows])), y[:rows])
        sets = calibrated.sets(ClassPrediction(np.log(p[None, rows:])), 0.5)
        covered = sets[np.arange(new), y[rows:]].sum()
        levels.append(law.cdf(covered) - random.random() * law.pmf(covered))
        emptiest = min(emptiest, sets.sum(axis=1).min())
    assert distance(np.array(levels)) < LARGEST
    assert emptiest > 0


def test_sets_cover_where_one_class_is_nearly_certain():
    """Conservative there: never empty, and the coverage is at least as promised, to six standard errors of 2,000."""
    random = np.random.default_rng(2)
    p = random.dirichlet(np.full(3, 0.2), size=4000)
    y = (p.cumsum(axis=1) > random.random((4000, 1))).argmax(axis=1)
    prediction = ClassPrediction(np.log(np.maximum(p, 1e-300))[None])
    halves = [ClassPrediction(prediction.log_probabilities[:, part]) for part in (slice(2000), slice(2000, None))]
    sets = calibration.conformal(halves[0], y[:2000]).sets(halves[1], 0.8)
    assert sets.any(axis=1).all()
    assert sets[np.arange(2000), y[2000:]].mean() > 0.8 - 6 * (0.16 / 2000) ** 0.5 * 2**0.5


@pytest.mark.parametrize("true", [0.5, 1.0, 3.0])
def test_temperature_recovers_a_known_one(true):
    """Labels drawn from probabilities whose logarithms were then multiplied by T. Catches T for 1/T.

    The standard error of log T from 20,000 labels with these probabilities is below 0.02; three of them are allowed.
    """
    random = np.random.default_rng(3)
    logits = random.normal(size=(20_000, 4))
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    y = (p.cumsum(axis=1) > random.random((20_000, 1))).argmax(axis=1)
    stated = logits * true
    stated -= np.log(np.exp(stated).sum(axis=1, keepdims=True))
    prediction = ClassPrediction(stated[None])
    found = calibration.temperature(prediction, y)
    assert abs(np.log(found / true)) < 0.06
    np.testing.assert_allclose(calibration.tempered(prediction, true).probabilities, p, rtol=1e-9)


def test_a_few_right_answers_do_not_make_it_certain():
    """Thirty rows, all right with a probability of 0.9. Catches a temperature without its prior, which would be the
    smallest allowed: on new rows one mistake would then cost a hundred nats."""
    rows = ClassPrediction(np.log(np.tile([0.9, 0.1], (1, 30, 1))))
    assert 0.3 < calibration.temperature(rows, np.zeros(30, int)) < 0.8


def test_temperature_is_of_the_mean_probabilities():
    """Two members. Catches the mean of tempered members, and tempered mean logits."""
    votes = ClassPrediction(np.log([[[0.9, 0.1]], [[0.5, 0.5]]]))
    expected = np.array([0.7, 0.3]) ** 0.5
    np.testing.assert_allclose(calibration.tempered(votes, 2.0).probabilities, [expected / expected.sum()], rtol=1e-12)


@pytest.mark.parametrize("true", [0.6, 1.0, 2.5])
def test_width_recovers_a_known_one(true):
    """Catches a variance for a standard deviation, the inverse, and members whose spread is not widened."""
    random = np.random.default_rng(11)
    rows, n = 4000, 5
    offsets = random.normal(size=(n, rows, 1))
    members = RegressionPrediction(offsets, np.full((n, rows, 1), 0.7))
    chosen = members.widened(true)
    y = chosen.sample(1, seed=3)[0]
    # The log of a standard deviation estimated from m normal residuals has a standard error of 1/sqrt(2m); a mixture of
    # five has lighter tails. Four of these, and the prior's pull: log(true)/s² over the information 2m, below 1e-3.
    assert abs(np.log(calibration.spread(members, y).width / true)) < 4 / np.sqrt(2 * rows) + 1e-3
    np.testing.assert_allclose(chosen.std, true * members.std, rtol=1e-12)
    np.testing.assert_allclose(chosen.mean, members.mean, atol=1e-12)


@pytest.mark.parametrize("true", [None, 4.0])
def test_tails_are_heavier_only_if_the_rows_say_so(true):
    """1,000 rows from a normal or a t distribution with four degrees. Catches a scale that is taken for a standard
    deviation (the width would be off by 1.4), tails that cost nothing, and tails that are never tried. The standard
    error of the width is 1/sqrt(2m) for normal rows and about 1.6 times that for the others; four of these."""
    random, rows = np.random.default_rng(5), 1000
    prediction = one(np.zeros((rows, 1)), np.full((rows, 1), 0.5))
    drawn = random.normal(size=(rows, 1)) if true is None else random.standard_t(true, size=(rows, 1))
    found = calibration.spread(prediction, drawn)
    assert found.degrees == true
    assert abs(np.log(found.width / 2)) < 4 * 1.6 / np.sqrt(2 * rows)
    assert found(prediction).std[0, 0] == pytest.approx(0.5 * found.width * (1.0 if true is None else 2**0.5))
    heavy = prediction._replace(family=predictions.student_t(7.0))
    assert calibration.spread(heavy, drawn).degrees is None  # its own tails stay
    assert calibration.Spread(1.0)(heavy) is heavy


def test_a_handful_of_rows_changes_the_width_little():
    """Catches a width without its prior: two rows that are predicted exactly would make the ensemble certain."""
    prediction = RegressionPrediction(np.zeros((3, 2, 1)), np.ones((3, 2, 1)))
    assert 0.5 < calibration.spread(prediction, np.zeros((2, 1))).width < 1.0
    counts = RegressionPrediction(np.ones((3, 2, 1)), np.ones((3, 2, 1)), predictions.POISSON)
    with pytest.raises(ValueError, match="cannot be widened"):
        calibration.spread(counts, np.ones((2, 1)))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda p: calibration.conformal(p, [0.5]), r"y is float64 of shape \(1,\): must be the class numbers"),
        (lambda p: calibration.conformal(p, [2]), r"y has classes from 2 to 2: must be from 0 to 1"),
        (lambda p: calibration.tempered(p, 0), r"temperature = 0: must be positive"),
        (lambda p: Conformal(np.ones((3, 1))).sets(p, 90), r"coverage = 90: must be between 0 and 1"),
        (lambda p: Conformal(np.ones((3, 2))).sets(p, 0.5), r"the calibration has 2 targets, the prediction 1"),
    ],
    ids=["floats", "unknown class", "zero temperature", "percent", "columns"],
)
def test_mistakes_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call(ClassPrediction(np.log([[[0.9, 0.1]]])))
