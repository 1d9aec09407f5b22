"""Chooses the default setting of tables: settings side by side on tables that no result is reported on.

``python benchmarks/choose_defaults.py`` trains every setting of SETTINGS on every table (two processes, a quarter of
an hour) and writes ``results/defaults``; finished cells are kept, so that it can be interrupted. The tables are
scikit-learn's bundled sets, Friedman's functions, and simulators with known noise. See docs/defaults.md.
"""

import json
import sys
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from sklearn import datasets

from stein.runs import launchers

OUT = Path(__file__).parent.parent / "results" / "defaults"
SEEDS = (0,)
TEST = 1000  # rows; of a bundled set a fifth


# -- tables: a function of a generator and the number of rows ------------------------------------------------------


def noisy(function, share):
    """Normal noise with this share of the function's standard deviation."""

    def make(random, rows):
        x, y = function(random, rows)
        return x, y + share * y.std() * random.normal(size=rows)

    return make


def friedman(number, noise):
    make = getattr(datasets, f"make_friedman{number}")
    return lambda random, rows: make(rows, noise=noise, random_state=int(random.integers(2**31)))


def heavy(random, rows):
    """Student-t noise with three degrees of freedom."""
    x, y = friedman(1, 0.0)(random, rows)
    return x, y + 0.8 * random.standard_t(3, rows)


def borehole(random, rows):
    """Flow of water through a borehole, eight inputs over many orders of magnitude."""
    low = np.array([0.05, 100, 63070, 990, 63.1, 700, 1120, 9855])
    high = np.array([0.15, 50000, 115600, 1110, 116, 820, 1680, 12045])
    x = random.uniform(low, high, (rows, 8))
    radius, reach, upper, upper_head, lower, lower_head, length, conductivity = x.T
    log = np.log(reach / radius)
    leak = 1 + 2 * length * upper / (log * radius**2 * conductivity) + upper / lower
    return x, 2 * np.pi * upper * (upper_head - lower_head) / (log * leak)


def robot(random, rows):
    """Distance of a robot arm's hand from its shoulder: four angles and four lengths."""
    angles, lengths = random.uniform(0, 2 * np.pi, (rows, 4)), random.uniform(0, 1, (rows, 4))
    turned = np.cumsum(angles, axis=1)
    hand = (lengths * np.cos(turned)).sum(axis=1), (lengths * np.sin(turned)).sum(axis=1)
    return np.hstack([angles, lengths]), np.hypot(*hand)


def design(random, rows):
    """A designed experiment: few levels per input."""
    levels = ([0.6, 0.7, 0.8, 0.9, 1.0], [2, 3, 4, 5], [0, 0.1, 0.25, 0.4], [0, 1, 2, 3, 4, 5], [3.5, 7.0])
    a, b, c, d, e = x = np.stack([random.choice(values, rows) for values in levels])
    return x.T, 15 * e / 3.5 * (1 + 1.5 * c) / a + 3 * np.sin(2 * c * d) + 0.5 * b * c


def steep(random, rows):
    """A response over two orders of magnitude, with noise in proportion to it."""
    a, b, c = (
        random.choice(np.linspace(0.1, 0.45, 14), rows),
        random.uniform(-5, 0, rows),
        random.uniform(0.5, 0.6, rows),
    )
    rest = random.uniform((4.3, 2.8), (5.1, 5.4), (rows, 2))
    y = 0.8 * np.exp(13 * (a - 0.1)) * (1.045 + 0.018 * b + (c - 0.55))
    return np.column_stack([a, b, c, rest]), y * (1 + 0.04 * random.normal(size=rows))


def grades(random, rows):
    """Whole numbers from 3 to 8, mostly noise; correlated and skewed inputs."""
    x = random.normal(size=(rows, 11))
    x[:, 3], x[:, 5], x[:, 7] = np.exp(x[:, 3]), x[:, 5] + 0.6 * x[:, 0], 0.7 * x[:, 0] + 0.3 * x[:, 7]
    f = 0.4 * np.tanh(x[:, 0]) + 0.3 * x[:, 1] - 0.15 * x[:, 2] ** 2 + 0.2 * x[:, 4] * (x[:, 6] > 0)
    return x, np.clip(np.rint(5.6 + f + 0.55 * random.normal(size=rows)), 3, 8)


def groups(random, rows):
    """Six groups, one-hot, with slopes and noise of their own."""
    group, z = random.integers(6, size=rows), random.normal(size=(rows, 4))
    slope = np.linspace(-1.5, 1.5, 6)[group]
    y = slope * z[:, 0] + np.abs(z[:, 1]) * (group % 2) + 0.1 * (1 + group) * random.normal(size=rows)
    return np.hstack([np.eye(6)[group], z]), y


def mixtures(random, rows):
    """Recipes: many zeros, interactions, a saturating age, noise with two parts."""

    def amount(low, high, share=1.0):
        return random.uniform(low, high, rows) * (random.random(rows) < share)

    binder, slag, ash, water = amount(100, 540), amount(0, 360, 0.55), amount(0, 200, 0.45), amount(120, 250)
    additive, stone, age = amount(0, 30, 0.6), amount(800, 1150), random.choice([3, 7, 14, 28, 56, 90, 180, 365], rows)
    strength = 25 * np.log1p(age) / np.log(29) * ((binder + 0.7 * slag + 0.4 * ash) / water) ** 0.9
    y = strength * (1 - 0.1 * (additive > 15)) + 0.01 * (stone - 900)
    x = np.column_stack([binder, slag, ash, water, additive, stone, age])
    return x, y * (1 + 0.06 * random.normal(size=rows)) + 1.5 * random.normal(size=rows)


def generated(**options):
    def make(random, rows):
        return datasets.make_classification(rows, random_state=int(random.integers(2**31)), **options)

    return make


def moons(random, rows):
    return datasets.make_moons(rows, noise=0.3, random_state=int(random.integers(2**31)))


REGRESSION = {
    "diabetes": (datasets.load_diabetes, 0),
    "friedman1": (friedman(1, 1.0), 300),
    "friedman1, 1000": (friedman(1, 1.0), 1000),
    "friedman2": (friedman(2, 25.0), 500),
    "friedman3": (friedman(3, 0.05), 300),
    "borehole": (noisy(borehole, 0.02), 400),
    "robot": (noisy(robot, 0.02), 1000),
    "design": (noisy(design, 0.02), 700),
    "steep": (steep, 300),
    "grades": (grades, 1500),
    "groups": (groups, 1000),
    "heavy tails": (heavy, 600),
    "mixtures": (mixtures, 1000),
}
CLASSES = {
    "iris": (datasets.load_iris, 0),
    "wine": (datasets.load_wine, 0),
    "breast cancer": (datasets.load_breast_cancer, 0),
    "digits": (datasets.load_digits, 0),
    "moons": (moons, 400),
    "noisy": (generated(n_features=20, n_informative=8, n_redundant=4, n_classes=3, flip_y=0.15), 1000),
    "rare": (generated(n_features=12, n_informative=6, weights=[0.93], flip_y=0.02), 1500),
}
SETTINGS = {
    "regression": {
        "default": {},
        "de": {"method": "de"},
        "f-svgd": {"method": "f-svgd"},
        "h-svgd": {"method": "h-svgd"},
        "h-svgd, noise the same for all rows": {"method": "h-svgd", "noise": "learned"},
        "h-svgd, inputs not bent": {"method": "h-svgd", "unskew": False},
        "h-svgd, one prior, not calibrated": {"method": "h-svgd", "calibration": None},
        "sghmc": {"method": "sghmc"},
        "mile": {"method": "mile"},
    },
    "classes": {
        "default": {},
        "de": {"method": "de"},
        "h-svgd": {"method": "h-svgd"},
        "h-svgd, one prior, not calibrated": {"method": "h-svgd", "calibration": None},
    },
}


class Cell(NamedTuple):
    kind: str
    setting: str
    table: str
    seed: int

    @property
    def place(self):
        return OUT / "cells" / f"{self.kind}-{self.setting}-{self.table}-{self.seed}.json".replace(" ", "-")


def split(kind, table, seed):
    """Training and test rows."""
    make, rows = (REGRESSION if kind == "regression" else CLASSES)[table]
    random = np.random.default_rng([seed, *table.encode()])
    if rows:
        x, y = make(random, rows + TEST)
    else:
        x, y = make(return_X_y=True)
        order, rows = random.permutation(len(x)), len(x) * 4 // 5
        x, y = x[order], y[order]
    return (x[:rows], y[:rows]), (x[rows:], y[rows:])


def compute(cell):
    from stein.sklearn import SteinClassifier, SteinRegressor

    (x, y), (x_test, y_test) = split(cell.kind, cell.table, cell.seed)
    options = SETTINGS[cell.kind][cell.setting]
    if cell.kind == "regression":
        prediction = SteinRegressor(**options, random_state=cell.seed).fit(x, y).prediction(x_test)
        low, high = prediction.interval(0.9)
        inside = np.mean((low[:, 0] <= y_test) & (y_test <= high[:, 0]))
        scores, sd = prediction.scores(y_test), y.std()  # in units of the targets' standard deviation
        found = [scores["nll"] - np.log(sd), scores["rmse"] / sd, float(inside)]
    else:
        p = SteinClassifier(**options, random_state=cell.seed).fit(x, y).predict_proba(x_test)
        right = p.argmax(axis=1) == y_test
        nll = -np.log(p[np.arange(len(p)), y_test]).mean()
        found = [float(nll), float(right.mean()), float(p.max(axis=1).mean() - right.mean())]
    cell.place.write_text(json.dumps(found))


def _means(kind, setting, tables):
    """Means over the seeds, by table, where all of them are finished."""
    of_table = {table: [Cell(kind, setting, table, seed).place for seed in SEEDS] for table in tables}
    return {
        table: np.mean([json.loads(place.read_text()) for place in places], axis=0)
        for table, places in of_table.items()
        if all(place.exists() for place in places)
    }


def write():
    """table.md and table.json; the last column is the mean over all tables."""
    lines, numbers = (
        ["`python benchmarks/choose_defaults.py`: seed " + ", ".join(map(str, SEEDS)) + "."],
        {},
    )
    titles = {
        "regression": [
            "NLL, targets standardised",
            "RMSE, targets standardised",
            "share inside the 90 % interval",
        ],
        "classes": ["NLL", "accuracy", "confidence minus accuracy"],
    }
    for kind, settings in SETTINGS.items():
        tables = list(REGRESSION if kind == "regression" else CLASSES)
        done = {setting: _means(kind, setting, tables) for setting in settings}
        numbers[kind] = {s: {t: v.tolist() for t, v in of.items()} for s, of in done.items()}
        for i, title in enumerate(titles[kind]):
            lines += [
                "",
                f"**{title}**",
                "",
                "| | " + " | ".join(tables) + " | mean |",
                "|---" * (len(tables) + 2) + "|",
            ]
            for setting, of in done.items():
                if len(of) == len(tables):
                    values = [of[table][i] for table in tables]
                    shown = " | ".join(f"{value:.3f}" for value in [*values, np.mean(values)])
                    lines.append(f"| {setting} | {shown} |")
    (OUT / "table.md").write_text("\n".join(lines) + "\n")
    (OUT / "table.json").write_text(json.dumps(numbers, indent=1) + "\n")


def restore():
    """Cells of the table that is there, where their files are gone: a setting can be added on another machine."""
    table, (seed,) = OUT / "table.json", SEEDS
    for kind, settings in json.loads(table.read_text()).items() if table.exists() else ():
        for setting, tables in settings.items():
            for name, numbers in tables.items():
                place = Cell(kind, setting, name, seed).place
                if not place.exists():
                    place.write_text(json.dumps(numbers))


def main(workers):
    (OUT / "cells").mkdir(parents=True, exist_ok=True)
    restore()
    kinds = (("regression", REGRESSION), ("classes", CLASSES))
    cells = [Cell(kind, s, t, i) for i in SEEDS for kind, of in kinds for s in SETTINGS[kind] for t in of]
    missing = [cell for cell in cells if not cell.place.exists()]

    def watch():
        print(f"\r{sum(cell.place.exists() for cell in cells)} of {len(cells)} cells", end="", file=sys.stderr)

    if missing:
        launchers.make_all(launchers.local(workers), partial(compute), missing, watch)
    write()
    print(f"\nin {OUT}: table.md, table.json")


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else 2)
