"""Numbers about ensembles: how good, how calibrated, how uncertain, how far from the posterior. Plain NumPy."""

from stein.metrics import calibration, classification, divergence, ood, regression, uncertainty

__all__ = ["calibration", "classification", "divergence", "ood", "regression", "uncertainty"]
