"""Held-out rows that are later than all others, or of other groups."""

from collections.abc import Sequence

import numpy as np


def by_time(times: np.ndarray, fraction: float) -> np.ndarray:
    """A mask of the latest rows, about a ``fraction`` of them; rows of the same time stay together."""
    number = max(1, round(fraction * len(times)))
    mask = times >= np.sort(times)[-number]
    if mask.all():
        raise ValueError(f"of {len(times)} rows too few are earlier than the latest; nothing is left to train on")
    return mask


def by_group(groups: np.ndarray, fraction: float, seed: int | Sequence[int]) -> np.ndarray:
    """A mask of the rows of randomly chosen groups, about a ``fraction`` of the rows; one group is always left."""
    names, which, sizes = np.unique(groups.astype(str), return_inverse=True, return_counts=True)
    if len(names) < 2:
        raise ValueError(f"all rows are in group {str(names[0])!r}; nothing is left to train on")
    order = np.random.default_rng(seed).permutation(len(names))[:-1]
    before = np.cumsum(sizes[order]) - sizes[order]
    chosen = order[before < max(1, round(fraction * len(groups)))]
    return np.isin(which, chosen)
