"""The prior of a table, and the calibration, chosen on held-out rows."""

import jax
import msgspec
import numpy as np
import pytest
from scipy.special import log_softmax

from stein import calibration, data, defaults, train
from stein.predictions import ClassPrediction, RegressionPrediction
from stein.runs import build, calibrated, choosing, configs, dataset, tables
from stein.runs.environment import precision
from stein.sklearn import SteinRegressor, settings

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(120, 2))
SMALL = {"method": "de", "n_particles": 3, "hidden": (8,), "steps": 200, "learning_rate": 0.03, "batch_size": None}


def read(y):
    rows = data.Arrays(X, y)
    nothing = tables.nothing_like(rows)
    return tables.Read((rows, nothing, nothing), "heteroscedastic", ("a", "b"), "y", (), {})


def config(**changes):
    return settings.config("S", SteinRegressor(**SMALL | changes)._settings(), 120, 0, X[:, 0])


@pytest.mark.long
def test_members_with_their_own_priors_are_those_of_one_prior_each():
    """Two priors at once are the same as one after the other, to rounding. Catches a scale that moves, and members of
    another prior."""
    y, scales = X[:, 0] + 0.1 * RANDOM.normal(size=120), np.array([0.5, 0.5, 2.0], np.float32)
    loaded = dataset.prepared(config(), read(y))

    @precision(config())
    def trained(own, prior):
        changed = msgspec.structs.replace(config(), prior=msgspec.structs.replace(config().prior, scale=prior))
        made = build.parts(changed, loaded, own_priors=own)
        state = build.begin(made.algorithm, changed)
        if own:
            state = state._replace(particles=state.particles | {"scale": jax.numpy.asarray(scales)})
        return train.run(made.algorithm, state, made.batches, 50)[0].particles

    both, narrow, wide = trained(True, 1.0), trained(False, 0.5), trained(False, 2.0)
    np.testing.assert_array_equal(both["scale"], scales)
    for found, first, last in zip(*map(jax.tree.leaves, (both["weights"], narrow, wide)), strict=True):
        np.testing.assert_allclose(found[:2], first[:2], atol=2e-4)
        np.testing.assert_allclose(found[2], last[2], atol=2e-4)
        assert np.abs(first[2] - last[2]).max() > 1e-3  # the priors differ


def test_the_prior_follows_the_data():
    """Pure noise needs a narrow prior, a wave without noise a wide one. Catches the worst for the best, and a choice on
    training rows."""
    waves = np.sin(5 * X[:, 0]) + 0.01 * RANDOM.normal(size=120)
    noise = RANDOM.normal(size=120)
    more = config(hidden=(20, 20), steps=600)
    found = {name: choosing.choose(more, read(y), (0.3, 3.0), 0.3) for name, y in (("waves", waves), ("noise", noise))}
    assert (found["waves"].prior, found["noise"].prior) == (3.0, 0.3)
    assert found["noise"].prediction.means.shape == (3, 3 * 36, 1)


def test_small_tables_are_held_out_several_times():
    """120 rows, 15 %: three times 18. Catches the same rows each time."""
    trial = choosing.choose(config(steps=20), read(X[:, 0] + 0.0), (1.0,), 0.15)
    assert trial.x.shape == (54, 2)
    assert len(np.unique(trial.x[:, 0])) > 30
    assert choosing.choose(config(steps=20), read(X[:, 0] + 0.0), (1.0,), 0.9).x.shape[0] == 216


def test_a_noise_that_was_given_stays():
    """Ten times too small; conformal intervals are right all the same. Catches a calibration that changes it."""
    y = RANDOM.normal(size=(120, 1))
    prediction = RegressionPrediction(np.zeros((2, 120, 1)), np.full((2, 120, 1), 0.1))
    assert calibrated.calibrate(prediction, y, None).width > 5
    kept = calibrated.calibrate(prediction, y, None, keep_noise=True)
    assert (kept.width, kept.degrees) == (1.0, None)
    assert 12 < kept.conformal.threshold(0.9).item() < 20


def test_classes_are_calibrated_by_a_temperature():
    """Ten times too sure. Catches a run without one, and conformal scores of other probabilities. A calibration of
    before there was one has none."""
    logits = RANDOM.normal(size=(200, 3))
    y = (logits + RANDOM.gumbel(size=(200, 3))).argmax(axis=1)
    sure = ClassPrediction(log_softmax(10 * logits, axis=1)[None])
    found = calibrated.calibrate(sure, y, None)
    assert found.temperature == calibration.temperature(sure, y) > 5
    soft = calibrated.applied(sure, found.spread, found.temperature)
    np.testing.assert_array_equal(found.conformal.scores, calibration.conformal(soft, y).scores)
    written = msgspec.to_builtins(found)
    assert msgspec.convert(written, calibrated.Calibration) == found
    del written["temperature"]
    assert msgspec.convert(written, calibrated.Calibration).temperature == 1.0


def test_priors_are_ranked_by_what_is_applied(monkeypatch):
    """The first prior's means are better, the second's noise. Catches a ranking by a spread that a given noise does not
    get, in the estimator and in `stein fit`."""
    y = RANDOM.normal(size=(120, 1))
    first, second = (RegressionPrediction(m[None], np.full((1, 120, 1), s)) for m, s in ((0.9 * y, 0.01), (0 * y, 1.0)))
    by = {
        keep: [choosing._calibrated(1.0, prediction, X, y, keep) for prediction in (first, second)]
        for keep in (False, True)
    }
    assert by[False][0].nll < by[False][1].nll
    assert by[True][0].nll > by[True][1].nll == second.scores(y)["nll"]
    assert by[True][0].spread == calibration.UNCHANGED

    asked = []
    monkeypatch.setattr(choosing, "choose", lambda *_, keep_noise, **__: asked.append(keep_noise) or by[True][0])
    monkeypatch.setattr(tables, "read", lambda *_: read(X[:, 0]))
    for sigma in (0.5, "auto"):
        section = f"likelihood.sigma = {sigma!r}"
        given = configs.parse(f'data.file = "t.csv"\ndata.target = "y"\nprior.name = "fan-in"\n{section}')
        choosing.with_prior(given, [], False, print)
    for kind, noise in (("conformal", 0.5), ("spread", 0.5), ("conformal", "auto")):
        SteinRegressor()._chosen(config(noise=noise), read(X[:, 0]), None, None, kind)
    assert asked == [True, False, True, False, False]


def test_one_fallback_for_the_prior():
    """Few rows, by hand, and "auto" in a config. Catches a second number, and that of numbers for classes."""
    for kind, name, scale in (("gaussian", "regression", 1.2), ("categorical", "classes", 2.0)):
        asked = configs.parse('data.file = "t.csv"\ndata.target = "y"\nprior.name = "fan-in"')
        assert build.resolved(asked, kind, 30).prior.scale == defaults.for_table(name, 30).prior == scale


def test_a_prior_whose_members_die_is_not_chosen(monkeypatch):
    """Catches NaN that is smaller than everything."""
    run = train.run

    def dying(*arguments, **options):
        state, info = run(*arguments, **options)
        alive = np.asarray(state.alive).copy()
        alive[:3] = False  # those of the first prior
        return state._replace(alive=jax.numpy.asarray(alive)), info

    monkeypatch.setattr(train, "run", dying)
    y = X[:, 0] + 0.1 * RANDOM.normal(size=120)
    assert choosing.choose(config(steps=20), read(y), (1.0, 1.0 + 1e-9), 0.15).prior > 1.0
    with pytest.raises(RuntimeError, match="with every prior some members died"):
        choosing.choose(config(steps=20), read(y), (1.0,), 0.15)
