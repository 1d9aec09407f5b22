"""The estimators inside scikit-learn's tools, and three methods under all checks."""

import contextlib
import os
import subprocess
import sys
import time
import unittest
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.utils.estimator_checks import estimator_checks_generator

import runs
from stein.sklearn import SteinClassifier, SteinRegressor

EXAMPLE = Path(__file__).parents[2] / "examples" / "mapie_intervals.py"
USUAL = {"method": "de", "n_particles": 2, "hidden": (8,), "steps": 100, "learning_rate": 0.03, "random_state": 0}
FEW = USUAL | {"calibration": None}
RANDOM = np.random.default_rng(0)
FRAME = pd.DataFrame({"size": RANDOM.uniform(20, 200, 90), "town": RANDOM.choice(["a", "b"], 90)})
PRICE = FRAME["size"] * np.where(FRAME["town"] == "a", 1.0, 3.0) + RANDOM.normal(size=90)


def test_pipeline_and_search():
    """A table with text, columns by name and a grid of values. Catches parameters that clone changes."""
    columns = ColumnTransformer(
        [("numbers", StandardScaler(), ["size"]), ("words", OneHotEncoder(sparse_output=False), ["town"])],
        verbose_feature_names_out=False,
    ).set_output(transform="pandas")
    pipeline = make_pipeline(columns, SteinRegressor(**FEW))
    search = GridSearchCV(pipeline, {"steinregressor__learning_rate": np.array([1e-5, 0.03])}, cv=2)
    search.fit(FRAME, PRICE)
    assert search.best_params_ == {"steinregressor__learning_rate": 0.03}
    assert search.best_estimator_[-1].feature_names_in_.tolist() == ["size", "town_a", "town_b"]
    assert search.predict(FRAME).shape == (90,)


def test_calibration_of_scikit_learn():
    X = np.column_stack([FRAME["size"], RANDOM.normal(size=90)])
    calibrated = CalibratedClassifierCV(SteinClassifier(**FEW), cv=2).fit(X, FRAME["size"] > 100)
    assert calibrated.score(X, FRAME["size"] > 100) > 0.8


@pytest.mark.long
def test_two_processes_at_once(tmp_path, cache):
    """In a process without the tests' type checker, whose wrappers joblib cannot send."""
    script = f"""if True:
        import numpy as np
        from sklearn.model_selection import cross_val_score
        from stein.sklearn import SteinRegressor
        X = np.random.default_rng(0).normal(size=(60, 2))
        alone, together = (cross_val_score(SteinRegressor(**{FEW}), X, X[:, 0], cv=2, n_jobs=jobs) for jobs in (1, 2))
        assert (alone == together).all(), (alone, together)
    """
    subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        check=True,
        cwd=tmp_path,
        env=runs.environment(cache, **runs.QUICK),
    )


@pytest.mark.long
@pytest.mark.parametrize("method", ["de", "fw-svgd", "h-svgd"])
@pytest.mark.parametrize("kind", [SteinRegressor, SteinClassifier])
def test_every_check_of_scikit_learn(kind, method):
    """All but the weights in minibatches (tests/unit/test_sklearn_checks.py)."""
    start = time.process_time()
    for estimator, check in estimator_checks_generator(kind(**USUAL | {"method": method, "steps": 200})):
        if "check_sample_weight_equivalence" not in str(check):
            with contextlib.suppress(unittest.SkipTest):  # of one check only: array libraries that are not installed
                check(estimator)
    print(f"{kind.__name__} {method}: {(time.process_time() - start) / 60:.1f} minutes of a processor")


@pytest.mark.long
def test_mapie_wraps_an_estimator():
    """The example as it stands, with fewer steps. 700 new rows, 500 to conformalise: the share inside has a standard
    error of 0.018; four of these."""
    example = EXAMPLE.read_text()
    assert "steps=1000" in example
    command = [sys.executable, "-c", example.replace("steps=1000", "steps=100, calibration=None")]
    found = subprocess.run(command, check=True, capture_output=True, text=True, env=os.environ | runs.QUICK)
    assert abs(float(found.stdout.split()[-1]) - 0.9) < 4 * 0.018
