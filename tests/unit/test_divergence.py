"""Distances between ensembles of functions, on inputs whose answers are known."""

import numpy as np
import pytest
from scipy import stats

from stein.metrics import divergence

RANDOM = np.random.default_rng(0)
A, B = RANDOM.normal(size=(7, 4)), 0.5 + 2 * RANDOM.normal(size=(12, 4))
EVERYWHERE = np.ones(4, bool)


def test_spreads():
    """Catches a mean of ratios for a ratio of means, a region that is ignored, and n for n - 1."""
    wide, narrow = np.array([[0.0, 0.0], [2.0, 6.0]]), np.array([[0.0, 0.0], [1.0, 1.0]])
    np.testing.assert_allclose(divergence.spread(wide), np.sqrt([2, 18]))
    assert divergence.spread_ratio(wide, narrow, np.array([True, True])) == pytest.approx(4)
    assert divergence.spread_ratio(wide, narrow, np.array([True, False])) == pytest.approx(2)
    assert divergence.log_spread_error(wide, narrow) == pytest.approx((np.log(2) + np.log(6)) / 2)
    assert divergence.log_spread_error(narrow, wide) == divergence.log_spread_error(wide, narrow)


def test_wasserstein_is_scipys_at_every_input():
    """Sizes that do not divide each other. Catches quantiles at the wrong places, and a distance that is not over the
    reference's spread."""
    expected = np.mean([stats.wasserstein_distance(A[:, g], B[:, g]) for g in range(4)])
    scale = B.std(axis=0, ddof=1).mean()
    assert divergence.wasserstein(A, B) == pytest.approx(expected / scale, rel=1e-12)
    assert divergence.wasserstein(A, A[::-1]) == 0
    assert divergence.wasserstein(A + 3, A) == pytest.approx(3 / A.std(axis=0, ddof=1).mean())


def test_gaussian_kl():
    """Against the integral. Catches the arguments the wrong way round."""
    members, reference = np.array([[1.0], [3.0]]), np.array([[-1.0], [0.0], [4.0]])
    p = stats.norm(2, np.sqrt(2))
    q = stats.norm(1, np.std([-1, 0, 4], ddof=1))
    expected = p.expect(lambda x: p.logpdf(x) - q.logpdf(x))
    assert divergence.gaussian_kl(members, reference) == pytest.approx(expected, rel=1e-6)


def test_energy_distance():
    """Against loops, and unbiased: zero on the average for draws of one law. Catches pairs with themselves counted."""
    d = lambda x, y: np.linalg.norm(x - y)  # noqa: E731
    cross = np.mean([d(x, y) for x in A for y in B])
    own = [np.mean([d(x, y) for i, x in enumerate(s) for j, y in enumerate(s) if i != j]) for s in (A, B)]
    assert divergence.energy_distance(A, B) == pytest.approx(2 * cross - sum(own), rel=1e-12)
    draws = np.random.default_rng(1).normal(size=(400, 2, 6, 3))
    values = [divergence.energy_distance(a, b) for a, b in draws]
    assert abs(np.mean(values)) < 4 * np.std(values) / 20
    mirrored = np.stack([A[:, 0], -A[:, 0]], axis=1)  # the same at every input, but not together
    assert divergence.energy_distance(np.stack([A[:, 0], A[:, 0]], axis=1), mirrored) > 0.1


def test_coverage():
    members = np.array([[0.0, 0.0], [2.0, 2.0]])  # mean 1, spread 1.41
    reference = np.array([[1.0, 9.0], [6.0, 2.0]])  # means 3.5 and 5.5
    assert divergence.coverage(members, reference) == 0.5
    assert divergence.coverage(members, reference, 1.0) == 0.0
    assert divergence.coverage(members, reference, 4.0) == 1.0
