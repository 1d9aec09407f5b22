"""Arrays that do not fit together are refused with both shapes; (b,) and (b, 1) are the same single target."""

import inspect
import re

import numpy as np
import pandas as pd
import pytest
from scipy.special import log_softmax

from stein import evaluate
from stein.metrics import calibration, classification, divergence, ood, regression, uncertainty

RANDOM = np.random.default_rng(0)
MEANS, SIGMAS, Y = RANDOM.normal(size=(5, 30, 1)), RANDOM.uniform(0.5, 2, (5, 30, 1)), RANDOM.normal(size=30)
LOGS, LABELS = log_softmax(RANDOM.normal(size=(4, 30, 3)), axis=2), RANDOM.integers(0, 3, 30)
P = np.exp(LOGS)
MEAN, RIGHT = P.mean(axis=0), RANDOM.random(30) < 0.5
TWO = np.repeat(MEANS, 2, axis=2)


@pytest.mark.parametrize("judge", [evaluate.regression, evaluate.regression_curves])
def test_a_target_without_its_axis_is_the_same_target(judge):
    """y of (n,), which `data.load_arrays` returns, and (n, 1). Catches them broadcast to (n, n)."""
    expected = judge(MEANS, SIGMAS, Y[:, None])
    assert judge(MEANS, SIGMAS, Y) == expected
    assert judge(MEANS[:, :, 0], SIGMAS, Y) == expected
    assert judge(MEANS.tolist(), SIGMAS, pd.Series(Y)) == expected
    assert judge(MEANS, SIGMAS, pd.DataFrame({"y": Y})) == expected


def test_the_rmse_is_that_of_a_loop():
    found = evaluate.regression(MEANS, SIGMAS, Y)["rmse"]
    assert found == pytest.approx(np.sqrt(np.mean([(MEANS[:, i, 0].mean() - Y[i]) ** 2 for i in range(30)])), rel=1e-12)


def test_labels_may_have_an_axis_too_many():
    """(n, 1) labels of any integer type. Catches them compared with every point."""
    expected = evaluate.classification(LOGS, LABELS)
    for same in (LABELS[:, None], LABELS.astype(np.uint8), LABELS.tolist(), pd.DataFrame({"y": LABELS})):
        assert evaluate.classification(LOGS, same) == expected
    assert evaluate.classification_curves(LOGS, LABELS[:, None]) == evaluate.classification_curves(LOGS, LABELS)


# A line of code, and what it must be told.
MISFITS = {
    "evaluate.regression(MEANS, SIGMAS, Y[:29])": "means has shape (5, 30, 1), y (29,): points must agree",
    "evaluate.regression(TWO, np.ones_like(TWO), Y)": "means has shape (5, 30, 2), y (30,): targets must agree",
    "evaluate.regression(MEANS, SIGMAS[:1], Y)": ("means has shape (5, 30, 1), sigmas (1, 30, 1): members must agree"),
    "evaluate.regression(MEANS, 0.5, Y)": "sigmas has shape (): must be (members, points, targets)",
    "evaluate.regression_curves(MEANS, SIGMAS, Y[None])": "means has shape (5, 30, 1), y (1, 30): points must agree",
    "regression.log_density(MEANS, SIGMAS, Y[:29])": "means has shape (5, 30, 1), y (29,): points must agree",
    "regression.of_mixture(Y)": "log_densities has shape (30,): must be (members, points)",
    "regression.of_members(Y)": "log_densities has shape (30,): must be (members, points)",
    "evaluate.regression(MEANS, -SIGMAS, Y)": "is negative; must be standard deviations",
    "evaluate.regression(MEANS, SIGMAS, np.where(np.arange(30) == 3, np.nan, Y))": "y: a value is not finite",
    "evaluate.classification(LOGS, LABELS[:29])": "log_probabilities has shape (4, 30, 3), y (29,): points must agree",
    "evaluate.classification(LOGS[0], LABELS)": (
        "log_probabilities has shape (30, 3): must be (members, points, classes)"
    ),
    "classification.tempered(LOGS[0], 2.0)": "log_probabilities has shape (30, 3): must be (members, points, classes)",
    "evaluate.classification(LOGS, LABELS + 0.5)": "y has type float64: must be integers",
    "evaluate.classification(LOGS, np.array(['cat', 'dog'] * 15))": "y holds text ('cat'): must be numbers",
    "evaluate.classification(LOGS, LABELS, {'far': LOGS[0]})": "far is (30, 3): must have 4 members and 3 classes",
    "evaluate.classification(LOGS[:, :0], LABELS[:0])": "there is no point to judge",
    "evaluate.classification_curves(LOGS, LABELS[:29])": "points must agree",
    "evaluate.corruption(lambda x: LOGS, np.ones((30, 8, 8, 1)), LABELS[:29], [1.0])": "points must agree",
    "regression.rmse(MEANS, Y[:29])": "points must agree",
    "regression.nll(MEANS, SIGMAS[:, :1], Y)": "points must agree",
    "regression.nll_members(MEANS, SIGMAS, Y[:1])": "points must agree",
    "regression.crps(MEANS, SIGMAS[:4], Y)": "members must agree",
    "regression.levels(MEANS, SIGMAS, Y[:1])": "points must agree",
    "regression.coverage(np.array([[0.5], [np.nan]]), 0.9)": "levels: a value is not finite",
    "classification.right(MEAN, LABELS[:1])": "points must agree",
    "classification.right(MEAN, LABELS + 3)": "classes are 0 to 2",
    "classification.nll(LOGS, LABELS[:1])": "points must agree",
    "classification.nll(LOGS, LABELS - 3)": "classes are 0 to 2",
    "classification.nll_paper(LOGS, LABELS[:1])": "points must agree",
    "classification.nll_members(LOGS, LABELS[:1])": "points must agree",
    "classification.brier(MEAN, LABELS[:1])": "points must agree",
    "classification.brier(MEAN, LABELS - 3)": "classes are 0 to 2",
    "classification.accuracy_of_members(P, LABELS[:1])": "points must agree",
    "classification.pairwise_disagreement(MEAN)": "must be (members, points, classes)",
    "classification.probabilities(LOGS[0])": "must be (members, points, classes)",
    "uncertainty.entropy(P)": "must be (points, classes)",
    "uncertainty.entropy(3 * MEAN)": "mean: must sum to one over classes",
    "uncertainty.disagreement(MEAN)": "must be (members, points, classes)",
    "uncertainty.rms_disagreement(LOGS)": "probabilities: must sum to one over classes",
    "uncertainty.mutual_information(LOGS)": "probabilities: must sum to one over classes",
    "calibration.reliability(MEAN[:, 0], RIGHT[:1])": "points must agree",
    "calibration.ece(MEAN[:, 0], RIGHT[:1])": "points must agree",
    "calibration.ece(MEAN[:, 0], MEAN[:, 0])": "right has type float64: must be true or false",
    "calibration.curve(MEAN[:, 0], RIGHT[:29])": "points must agree",
    "calibration.area(MEAN)": "accuracies has shape (30, 3): must be (points)",
    "calibration.coverage(MEAN)": "accuracies has shape (30, 3): must be (points)",
    "calibration.rises(MEAN)": "accuracies has shape (30, 3): must be (points)",
    "ood.auroc(MEAN, MEAN[:, 0])": "outside has shape (30, 3): must be (any number)",
    "ood.aupr(MEAN, MEAN[:, 0])": "outside has shape (30, 3): must be (any number)",
    "ood.fpr95(MEAN[:, 0], MEAN)": "inside has shape (30, 3): must be (any number)",
    "ood.ratio(MEAN, MEAN[:, 0])": "outside has shape (30, 3): must be (any number)",
    "ood.ranks(MEAN)": "values has shape (30, 3): must be (any number)",
    "ood.rank_correlation(Y, Y[:1])": "points must agree",
    "divergence.spread(Y)": "functions has shape (30,): must be (any number, inputs)",
    "divergence.spread(Y[None])": "functions has shape (1, 30): a spread is of at least two functions",
    "divergence.spread_ratio(MEAN, MEAN, RIGHT)": "inputs must agree",
    "divergence.spread_ratio(MEAN, MEAN, np.array([0, 1, 1]))": "where has type int64: must be true or false",
    "divergence.log_spread_error(MEAN, MEAN[:, :1])": "inputs must agree",
    "divergence.wasserstein(MEAN, MEAN[:, :1])": "inputs must agree",
    "divergence.gaussian_kl(MEAN, MEAN[:, :1])": "inputs must agree",
    "divergence.energy_distance(MEAN, MEAN[:, :1])": "inputs must agree",
    "divergence.coverage(MEAN, MEAN[:, :1])": "inputs must agree",
}


@pytest.mark.parametrize("line", MISFITS)
def test_what_does_not_fit_is_refused_in_one_line(line):
    with pytest.raises(ValueError, match=re.escape(MISFITS[line])) as refusal:
        eval(line)  # noqa: S307 - lines of this file
    assert "\n" not in str(refusal.value)


# `perfect` takes two counts, `standardised` is element-wise; the numbers of
# `diagnostics` come from jitted steps whose shapes are the library's own.
@pytest.mark.parametrize("module", [calibration, classification, divergence, ood, regression, uncertainty])
def test_every_metric_is_in_the_table(module):
    """Catches a metric added without its check."""
    short = module.__name__.split(".")[-1]
    public = [n for n, f in inspect.getmembers(module, inspect.isfunction) if f.__module__ == module.__name__]
    tried = {line.split("(")[0] for line in MISFITS}
    missing = {f"{short}.{n}" for n in public if not n.startswith("_")} - tried
    assert missing <= {"calibration.perfect", "regression.standardised"}


@pytest.mark.parametrize("n", [1, 3])
def test_crps_of_certain_members_is_the_absolute_error(n):
    """Sigma of zero, at the target and beside it; several members by the definition. Catches 0/0."""
    means, y = np.array([[[1.0], [2.0]], [[4.0], [2.0]], [[0.5], [2.0]]])[:n], np.array([[1.0], [2.5]])
    zero = np.zeros_like(means)
    expected = np.abs(means - y).mean() - 0.5 * np.abs(means[:, None] - means[None]).mean()
    assert regression.crps(means, zero, y) == pytest.approx(expected, rel=1e-15)
    assert regression.crps(means, zero + 1e-9, y) == pytest.approx(expected, abs=1e-8)


def test_the_other_numbers_of_certain_members():
    """A certain hit is inside every interval, a certain miss has no density. Catches NaN, and a warning."""
    means, y = np.zeros((2, 2, 1)), np.array([0.0, 1.0])
    found = evaluate.regression(means, np.zeros_like(means), y)
    assert (found["coverage_50"], found["coverage_95"]) == (0.5, 0.5)
    assert found["crps"] == 0.5
    assert found["nll"] == np.inf  # of a hit and a miss
    assert regression.nll(means, np.zeros_like(means), np.array([1.0, 2.0])) == np.inf
    assert regression.nll(means, np.zeros_like(means), np.array([0.0, 0.0])) == -np.inf
    mixed = np.array([0.0, 1.0])[:, None, None] * np.ones_like(means)  # one certain and wrong, one of width 1
    assert regression.nll(means, mixed, np.array([1.0, 1.0])) == pytest.approx(
        0.5 + 0.5 * np.log(2 * np.pi) + np.log(2), rel=1e-12
    )
