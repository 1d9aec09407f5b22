"""Statistics over seeds: means with standard errors, and paired comparisons of methods."""

import itertools
from collections.abc import Iterable, Sequence

import numpy as np

Numbers = dict[str, float]


def summary(rows: Iterable[Numbers]) -> dict[str, tuple[float, float | None]]:
    """Mean and standard error (n - 1) of every number over seeds; a single seed has no error."""
    rows = list(rows)
    columns = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    error = len(rows) ** -0.5
    return {
        name: (float(v.mean()), float(v.std(ddof=1) * error) if len(rows) > 1 else None) for name, v in columns.items()
    }


def with_error(value: float, error: float | None, digits: int = 2) -> str:
    """A number as a table shows it."""
    return f"{value:.{digits}f}" + ("" if error is None else f" ± {error:.{digits}f}")


def paired(larger: Sequence[float], smaller: Sequence[float]) -> dict[str, float | None]:
    """Sign-flip test over the same seeds: is one method's number larger than the other's?

    ``p`` is the probability of a mean difference this large if the sign of each seed's difference were random, without
    assuming a distribution: exact up to 12 seeds, where it is never below 2**-seeds, else from 20,000 random signs.
    """
    difference = np.array(larger) - np.array(smaller)
    if len(difference) > 12:
        flips = np.random.default_rng(0).choice((1.0, -1.0), (20_000, len(difference)))
        flips[0] = 1.0  # the signs as they are
    else:
        flips = np.array(list(itertools.product((1.0, -1.0), repeat=len(difference))))
    p = float(np.mean(flips @ difference >= difference.sum() - 1e-12))
    error = float(difference.std(ddof=1) / len(difference) ** 0.5) if len(difference) > 1 else None
    return {"difference": float(difference.mean()), "error": error, "p": p}
