"""Ties between scores: rounding must not decide which of two equal points comes first."""

import numpy as np
from jaxtyping import Float, Int

ROUNDING = 64 * float(np.finfo(float).eps)
"""Relative to the scores themselves: the error of sums over tens of members and classes, in any order."""


def groups(scores: Float[np.ndarray, " b"]) -> Int[np.ndarray, " b"]:
    """The rank of every score among the distinct ones, from 0; scores that differ by rounding share it.

    >>> groups(np.array([0.3, 7.0, 0.1 + 0.2])).tolist()
    [0, 1, 0]
    """
    order = np.argsort(scores, kind="stable")
    ordered = scores[order]
    size = np.maximum(np.abs(ordered[1:]), np.abs(ordered[:-1]))
    found = np.zeros(len(scores), int)
    found[order[1:]] = np.cumsum(np.diff(ordered) > ROUNDING * size)
    return found
