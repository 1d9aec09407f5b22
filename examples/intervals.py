"""Four kinds of intervals, and how often they hold.

docs/tutorial/intervals.md explains it. Needs the extra sklearn.
"""

import numpy as np

from stein.sklearn import SteinRegressor

random = np.random.default_rng(0)


def draw(rows):
    x = random.uniform(0, 10, (rows, 1))
    return x, 3 * np.sin(x[:, 0]) + (0.2 + 0.2 * x[:, 0]) * random.normal(size=rows)


x, y = draw(300)
x_new, y_new = draw(5000)

settings = {
    "one noise": {"noise": "learned", "calibration": None},
    "one noise, conformal": {"noise": "learned", "calibration": "conformal"},
    "default": {},
    "default, conformal": {"calibration": "conformal"},
}
print(f"{'':20} inside   x < 2   x > 8   width")
for name, setting in settings.items():
    model = SteinRegressor(**setting, steps=1000, random_state=0).fit(x, y)
    low, high = model.predict_interval(x_new, coverage=0.9)
    inside = (low <= y_new) & (y_new <= high)
    left, right = (inside[where].mean() for where in (x_new[:, 0] < 2, x_new[:, 0] > 8))
    print(f"{name:20} {inside.mean():6.1%}  {left:6.1%}  {right:6.1%}  {(high - low).mean():6.2f}")
