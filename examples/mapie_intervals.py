"""Conformal intervals from MAPIE around a SteinRegressor (pip install mapie).

Prints the fraction of new targets inside 90 % intervals; expected: 0.90, give or take 0.03. Takes about a minute.
"""

import numpy as np
from mapie.regression import SplitConformalRegressor
from sklearn.datasets import make_friedman1
from sklearn.model_selection import train_test_split

from stein.sklearn import SteinRegressor

X, y = make_friedman1(2000, noise=1.0, random_state=0)
X_fit, X_rest, y_fit, y_rest = train_test_split(X, y, train_size=800, random_state=0)
X_conformal, X_new, y_conformal, y_new = train_test_split(X_rest, y_rest, test_size=700, random_state=0)

model = SteinRegressor(steps=1000, random_state=0).fit(X_fit, y_fit)
mapie = SplitConformalRegressor(model, confidence_level=0.9, prefit=True).conformalize(X_conformal, y_conformal)
_, intervals = mapie.predict_interval(X_new)
low, high = intervals[:, 0, 0], intervals[:, 1, 0]
print(f"inside: {np.mean((low <= y_new) & (y_new <= high)):.3f}")
