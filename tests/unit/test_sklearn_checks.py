"""scikit-learn's own checks of both estimators."""

import pytest
from sklearn.utils import estimator_checks
from sklearn.utils.estimator_checks import parametrize_with_checks

from stein.sklearn import SteinClassifier, SteinRegressor

# `make test-long` checks three methods, calibrated as usual (tests/e2e/test_sklearn_tools.py).
FEW = {"method": "de", "n_particles": 2, "hidden": (8,), "steps": 100, "learning_rate": 0.05, "random_state": 0,
       "calibration": None}  # fmt: skip
MINIBATCHES = {"check_sample_weight_equivalence_on_dense_data": "batches of weighted and of repeated rows differ"}


@parametrize_with_checks(
    [SteinRegressor(**FEW), SteinClassifier(**FEW)], expected_failed_checks=lambda estimator: MINIBATCHES
)
def test_scikit_learn_checks(estimator, check):
    check(estimator)


@pytest.mark.parametrize("kind", [SteinRegressor, SteinClassifier])
def test_weights_are_repetitions_in_full_batches(kind):
    """The check that minibatches fail. Catches weights left out of the standardisation, the likelihood or its N/B."""
    estimator = kind(**FEW | {"batch_size": None, "precision": "float64", "steps": 50})
    estimator_checks.check_sample_weight_equivalence_on_dense_data(kind.__name__, estimator)
