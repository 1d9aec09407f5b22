"""The exported program beside NumPy: every kind of column, of likelihood and of calibration."""

from typing import Any

import jax
import jax.numpy as jnp
import msgspec
import numpy as np
import pytest

from stein import calibration, likelihoods, models
from stein.data import Standardiser
from stein.data.arrays import standardiser
from stein.runs import schema
from stein.runs.calibrated import Calibration, epistemic_score
from stein.runs.exported import Exported
from stein.runs.streaming import answers
from stein.serve import program
from stein.tables import Column, Recipe

RECIPE = Recipe(
    (
        Column("area", "number", 60.0, gaps=True, low=30.0, high=200.0),
        Column("city", "text", "Oslo", gaps=True, levels=("Bern", "Oslo", "Rome")),
        Column("garden", "boolean", 1.0),
        Column("sold", "date", 18000.0, low=17000.0, high=19000.0, times=True),
        Column("built", "date", -3000.5, low=-30000.0, high=10000.0, trend=False),
    )
)
LEVELS = np.array(["Bern", "Oslo", "Rome", "Lima", ""], object)


def table(rows: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """The same rows as the program takes them, and as :class:`Recipe` does. Gaps, new levels and far values."""
    random = np.random.default_rng(0)
    codes = random.integers(0, 5, rows)
    built = random.uniform(-200_000, 200_000, rows)  # years 1422 to 2517
    columns = {
        "area": np.where(random.random(rows) < 0.2, np.nan, random.uniform(-500, 500, rows)),
        "city": LEVELS[codes],
        "garden": random.choice([0.0, 1.0, np.nan], rows),
        "sold": np.where(random.random(rows) < 0.2, np.nan, random.uniform(16000, 30000, rows)),
        "built": np.where(random.random(rows) < 0.5, np.floor(built), built),
    }
    numbers = columns | {"city": np.array([0.0, 1.0, 2.0, -1.0, np.nan])[codes]}
    return np.column_stack(list(numbers.values())), columns


def test_columns_become_the_inputs_of_training():
    """Catches a level of another number, a gap that is not filled, and a sine of another day."""
    x, columns = table(2000)
    found = np.asarray(jax.jit(lambda x: program.encoded(RECIPE, x))(jnp.asarray(x)))
    # The phases are up to 2π times 30,000 days: their rounding, and that of a few more operations.
    np.testing.assert_allclose(found, RECIPE.encode(columns), rtol=1e-15, atol=4 * 2 * np.pi * 30_000 * 1.1e-16)
    np.testing.assert_array_equal(np.asarray(program._far(RECIPE, jnp.asarray(x))), RECIPE.far(columns))
    assert 0 < RECIPE.far(columns).mean() < 1


def test_the_first_and_last_days_of_four_thousand_years_are_in_their_years():
    first = np.arange(np.datetime64("0002"), np.datetime64("4002")).astype("M8[D]").astype(float)
    days = np.concatenate([first + shift for shift in (-1.0, 0.0, 1.0, 58.0, 59.0)])
    column = Column("built", "date", 0.0)
    year = program._date(column, jnp.asarray(days))[1:3]  # sine and cosine of the time of the year
    np.testing.assert_allclose(np.asarray(year), column._date(days)[1:3], atol=1e-12)  # a wrong year is 0.017 off


@pytest.mark.parametrize("unskew", [False, True])
def test_inputs_are_standardised(unskew):
    x = np.random.default_rng(0).lognormal(size=(200, 3)) + np.array([0, 1e6, 5])
    by = standardiser(x, unskew=unskew)
    if by.unskewing is not None:  # both ends of the range of powers
        by = by._replace(unskewing=by.unskewing._replace(power=np.array([0.0, 2.0, 0.3])))
    found = np.asarray(program._standardised(by, jnp.asarray(x)))
    np.testing.assert_allclose(found, by(x), rtol=1e-12, atol=1e-12)


# -- answers ------------------------------------------------------------------------------------------------

LIKELIHOODS = {
    "fixed noise": (likelihoods.gaussian(0.3), 2, {}),
    "learned noise": (likelihoods.gaussian(None), 2, {}),
    "noise by input": (likelihoods.heteroscedastic(), 2, {}),
    "student-t": (likelihoods.student_t(0.5, 3.0), 1, {"degrees": 3.0}),
    "counts": (likelihoods.poisson(4.0), 1, {}),
    "classes": (likelihoods.categorical(), 3, {}),
}
CALIBRATIONS = {
    "none": None,
    "conformal": Calibration(30, [[0.5 + 0.02 * i for i in range(30)]], 0.1, 1.7, None, 1.3),
    "conformal, heavy tails": Calibration(30, [[0.5 + 0.02 * i for i in range(30)]], 0.1, 0.8, 4.0, 0.6),
    "too few rows": Calibration(2, [[0.5, 0.7]], 0.1, 1.3, 10.0, 2.0),
}


def ensemble(likelihood: likelihoods.Likelihood, answers: int, keys: dict, calibrated: Calibration | None) -> Exported:
    """An ensemble as a run would leave it, with weights from the prior."""
    _, columns = table(500)
    by = standardiser(RECIPE.encode(columns), unskew=True)
    model = models.mlp([len(RECIPE.features), 8, answers * (1 + likelihood.extra_outputs)])
    if likelihood.shared_sigma:
        model = models.with_log_sigma(model, targets=answers)
    config = schema.Config(schema.Data(), likelihood=schema.Likelihood(**keys))
    is_class = "probabilities" in likelihood.features
    counts = not is_class and likelihood.predictive(np.zeros((1, 1, 1))).family.counts if answers == 1 else False
    scores = None
    if calibrated is not None and not is_class:  # one column of scores per target
        scores = calibrated.scores * answers
    with jax.enable_x64(False):
        members = jax.vmap(model.init)(jax.random.split(jax.random.key(1), 4))
    finished: Any = object.__new__(Exported)
    finished.__dict__.update(
        config=config,
        model=model,
        likelihood=likelihood,
        members=members,
        labels=("a", "b", "c")[:answers] if is_class else (),
        target="y",
        shape=(len(RECIPE.features),),
        recipe=RECIPE,
        columns=(),
        standardiser=by,
        units=None if is_class or counts else Standardiser(np.full(answers, 40.0), np.full(answers, 7.0)),
        calibration=calibrated if scores is None else Calibration(calibrated.rows, scores, *_rest(calibrated, counts)),
        spread=calibration.UNCHANGED if calibrated is None or counts else calibrated.spread,
        temperature=1.0 if calibrated is None else calibrated.temperature,
    )
    return finished


def _rest(calibrated: Calibration, counts: bool) -> tuple:
    return (calibrated.unusual, 1.0, None) if counts else (calibrated.unusual, calibrated.width, calibrated.degrees)


@pytest.mark.parametrize(
    ("likelihood", "calibrated"),
    [
        ("fixed noise", "none"),
        ("learned noise", "conformal, heavy tails"),
        ("noise by input", "conformal"),
        ("student-t", "none"),
        ("counts", "none"),
        ("counts", "conformal"),
        ("classes", "none"),
        ("classes", "conformal"),
        ("classes", "too few rows"),
    ],
)
def test_the_program_answers_as_numpy_does(likelihood, calibrated):
    """Catches units, spreads, temperatures, tails or thresholds that are left out or applied twice."""
    finished = ensemble(*LIKELIHOODS[likelihood], CALIBRATIONS[calibrated])
    x, columns = table(16)
    conformal = program.usable_conformal(finished, 0.9, lambda line: None)
    prediction = finished.predict_prepared(finished.inputs(RECIPE.encode(columns)))
    if finished.calibration is not None:  # half of the rows are above the threshold, and none is near it
        middle = float(np.median(epistemic_score(prediction, finished.units)))
        finished.calibration = msgspec.structs.replace(finished.calibration, unusual=middle)
    expected = answers(finished, prediction, 0.9, conformal, RECIPE.far(columns))
    found = jax.jit(program.program(finished, 0.9, conformal))(jnp.asarray(x))
    about = program.encoding(finished, 0.9)
    assert about["answers"] == list(expected)
    size = 7.0 if finished.units is not None else 1.0
    for name, values in zip(about["answers"], map(np.asarray, found), strict=True):
        wanted = expected[name]
        if values.ndim == 2:
            assert [" | ".join(np.array(about["classes"])[inside]) for inside in values] == wanted
        elif values.dtype.kind == "i":
            assert [about["classes"][code] for code in values] == wanted
        elif values.dtype.kind == "b":
            assert ["true" if flag else "false" for flag in values] == wanted
            assert 0.4 < values.mean() < 1
        else:
            # Both run the same networks in float32, each with its own order of sums over at most 20 terms.
            bound = 1e-6 * np.maximum(size, np.abs(wanted))
            assert (np.abs(values - wanted) < bound).all(), (name, np.max(np.abs(values - wanted) / bound))
