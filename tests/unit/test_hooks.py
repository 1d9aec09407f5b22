"""What happens between chunks: order, errors, logs, trackers, checkpoints, early stopping, leaks."""

import gc
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from problems import rounding
from stein import data, hooks, likelihoods, models, priors, targets, train
from stein.ensembles import build
from stein.storage import checkpoint, durable

X, Y = data.regression_1d()
BATCHES = data.Batches(X, Y, 16, jax.random.key(7))
TARGET = targets.posterior(models.mlp([1, 4, 1]), likelihoods.gaussian(0.5), priors.normal(), len(X))
ALGORITHM = build("w-svgd", TARGET)


def start():
    return ALGORITHM.init(jax.random.key(0), 4)


def run(*called, steps=40, state=None, chunk=10):
    return train.run(ALGORITHM, start() if state is None else state, BATCHES, steps, chunk=chunk, hooks=called)[0]


def test_hooks_see_every_chunk_in_order_and_share_their_metrics():
    seen = []

    def first(moment):
        return {"mine": moment.step}

    def second(moment):
        seen.append((moment.step, moment.last_step, moment.metrics["mine"], moment.metrics["alive"]))

    run(first, second, steps=25)
    assert seen == [(10, 25, 10, 4), (20, 25, 20, 4), (25, 25, 25, 4)]


@pytest.mark.parametrize("rows", [100, 300])
def test_far_spread_is_one_for_draws_of_the_posterior(rows):
    """On a linear network, whose posterior is Gaussian, and for the same members three times as close to each other.

    Catches a spread at the data, a noise that does not count the rows left out (the ratio would be 0.58), a warning
    that is repeated or does not come. Tolerance: four standard errors of 400 members and 500 prior draws.
    """
    random, model, likelihood = np.random.default_rng(3), models.mlp([1, 1]), likelihoods.gaussian(2.0)
    x = random.uniform(1.0, 2.0, size=(300, 1))
    target = targets.posterior(model, likelihood, priors.normal(), len(x))
    design = np.concatenate([x, np.ones_like(x)], axis=1)  # the weight, the bias
    covariance = np.linalg.inv(design.T @ design / 2.0**2 + np.eye(2))
    members = random.multivariate_normal([1.0, 0.5], covariance, size=400)
    state, said = build("de", target).init(jax.random.key(0), 400), []
    watch = hooks.far_spread(model, likelihood, target, x, rows=rows, warn=said.append)

    def measured(factor, step):
        weight, bias = (members.mean(axis=0) + factor * (members - members.mean(axis=0))).T
        leaves = [jnp.asarray(weight)[:, None, None], jnp.asarray(bias)[:, None]]
        ours = jax.tree.unflatten(jax.tree.structure(state.particles), leaves)
        return watch(train.Moment(state._replace(particles=ours), None, step, 30, {}))["far_spread"]

    error = 4 * (1 / 800 + 1 / 1000) ** 0.5
    assert measured(1.0, 10) == pytest.approx(1, abs=error)
    assert not said
    assert [measured(1 / 3, step) for step in (20, 30)] == [pytest.approx(1 / 3, abs=error / 3)] * 2
    (warning,) = said
    assert warning.startswith("step 20: the members agree too much far from the data: their spread is 0.3")


def test_far_spread_needs_a_noise():
    """Catches a number for classes, which have none."""
    target = targets.posterior(models.mlp([2, 3]), likelihoods.categorical(), priors.normal(), 4)
    with pytest.raises(ValueError, match="must be one for regression"):
        hooks.far_spread(models.mlp([2, 3]), likelihoods.categorical(), target, np.zeros((4, 2)))


def test_a_hook_can_end_the_run_and_all_of_them_still_see_the_moment():
    seen = []
    state = run(lambda moment: moment.step == 20, lambda moment: seen.append(moment.step))
    assert (int(state.step), seen) == (20, [10, 20])


def test_ctrl_c_leaves_a_state_that_goes_on_as_if_nothing_had_been():
    """Catches a state that is lost, half-advanced, or donated away."""

    def interrupt(moment):
        if moment.step == 20:
            raise KeyboardInterrupt  # what Python makes of Ctrl-C, wherever the loop is

    state = start()
    with pytest.raises(train.Interrupted, match="stopped at step 20") as caught:
        run(interrupt, state=state)
    resumed, whole = run(state=caught.value.state, steps=20), run(state=state)
    for a, b in zip(jax.tree.leaves(resumed), jax.tree.leaves(whole), strict=True):
        np.testing.assert_array_equal(*(jax.random.key_data(x) if x.dtype == state.key.dtype else x for x in (a, b)))


@pytest.mark.parametrize("step", [10, 30])
@pytest.mark.parametrize("error", [RuntimeError("tracker is down"), OSError(5, "Input/output error"), SystemExit(3)])
def test_an_error_in_a_hook_ends_the_run_there(error, step):
    """R25: hooks run in the loop itself. Catches an error that is swallowed or reported late."""
    seen = []

    def failing(moment):
        seen.append(moment.step)
        if moment.step == step:
            raise error

    with pytest.raises(type(error)) as caught:
        run(failing)
    assert caught.value is error
    assert seen[-1] == step


def test_nothing_runs_in_the_background(tmp_path):
    before = threading.active_count()
    counts = []
    with hooks.tensorboard(tmp_path) as board, hooks.progress(show=False) as bar:
        run(board, bar, hooks.Log(tmp_path / "log"), lambda moment: counts.append(threading.active_count()))
    assert set(counts) == {before}


def test_the_log_has_a_line_for_each_chunk_and_no_nan(tmp_path):
    def bad(moment):
        return {"good": 1.5, "bad": float("nan")}

    run(bad, hooks.members(), hooks.Log(tmp_path / "log"))
    rows = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert [row["step"] for row in rows] == [10, 20, 30, 40]
    assert all("bad" not in row and row["good"] == 1.5 and len(row["log_prior_members"]) == 4 for row in rows)


def test_a_dead_member_is_no_number_in_the_log(tmp_path):
    """Catches NaN in a file that is to be JSON."""
    state = start()
    broken = state._replace(particles=jax.tree.map(lambda leaf: leaf.at[1].set(jnp.nan), state.particles))
    run(hooks.members(), hooks.Log(tmp_path / "log"), state=broken, steps=10)
    row = json.loads((tmp_path / "log").read_text(), parse_constant=pytest.fail)
    assert [value is None for value in row["log_prior_members"]] == [False, True, False, False]
    assert row["alive"] == 3


def test_the_log_waits_for_room_without_tearing_a_line(tmp_path, monkeypatch):
    """A disk that is full at steps 20 and 30, after half of a line. Catches a line torn, lost or doubled."""
    path, told, tries = tmp_path / "log", [], []

    def append(where, content):
        tries.append(content)
        if len(tries) in (2, 3):
            real(where, content[: len(content) // 2])
            raise OSError(28, "No space left on device")
        real(where, content)

    real = durable.append
    monkeypatch.setattr(durable, "append", append)
    run(hooks.Log(path, told.append))
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [10, 20, 30, 40]
    assert [message.split(" (")[0] for message in told] == ["step 20 not logged"]  # one trouble, one warning


def test_checkpoints_are_kept_by_age_and_by_merit(tmp_path):
    """Scores 3, 1, 2, 4 at steps 10 to 40. Catches the best deleted, the newest deleted, or all kept."""

    def score(moment):
        return {"test_nll": {10: 3.0, 20: 1.0, 30: 2.0, 40: 4.0}.get(moment.step, 9.0)}

    saver = hooks.Checkpoints(tmp_path, every=10, keep=1, best="test_nll")
    state = run(score, saver)
    assert [path.name for path in checkpoint.steps(tmp_path)] == ["step-00000040", "step-00000020"]
    past = [{"step": 10, "test_nll": 0.5}, {"step": 20, "test_nll": 1.0}, {"step": 30}]  # 10 is no longer there
    again = hooks.Checkpoints(tmp_path, every=10, keep=1, best="test_nll", past=past)
    run(score, again, state=state)
    assert [path.name for path in checkpoint.steps(tmp_path)] == ["step-00000080", "step-00000020"]


def test_a_full_disk_is_forgiven_twice(tmp_path, monkeypatch):
    """R13. Catches a run that dies of the first failure, goes on for ever, or does not forget old failures."""
    fails = iter([True, True, False, True, True, True])
    real = checkpoint.save

    def save(*arguments):
        if next(fails):
            raise OSError(28, "No space left on device")
        return real(*arguments)

    monkeypatch.setattr(checkpoint, "save", save)
    told = []
    with pytest.raises(OSError, match="No space"):
        run(hooks.Checkpoints(tmp_path, every=10, warn=told.append), steps=100)
    assert [path.name for path in checkpoint.steps(tmp_path)] == ["step-00000030"]
    assert [message.split(" not")[0] for message in told] == ["checkpoint of step 10", "checkpoint of step 40"]


def test_early_stopping_counts_evaluations_without_a_better_one():
    values = [5.0, 4.0, 4.5, 4.0, 3.0, 3.5, 3.5, 3.5]

    def score(moment):
        if moment.step % 20 == 0:
            return {"test_nll": values[moment.step // 20 - 1]}
        return None

    assert int(run(score, hooks.early_stopping(3), steps=400, chunk=10).step) == 160
    assert not hooks.has_stalled(values[:4], 3)  # 4, 4.5 and 4 after 5: the first of them was better
    past = [{"test_nll": 1.0}, {"step": 3}, {"test_nll": 2.0}]
    assert int(run(score, hooks.early_stopping(2, past=past), steps=100).step) == 20


def test_evaluation_at_its_interval_and_at_the_end():
    rows = []
    run(hooks.evaluation(lambda state: {"score": int(state.step)}, 20), lambda m: rows.append(m.metrics.get("score")),
        steps=50)  # fmt: skip
    assert rows == [None, 20, None, 40, 50]


def test_trouble_is_told_once_and_not_at_the_first_sign(monkeypatch):
    told = []
    algorithm = ALGORITHM._replace(diagnose=lambda state, batch: {"force_ratio": jnp.asarray(1e-6)})
    run(hooks.diagnostics(algorithm, BATCHES, told.append), steps=150)
    assert [message.split(":")[0] for message in told] == ["step 100"]
    told.clear()
    run(hooks.diagnostics(algorithm, BATCHES, told.append), steps=30)
    assert [message.split(":")[0] for message in told] == ["step 30"]


# -- trackers -----------------------------------------------------------------------------------------------


def test_tensorboard_opens_the_events_and_forgets_a_lost_attempt(tmp_path):
    """Read by TensorBoard itself: a first attempt to step 40, of which all after 20 is repeated."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with hooks.tensorboard(tmp_path) as board:
        run(board)
    with hooks.tensorboard(tmp_path, start=20) as board:
        run(lambda moment: {"log_likelihood": 7.0}, board, state=run(steps=20), steps=30)
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert {"train/log_likelihood", "train/log_prior", "members/alive"} <= set(events.Tags()["scalars"])
    series = events.Scalars("train/log_likelihood")
    assert [event.step for event in series] == [10, 20, 30, 40, 50]
    assert [event.value for event in series[2:]] == [7.0, 7.0, 7.0]
    assert series[0].value == pytest.approx(float(_means(20)[0]), rel=rounding(1, "float32"))


def _means(steps):
    rows = []
    run(lambda moment: rows.append(moment.metrics["log_likelihood"]), steps=steps)
    return rows


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_mlflow_takes_the_metrics_into_a_local_store_and_a_resumed_run_goes_on(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri = (tmp_path / "mlruns").as_uri()
    with hooks.mlflow(uri, "a-run", {"method.name": "w-svgd"}) as tracker:
        state = run(tracker, steps=20)
    with hooks.mlflow(uri, "a-run") as tracker:
        run(tracker, state=state, steps=20)
    client = mlflow.MlflowClient(uri)
    (found,) = client.search_runs([client.get_experiment_by_name("stein").experiment_id])
    history = client.get_metric_history(found.info.run_id, "log_likelihood")
    assert sorted(point.step for point in history) == [10, 20, 30, 40]
    assert (found.data.params, found.info.status) == ({"method.name": "w-svgd"}, "FINISHED")


@pytest.mark.long
def test_wandb_takes_the_metrics_into_an_offline_run(tmp_path):
    """In a process of its own, because wandb starts one too."""
    pytest.importorskip("wandb")
    script = """if True:
        from stein import hooks
        from stein.train import Moment
        with hooks.wandb("project", "a-run", {"method.name": "w-svgd"}) as tracker:
            for step in (10, 20):
                tracker(Moment(None, None, step, 20, {"log_likelihood": -1.5, "members": [1.0]}))
    """
    offline = os.environ | {"WANDB_MODE": "offline", "WANDB_DIR": str(tmp_path), "WANDB_SILENT": "true"}
    subprocess.run([sys.executable, "-c", script], env=offline, check=True, timeout=300)
    (written,) = tmp_path.glob("wandb/offline-run-*-a-run/*.wandb")
    assert b"log_likelihood" in written.read_bytes()
    assert b"method.name" in written.read_bytes()


def test_a_tracker_that_is_not_installed_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ImportError, match=r"pip install '\.\[wandb\]' in the checkout"), hooks.wandb("project", "name"):
        pass


# -- R23: leaks ---------------------------------------------------------------------------------------------


@pytest.mark.long
def test_two_thousand_steps_leak_nothing(tmp_path):
    """Catches a list that grows, a file that stays open, a thread that stays, a chunk that is compiled again."""
    page = os.sysconf("SC_PAGE_SIZE")
    marks = []

    def measure(moment):
        if moment.step % 400 == 0:
            gc.collect()
            resident = int(Path("/proc/self/statm").read_text().split()[1]) * page
            marks.append((resident, len(os.listdir("/proc/self/fd")), threading.active_count()))

    saver = hooks.Checkpoints(tmp_path / "checkpoints", every=200)
    with hooks.tensorboard(tmp_path / "tb") as board:
        log = hooks.Log(tmp_path / "log")
        run(
            hooks.members(),
            hooks.diagnostics(ALGORITHM, BATCHES, lambda m: None),
            log,
            board,
            saver,
            measure,
            steps=2000,
        )
    before = train._jitted_advance()._cache_size()
    run(steps=100)
    assert train._jitted_advance()._cache_size() == before
    memory, files, threads = zip(*marks[1:], strict=True)
    assert memory[-1] < 1.01 * memory[0], memory
    assert len(set(files)) == 1
    assert len(set(threads)) == 1


def test_two_hundred_repeats_of_a_step_are_one(tmp_path):
    """R16. Catches a reduction whose order depends on the threads."""
    state = start()
    step = jax.jit(ALGORITHM.step)
    batch = BATCHES.at(0)
    seen = {np.asarray(jax.tree.leaves(step(state, batch)[0].particles)[0]).tobytes() for _ in range(200)}
    assert len(seen) == 1


def test_a_dead_member_in_a_checkpoint_stays_dead_and_alone(tmp_path):
    """A5 in a checkpoint. Catches a NaN that a load turns into life, or that spreads to the survivors."""
    state = start()
    broken = state._replace(particles=jax.tree.map(lambda leaf: leaf.at[1].set(jnp.nan), state.particles))
    checkpoint.save(tmp_path, broken)
    loaded, _ = checkpoint.load(tmp_path / checkpoint.name_of(0), like=state)
    after = train.run(ALGORITHM, loaded, BATCHES, 10, chunk=10, min_alive=0.5)[0]
    assert after.alive.tolist() == [True, False, True, True]
    keep = np.array([0, 2, 3])
    alone = jax.tree.map(lambda leaf: leaf[keep] if leaf.ndim and leaf.shape[0] == 4 else leaf, state)
    expected = run(state=alone, steps=10)
    for a, b in zip(jax.tree.leaves(after.particles), jax.tree.leaves(expected.particles), strict=True):
        np.testing.assert_allclose(a[keep], b, rtol=1e-6, atol=1e-9)
