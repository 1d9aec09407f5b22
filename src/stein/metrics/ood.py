"""Out-of-distribution detection: does a score separate points from outside from the test points? Plain NumPy."""

import numpy as np
from jaxtyping import Float

from stein.inputs import shaped
from stein.metrics import ties

Scores = Float[np.ndarray, " _"]


@shaped
def auroc(outside: Scores, inside: Scores) -> float:
    """Probability that a point from outside has the higher score; ties count half.

    The Mann-Whitney statistic, from ranks: no threshold is chosen. Scores that differ by rounding only are ties, here
    and below (:mod:`stein.metrics.ties`).
    """
    scores = _together("auroc", outside, inside)
    above = ranks(scores)[: len(outside)].sum() - len(outside) * (len(outside) + 1) / 2
    return float(above / (len(outside) * len(inside)))


@shaped
def aupr(outside: Scores, inside: Scores) -> float:
    r"""Average precision, :math:`\sum_t P_t (R_t - R_{t-1})` over thresholds t from the highest score down.

    Precision P is the fraction of points from outside among those above the threshold, recall R the fraction of
    outside points that is detected. An uninformative score gets the fraction of outside points, not 1/2.
    """
    found, false_alarms = _counts("aupr", outside, inside)
    return float((np.diff(found, prepend=0) * found / (found + false_alarms)).sum() / len(outside))


@shaped
def fpr95(outside: Scores, inside: Scores, recall: float = 0.95) -> float:
    """False-positive rate on inside points at the first threshold that detects 95 % of the outside points."""
    found, false_alarms = _counts("fpr95", outside, inside)
    return float(false_alarms[np.argmax(found >= recall * len(outside) - 1e-9)] / len(inside))


@shaped
def ratio(outside: Scores, inside: Scores) -> float:
    """Mean score outside over mean score inside: how much more uncertain. NaN if all scores inside are zero."""
    below = float(np.mean(inside, dtype=float))
    return float(np.mean(outside, dtype=float)) / below if below else float("nan")


@shaped
def ranks(values: Scores) -> Scores:
    """Ranks from 1 on; equal values share the mean of theirs."""
    group = ties.groups(values)
    counts = np.bincount(group)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2)[group]


@shaped
def rank_correlation(a: Float[np.ndarray, " b"], b: Float[np.ndarray, " b"]) -> float:
    """Spearman's correlation: do both order the points alike? 0 if one of them is constant."""
    x, y = (ranks(v) - (len(v) + 1) / 2 for v in (a, b))
    size = float(np.sqrt((x @ x) * (y @ y)))
    return float(x @ y) / size if size > 0 else 0.0


def _counts(what: str, outside: Scores, inside: Scores) -> tuple[Scores, Scores]:
    """The numbers of outside and inside points that reach each threshold: every distinct score, highest first."""
    group = ties.groups(-_together(what, outside, inside))
    parts = group[: len(outside)], group[len(outside) :]
    found, false_alarms = (np.cumsum(np.bincount(part, minlength=group.max() + 1)).astype(float) for part in parts)
    return found, false_alarms


def _together(what: str, outside: Scores, inside: Scores) -> Scores:
    scores = np.concatenate([np.asarray(outside, float), np.asarray(inside, float)])
    if not (len(outside) and len(inside)):
        raise ValueError(f"{what}: {len(outside)} points outside and {len(inside)} inside; both must have some")
    if not np.isfinite(scores).all():
        raise ValueError(f"{what}: a score is not finite")
    return scores
