"""Metrics of ensembles: scores, calibration, uncertainty, distance from the posterior. Plain NumPy."""

from stein.metrics import calibration, classification, divergence, ood, regression, uncertainty

__all__ = ["calibration", "classification", "divergence", "ood", "regression", "uncertainty"]
