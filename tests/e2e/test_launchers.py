"""`stein sweep` over many processes: killed workers, shards, Slurm's local stand-in, a real Ray cluster."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

import runs
from stein.storage import locks

GRID = "[search.keys]\noptimiser.learning_rate = [0.02, 0.05, 1e-4]\n"
TPE = """
[search]
kind = "tpe"
trials = 6
seed = 3
halving = true
[search.keys]
optimiser.learning_rate = {low = 1e-6, high = 0.1, log = true}
model.hidden = [[4], [3, 3]]
method.particles = {low = 2, high = 3}
"""
STEPS = 800
ENDS = {
    "processes, killed": (["--workers", "2"], signal.SIGKILL),
    "processes, stopped": (["--workers", "2"], signal.SIGTERM),
    "slurm, killed": (["--slurm", "cluster=local", "--workers", "2"], signal.SIGKILL),
    "slurm, preempted": (["--slurm", "cluster=local", "--workers", "2"], signal.SIGUSR2),
    "ray, killed": (["--ray", "local", "--workers", "2"], signal.SIGKILL),
}


def spec(folder: Path, search: str = GRID, steps: int = STEPS) -> Path:
    (folder / "spec.toml").write_text(runs.SEARCH.format(steps=steps, evaluated=20, saved=20) + search)
    return folder / "spec.toml"


def numbers(out: Path) -> dict:
    """Everything about a search but the time it took."""
    rows = json.loads((out / "sweep.json").read_text())
    found = {"best": (out / "best.toml").read_text().partition("\n")[2]}
    for row in rows:
        del row["seconds"]
        found[row["trial"]] = row, runs.result(out / "trials" / row["trial"])
    return found


def hit(trial: Path, command: subprocess.Popen, number: int) -> int:
    """Send a signal to the worker that trains a trial, after its first checkpoint; returns the worker's id."""
    end = time.monotonic() + 300
    while not list((trial / "checkpoints").glob("step-*")):
        assert command.poll() is None, command.communicate()
        assert time.monotonic() < end, "no checkpoint"
        time.sleep(0.01)
    worker = int((trial / ".lock").read_text().split()[1])
    os.kill(worker, number)
    assert not (trial / "metrics.json").exists(), "the trial was over already"
    return worker


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> dict:
    folder = tmp_path_factory.mktemp("undisturbed")
    done = runs.run(["sweep", spec(folder), "--out", folder / "out", "--workers", "2"], cache, **runs.QUICK)
    assert done.returncode == 0, done.stderr
    return numbers(folder / "out")


@pytest.mark.long
@pytest.mark.parametrize("end", ENDS)
def test_a_lost_worker_changes_no_byte(end: str, undisturbed: dict, tmp_path: Path, cache: Path) -> None:
    """Catches a trial that is lost with its worker, one that starts anew or logs twice, and launchers that differ."""
    (options, number), out = ENDS[end], tmp_path / "out"
    command = runs.start(["sweep", spec(tmp_path), "--out", out, *options], cache, **runs.QUICK)
    worker = hit(out / "trials" / "001", command, number)
    _, errors = command.communicate(timeout=600)
    assert command.returncode == 0, errors
    assert numbers(out) == undisturbed
    assert int((out / "trials" / "001" / ".lock").read_text().split()[1]) != worker or number == signal.SIGTERM


@pytest.mark.long
def test_shards_make_one_search(tmp_path: Path, cache: Path) -> None:
    """Catches shards that overlap or leave a trial out, a summary of half a search, and none of the whole."""
    file, out = spec(tmp_path, GRID.replace(", 1e-4", ""), steps=20), tmp_path / "out"
    first, second = (
        runs.run(["sweep", file, "--out", out, "--shard", shard, "--workers", "1"], cache, **runs.QUICK)
        for shard in ("1/2", "2/2")
    )
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    assert first.stdout.startswith("shard 1/2 is done; the last shard to end writes the summary")
    assert "best: trial" in second.stdout
    assert [row["trial"] for row in json.loads((out / "sweep.json").read_text())] == ["000", "001"]
    began = {path.parent.name: path.stat().st_mtime_ns for path in out.glob("trials/*/config.toml")}
    assert began["000"] < began["001"]


@pytest.mark.long
def test_an_adaptive_search_survives_a_kill(tmp_path: Path, cache: Path) -> None:
    """Killed with its workers, then finished by two shards at once. Catches a trial that is trained twice or gets other
    settings, two processes that take the same one, and a trial that its config does not make again."""
    file, out = spec(tmp_path, TPE, steps=200), tmp_path / "out"
    command = runs.start(["sweep", file, "--out", out, "--workers", "2"], cache, **runs.QUICK)
    end = time.monotonic() + 600
    while len(list(out.glob("trials/*/metrics.json"))) < 2:
        assert command.poll() is None, command.communicate()
        assert time.monotonic() < end
        time.sleep(0.05)
    command.kill()
    command.communicate()
    while any(locks.is_locked(trial) for trial in out.glob("trials/*")):  # workers save and stop with their parent
        assert time.monotonic() < end
        time.sleep(0.1)

    ended = {path: path.stat().st_mtime_ns for path in out.glob("trials/*/metrics.json")}
    begun = {path: path.read_bytes() for path in out.glob("trials/*/config.toml")}
    shards = [
        runs.start(["sweep", file, "--out", out, "--shard", shard, "--workers", "1"], cache, **runs.QUICK)
        for shard in ("1/2", "2/2")
    ]
    said = [shard.communicate(timeout=900) for shard in shards]
    assert [shard.returncode for shard in shards] == [0, 0], said
    assert sum("best: trial" in printed for printed, _ in said) >= 1
    assert {path: path.stat().st_mtime_ns for path in ended} == ended
    assert {path: path.read_bytes() for path in begun} == begun

    rows = json.loads((out / "sweep.json").read_text())
    assert [row["trial"] for row in rows] == [f"00{n}" for n in range(6)]
    assert {row["status"] for row in rows} <= {"finished", "pruned"}
    assert len({json.dumps(row["settings"]) for row in rows}) == 6
    storage = JournalStorage(JournalFileBackend(str(out / "optuna.journal")))
    told = optuna.load_study(study_name="sweep", storage=storage).trials
    assert [trial.state.name for trial in told[:6]] == [
        {"finished": "COMPLETE", "pruned": "PRUNED"}[row["status"]] for row in rows
    ]
    best = min((row for row in rows if row["status"] == "finished"), key=lambda row: row["metrics"]["test_nll"])
    trial = out / "trials" / best["trial"]
    again = runs.run(["train", trial / "config.toml", "--out", tmp_path / "again"], cache, **runs.QUICK)
    assert again.returncode == 0, again.stderr
    assert runs.result(tmp_path / "again") == runs.result(trial)
