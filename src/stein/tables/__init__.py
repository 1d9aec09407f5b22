"""Columns to arrays: how a table becomes the inputs of a network, and how its rows are split. Plain NumPy."""

from stein.tables.recipe import MOST_LEVELS, Column, Feature, Recipe, check_complete, gaps, is_gap, learn
from stein.tables.splits import by_group, by_time

__all__ = [
    "MOST_LEVELS",
    "Column",
    "Feature",
    "Recipe",
    "by_group",
    "by_time",
    "check_complete",
    "gaps",
    "is_gap",
    "learn",
]
