"""The estimators: what they predict, in which units, from which inputs."""

import contextlib
import pickle
import signal

import jax
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from sklearn.base import clone

import stein
from stein import data, train
from stein.calibration import UNCHANGED
from stein.sklearn import SteinClassifier, SteinRegressor, ensemble, settings

USUAL = {"method": "de", "n_particles": 3, "hidden": (8,), "steps": 200, "learning_rate": 0.03, "random_state": 0}
FEW = USUAL | {"calibration": None}  # one training instead of four, where calibration is not what is tested
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(120, 2)) * [1.0, 30.0] + [0.0, 500.0]
Y = X[:, 0] + 0.1 * RANDOM.normal(size=120)
LABELS = np.array(["low", "mid", "top"])[np.digitize(Y, [-0.5, 0.5])]
FAR = np.array([[50.0, 500.0], [0.0, 5000.0]])


@pytest.fixture(scope="module")
def regressor():
    return SteinRegressor(**FEW).fit(X, Y)


@pytest.fixture(scope="module")
def classifier():
    return SteinClassifier(**FEW).fit(X, LABELS)


# -- samplers -------------------------------------------------------------------------------------------------


def test_draws_of_a_sampler_are_the_members(tmp_path):
    """mile without a setting of its own: trained, tuned and drawn with all rows, not widened by what deep ensembles are
    too sure of, and the same from a file. Catches last states for draws, minibatches, the spread of the trials, and
    draws that a file counts as chains."""
    wide = SteinRegressor(**USUAL | {"steps": 300}, calibration="spread").fit(X, Y)
    found = SteinRegressor(**USUAL | {"method": "mile", "steps": 400, "n_particles": 2}).fit(X, Y)
    method = found.config_.method
    assert (method.particles, method.draws, method.burn_in, method.tuning_steps, method.thin) == (2, 20, 300, 100, 5)
    assert found.config_.train.batch_size == 0
    assert len(jax.tree.leaves(found.members_)[0]) == 40
    assert wide.spread_ != UNCHANGED == found.spread_
    assert found.score(X, Y) > 0.9
    found.save(tmp_path / "mile")
    np.testing.assert_array_equal(SteinRegressor.load(tmp_path / "mile").predict(X), found.predict(X))
    assert stein.load(tmp_path / "mile").predict(X).means.shape == (40, 120, 1)
    again = found.set_params(warm_start=True)
    with pytest.raises(ValueError, match="warm_start: the members of mile are draws"):
        again.fit(X, Y)


def test_an_ensemble_that_learned_nothing_says_so():
    """Langevin steps that are too long. Catches a fit whose predictions mean nothing and that ends without a word."""
    with pytest.warns(UserWarning, match=r"worse than their mean .*: sgld has not converged; lower learning_rate"):
        SteinRegressor(**FEW | {"method": "sgld", "learning_rate": 3.0, "steps": 100}).fit(X, Y)


def test_single_members_that_went_astray_are_counted():
    """Two draws of a chain that left for a moment, among two hundred whose mean is still good. Catches a check of the
    ensemble's mean alone, one that takes the members' spread for an error, and one that a NaN passes."""
    random = np.random.default_rng(0)
    y = random.normal(size=(50, 1))
    means = y + 0.5 * random.normal(size=(200, 1, 1))
    assert ensemble.worse_than_the_mean(means, y) == ""
    means[7], means[11, 3] = y + 9, np.nan
    means[30] += 1.5
    kept = np.delete(means, 11, axis=0)
    assert "1 of 199 members predict the training rows worse" in ensemble.worse_than_the_mean(kept, y)
    assert "the predictions of the training rows are worse than their mean" in ensemble.worse_than_the_mean(means, y)
    assert ensemble.worse_than_the_mean(means, np.ones((50, 1))) == ""


# -- predictions ---------------------------------------------------------------------------------------------


def test_what_a_regressor_predicts(regressor):
    """Every number comes from the one prediction. Catches a median for the mean, a variance for the deviation."""
    found = regressor.prediction(X)
    mean, std = regressor.predict(X, return_std=True)
    np.testing.assert_array_equal(mean, found.mean[:, 0])
    np.testing.assert_array_equal(std, found.std[:, 0])
    assert regressor.score(X, Y) > 0.9
    quantiles = regressor.predict_quantiles(X, [0.05, 0.5, 0.95])
    assert quantiles.shape == (120, 3)
    np.testing.assert_array_equal(regressor.predict_quantiles(X, 0.05), quantiles[:, 0])
    np.testing.assert_allclose(regressor.predict_interval(X, 0.9), quantiles[:, [0, 2]].T, rtol=1e-9)
    draws = regressor.sample_y(X[:5], 4000, random_state=1)
    assert draws.shape == (5, 4000)
    np.testing.assert_allclose(draws.mean(axis=1), mean[:5], atol=6 * std[:5].max() / 4000**0.5)
    total, aleatoric, epistemic, disagreement = regressor.uncertainty(X)
    np.testing.assert_allclose(total**2, aleatoric**2 + epistemic**2, rtol=1e-9)
    assert (disagreement > epistemic).all()


def test_what_a_classifier_predicts(classifier):
    """Catches class numbers for labels, and sets or draws in another order than classes_."""
    assert classifier.classes_.tolist() == ["low", "mid", "top"]
    assert classifier.score(X, LABELS) > 0.85
    p = classifier.predict_proba(X)
    np.testing.assert_allclose(p.sum(axis=1), 1, rtol=1e-12)
    np.testing.assert_allclose(classifier.predict_log_proba(X), np.log(p))
    assert (classifier.predict(X) == classifier.classes_[p.argmax(axis=1)]).all()
    assert ((classifier.predict_set(X, 0.8) * p).sum(axis=1) >= 0.8).all()
    draws = classifier.sample_y(X[:3], 4000)
    for c, label in enumerate(classifier.classes_):
        np.testing.assert_allclose((draws == label).mean(axis=1), p[:3, c], atol=6 * 0.5 / 4000**0.5)
    total, aleatoric, epistemic, _ = classifier.uncertainty(X)
    np.testing.assert_allclose(total, aleatoric + epistemic, rtol=1e-9)


@pytest.mark.parametrize("fitted", ["regressor", "classifier"])
def test_predictions_do_not_depend_on_the_other_rows(fitted, request):
    """To the byte: one by one, in other orders and beyond one chunk. Catches a chunk of the size that is asked."""
    estimator = request.getfixturevalue(fitted)
    ask = estimator.predict if fitted == "regressor" else estimator.predict_proba
    many = np.concatenate([X] * 10)
    assert len(many) > ensemble.CHUNK
    together = ask(many)
    np.testing.assert_array_equal(together, np.concatenate([ask(X)] * 10))
    np.testing.assert_array_equal(ask(X[::-1]), together[:120][::-1])
    np.testing.assert_array_equal(np.concatenate([ask(row[None]) for row in X[:7]]), together[:7])


def test_rows_far_away_are_out_of_distribution(regressor, classifier):
    """Both far in one input only. About 5 % of the rows of fit are above 1, by construction."""
    for estimator in (regressor, classifier):
        assert (estimator.ood_score(FAR) > 2).all()
        assert 0.01 <= (estimator.ood_score(X) > 1).mean() <= 0.1


def test_units_do_not_matter():
    """Inputs and targets in other units, in float64. Catches a scale that is not undone, or undone twice, also in the
    width that is found on held-out rows."""
    precise = USUAL | {"precision": "float64", "steps": 50}
    plain = SteinRegressor(**precise).fit(X, Y)
    scaled = SteinRegressor(**precise).fit(X * [1e3, 1e-3] + [7, 0], 1e4 * Y - 3e5)
    asked = X * [1e3, 1e-3] + [7, 0]
    np.testing.assert_allclose(scaled.predict(asked), 1e4 * plain.predict(X) - 3e5, rtol=1e-7)
    np.testing.assert_allclose(scaled.uncertainty(asked).total, 1e4 * plain.uncertainty(X).total, rtol=1e-6)


# -- likelihoods ---------------------------------------------------------------------------------------------


def test_every_target_has_its_own_noise():
    """Noise of 0.1 and 3, in units of the targets 1 and 100. Catches one sigma or one scale for all targets."""
    several = np.column_stack([Y, 100 * X[:, 0] + 3 * RANDOM.normal(size=120)])
    found = SteinRegressor(**FEW | {"steps": 600}).fit(X, several)
    assert found.predict(X).shape == (120, 2)
    assert found.sample_y(X, 5).shape == (120, 2, 5)
    assert found.predict_quantiles(X, [0.1, 0.9]).shape == (120, 2, 2)
    assert found.score(X, several) > 0.95
    noise = found.uncertainty(X).aleatoric.mean(axis=0)
    assert 0.05 < noise[0] < 0.3
    assert 1 < noise[1] < 20


def test_student_t_resists_outliers():
    """A tenth of the targets is far above. Catches a t likelihood that is a Gaussian one."""
    y = np.where(np.arange(120) % 10 == 0, 30.0, Y)
    error = {
        name: np.abs(SteinRegressor(**FEW | {"likelihood": name, "steps": 600}).fit(X, y).predict(X) - X[:, 0]).mean()
        for name in ("gaussian", "student-t")
    }
    assert error["student-t"] < 0.4
    assert error["gaussian"] > 5 * error["student-t"]


def test_counts():
    """Rates from 10 to 400. Catches a rate that is not undone, and a spread that is not that of counts."""
    rates = np.exp(np.clip(4 + X[:, 0], 2.3, 6))
    found = SteinRegressor(**FEW | {"likelihood": "poisson", "steps": 600}).fit(X, RANDOM.poisson(rates))
    mean, std = found.predict(X, return_std=True)
    assert np.median(np.abs(mean / rates - 1)) < 0.15
    assert (std >= mean**0.5 * (1 - 1e-9)).all()
    draws = found.sample_y(X, 3)
    assert (draws == np.round(draws)).all()
    with pytest.raises(ValueError, match="counts must be whole numbers, 0 or more"):
        SteinRegressor(**FEW | {"likelihood": "poisson"}).fit(X, Y)


def test_noise_given_and_input_dependent():
    """Catches a given noise in standardised units, one that the usual calibration changes, and an input-dependent one
    that is the same everywhere."""
    for likelihood, spread in (("gaussian", 2.5), ("student-t", 2.5 * 2**0.5)):  # 4 degrees of freedom
        given = SteinRegressor(**USUAL | {"noise": 2.5, "steps": 50, "likelihood": likelihood}).fit(X, 10 * Y)
        np.testing.assert_allclose(given.uncertainty(X).aleatoric, spread, rtol=1e-6)
    y = X[:, 0] + np.where(X[:, 0] > 0, 2.0, 0.05) * RANDOM.normal(size=120)
    varying = SteinRegressor(**FEW | {"noise": "input-dependent", "steps": 600}).fit(X, y)
    noise = varying.uncertainty(X).aleatoric
    assert noise[X[:, 0] > 0.5].mean() > 3 * noise[X[:, 0] < -0.5].mean()


# -- classes and weights -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "labels",
    [np.array([7, -2, 5]), np.array([0.5, 1.0, 2.0]), np.array(["b", "a", "c"], object), np.array([True, False, True])],
    ids=["whole numbers", "floats", "objects", "truth values"],
)
def test_labels_of_any_type(labels):
    if labels.dtype == float:
        with pytest.raises(ValueError, match="Unknown label type"):  # scikit-learn's: numbers that are measured
            SteinClassifier(**FEW).fit(X, labels[np.arange(120) % 3])
        return
    y = labels[np.digitize(Y, [-0.5, 0.5])]
    found = SteinClassifier(**FEW).fit(X, y)
    assert found.classes_.dtype == labels.dtype
    assert found.predict(X).dtype == labels.dtype
    assert found.score(X, y) > 0.85


def test_class_weights_favour_the_rare_class():
    """One row in ten, hard to tell. Catches weights that are not used."""
    y = np.where((np.arange(120) % 10 == 0) & (Y > 0), "rare", "usual")
    shares = [
        (SteinClassifier(**FEW | {"class_weight": weight}).fit(X, y).predict(X) == "rare").mean()
        for weight in (None, "balanced", {"rare": 50.0, "usual": 1.0})
    ]
    assert shares[0] < 0.1
    assert min(shares[1:]) > 2 * shares[0] + 0.1


def test_a_row_without_weight_is_not_there(regressor):
    """To the byte. Catches zero weights that count in the scales or the split."""
    more, zeros = np.concatenate([X, FAR]), np.r_[np.ones(120), 0, 0]
    weighted = SteinRegressor(**FEW).fit(more, np.r_[Y, 1e6, -1e6], sample_weight=zeros)
    same = SteinRegressor(**FEW).fit(X, Y, sample_weight=np.ones(120))
    np.testing.assert_array_equal(weighted.predict(X), same.predict(X))
    np.testing.assert_allclose(same.predict(X), regressor.predict(X), rtol=1e-3)
    with pytest.raises(ValueError, match=r"(?i)weight"):
        SteinRegressor(**FEW).fit(X, Y, sample_weight=np.zeros(120))


# -- training ------------------------------------------------------------------------------------------------


def test_seeds(regressor):
    """Equal numbers, equal bytes; a generator is advanced."""
    np.testing.assert_array_equal(clone(regressor).fit(X, Y).predict(X), regressor.predict(X))
    random = np.random.RandomState(3)
    one, two = (SteinRegressor(**FEW | {"random_state": random}).fit(X, Y).predict(X) for _ in range(2))
    assert (one != two).any()


def test_a_second_fit_compiles_nothing(regressor):
    """Other data of the same shape. Catches data that are constants of the compiled program."""
    clone(regressor).fit(X, Y)  # what the fixture compiled may be forgotten by now
    before = train._jitted_advance()._cache_size()
    other = clone(regressor).set_params(random_state=5).fit(X * 2, Y + 3)
    assert train._jitted_advance()._cache_size() == before
    assert other.score(X * 2, Y + 3) > 0.9


def test_warm_start_goes_on_from_the_members(regressor):
    """Nearly no learning: the members stay. Catches a fresh start, and scales of the new data."""
    going = clone(regressor).set_params(warm_start=True).fit(X, Y)
    going.set_params(steps=2, learning_rate=1e-7).fit(X[:60], Y[:60] * 2)
    np.testing.assert_allclose(going.predict(X), regressor.predict(X), rtol=1e-3, atol=1e-3)
    with pytest.raises(ValueError, match="warm_start: the inputs or classes are others than before"):
        going.fit(X[:, :1], Y)


def test_early_stopping_keeps_the_best_members():
    """Pure noise is overfitted soon. Catches members of the last step, and a validation part that is trained on."""
    noise = np.random.default_rng(4).normal(size=120)
    early = {"early_stopping": True, "validation_fraction": 0.3, "steps": 5000, "hidden": (30,), "prior": 3.0}
    found = SteinRegressor(**FEW | early).fit(X, noise)
    scores = found.history_["validation_nll"]
    assert len(scores) < 50
    assert min(scores) < scores[-1]
    held = data.held_out(120, 0.3, [found.config_.train.seed, ensemble.VALIDATION])
    assert held.sum() == 36
    assert found.prediction(X[held]).scores(noise[held])["nll"] == pytest.approx(min(scores), rel=1e-4)


@pytest.fixture
def ctrl_c():
    """Python's own handler: a shell starts its background processes with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize("calibration", [None, "auto"], ids=["of the ensemble", "of the trials"])
def test_an_interrupt_keeps_what_was_learned(monkeypatch, calibration):
    """A real SIGINT during training, at a step that does not depend on the clock. Catches an exception that loses the
    members, members of a trial that cannot predict, and an interrupt that is swallowed without a word."""

    @contextlib.contextmanager
    def interrupting(show):
        yield lambda moment: signal.raise_signal(signal.SIGINT) if moment.step == 200 else None

    monkeypatch.setattr(ensemble.hooks, "progress", interrupting)
    long = SteinRegressor(**FEW | {"steps": 1000, "calibration": calibration})
    with pytest.warns(UserWarning, match=r"fit was interrupted at step 200 of 1000: the estimator keeps"):
        long.fit(X, Y)
    assert long.history_["step"][-1] == 200
    assert long.score(X, Y) > 0.9


@pytest.mark.usefixtures("ctrl_c")
def test_an_interrupt_before_the_first_step_is_one(monkeypatch):
    """Catches an estimator that looks fitted and knows nothing."""
    monkeypatch.setattr(train, "_jitted_advance", lambda: signal.raise_signal(signal.SIGINT))
    for calibration in (None, "auto"):
        nothing = SteinRegressor(**FEW | {"calibration": calibration})
        with pytest.raises(KeyboardInterrupt, match="interrupted before anything was learned"):
            nothing.fit(X, Y)
        assert not hasattr(nothing, "members_")


# -- inputs --------------------------------------------------------------------------------------------------


def test_tables_of_other_libraries(regressor):
    """The same numbers from pandas, Arrow and polars, and their names."""
    frame = pd.DataFrame(X, columns=["width", "price"])
    kinds = [frame, pa.Table.from_pandas(frame)]
    try:
        import polars
    except ImportError:
        pass
    else:
        kinds.append(polars.from_pandas(frame))
    for table in kinds:
        found = SteinRegressor(**FEW).fit(table, Y)
        assert found.feature_names_in_.tolist() == ["width", "price"]
        np.testing.assert_array_equal(found.predict(table), regressor.predict(X))
        with pytest.raises(ValueError, match="feature names"):
            found.predict(frame[["price", "width"]])


def test_pickle(regressor, classifier):
    for estimator in (regressor, classifier):
        again = pickle.loads(pickle.dumps(estimator))  # noqa: S301 - its own bytes
        np.testing.assert_array_equal(again.predict(X), estimator.predict(X))


MISTAKES = {
    "particles": ({"n_particles": 0}, r"SteinRegressor: method.particles \(from n_particles\): got 0; must be a whole"),
    "method": (
        {"method": "w-svg"},
        r"method.name \(from method\): got 'w-svg'; must be one of .* did you mean 'w-svgd'",
    ),
    "steps": ({"steps": "many"}, r"train.steps \(from steps\): got 'many'; must be a whole number"),
    "learning rate": ({"learning_rate": -1.0}, r"optimiser.learning_rate \(from learning_rate\): got -1.0; must be a"),
    "noise": ({"noise": -1.0}, r"likelihood.sigma \(from noise\): got -1.0"),
    "likelihood": ({"likelihood": "cauchy"}, r"likelihood = 'cauchy': must be 'gaussian', 'student-t' or 'poisson'"),
    "noise of counts": ({"likelihood": "poisson", "noise": 1.0}, r"noise = 1.0: the spread of counts follows"),
    "calibration": ({"calibration": "platt"}, r"calibration = 'platt': must be 'auto', None, 'spread' or 'conformal'"),
    "two networks": ({"model": (len, len)}, r"hidden: has no effect if model is given; leave it out"),
    "stochastic": ({"stochastic": True}, r"method.stochastic \(from stochastic\): de has no stochastic version"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_named_in_one_line(mistake):
    changes, message = MISTAKES[mistake]
    with pytest.raises(ValueError, match=message) as refusal:
        SteinRegressor(**FEW | changes).fit(X, Y)
    assert "\n" not in str(refusal.value)


def test_every_parameter_changes_the_config():
    """Catches a parameter that does nothing; what the keys of a config do is tested with them."""
    usual = SteinRegressor()._settings() | {"method": "h-svgd"}
    changes = {
        "method": "w-svgd", "n_particles": 7, "hidden": (3,), "model": (len, len), "steps": 77, "batch_size": 13,
        "early_stopping": True, "learning_rate": 0.5, "prior": 9.0, "anneal": "linear", "noise": 2.0,
        "stochastic": True, "likelihood": "student-t", "repulsion": "exact", "extra_points": 2, "precision": "float64",
        "unskew": False,
    }  # fmt: skip
    before = settings.config("S", usual, 1000, 0, Y)
    for name, value in changes.items():
        assert settings.config("S", usual | {name: value}, 1000, 0, Y) != before, name
    early = usual | {"early_stopping": True}
    assert settings.config("S", early | {"validation_fraction": 0.4}, 1000, 0, Y) != settings.config(
        "S", early, 1000, 0, Y
    )
    held = {*changes, "validation_fraction", *ensemble.NOT_PARAMETERS_OF_A_RUN}
    assert held == set(SteinRegressor().get_params())


@pytest.mark.parametrize(("steps", "size"), [(1, 1), (60, 60), (2000, 100), (150, 75), (1009, 100)])
def test_chunks_divide_the_steps_if_they_can(steps, size):
    assert settings.chunk(steps) == size
