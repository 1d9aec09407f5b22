"""Runs as a newcomer has them: longer than planned, failed, on a full disk, begun by an older version."""

import errno
import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest

import runs
from stein import cli
from stein.runs import configs, training
from stein.runs.build import assemble, batch_key
from stein.runs.environment import environment
from stein.runs.folder import RunFolder
from stein.storage import checkpoint, documents, durable

# In the precision that the tests run in: a run sets it for the whole process.
CONFIG = """
[data]
name = "regression-1d"
[method]
name = "w-svgd"
particles = 3
[model]
hidden = [4]
[train]
precision = "float64"
steps = {steps}
batch_size = 16
log_every = 10
[evaluation]
every = 20
[checkpoints]
every = 20
keep = 2
best = true
[tracking]
diagnostics = false
tensorboard = false
{more}
"""


@pytest.fixture(autouse=True)
def threads(monkeypatch):
    monkeypatch.setenv("NPROC", "1")  # `stein resume` sets it


def write(folder, steps=40, more=""):
    folder.mkdir(exist_ok=True)
    (folder / "run.toml").write_text(CONFIG.format(steps=steps, more=more))
    return folder / "run.toml"


def stein(*arguments):
    return cli.main([*map(str, arguments), "--no-cache", "--quiet"])


def train(folder, name, steps, *options, more=""):
    assert stein("train", write(folder, steps, more), "--out", folder / name, *options) == 0
    return folder / name


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run of 80 steps and one of 40."""
    base = tmp_path_factory.mktemp("whole")
    return {steps: train(base, str(steps), steps) for steps in (40, 80)}


def copy(run, to):
    return Path(shutil.copytree(run, to / run.name))


# -- more steps ---------------------------------------------------------------------------------------------


def test_a_finished_run_goes_on_as_if_it_had_been_longer_from_the_start(whole, tmp_path, capsys):
    """Catches a step done twice or left out, a line of the log lost, an optimiser that begins anew, a total
    forgotten."""
    run = copy(whole[40], tmp_path)
    for name in ("evaluation.json", "curves.json"):
        (run / name).write_text("{}")
    (run / "figures").mkdir()
    assert stein("resume", run, "--steps", 80) == 0
    out = capsys.readouterr()
    assert f"{run}: 80 steps of w-svgd done" in out.out
    assert [line for line in out.err.splitlines() if "worse than predicting the mean" not in line] == []
    assert runs.result(run) == runs.result(whole[80])
    assert configs.load(run / "config.toml").train.steps == 80
    # What was measured on the ensemble of 40 steps is not this ensemble's.
    assert not any((run / name).exists() for name in ("evaluation.json", "curves.json", "figures", "failed.json"))
    assert stein("resume", run) == 0
    assert "is finished" in capsys.readouterr().out
    assert stein("resume", run, "--steps", 100) == 0  # and again


@pytest.mark.long
def test_a_total_between_two_lines_of_the_log_goes_back_to_the_grid(tmp_path):
    """Catches a continued run whose steps are never multiples of its intervals: no checkpoint, no evaluation."""
    run = train(tmp_path, "run", 45)
    assert stein("resume", run, "--steps", 80) == 0
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [10, 20, 30, 40, 45, 50, 60, 70, 80]
    assert [row["step"] for row in rows if "test_nll" in row] == [20, 40, 45, 60, 80]
    assert {"step-00000060", "step-00000080"} <= {path.name for path in (run / "checkpoints").iterdir()}


class Crash(BaseException):
    """The process dies here."""


PLACES = [
    "metrics.json.removed",
    "evaluation.json.removed",
    "env.json.open",
    "env.json.renamed",
    "config.toml.open",
    "config.toml.renamed",
    "particles.safetensors.open",
]


@pytest.mark.parametrize(
    "place", [pytest.param(p, marks=() if p == "config.toml.renamed" else pytest.mark.long) for p in PLACES]
)
def test_a_crash_on_the_way_to_more_steps_leaves_the_old_run_or_the_longer_one(place, whole, tmp_path, monkeypatch):
    """Catches a run that counts as finished with a total that it has not reached, or that cannot go on."""
    run = copy(whole[40], tmp_path)

    def passing(point):
        if point == place:
            raise Crash

    with monkeypatch.context() as patched:
        patched.setattr(durable, "passing", passing)
        with pytest.raises(Crash):
            stein("resume", run, "--steps", 80)
    other = Path(shutil.copytree(run, tmp_path / "other"))
    assert stein("resume", run) == 0
    reached = json.loads((run / "metrics.json").read_text())["steps"]
    assert reached == configs.load(run / "config.toml").train.steps
    assert runs.result(run) == runs.result(whole[reached])
    assert reached == (80 if place in PLACES[-2:] else 40)
    # The same command again works too.
    assert stein("resume", other, "--steps", 80) == 0
    assert runs.result(other) == runs.result(whole[80])


def test_totals_that_a_run_cannot_have(whole, tmp_path, capsys):
    run = copy(whole[40], tmp_path)
    before = runs.result(run)
    for steps, complaint in {
        40: "--steps = 40: is the new total and must be above the 40 steps done",
        -1: "config.toml: train.steps (from --steps): got -1; must be a whole number",
        10**10: "config.toml: train.steps (from --steps): got 10000000000; must be a whole number",
    }.items():
        assert stein("resume", run, "--steps", steps) == 2
        err = capsys.readouterr().err
        assert (complaint in err, err.count("\n")) == (True, 1), err
    assert runs.result(run) == before
    shutil.rmtree(run / "checkpoints")
    assert stein("resume", run, "--steps", 80) == 2
    assert "the checkpoint of step 40 is gone: there is nothing to go on from" in capsys.readouterr().err


def test_more_steps_on_data_that_is_gone_leave_a_finished_run_finished(tmp_path, capsys):
    x = np.linspace(-1, 1, 40)
    np.savez(tmp_path / "t.npz", x=x[:, None], y=x**2)
    source = [f"data.file={tmp_path}/t.npz", "data.name=", "train.batch_size=0", "checkpoints.best=false"]
    run = train(tmp_path, "run", 20, "--set", *source)
    (run / "evaluation.json").write_text("{}")
    before = {path: path.read_bytes() for path in run.iterdir() if path.is_file() and path.name != ".lock"}
    (tmp_path / "t.npz").unlink()
    assert stein("resume", run, "--steps", 40) == 2
    assert "t.npz: no such file" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in before} == before
    assert state_of(run, capsys) == ("finished", "")


def test_more_steps_do_not_wake_a_run_that_stopped_early(tmp_path, capsys):
    """Its held-out error would end it again at once, with the total of a run that it is not."""
    options = ["--set", "train.early_stop=1", "optimiser.learning_rate=1e-300", "checkpoints.best=false"]
    run = train(tmp_path, "run", 200, *options)
    assert json.loads((run / "metrics.json").read_text())["steps"] == 40
    capsys.readouterr()
    assert stein("resume", run, "--steps", 400) == 2
    assert "train.early_stop = 1 ended the run at step 40, and would again" in capsys.readouterr().err


@pytest.mark.long
def test_a_schedule_of_the_old_total_is_told(tmp_path, capsys):
    options = ["--set", "optimiser.schedule=cosine", "annealing.name=linear"]
    run = train(tmp_path, "run", 40, *options)
    capsys.readouterr()
    assert stein("resume", run, "--steps", 60) == 0
    err = capsys.readouterr().err
    assert "warning: optimiser.schedule = 'cosine' now falls to step 60: the learning rate jumps" in err
    assert "warning: annealing lasts a fifth of train.steps, now 12 steps instead of 8" in err


def test_a_config_changed_by_hand_is_refused_with_the_way_to_more_steps(whole, tmp_path, capsys):
    run = copy(whole[40], tmp_path)
    (run / "metrics.json").unlink()
    text = (run / "config.toml").read_text()
    (run / "config.toml").write_text(text.replace("steps = 40\n", "steps = 80\n"))
    assert stein("resume", run) == 2
    assert "`stein resume --steps N` alone may change train.steps" in capsys.readouterr().err


# -- batches ------------------------------------------------------------------------------------------------


def test_batches_have_a_key_of_their_own():
    """``fold_in(key, 1)`` is ``split(key)[1]``: the permutation of epoch t and the noise of step t had one key."""
    for seed in (0, 1, 2**32 - 1):
        parts = [jax.random.key_data(batch_key(seed)).tolist()]
        parts += jax.random.key_data(jax.random.split(jax.random.key(seed), 8)).tolist()
        parts += [jax.random.key_data(jax.random.fold_in(jax.random.key(seed), i)).tolist() for i in range(100)]
        assert parts[0] not in parts[1:]
    old = jax.random.key_data(batch_key(0, 1)).tolist()
    assert old == jax.random.key_data(jax.random.split(jax.random.key(0))[1]).tolist()


def test_the_streams_of_a_run_are_not_those_of_its_noise(tmp_path):
    """The first 64 words that both keys lead to: of independent bits half agree, 1024 of 2048 with deviation 23."""
    chosen = configs.load(write(tmp_path))
    parts = assemble(chosen)
    own = parts.algorithm.init(jax.random.key(chosen.train.seed), 3).key
    words = [
        np.concatenate([np.asarray(jax.random.bits(jax.random.fold_in(key, i), (8,), "uint32")) for i in range(8)])
        for key in (own, parts.batches._key)
    ]
    agree = sum(32 - int(a ^ b).bit_count() for a, b in zip(*words, strict=True))
    assert abs(agree - 1024) < 115  # five deviations; equal keys agree in 2048


def as_of_old(run):
    """Its checkpoints without the record, in format 1: as a version wrote them that knew of one derivation only."""
    for path in checkpoint.steps(run / "checkpoints"):
        manifest = checkpoint.read_manifest(path)
        del manifest["sha256"], manifest["facts"]["batches"]
        manifest["format_version"] = 1
        (path / checkpoint.MANIFEST).write_bytes(checkpoint._signed(manifest))


def test_an_old_run_goes_on_with_its_old_batches(tmp_path, capsys):
    """Catches a run that changes its batches half-way, at the first resume or at the second."""
    chosen = configs.load(write(tmp_path, 80))
    parts = assemble(chosen)
    old = parts._replace(batches=parts.batches.with_key(batch_key(chosen.train.seed, 1)))
    for name, steps in (("old", 80), ("half", 40)):
        part = configs.load(write(tmp_path, steps))
        (tmp_path / name).mkdir()
        documents.write_json(tmp_path / name / "env.json", environment())
        (tmp_path / name / "config.toml").write_text(configs.dump(part))
        training._Training(part, RunFolder(tmp_path / name), old, [], False, print, print, stream=1).go_on()
        as_of_old(tmp_path / name)
    assert stein("resume", tmp_path / "half", "--steps", 60) == 0  # once more below: the record travels on
    assert {
        checkpoint.read_manifest(p)["facts"]["batches"] for p in checkpoint.steps(tmp_path / "half/checkpoints")[:1]
    } == {1}
    assert stein("resume", tmp_path / "half", "--steps", 80) == 0
    assert runs.result(tmp_path / "half") == runs.result(tmp_path / "old")
    new = train(tmp_path, "new", 80)
    assert runs.result(new) != runs.result(tmp_path / "old")
    assert checkpoint.read_manifest(checkpoint.steps(new / "checkpoints")[0])["facts"]["batches"] == 2


# -- runs that fail -----------------------------------------------------------------------------------------


def state_of(run, capsys):
    capsys.readouterr()
    assert cli.main(["status", str(run), "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    return found["state"], found["reason"]


def test_a_run_whose_members_die_is_failed_and_says_why(tmp_path, capsys):
    wild = ["--set", "optimiser.name=sgd", "optimiser.learning_rate=1e300"]
    assert stein("train", write(tmp_path), *wild, "--out", tmp_path / "run") == 1
    assert "are not finite (0 of 3 alive)" in capsys.readouterr().err
    state, reason = state_of(tmp_path / "run", capsys)
    assert state == "failed"
    assert "are not finite (0 of 3 alive)" in reason


def test_a_full_disk_is_told_once_and_ends_with_what_to_do(tmp_path, monkeypatch, capsys):
    """After step 20 nothing can be written: there were a warning for every line of the log, and a bare errno."""
    run = tmp_path / "run"
    real = durable._write

    def write_or_not(path, *arguments):
        if (run / "checkpoints" / "step-00000020").exists() and path.name != "failed.json":
            raise OSError(errno.ENOSPC, "No space left on device")
        real(path, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(durable, "_write", write_or_not)
        assert stein("train", write(tmp_path, 1000), "--out", run) == 1
    *warned, error = capsys.readouterr().err.splitlines()
    assert [line.split(";")[0] for line in warned] == [
        "warning: step 30 not logged (No space left on device)",
        "warning: checkpoint of step 40 not written (No space left on device)",
    ]
    assert error == (
        f"error: {run}: the disk does not take more (No space left on device); step 20 is saved; "
        f"make room, then `stein resume {run}`"
    )
    assert not list(run.rglob(".tmp-*"))
    assert stein("resume", run, "--steps", 80) == 0  # with room it goes on, and the mark is gone
    assert state_of(run, capsys) == ("finished", "")
    assert not (run / "failed.json").exists()


def test_an_evaluation_on_a_full_disk_ends_with_what_to_do(whole, tmp_path, monkeypatch, capsys):
    """Catches a bare errno, and a finished run that is marked as failed."""
    run, real = copy(whole[40], tmp_path), durable._write

    def write_or_not(path, *arguments):
        if "evaluation.json" in path.name:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(path, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(durable, "_write", write_or_not)
        assert cli.main(["evaluate", str(run), "--no-cache"]) == 1
    assert capsys.readouterr().err.splitlines()[-1] == (
        f"error: {run}: the disk does not take more (No space left on device); step 40 is saved; "
        "make room, then the same command"
    )
    assert state_of(run, capsys) == ("finished", "")
