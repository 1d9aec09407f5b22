"""Figures of an evaluation: what they show is what they were given. (What they look like, people have to see.)"""

import numpy as np
import pytest

from stein import evaluate
from stein.report import evaluation as figures

RANDOM = np.random.default_rng(0)
P, FAR, Y = RANDOM.dirichlet(np.ones(3), (4, 90)), RANDOM.dirichlet(np.ones(3), (4, 50)), RANDOM.integers(0, 3, 90)
CURVES = evaluate.classification_curves(np.log(P), Y, {"far": np.log(FAR)})


def test_reliability_shows_the_bins_that_have_points():
    """Catches empty bins drawn at zero accuracy, and counts in the place of accuracies."""
    bins = CURVES["reliability"]
    above, below = figures.reliability(bins, 0.1).axes
    some = [count > 0 for count in bins["points"]]
    assert [bar.get_height() for bar in above.patches] == np.array(bins["accuracy"])[some].tolist()
    assert [bar.get_height() for bar in below.patches] == bins["points"]


def test_calibration_has_a_panel_for_each_title_and_all_points_on_the_left():
    """Catches an axis that is not reversed, and a method whose colour changes from panel to panel."""
    curve = CURVES["calibration"]["far"]
    left, right = figures.calibration({"β = 0": {"DE": curve, "h": curve}, "β = 1": {"h": curve}}).axes
    assert left.get_xlim() == right.get_xlim() == (90, 1)
    assert left.lines[0].get_ydata().tolist() == curve["accuracy"]
    (first,), (second,) = ([line for line in axis.lines if line.get_label() == "h"] for axis in (left, right))
    assert first.get_color() == second.get_color() != left.lines[0].get_color()


def test_corruption_shows_mean_and_standard_error():
    """Three seeds. Catches a spread for an error, and n for n - 1; a single seed has none."""
    seeds = [[{"sigma": s, "accuracy": a * s, "ece": 0.1, "auroc_h": 0.5} for s in (1.0, 2.0)] for a in (0.1, 0.2, 0.6)]
    accuracy = figures.corruption({"DE": seeds}).axes[0]
    (line, _, (bars,)) = accuracy.containers[0].lines
    assert line.get_ydata().tolist() == pytest.approx([0.3, 0.6])
    heights = [float(np.ptp(segment[:, 1])) for segment in bars.get_segments()]
    assert heights == pytest.approx([2 * np.std([0.1, 0.2, 0.6], ddof=1) / 3**0.5 * s for s in (1, 2)])
    assert not figures.corruption({"DE": seeds[:1]}).axes[0].containers[0].has_yerr


def test_entropies_are_shares():
    """Sets of different sizes. Catches counts."""
    axis = figures.entropies(np.linspace(0, 1, 10), {"far": np.linspace(0.5, 1, 70)}).axes[0]
    filled = [sum(bar.get_height() for bar in bars) for bars in axis.containers]
    assert filled == pytest.approx([1, 1])


def test_intervals_of_a_regression():
    coverage = evaluate.regression_curves(np.zeros((1, 9, 1)), np.ones((1, 9, 1)), np.linspace(-3, 3, 9)[:, None])
    axis = figures.intervals(coverage["coverage"]).axes[0]
    assert axis.lines[1].get_ydata().tolist() == coverage["coverage"]["found"] == sorted(coverage["coverage"]["found"])
