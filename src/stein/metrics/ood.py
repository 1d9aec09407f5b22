"""Does a score tell points of another kind from the test points? Plain NumPy."""

import numpy as np
from jaxtyping import Float

Scores = Float[np.ndarray, " _"]


def auroc(outside: Scores, inside: Scores) -> float:
    """Probability that a point from outside has the higher score; ties count half.

    The Mann-Whitney statistic, from ranks: no threshold is chosen.
    """
    scores = np.concatenate([np.asarray(outside, float), np.asarray(inside, float)])
    if not (len(outside) and len(inside)):
        raise ValueError(f"auroc: {len(outside)} points outside and {len(inside)} inside; both must have some")
    if not np.isfinite(scores).all():
        raise ValueError("auroc: a score is not finite")
    above = ranks(scores)[: len(outside)].sum() - len(outside) * (len(outside) + 1) / 2
    return float(above / (len(outside) * len(inside)))


def ranks(values: Scores) -> Scores:
    """Ranks from 1 on; equal values share the mean of theirs."""
    _, group, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2)[group]


def rank_correlation(a: Scores, b: Scores) -> float:
    """Spearman's correlation: do both order the points alike? 0 where one of them does not order them at all."""
    x, y = (ranks(v) - (len(v) + 1) / 2 for v in (a, b))
    size = float(np.sqrt((x @ x) * (y @ y)))
    return float(x @ y) / size if size > 0 else 0.0
