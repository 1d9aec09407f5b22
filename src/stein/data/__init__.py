"""Data sets and minibatches."""

from stein.data.batches import Batches
from stein.data.files import Arrays, Standardiser, load_arrays, load_pair, split, standardiser
from stein.data.toy import classification_2d, far_from_the_ring, regression_1d

__all__ = [
    "Arrays",
    "Batches",
    "Standardiser",
    "classification_2d",
    "far_from_the_ring",
    "load_arrays",
    "load_pair",
    "regression_1d",
    "split",
    "standardiser",
]
