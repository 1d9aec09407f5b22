"""What goes wrong in the first hour with Python: one line instead of JAX's own error, or of a wrong number."""

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import optax
import pandas as pd
import pytest

from problems import assert_refused, relative_error, rounding
from stein import data, evaluate, hmc, likelihoods, models, predict, priors, samples, schedules, steps, targets, train
from stein.ensembles import build
from stein.types import Model

X, Y = data.regression_1d()
X, Y = X.astype(float), Y.astype(float)
MODEL, LIKELIHOOD, PRIOR = models.mlp([1, 4, 1]), likelihoods.gaussian(), priors.normal()
TARGET = targets.posterior(MODEL, LIKELIHOOD, PRIOR, 90)
CLASSES = targets.posterior(models.mlp([1, 4, 3]), likelihoods.categorical(), PRIOR, 90)
KEY = jax.random.key(0)
STATE = build("de", TARGET).init(KEY, 4)
TEXT = np.array(["low", "high"] * 45)
MIXED = pd.DataFrame({"rooms": [1.0, 2.0], "town": ["Ulm", "Bonn"]})


ALGORITHMS = {target: build("de", target) for target in (TARGET, CLASSES)}
JUDGE = evaluate.held_out(MODEL, LIKELIHOOD, X, Y)


def learn(target, x, y, **options):
    algorithm = ALGORITHMS[target]
    return train.run(algorithm, algorithm.init(KEY, 4), data.Batches(x, y), **{"steps": 1, **options})[0]


def judged(x, y):
    return evaluate.held_out(MODEL, LIKELIHOOD, x, y)


MISTAKES = {
    # rates
    "learning_rate = -0.001: must be positive": lambda: build("de", TARGET, learning_rate=-1e-3),
    "learning_rate = 0: must be positive": lambda: build("de", TARGET, learning_rate=0),
    "learning_rate = nan: must be positive": lambda: build("sgld", TARGET, learning_rate=float("nan")),
    "learning_rate = inf: must be positive": lambda: build("w-svgd", TARGET, learning_rate=float("inf")),
    "learning_rate = '1e-3': must be a number": lambda: build("de", TARGET, learning_rate="1e-3"),
    "learning_rate = None: must be positive": lambda: build("de", TARGET, learning_rate=None),
    "step_size = -1: must be positive": lambda: steps.langevin(-1),
    "step_size = '0.1': must be a number": lambda: steps.langevin("0.1"),
    "step_size = nan: must be positive": lambda: steps.noise_inside(optax.adam(1e-3), float("nan")),
    "initial = '0.1': must be a number": lambda: schedules.polynomial("0.1"),
    "power = nan: must be positive": lambda: schedules.polynomial(0.1, power=float("nan")),
    "value = -1: must be 0 or positive": lambda: schedules.constant(-1),
    "value = '1': must be a number": lambda: build("de", TARGET, anneal="1"),
    "temperature = '1': must be a number": lambda: build("de", TARGET, temperature="1"),
    "temperature = nan: must be positive": lambda: build("de", TARGET, temperature=float("nan")),
    "sigma = '0.1': must be a number": lambda: likelihoods.gaussian("0.1"),
    "sigma = nan: must be positive": lambda: likelihoods.gaussian(float("nan")),
    # keys and counts
    "key = 0: must be a JAX key, such as jax.random.key(0)": lambda: build("de", TARGET).init(0, 4),
    "key = 7: must be a JAX key, such as jax.random.key(7)": lambda: data.Batches(X, Y, 8, 7),
    "key = None: must be a JAX key": lambda: build("de", TARGET).init(None, 4),
    "key has shape (3,): must be a single one": lambda: build("de", TARGET).init(jax.random.split(KEY, 3), 4),
    "functions has shape (20, 5): must be (chains, draws, points)": lambda: samples.diagnose_functions(
        np.ones((20, 5))
    ),
    "key = 1: must be a JAX key": lambda: hmc.nuts(lambda w: -jnp.sum(w**2)).init(1, 2, jnp.ones((2, 3))),
    "target_acceptance = 80: must be between 0 and 1": lambda: hmc.warm_up(
        lambda w: -jnp.sum(w**2), STATE, 100, target_acceptance=80
    ),
    "num_particles = 2.5: must be a whole number": lambda: build("de", TARGET).init(KEY, 2.5),
    "num_particles = '4': must be a whole number": lambda: build("de", TARGET).init(KEY, "4"),
    "steps = 10.0: must be a whole number": lambda: learn(TARGET, X, Y, steps=10.0),
    "chunk = 0: must be at least 1": lambda: learn(TARGET, X, Y, chunk=0),
    "min_alive = 50: must be between 0 and 1": lambda: learn(TARGET, X, Y, min_alive=50),
    "size = 8.0: must be a whole number": lambda: data.Batches(X, Y, 8.0, KEY),
    "draws = 1.5: must be a whole number": lambda: samples.collect(None, STATE, None, burn_in=0, draws=1.5),
    "a batch is of type ndarray: must be a types.Batch or a pair (x, y); data.Batches(x, y) makes": lambda: train.run(
        build("de", TARGET), STATE, (X, Y), 1
    ),
    # data for training
    "x has shape (90,): must have a row for each point": lambda: learn(TARGET, X[:, 0], Y),
    "x has shape (90, 2): the model does not take it": lambda: learn(TARGET, np.concatenate([X, X], axis=1), Y),
    "y holds text ('low'): must be numbers": lambda: learn(CLASSES, X, TEXT),
    "y holds text ('high'): must be numbers": lambda: learn(CLASSES, X, pd.Series(TEXT[::-1])),
    "x has 90 rows, y has 80": lambda: data.Batches(X, Y[:80]),
    "x: column 'town' holds text ('Ulm')": lambda: data.Batches(MIXED, [0, 1]),
    "x: rows of different lengths": lambda: data.Batches([[1.0], [2.0, 3.0]], [0, 1]),
    "x has shape (), y (): both must have a row": lambda: data.Batches(1.0, 2.0),
    "x: two columns have the same name": lambda: data.Batches(
        pd.DataFrame(np.ones((2, 2)), columns=["a", "a"]), [0, 1]
    ),
    "x has masked values": lambda: data.Batches(np.ma.masked_less(X, 2.0), Y),
    # data for HMC and for evaluation during training
    "x has 90 rows, y has 89": lambda: hmc.log_posterior(MODEL, LIKELIHOOD, PRIOR, X, Y[:89]),
    "y has 2 targets a row": lambda: hmc.log_posterior(MODEL, LIKELIHOOD, PRIOR, X, np.ones((90, 2))),
    "x has 90 rows, y has 88": lambda: judged(X, Y[:88]),
    "x has shape (90,): must have": lambda: judged(X[:, 0], Y),
    "x has shape (90, 3): the model does not take it": lambda: judged(np.ones((90, 3)), Y),
    "y has type int64: regression targets must be floating point": lambda: judged(X, np.arange(90)),
    # predictions
    "x has shape (1,): must have a row for each point; x[None] is one row": lambda: predict.outputs(
        MODEL, STATE, np.array([1.0])
    ),
    "x has shape (7,): must have a row": lambda: predict.in_chunks(MODEL, STATE, np.ones(7)),
    "x has shape (5, 2): the model does not take it": lambda: predict.outputs(MODEL, STATE, np.ones((5, 2))),
    "x has shape (6, 2): the model does not take it": lambda: predict.in_chunks(MODEL, STATE, np.ones((6, 2))),
    "x[1, 0] = nan: row 1 is not finite": lambda: predict.outputs(MODEL, STATE, [[1.0], [float("nan")]]),
    "x: column 'town' holds text ('Ulm'): must": lambda: predict.outputs(MODEL, STATE, MIXED),
    "x holds values of type object": lambda: predict.outputs(MODEL, STATE, [[None], [1.0]]),
    "the model's outputs (5,): must be (5, outputs)": lambda: predict.outputs(
        Model(MODEL.init, lambda w, x: MODEL.apply(w, x)[:, 0]), STATE, np.ones((5, 1))
    ),
    "alive is int64 of shape (4,): must be true or false": lambda: predict.living(STATE.particles, [0, 1, 2, 3]),
    "alive is bool of shape (5,): must be true or false for each of 4": lambda: predict.living(
        STATE.particles, np.ones(5, bool)
    ),
}


@pytest.fixture
def _as_users_run_it():
    """Without the run-time type checks of the tests, which would be the first to complain."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.mark.usefixtures("_as_users_run_it")
@pytest.mark.parametrize("message", MISTAKES)
def test_a_mistake_is_told_in_one_line(message):
    assert_refused(MISTAKES[message], message)


def test_predictions_and_training_take_tables_and_lists():
    """A table of pandas, integers and truth values among its columns, and a list. Catches them refused, and columns in
    another order."""
    table = pd.DataFrame({"a": [0.5, 1.5, 2.5], "b": [1, 2, 3], "c": [True, False, True]})
    values = np.array([[0.5, 1, 1], [1.5, 2, 0], [2.5, 3, 1]])
    model = models.mlp([3, 4, 2])
    particles = jax.vmap(model.init)(jax.random.split(KEY, 4))
    expected = np.asarray(predict.outputs(model, particles, values))
    for same in (table, values.tolist(), jnp.asarray(values)):
        np.testing.assert_array_equal(predict.outputs(model, particles, same), expected)
        assert relative_error(predict.in_chunks(model, particles, same), expected) <= rounding(4 * 5)
    score = evaluate.held_out(MODEL, LIKELIHOOD, pd.DataFrame({"x": X[:, 0]}), Y[:, 0].tolist())
    assert score(STATE) == JUDGE(STATE)
    learned = [learn(TARGET, *pair).particles for pair in ((X, Y), (pd.DataFrame(X), pd.Series(Y[:, 0])))]
    for a, b in zip(*map(jax.tree.leaves, learned), strict=True):
        np.testing.assert_array_equal(a, b)


def test_polars_needs_no_polars():
    """Anything with `columns` that hands out columns: as polars does, whose text is refused by the column's name."""

    class Frame(dict):
        columns = property(list)

    numbers = Frame(a=[1.0, 2.0], b=[3, 4])
    np.testing.assert_array_equal(data.Batches(numbers, [0, 1]).x, [[1, 3], [2, 4]])
    with pytest.raises(ValueError, match=r"x: column 'b' holds text \('u'\)"):
        data.Batches(Frame(a=[1.0, 2.0], b=["u", "v"]), [0, 1])


# -- the dead have nothing to say ---------------------------------------------------------------------------


def with_dead_member(weights=1e18):
    """Four members of which the second has died where the weights are so large that its outputs are not finite."""
    far = jax.tree.map(lambda leaf: leaf.at[1].set(weights), STATE.particles)
    return STATE._replace(particles=far, alive=jnp.array([True, False, True, True]))


@pytest.mark.parametrize("weights", [1e200, 5.0, float("nan")])
def test_predictions_are_of_the_living(weights):
    """The dead one's outputs overflow, are wrong but finite, or are not numbers. Catches it in the mean.

    Three members are another program than four: its sums over units and biases may be rounded otherwise.
    """
    state = with_dead_member(weights)
    f = predict.outputs(MODEL, state, X)
    assert relative_error(f, predict.outputs(MODEL, STATE, X)[jnp.array([0, 2, 3])]) <= rounding(2 * 5)
    assert np.isfinite(f.mean(axis=0)).all()
    assert predict.in_chunks(MODEL, state, X).shape == (3, 90, 1)
    assert predict.outputs(MODEL, state, X, all_members=True).shape == (4, 90, 1)
    assert JUDGE(state) == JUDGE(predict.living(state.particles, state.alive))


@pytest.mark.parametrize("ask", [predict.outputs, predict.in_chunks])
def test_particles_whose_answers_are_not_finite_are_named(ask):
    """Particles alone do not say who is dead. Catches NaN returned without a word, and the wrong member named."""
    state = with_dead_member(1e200)
    with pytest.raises(ValueError, match="members 1 answer with numbers that are not finite: pass the state"):
        ask(MODEL, state.particles, X)
    everyone = state._replace(alive=jnp.array([False, True, True, True]))
    with pytest.raises(ValueError, match="members 1 answer with numbers that are not finite: leave them out"):
        ask(MODEL, everyone, X)
    assert ask(MODEL, state.particles, X, all_members=True).shape == (4, 90, 1)
    with pytest.raises(ValueError, match="no member is alive"):
        ask(MODEL, state._replace(alive=jnp.zeros(4, bool)), X)


def test_predictions_inside_jit_are_of_given_particles():
    """Catches checks that need numbers where there are none yet."""
    ask = jax.jit(lambda particles, x: predict.outputs(MODEL, particles, x))
    assert relative_error(ask(STATE.particles, X), predict.outputs(MODEL, STATE, X)) <= rounding(2 * 5)
    with pytest.raises(ValueError, match="inside jit nobody knows yet who is alive"):
        jax.jit(lambda state: predict.outputs(MODEL, state, X))(STATE)
