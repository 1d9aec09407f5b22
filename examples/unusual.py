"""Digits that a classifier has never seen: are they noticed?

docs/tutorial/unusual.md explains it. Needs the extra sklearn.
"""

import numpy as np
from sklearn.datasets import load_digits

from stein.metrics import ood
from stein.sklearn import SteinClassifier

x, y = load_digits(return_X_y=True)
seen = y < 5
x_fit, y_fit, x_new = x[:1437][seen[:1437]], y[:1437][seen[:1437]], x[1437:][seen[1437:]]
x_never = x[1437:][~seen[1437:]]  # 5 to 9

for method in ("de", "h-svgd"):
    model = SteinClassifier(method=method, steps=1000, random_state=0).fit(x_fit, y_fit)
    scores = {
        "entropy": lambda rows, model=model: model.prediction(rows).entropy,
        "epistemic": lambda rows, model=model: model.uncertainty(rows).epistemic,
        "ood_score": model.ood_score,
    }
    found = {name: ood.auroc(np.asarray(score(x_never)), np.asarray(score(x_new))) for name, score in scores.items()}
    print(method, {name: round(value, 3) for name, value in found.items()})
