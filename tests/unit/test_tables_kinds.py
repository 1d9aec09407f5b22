"""What the targets of a table are taken for, and when it is asked instead."""

import numpy as np
import pytest

from stein.runs import kinds
from stein.runs.schema import Likelihood

AUTO = Likelihood()
WITH_SIGMA = Likelihood(sigma=0.5)
RANDOM = np.random.default_rng(0)
PRICES = RANDOM.integers(50_000, 900_000, 200)

PLAIN = {
    "names": (np.array(["a", "b", "c"] * 10), AUTO, "categorical"),
    "numbers from 0": (np.arange(60) % 3, AUTO, "categorical"),
    "numbers from 1": (np.arange(60) % 3 + 1, AUTO, "categorical"),
    "two numbers": (np.array([10, 20] * 6), AUTO, "categorical"),
    "floats": (RANDOM.normal(size=50), AUTO, "gaussian"),
    "floats in a column": (RANDOM.normal(size=(50, 1)), AUTO, "gaussian"),
    "two targets": (np.ones((50, 2)), AUTO, "gaussian"),
    "whole floats, all different": (np.arange(1000.0), AUTO, "gaussian"),
    "prices with sigma": (PRICES, WITH_SIGMA, "gaussian"),
    "0.0 and 1.0 with sigma": (np.array([0.0, 1.0] * 9), WITH_SIGMA, "gaussian"),
    "prices by name": (PRICES, Likelihood(name="gaussian"), "gaussian"),
    "prices as classes": (PRICES, Likelihood(name="categorical"), "categorical"),
    "0.0 and 1.0 as classes": (np.array([0.0, 1.0] * 9), Likelihood(name="categorical"), "categorical"),
    "units as classes": (np.array(["24.0 €", "25.0 €"] * 9), Likelihood(name="categorical"), "categorical"),
}


@pytest.mark.parametrize("case", PLAIN)
def test_plain_targets_go_through(case):
    y, section, kind = PLAIN[case]
    assert kinds.decide(y, section, "y") == kind


DOUBTFUL = {
    "prices": PRICES,
    "years": np.arange(1990, 2020).repeat(10),
    "grades from 3 to 8": RANDOM.integers(3, 9, 300),
    "few rows for each": np.arange(12),
    "0.0 and 1.0": np.array([0.0, 1.0] * 9),
    "1.0, 2.0 and 3.0": np.array([1.0, 2.0, 3.0] * 9),
    "euros": np.array([f"{price:.1f} €" for price in PRICES]),
    "dollars": np.array(["$1,200", "$900"] * 9),
    "percent": np.array(["7 %", "-3.5%"] * 9),
    "a text for every row": np.array([f"house {chr(97 + i)}" for i in range(20)]),
}


@pytest.mark.parametrize("case", DOUBTFUL)
def test_doubtful_targets_are_refused_with_what_settles_them(case):
    """Catches integer prices that become classes, a class for every "24.0 €", and labels 0.0 and 1.0 as numbers."""
    with pytest.raises(ValueError, match=r"'price': numbers or classes\?") as refused:
        kinds.decide(DOUBTFUL[case], AUTO, "price")
    words = str(refused.value)
    assert "\n" not in words
    assert "likelihood.name=categorical" in words
    assert "likelihood.name=gaussian" in words or "write plain numbers" in words


REFUSED = {
    "only one class": (np.full(9, 3), Likelihood(name="categorical"), "only one class, 3"),
    "one number": (np.full(9, 2.5), AUTO, "all targets are 2.5"),
    "one text": (np.full(9, "a"), AUTO, "all targets are 'a'"),
    "text as numbers": (np.array(["a", "b"] * 9), Likelihood(name="gaussian"), "is text, such as 'a'|holds text"),
    "text with sigma": (np.array(["a", "b"] * 9), WITH_SIGMA, "likelihood.sigma: is for numbers"),
    "fractions as classes": (np.array([0.5, 1.0]), Likelihood(name="categorical"), "holds 0.5; must be whole"),
    "two labels a row": (np.ones((4, 2), int), Likelihood(name="categorical"), "2 numbers a row"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_targets_that_cannot_be_what_the_config_says(case):
    y, section, words = REFUSED[case]
    with pytest.raises(ValueError, match=words):
        kinds.decide(y, section, "y")


def test_labels_are_numbers_by_size_and_text_by_the_alphabet():
    """Catches 10 before 9, and 1.0 as another class than 1."""
    assert kinds.in_order(kinds.names(np.array([10, 9, 10]))) == ("9", "10")
    assert kinds.names(np.array([1.0, 2.0])) == kinds.names(np.array([1, 2])) == ["1", "2"]
    assert kinds.in_order(["b", "a", "10"]) == ("10", "a", "b")
