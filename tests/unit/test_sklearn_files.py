"""Calibrated estimators, estimators on disk, and your own networks in them."""

import pickle
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from flax import linen, nnx
from sklearn.base import clone

import stein
from problems import relative_error, rounding
from stein.sklearn import SteinClassifier, SteinRegressor, files
from stein.sklearn.files import CALIBRATION
from stein.storage.untrusted import CheckpointError
from stein.types import Model

USUAL = {"method": "de", "n_particles": 2, "hidden": (8,), "steps": 100, "learning_rate": 0.03, "random_state": 0}
FEW = USUAL | {"calibration": None}
RANDOM = np.random.default_rng(1)
X = RANDOM.normal(size=(1200, 2))
Y = X[:, 0] + RANDOM.standard_t(3, size=1200)
LABELS = np.array(["no", "yes"])[(Y > 0).astype(int)]
FIT, NEW = slice(0, 200), slice(200, None)


def allowed(k: int, calibrated: int) -> tuple[float, float]:
    """The central 99.99 % of the covered count of the new rows."""
    return scipy.stats.betabinom(1000, k, calibrated + 1 - k).interval(0.9999)


@pytest.fixture(scope="module")
def calibrated():
    """The noise is given, ten times too small: only the calibration can save the intervals."""
    return SteinRegressor(**USUAL, noise=0.1, calibration="conformal", calibration_fraction=0.25).fit(X[FIT], Y[FIT])


def test_conformal_intervals_cover_whatever_the_noise(calibrated):
    """50 held-out rows for 90 %: k = 46. Catches calibration on training rows, or in standardised units, and a given
    noise that is made wider."""
    assert calibrated.conformal_.scores.shape == (50, 1)
    low, high = calibrated.predict_interval(X[NEW], 0.9)
    least, most = allowed(46, 50)
    assert least <= ((low <= Y[NEW]) & (Y[NEW] <= high)).sum() <= most
    own = calibrated.prediction(X[NEW]).interval(0.9)
    assert ((own[0][:, 0] <= Y[NEW]) & (Y[NEW] <= own[1][:, 0])).mean() < 0.5


def test_conformal_sets_and_the_temperature(tmp_path):
    """Overfitted on 160 rows; 40 held-out rows for 80 %: k = 33; two classes, so that sets cover at least so often.
    Catches a temperature that is not used, is lost on disk with the labels, or is unknown to `stein.load`, and sets of
    other probabilities."""
    sure = {"hidden": (30,), "prior": 10.0, "steps": 400, "calibration": "conformal", "calibration_fraction": 0.2}
    found = SteinClassifier(**USUAL | sure, class_weight={"no": 1.0, "yes": 2.0}).fit(X[FIT], LABELS[FIT])
    assert found.conformal_.scores.shape == (40, 1)
    sets = found.predict_set(X[NEW], 0.8)
    y = np.searchsorted(found.classes_, LABELS[NEW])
    assert sets[np.arange(1000), y].sum() >= allowed(33, 40)[0]
    assert sets.any(axis=1).all()
    assert found.temperature_ > 1.5
    tempered = found.predict_proba(X[NEW])
    plain = found.prediction(X[NEW])._replace(temperature=1.0).probabilities
    nll = [-np.log(p[np.arange(1000), y]).mean() for p in (plain, tempered)]
    assert nll[1] < nll[0]
    found.save(tmp_path / "saved")
    again = SteinClassifier.load(tmp_path / "saved")
    np.testing.assert_array_equal(again.predict_proba(X[NEW]), tempered)
    np.testing.assert_array_equal(again.predict(X[NEW]), found.predict(X[NEW]))
    np.testing.assert_array_equal(again.predict_set(X[NEW], 0.8), sets)
    assert again.get_params() == found.get_params()
    np.testing.assert_allclose(stein.load(tmp_path / "saved").predict(X[NEW]).probabilities, tempered, atol=1e-4)
    again.conformal_ = None
    np.testing.assert_array_equal(again.predict_set(X[NEW], 0.7), tempered > 0.3)


@pytest.fixture(scope="module")
def sure():
    """Overfitted on 60 rows, and then, as usual, calibrated."""
    much = {"hidden": (30,), "steps": 400, "prior": 10.0, "calibration_fraction": 0.5}
    return SteinRegressor(**USUAL | much).fit(X[:60], Y[:60])


def test_the_usual_calibration_finds_the_spread(sure):
    """Catches a spread that is not used, used twice, or found on rows of the training."""
    plain = clone(sure).set_params(calibration=None).fit(X[:60], Y[:60]).prediction(X[NEW])
    wide = sure.prediction(X[NEW])
    np.testing.assert_allclose(wide.std, sure.spread_(plain).std, rtol=1e-5)
    assert (wide.std > 1.5 * plain.std).all()
    assert wide.scores(Y[NEW])["nll"] < plain.scores(Y[NEW])["nll"] - 1


# -- files ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def saved(calibrated, tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "model"
    calibrated.save(path)
    return path


def test_a_loaded_estimator_is_the_same(calibrated, saved):
    """Everything but the fit itself, to the byte; also for `stein.load`. Nothing in the directory is pickled."""
    again = SteinRegressor.load(saved)
    for ask in ("predict", "predict_interval", "ood_score", "uncertainty"):
        np.testing.assert_array_equal(getattr(again, ask)(X), getattr(calibrated, ask)(X))
    assert again.history_ == calibrated.history_
    assert again.get_params() == calibrated.get_params()
    assert again.n_features_in_ == 2
    # The same sums in other chunks: 3 terms for a hidden unit, 9 for the output.
    assert relative_error(stein.load(saved).predict(X).mean[:, 0], again.predict(X)) < rounding(3 * 9, "float32")
    names = {path.name for path in saved.iterdir()}
    assert names == {"config.toml", "ensemble.safetensors", "metrics.json", CALIBRATION}


def test_the_spread_is_kept(sure, tmp_path):
    """Catches an estimator that is sure again when it comes back."""
    sure.save(tmp_path / "sure")
    again = SteinRegressor.load(tmp_path / "sure")
    np.testing.assert_array_equal(again.predict(X, return_std=True), sure.predict(X, return_std=True))
    assert (
        relative_error(stein.load(tmp_path / "sure").predict(X).std[:, 0], again.predict(X, return_std=True)[1]) < 1e-4
    )


def test_what_cannot_be_loaded_or_saved(calibrated, saved, tmp_path):
    with pytest.raises(ValueError, match="exists already; give another path"):
        calibrated.save(saved)
    with pytest.raises(ValueError, match="holds a SteinRegressor; load it with that class"):
        SteinClassifier.load(saved)
    with pytest.raises(ValueError, match="no such directory"):
        SteinRegressor.load(tmp_path / "nothing")
    with pytest.raises(ValueError, match=r"data.name = 'arrays': the data were given in Python and are not kept"):
        stein.load(saved).evaluate()


def test_a_damaged_calibration_is_noticed(saved, tmp_path):
    """Catches a flipped bit that would only widen or narrow intervals."""
    for file in saved.iterdir():
        content = bytearray(file.read_bytes())
        if file.name == CALIBRATION:
            content[-3] ^= 1
        (tmp_path / file.name).write_bytes(content)
    with pytest.raises(CheckpointError, match=CALIBRATION):
        SteinRegressor.load(tmp_path)


def test_labels_keep_their_type(tmp_path):
    """Text from a pandas column is of type object. Catches labels that come back as another type."""
    found = SteinClassifier(**FEW).fit(X[FIT], LABELS[FIT].astype(object))
    found.save(tmp_path / "objects")
    again = SteinClassifier.load(tmp_path / "objects")
    assert again.classes_.dtype == object
    np.testing.assert_array_equal(again.predict(X), found.predict(X))


@pytest.mark.parametrize("name", ["M8[s]", "V8", "i4,i4", "nonsense"])
def test_labels_are_of_no_other_type(name):
    """The type comes from a file of a stranger."""
    with pytest.raises(CheckpointError, match=r"class labels of type .*; must be numbers or text"):
        files._dtype(Path("a"), name)


# -- your own networks ---------------------------------------------------------------------------------------


class LinenNet(linen.Module):
    @linen.compact
    def __call__(self, x):
        return linen.Dense(1)(linen.tanh(linen.Dense(5)(x.astype(jnp.float32))))


class NnxNet(nnx.Module):
    def __init__(self, rngs):
        self.first, self.last = nnx.Linear(2, 5, rngs=rngs), nnx.Linear(5, 1, rngs=rngs)

    def __call__(self, x):
        return self.last(nnx.tanh(self.first(x.astype(jnp.float32))))


def make_equinox(key):
    return eqx.nn.MLP(2, 1, width_size=5, depth=1, key=key)


def draw(key):
    return {"w": jax.random.normal(key, (2, 1), jnp.float32)}


def apply(weights, x):
    return x @ weights["w"]


NETWORKS = {
    "linen": LinenNet(),
    "nnx": NnxNet,
    "equinox": make_equinox,
    "pair": (draw, apply),
    "model": Model(draw, apply),
}
OWN = {name: value for name, value in FEW.items() if name != "hidden"} | {"steps": 300}


@pytest.mark.parametrize("name", NETWORKS)
def test_your_own_network(name, tmp_path):
    """Trained, pickled, saved and loaded. Catches an adapter that is taken for another."""
    found = SteinRegressor(**OWN, model=NETWORKS[name]).fit(X[FIT], Y[FIT])
    assert found.score(X[NEW], Y[NEW]) > 0.1
    found.save(tmp_path / "own")
    again = SteinRegressor.load(tmp_path / "own", model=NETWORKS[name])
    np.testing.assert_array_equal(again.predict(X), found.predict(X))
    with pytest.raises(ValueError, match=r"load\(path, model=...\) needs it"):
        SteinRegressor.load(tmp_path / "own")
    if name == "pair":
        with pytest.raises(CheckpointError):
            SteinRegressor.load(tmp_path / "own", model=make_equinox)


def test_networks_that_do_not_fit():
    wide = (lambda key: {"w": jax.random.normal(key, (2, 3), jnp.float32)}, apply)
    with pytest.raises(ValueError, match=r"model: its outputs for 2 rows have shape \(2, 3\); must be \(2, 1\)"):
        SteinRegressor(**OWN, model=wide).fit(X[FIT], Y[FIT])
    with pytest.raises(ValueError, match=r"model is of type MLP: must be a types.Model, a pair"):
        SteinRegressor(**OWN, model=make_equinox(jax.random.key(0))).fit(X[FIT], Y[FIT])


def test_a_network_that_cannot_be_imported_is_not_pickled():
    """An unfitted estimator still is, as joblib does for its workers."""
    local = SteinRegressor(**OWN, model=(lambda key: draw(key), apply))
    local.__getstate__()
    local.fit(X[FIT], Y[FIT])
    with pytest.raises(TypeError, match="cannot be pickled, because another process could not import it"):
        pickle.dumps(local)
