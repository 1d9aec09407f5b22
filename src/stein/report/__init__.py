"""Figures and pages from numbers: nothing is trained, read from a run or computed here."""

from stein.report import evaluation, html, plots

__all__ = ["evaluation", "html", "plots"]
