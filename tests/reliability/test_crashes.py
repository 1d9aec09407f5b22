"""R1-R3: a training process that is killed, at any time and in any place, loses nothing but time."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import runs


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return runs.write_config(tmp_path_factory.mktemp("config"))


@pytest.mark.parametrize(
    ("kills", "seed"), [(2, 0), *(pytest.param(9, seed, marks=pytest.mark.long) for seed in (0, 1, 2))]
)
@pytest.mark.parametrize("method", [
    pytest.param(name, marks=() if name == "sampler" else pytest.mark.long) for name in runs.METHODS
])  # fmt: skip
def test_kills_do_not_change_a_byte(
    method: str, kills: int, seed: int, config: Path, tmp_path: Path, cache: Path
) -> None:
    """Catches a checkpoint that is incomplete, read while it is written, or deleted too early; a line of the log that
    is lost, doubled or torn; an optimiser, key or batch order that does not come back; rubbish left behind."""
    whole = runs.run(["train", config, *runs.METHODS[method], "--out", tmp_path / "whole", "--quiet"], cache)
    assert whole.returncode == 0, whole.stderr
    chain = runs.kill_chain(tmp_path / "killed", config, method, kills=kills, seed=seed, cache=cache)
    assert len(chain["killed"]) == kills
    assert chain["result"] == runs.result(tmp_path / "whole"), chain["killed"]
    assert chain["leftovers"] == []


@pytest.mark.parametrize("place", [
    pytest.param(p, marks=pytest.mark.long) for p in runs.LAST_FAILPOINTS
])  # fmt: skip
def test_killed_while_it_writes_its_results(place: str, config: Path, tmp_path: Path, cache: Path) -> None:
    """Catches a run that counts as finished before its files are whole, or never does."""
    short = ["--set", "train.steps=100"]
    whole = runs.run(["train", config, *short, "--out", tmp_path / "whole", "--quiet"], cache)
    assert whole.returncode == 0, whole.stderr
    run = tmp_path / "killed"
    killed = runs.run(["train", config, *short, "--out", run, "--quiet"], cache, STEIN_FAILPOINT=f"{place}:1")
    assert killed.returncode == -signal.SIGKILL
    resumed = runs.run(["resume", run], cache)
    assert (resumed.returncode, runs.leftovers(run)) == (0, [])
    assert runs.result(run) == runs.result(tmp_path / "whole")


@pytest.mark.long
def test_at_most_one_interval_is_lost_and_a_finished_run_says_so(config: Path, tmp_path: Path, cache: Path) -> None:
    run = tmp_path / "run"
    killed = runs.run(["train", config, "--out", run, "--quiet"], cache, STEIN_FAILPOINT="particles.safetensors.half:3")
    assert killed.returncode == -signal.SIGKILL
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["step"] == 300
    assert sorted(path.name for path in (run / "checkpoints").glob("step-*")) == ["step-00000100", "step-00000200"]
    again = runs.run(["resume", run], cache)
    assert again.returncode == 0
    finished = runs.run(["resume", run], cache)
    assert (finished.returncode, finished.stderr) == (0, "")
    assert "is finished" in finished.stdout


# -- R3: signals --------------------------------------------------------------------------------------------

SHORT = [(signal.SIGINT, "training", 0), (signal.SIGTERM, "a checkpoint", 1)]


@pytest.mark.parametrize(("number", "when", "delay"), [
    pytest.param(
        number, when, delay, id=f"{number.name}-{when}-{delay}",
        marks=() if (number, when, delay) in SHORT else pytest.mark.long,
    )
    for number in (signal.SIGINT, signal.SIGTERM)
    for when in ("compilation", "training", "a checkpoint")
    for delay in range(5)
])  # fmt: skip
def test_a_signal_ends_the_run_with_a_checkpoint(
    number: signal.Signals, when: str, delay: int, config: Path, tmp_path: Path, cache: Path
) -> None:
    """Thirty moments: tenths of a second after the first file or line, or in the writing of one checkpoint or another.
    Catches a signal that is lost in a compilation, breaks a checkpoint, or ends the run without one."""
    run = tmp_path / "run"
    place = f"opt.safetensors.half:{delay + 1}:{number.name}"
    extra = {"STEIN_FAILPOINT": place} if when == "a checkpoint" else {}
    process = runs.start(["train", config, "--set", "train.steps=1000000", "--out", run], cache, **extra)
    if when != "a checkpoint":
        runs.wait_for(run / ("config.toml" if when == "compilation" else "metrics.jsonl"), process)
        time.sleep(0.1 * delay)
        process.send_signal(number)
    _, err = process.communicate(timeout=60)  # 10 on a machine that does nothing else; the run itself takes longer
    assert process.returncode == 128 + number
    assert "stopping at the next pause" in err
    assert "error: stopped at step" in err
    assert f"`stein resume {run}` goes on" in err
    assert list((run / "checkpoints").glob("step-*"))
    assert runs.leftovers(run) == []
    steps = [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert max((run / "checkpoints").glob("step-*")).name == f"step-{steps[-1]:08d}"


def test_a_second_ctrl_c_is_immediate(config: Path, tmp_path: Path, cache: Path) -> None:
    """Catches a handler that waits for Python to come back from XLA."""
    run = tmp_path / "run"
    # One chunk that takes long: the main thread does not come back to Python.
    one = [f"{key}=1000000" for key in ("train.steps", "train.log_every", "evaluation.every", "checkpoints.every")]
    process = runs.start(["train", config, "--set", *one, "--out", run, "--quiet"], cache)
    runs.wait_for(run / "config.toml", process)
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)  # the chunk takes longer
    assert process.returncode == 130


# -- R14: two writers ---------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("writers", [2, 8])
def test_one_writer_wins_and_its_death_frees_the_run(writers: int, config: Path, tmp_path: Path, cache: Path) -> None:
    """Catches a lock that two hold, that a reader disturbs, or that outlives its holder."""
    run = tmp_path / "run"
    endless = ["--set", "train.steps=1000000", "--quiet"]
    processes = [runs.start(["train", config, *endless, "--out", run], cache) for _ in range(writers)]
    (winner,) = _wait_until_one_is_left(processes)
    for loser in processes:
        if loser is not winner:
            _, err = loser.communicate(timeout=60)
            assert loser.returncode == 2
            assert err.startswith(f"error: {run}: in use by process {winner.pid} on "), err
            assert err.count("\n") == 1
    runs.wait_for(run / "metrics.jsonl", winner)
    status = runs.run(["status", run, "--json"], cache)
    (seen,) = json.loads(status.stdout)
    assert (seen["state"], seen["method"], seen["steps"]) == ("running", "h-svgd", 1_000_000)
    before = os.times()
    second = runs.run(["resume", run], cache)
    after = os.times()
    assert (second.returncode, second.stdout) == (2, "")
    assert after.children_user - before.children_user < 5  # of the processor: it does not wait, and starts nothing
    winner.kill()
    winner.communicate()
    (seen,) = json.loads(runs.run(["status", run, "--json"], cache).stdout)
    assert seen["state"] == "interrupted"
    shorter = runs.start(["resume", run, "--quiet"], cache)
    time.sleep(2)
    assert shorter.poll() is None, shorter.communicate()[1]
    shorter.kill()
    shorter.communicate()


CLAIMS = """
import multiprocessing, sys, time
from pathlib import Path
from stein.runs.folder import RunFolder
from stein.storage.locks import LockedError

def claim(run, barrier, answers):
    barrier.wait()
    began = time.monotonic()
    try:
        with RunFolder(run).claimed(True):
            (run / "config.toml").touch()
            answers.put("")
            time.sleep(0.8)
    except LockedError as error:
        answers.put(f"{error} after {time.monotonic() - began:.2f}")

context = multiprocessing.get_context("fork")  # nothing here has threads
for attempt in range(50):
    writers = (2, 8)[attempt % 2]
    barrier, answers = context.Barrier(writers), context.Queue()
    run = Path(sys.argv[1]) / str(attempt)
    processes = [context.Process(target=claim, args=(run, barrier, answers)) for _ in range(writers)]
    for process in processes:
        process.start()
    told = sorted(answers.get(timeout=20) for _ in processes)
    for process in processes:
        process.join()
    assert told[0] == "" and all("in use by process" in words for words in told[1:]), told
    assert all(float(words.split()[-1]) < 1 for words in told[1:]), told
print("one winner each")
"""


@pytest.mark.long
def test_fifty_simultaneous_starts_have_one_winner_each(tmp_path: Path) -> None:
    """Catches a lock that is looked at before it is taken; the claim alone, which needs no training to be raced for."""
    done = subprocess.run([sys.executable, "-c", CLAIMS, tmp_path], capture_output=True, text=True, check=False)
    assert done.stdout == "one winner each\n", done.stderr


def _wait_until_one_is_left(processes: list[subprocess.Popen]) -> list[subprocess.Popen]:
    end = time.monotonic() + 120
    while len(left := [process for process in processes if process.poll() is None]) > 1:
        assert time.monotonic() < end
        time.sleep(0.05)
    return left
