"""Work that is shared among processes: what they are sent, and what is shown of them."""

import pickle
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

from stein.runs import pool, search, trials
from stein.runs.schema import Config, Data
from stein.storage import documents

TRIAL = search.Trial("000", {"train.steps": 5}, Config(Data(name="digits")))


def test_several_processes_get_what_is_missing_and_their_steps_are_shown(tmp_path, monkeypatch):
    """Catches more processes than work, a bar of another length, and steps of other runs."""
    shown, called = [], []

    def in_processes(work, wanted, workers, watch):
        called.append((work, wanted, workers))
        watch()

    def begin(words, total):
        shown.append((words, total))
        return shown.append

    monkeypatch.setattr(pool, "in_processes", in_processes)
    for name, step in (("a", 30), ("c", 500)):
        (tmp_path / name).mkdir()
        documents.write_json(tmp_path / name / "progress.json", {"step": step})
    work = partial(print, tmp_path)
    pool.make_missing(work, {tmp_path / "a": "A", tmp_path / "b": "B"}, 200, 8, begin)
    assert called == [(work, ["A", "B"], 2)]
    assert shown == [("2 ensembles", 200), 30]
    pool.make_missing(work, {}, 0, 8, begin)  # a pool of no processes is an error
    assert len(called) == 1


def test_one_process_is_this_one():
    """Catches bars that nobody asked for, and none where one was."""
    seen = []
    pool.make_missing(lambda cell, show: seen.append((cell, show)), {Path("a"): 1, Path("b"): 2}, 10, 1, print)
    assert seen == [(1, True), (2, True)]


def test_a_killed_command_leaves_no_process_behind(tmp_path):
    """Catches cells that go on training for nobody, and hold the locks of their runs."""
    cell = f"import os, pathlib, time; pathlib.Path({str(tmp_path)!r}, str(os.getpid())).touch(); time.sleep(99)"
    script = f"from stein.runs import pool; pool.in_processes(exec, [{cell!r}] * 4, 2, lambda: None)"
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


def test_work_can_be_sent_to_another_process(tmp_path):
    """Catches a part of it that only this process knows."""
    sent = pickle.loads(pickle.dumps((partial(trials.make_trial, tmp_path), TRIAL)))  # noqa: S301
    assert (sent[0].func, sent[0].args, sent[1]) == (trials.make_trial, (tmp_path,), TRIAL)
