"""The loop with a user's own data, its history, and rules that are none."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from problems import close
from stein import data, hooks, likelihoods, models, priors, rules, steps, targets, train
from stein.ensembles import build, ensemble
from stein.types import Batch

X, Y = data.regression_1d()
MODEL = models.mlp([1, 4, 1])
ALGORITHM = build("w-svgd", targets.posterior(MODEL, likelihoods.gaussian(), priors.normal(), len(X)))
START = ALGORITHM.init(jax.random.key(0), 3)
BATCHES = data.Batches(X, Y, 10, jax.random.key(1))


def in_order(number):
    """The batches of the first steps, one by one."""
    rows = BATCHES.indices(BATCHES.cursor(0), number)
    return [BATCHES.take(jax.tree.map(lambda row, i=i: row[i], rows)) for i in range(number)]


def particles(batches, state=START, number=7, **options):
    return train.run(ALGORITHM, state, batches, number, **options)[0].particles


def test_a_loader_and_a_function_train_as_batches_in_memory():
    """The same batches in four forms. Catches a batch that is skipped, taken twice, or of the wrong step."""
    made = in_order(7)
    whole = particles(BATCHES, chunk=3)
    pairs = [(np.asarray(batch.x), np.asarray(batch.y)) for batch in made]
    for batches in (made, iter(made), pairs, lambda step: made[step]):
        close(particles(batches, chunk=3), whole, 1e-6)


def test_a_list_starts_again_and_an_iterator_does_not():
    made = in_order(2)
    close(particles(made, number=4), particles([*made, *made], number=4), 0)
    with pytest.raises(ValueError, match="batches: nothing is left at step 2; give a list, a loader, or a function"):
        particles(iter(made), number=4)


def test_a_function_of_the_step_goes_on_where_the_state_is():
    """As docs/runs.md promises. Catches a function that is called with steps from zero."""
    made = in_order(6)
    half, _ = train.run(ALGORITHM, START, lambda step: made[step], 3)
    close(particles(lambda step: made[step], half, 3), particles(made, number=6), 1e-6)


@pytest.mark.parametrize(
    ("batches", "words"),
    [
        (5, "batches is of type int: must be data.Batches"),
        ([X], "a batch is of type ndarray: must be a types.Batch or a pair"),
        ([(X, Y[:5])], "x has 90 rows, y has 5"),
        ([(X[:, 0], Y)], "x has shape"),
        ([], "nothing is left at step 0"),
    ],
)
def test_what_is_no_batch_is_refused_in_one_line(batches, words):
    with pytest.raises(ValueError, match=r"must be|rows|left|shape") as caught:
        particles(batches)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("history", "steps_kept"), [(100, range(20)), (5, range(0, 20, 4)), (6, range(0, 20, 4))])
def test_the_history_is_of_the_whole_run(history, steps_kept):
    """Thinned evenly, whatever the chunks. Catches the last chunk alone, and a step that is kept twice."""
    _, whole = train.run(ALGORITHM, START, BATCHES, 20, chunk=20)
    _, kept = train.run(ALGORITHM, START, BATCHES, 20, chunk=3, history=history)
    np.testing.assert_allclose(kept.log_likelihood, np.asarray(whole.log_likelihood)[list(steps_kept)], rtol=1e-5)


def test_numbers_of_a_hook_reach_the_hooks_after_it_only():
    """Catches a bus that all write to: a hook cannot change what the ones before it saw."""
    seen = []

    def spoil(moment):
        with pytest.raises(TypeError):
            moment.metrics["log_likelihood"] = 0.0

    train.run(
        ALGORITHM,
        START,
        BATCHES,
        4,
        chunk=4,
        hooks=[
            lambda moment: seen.append("mine" in moment.metrics),
            lambda moment: {"mine": 1.0},
            spoil,
            lambda moment: seen.append(moment.metrics["mine"]),
        ],
    )
    assert seen == [False, 1.0]


def test_diagnostics_look_at_a_users_own_batches():
    told = []
    hook = hooks.diagnostics(ALGORITHM, lambda step: (X[:10], Y[:10]), told.append)
    train.run(ALGORITHM, START, lambda step: (X[:10], Y[:10]), 3, hooks=[hook, lambda moment: told.append(moment)])
    assert "effective_rank" in told[-1].metrics


@pytest.mark.parametrize("rule", [rules.w_svgd, rules.fw_svgd, rules.independent])
def test_a_rule_without_its_parentheses_is_named(rule):
    with pytest.raises(ValueError, match=rf"rule = {rule.__name__}: makes a rule, and is none itself; call it"):
        ensemble(ALGORITHM.target, rule, steps.langevin(1e-3))
    with pytest.raises(ValueError, match=r"must be a rule, or a function \(key, view, memory\)"):
        ensemble(ALGORITHM.target, lambda view: view, steps.langevin(1e-3))


@pytest.mark.long
def test_the_discrepancy_is_a_number_where_the_annealing_is_zero():
    """The first step of every cycle. Catches scores that are divided by a drive of zero."""
    from stein import schedules

    algorithm = build("w-svgd", ALGORITHM.target, anneal=schedules.cyclical(10, 2, 1.0))
    batch = Batch(jnp.asarray(X[:10]), jnp.asarray(Y[:10]))
    found = float(algorithm.diagnose(START, batch)["stein_discrepancy"])
    plain = float(ALGORITHM.diagnose(START, batch)["stein_discrepancy"])
    assert found == pytest.approx(plain, rel=1e-6)


def test_compiled_programs_are_forgotten_before_the_process_has_no_room_for_more() -> None:
    """Catches a search over many networks that ends when XLA cannot compile any more, and programs that are compiled
    again while there is room."""
    function = jax.jit(lambda x: x + 3)
    function(np.float32(1))
    train.make_room(most=10**9)
    assert function._cache_size() == 1
    train.make_room(most=1)
    assert function._cache_size() == 0
    assert function(np.float32(1)) == 4
