"""Numbers with standard errors: over seeds, beside each other, and as text."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

BOLD = "Bold: better than the next by more than the standard error of the difference. A click on a head sorts."


class Standing(NamedTuple):
    """A number over the seeds of a method: mean and standard error, over seeds or, of one seed, over test points."""

    mean: float
    error: float | None
    seeds: int = 1


def over_seeds(values: Sequence[float]) -> Standing:
    """Mean and standard error (n - 1); of one value there is no error."""
    mean = math.fsum(values) / len(values)
    if len(values) < 2:
        return Standing(mean, None)
    squares = math.fsum((value - mean) ** 2 for value in values)
    return Standing(mean, (squares / (len(values) - 1) / len(values)) ** 0.5, len(values))


def best(standings: Mapping[str, Standing], better: str) -> str | None:
    """The best of several, if its difference from the next exceeds the standard error of this difference.

    The errors of both are taken as independent. Of one seed each, judged on the same points, they are not: the
    difference is then known better than this says, and nothing is called best by chance.
    """
    if len(standings) < 2 or not better:
        return None
    first, second = sorted(standings, key=lambda name: standings[name].mean, reverse=better == "high")[:2]
    one, other = standings[first], standings[second]
    if one.error is None or other.error is None:
        return None
    return first if abs(one.mean - other.mean) > math.hypot(one.error, other.error) else None


def written(value: float, error: float | None = None) -> str:
    """A number to the digit of its error, or to four.

    >>> written(0.123456, 0.0123), written(215800.4, 3120.0), written(0.94)
    ('0.123 ± 0.012', '215,800 ± 3,100', '0.94')
    """
    if error is None or not error > 0 or not math.isfinite(error):
        return _plain(float(f"{value:.4g}"), 4)
    digits = 1 - math.floor(math.log10(error))  # two digits of the error
    if abs(value) >= 1e9 or digits > 7:
        return f"{value:.4g} ± {error:.2g}"
    return f"{round(value, digits):,.{max(digits, 0)}f} ± {round(error, digits):,.{max(digits, 0)}f}"


def _plain(value: float, digits: int) -> str:
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e9 else f"{value:.{digits}g}"
