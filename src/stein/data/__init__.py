"""Data sets and minibatches."""

from stein.data.batches import Batches
from stein.data.toy import classification_2d, regression_1d

__all__ = ["Batches", "classification_2d", "regression_1d"]
