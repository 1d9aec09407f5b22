"""Work that is shared among processes: what they are sent, and what is shown of them."""

import contextlib
import itertools
import pickle
import re
import subprocess
import sys
import time
from concurrent.futures import Future
from functools import partial
from pathlib import Path

import pytest

from stein.runs import launchers, pool, search, trials
from stein.runs.schema import Config, Data
from stein.runs.signals import StoppedError
from stein.storage import documents

TRIAL = search.Trial("000", {"train.steps": 5}, Config(Data(name="digits")))


def test_several_processes_get_what_is_missing_and_their_steps_are_shown(tmp_path, monkeypatch):
    """Catches a bar of another length, and steps of other runs."""
    shown, called = [], []

    def make_all(launcher, work, wanted, watch):
        called.append((launcher, work, wanted))
        watch()

    def begin(words, total):
        shown.append((words, total))
        return shown.append

    monkeypatch.setattr(pool, "make_all", make_all)
    for name, step in (("a", 30), ("c", 500)):
        (tmp_path / name).mkdir()
        documents.write_json(tmp_path / name / "progress.json", {"step": step})
    work, eight = partial(print, tmp_path), launchers.local(8)
    pool.make_missing(work, {tmp_path / "a": "A", tmp_path / "b": "B"}, 200, eight, begin)
    assert called == [(eight, work, ["A", "B"])]
    assert shown == [("2 ensembles", 200), 30]
    pool.make_missing(work, {}, 0, eight, begin)  # no bar of nothing
    assert len(called) == 1


def test_one_process_is_this_one():
    """Catches bars that nobody asked for, and none where one was."""
    seen = []
    cells = {Path("a"): 1, Path("b"): 2}
    pool.make_missing(lambda cell, show: seen.append((cell, show)), cells, 10, launchers.local(1), print)
    assert seen == [(1, True), (2, True)]


def test_a_killed_command_leaves_no_process_behind(tmp_path):
    """Catches cells that go on training for nobody, and hold the locks of their runs, and workers that save on SIGTERM,
    as training does, and then wait for a cell that never comes."""
    cell = f"import os, pathlib, time; pathlib.Path({str(tmp_path)!r}, str(os.getpid())).touch(); time.sleep(99)"
    saving = f"import signal; signal.signal(signal.SIGTERM, signal.default_int_handler); {cell}"
    script = "from stein.runs.launchers import local, make_all; "
    script += f"make_all(local(2), exec, [{cell!r}, {saving!r}] * 2, lambda: None)"
    command = subprocess.Popen([sys.executable, "-c", script])

    def wait_until(true):
        for _ in range(600):
            if true():
                return
            time.sleep(0.1)
        raise AssertionError("a minute has passed")

    wait_until(lambda: len(list(tmp_path.iterdir())) == 2)
    command.kill()
    command.wait()
    wait_until(lambda: not any(Path("/proc", process.name).exists() for process in tmp_path.iterdir()))
    assert len(list(tmp_path.iterdir())) == 2, "no other cell was begun"


class Flaky:
    """An engine whose workers die a number of times; what it runs, it runs here."""

    pause, room = 0.0, 2

    def __init__(self, deaths: int):
        self.deaths, self.most, self.done = deaths, 0, []

    def submit(self, attempt, cells):
        self.most = max(self.most, len(cells))
        return [self._task(attempt, cell) for cell in cells]

    def _task(self, attempt, cell):
        task = Future()
        self.done.append(cell)
        if self.done.count(cell) <= self.deaths and cell == 1:
            task.set_exception(OSError("no such machine"))
        else:
            try:
                task.set_result(attempt.work(cell))
            except ValueError as error:
                task.set_result(error)
        return task


@pytest.mark.parametrize(("deaths", "attempts"), [(0, 1), (2, 3), (launchers.LOSSES, launchers.LOSSES)])
def test_a_cell_moves_on_when_its_worker_dies_but_not_for_ever(deaths, attempts):
    """Catches a cell that is lost with its worker, one that kills workers without end, more cells at a time than an
    engine has room for, and an error of the work itself that is tried again."""

    def work(cell):
        made.append(cell)
        if cell == 2:
            raise ValueError("two")

    made, engine = [], Flaky(deaths)
    launcher = launchers.Launcher(lambda: contextlib.nullcontext(engine))
    with pytest.raises((ValueError, launchers.WorkerLostError)) as caught:
        launchers.make_all(launcher, work, range(5), lambda: None)
    assert (engine.done.count(1), engine.done.count(2), engine.most) == (attempts, 1, 2)
    assert set(made) == {0, 2, 3, 4} | ({1} if deaths < launchers.LOSSES else set())
    assert str(caught.value) == "two"  # the first of all errors


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_every_cell_is_in_one_shard(count):
    """Catches a cell in no shard or in two, and shards of very different sizes."""
    cells = list("abcde")
    shares = [launchers.local(2, launchers.shard_of(f"{i + 1}/{count}")).share(cells) for i in range(count)]
    assert sorted(itertools.chain(*shares)) == cells
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@pytest.mark.parametrize("text", ["0/2", "3/2", "1", "a/b", "1/2/3", "-1/2", "1/0"])
def test_a_shard_that_does_not_exist_is_refused(text):
    """Catches shards counted from 0, of which one would train nothing and another would be missing."""
    with pytest.raises(ValueError, match=f"--shard {text}: must be I/K"):
        launchers.shard_of(text)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("partition",), "--slurm partition: must be KEY=VALUE"),
        (("cluster=moon",), "--slurm cluster=moon: must be slurm or local"),
        ((), "--slurm: no srun here; run this where jobs are submitted, or try --slurm cluster=local"),
    ],
)
def test_a_cluster_that_is_not_there_is_refused(options, words, tmp_path, monkeypatch):
    """Catches jobs that are asked of Slurm and silently run on this machine."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ValueError, match=re.escape(words)):
        launchers.slurm(options, tmp_path, 1)


def test_an_error_is_the_same_from_another_process():
    """Catches a worker that was told to stop taken for one that failed, because its error cannot be sent."""
    error = pickle.loads(pickle.dumps(StoppedError("stopped at step 3", 15)))  # noqa: S301
    assert (str(error), error.exit_code) == ("stopped at step 3", 143)


def test_work_can_be_sent_to_another_process(tmp_path):
    """Catches a part of it that only this process knows."""
    sent = pickle.loads(pickle.dumps((partial(trials.make_trial, tmp_path), TRIAL)))  # noqa: S301
    assert (sent[0].func, sent[0].args, sent[1]) == (trials.make_trial, (tmp_path,), TRIAL)
