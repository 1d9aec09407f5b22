"""Ensembles as scikit-learn estimators: predictions with their uncertainty from arrays or tables at hand.

>>> from sklearn.datasets import load_iris
>>> from stein.sklearn import SteinClassifier
>>> X, y = load_iris(return_X_y=True)
>>> model = SteinClassifier(n_particles=3, hidden=(8,), steps=100, random_state=0).fit(X, y)
>>> model.predict_proba(X[:2]).shape
(2, 3)
"""

try:
    import sklearn as _sklearn  # noqa: F401
except ImportError:
    raise ImportError(
        "stein.sklearn needs scikit-learn, which is not installed: pip install '.[sklearn]' in the checkout"
    ) from None

from stein.sklearn.classifier import SteinClassifier
from stein.sklearn.ensemble import Uncertainty
from stein.sklearn.regressor import SteinRegressor

__all__ = ["SteinClassifier", "SteinRegressor", "Uncertainty"]
