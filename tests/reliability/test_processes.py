"""One run of several processes: the numbers of one process, and what is left when one of them is killed (R1, R17)."""

import json
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

import runs
from stein.storage import checkpoint

pytestmark = pytest.mark.long
CONFIG = """
[data]
name = "regression-1d"
[method]
name = "w-svgd"
particles = 7
[model]
hidden = [8]
[train]
steps = 200
batch_size = 16
log_every = 50
precision = "float64"
[evaluation]
every = 100
[checkpoints]
every = 100
keep = 2
"""
CHILD = Path(__file__).parents[1] / "over_devices.py"
# A solve with K + 0.01 I loses the factor n/0.01 of the digits, one with a covariance + 0.1 I less; Adam turns the
# rounding of a small gradient into that of a step, and ten steps add up; a cut of directions may fall elsewhere. psgld
# divides by 1e-5 + sqrt(V): where a gradient is as small as that, its rounding, 1e-7 of the summands, is a thousandth
# of P. mile takes its step size from changes of energy, differences of large numbers: three digits.
ALLOWED = {"float64": 1e-10, "float32": 1e-6}
AMPLIFIED = {"sge": 1e3, "ssge": 1e5, "psgld": 1e2, "mile": 1e3, "student": 1e2}


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def started(arguments, cache, number, victim=None, **failpoint):
    """The same command in so many processes; the victim's environment has a failpoint."""
    address = f"127.0.0.1:{free_port()}"
    team = ["--coordinator", address, "--num-processes", number, "--quiet"]
    return [
        runs.start([*arguments, *team, "--process-id", i], cache, **(failpoint if i == victim else {}), **runs.QUICK)
        for i in range(number)
    ]


def together(arguments, cache, number):
    """To its end, which is a good one."""
    processes = started(arguments, cache, number)
    answers = [process.communicate(timeout=600) for process in processes]
    assert [process.returncode for process in processes] == [0] * number, answers
    return answers


def weights(run):
    return safetensors.numpy.load_file(run / "ensemble.safetensors")


def close(run, other):
    for name, ours in weights(run).items():
        theirs = weights(other)[name]
        assert np.max(np.abs(ours - theirs)) <= 1e-10 * np.max(np.abs(theirs)), name


@pytest.fixture(scope="module")
def alone(tmp_path_factory, cache):
    """The run of one process on one device."""
    folder = tmp_path_factory.mktemp("alone")
    config = runs.write_config(folder, CONFIG)
    assert runs.run(["train", config, "--out", folder / "run", "--quiet"], cache, **runs.QUICK).returncode == 0
    return config, folder / "run"


@pytest.fixture(scope="module")
def pair(alone, cache):
    """The undisturbed run of two processes."""
    run = alone[1].with_name("pair")
    together(["train", alone[0], "--out", run], cache, 2)
    return run


def test_two_processes_are_one(alone, pair):
    """Catches rows lost between processes, a log written twice, and files that a single process cannot read."""
    close(pair, alone[1])
    ours, theirs = (
        [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()] for run in (pair, alone[1])
    )
    assert [row["step"] for row in ours] == [row["step"] for row in theirs] == [50, 100, 150, 200]
    assert len(list((pair / "checkpoints" / checkpoint.name_of(200)).glob("*.?-of-2.safetensors"))) == 4
    assert not runs.leftovers(pair)


def test_saved_on_four_devices_resumed_on_three_and_one(alone, tmp_path, cache):
    """Catches a checkpoint that depends on where it was written."""
    run = tmp_path / "run"
    half = ["--set", "train.steps=100", "--devices", "4"]
    assert runs.run(["train", alone[0], "--out", run, "--quiet", *half], cache, **runs.QUICK).returncode == 0
    for steps, devices in ((150, 3), (200, 1)):
        more = ["resume", run, "--steps", steps, "--devices", devices, "--quiet"]
        done = runs.run(more, cache, **runs.QUICK)
        assert done.returncode == 0, done.stderr
        assert f"devices used was 4 and is {devices}" in done.stderr
    close(run, alone[1])


def test_a_run_of_two_processes_resumed_by_one(alone, tmp_path, cache):
    """Catches parts of a checkpoint that only the processes that wrote them can put together."""
    run = tmp_path / "run"
    together(["train", alone[0], "--out", run, "--set", "train.steps=100"], cache, 2)
    done = runs.run(["resume", run, "--steps", 200, "--quiet"], cache, **runs.QUICK)
    assert done.returncode == 0, done.stderr
    close(run, alone[1])


@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_process(alone, pair, tmp_path, cache, victim):
    """Killed while it writes its part of the second checkpoint. Catches a half-written checkpoint taken for a whole
    one, a process that waits for the dead, and a resumed run that differs."""
    run = tmp_path / "run"
    point = f"particles.{victim}-of-2.safetensors.half:2"
    processes = started(["train", alone[0], "--out", run], cache, 2, victim, STEIN_FAILPOINT=point)
    _, said = processes[victim].communicate(timeout=600)
    assert processes[victim].returncode == 1
    assert "killed by SIGKILL; step 100 is saved" in said
    began = time.monotonic()
    _, said = processes[1 - victim].communicate(timeout=600)
    assert time.monotonic() - began < 60
    assert processes[1 - victim].returncode == 1
    errors = [line for line in said.splitlines() if not line.startswith("warning: ")]
    assert len(errors) == 1
    assert re.fullmatch(
        r"error: .*another process of this run has ended.*; step 100 is saved.*stein resume.*", errors[0]
    )
    (left,) = checkpoint.steps(run / "checkpoints")
    assert checkpoint.verify(left)["step"] == 100
    together(["resume", run], cache, 2)
    assert runs.result(run) == runs.result(pair)
    assert not runs.leftovers(run)


def test_the_whole_command_killed(alone, tmp_path, cache):
    """Catches a child that trains on when the command that the user sees is gone."""
    processes = started(["train", alone[0], "--out", tmp_path / "run", "--set", "train.steps=1000000"], cache, 2)
    runs.wait_for(tmp_path / "run" / "metrics.jsonl", processes[0], 300)
    processes[1].send_signal(signal.SIGKILL)
    began = time.monotonic()
    for process in processes:  # of the killed one: until its child has closed what it inherited
        process.communicate(timeout=120)
    assert processes[0].returncode == 1
    assert time.monotonic() - began < 60


def test_ctrl_c_in_one_process_stops_all(alone, tmp_path, cache):
    """Catches processes that do not agree when to stop, and wait for each other."""
    processes = started(["train", alone[0], "--out", tmp_path / "run", "--set", "train.steps=1000000"], cache, 2)
    runs.wait_for(tmp_path / "run" / "metrics.jsonl", processes[0], 300)
    processes[1].send_signal(signal.SIGINT)
    answers = [process.communicate(timeout=300)[1] for process in processes]
    assert [process.returncode for process in processes] == [143, 130]
    assert all("and saved; `stein resume" in said for said in answers)


@pytest.mark.parametrize("dtype", ALLOWED)
@pytest.mark.parametrize(("devices", "processes"), [(2, 1), (4, 1), (8, 1), (1, 2), (1, 3), (2, 2)])
def test_every_method_over_devices(devices, processes, dtype):
    """Seven members, ten steps. Catches a sum over one device's members, and noise that depends on the device."""
    address = f"127.0.0.1:{free_port()}"
    team = [[address, str(processes), str(i)] if processes > 1 else [] for i in range(processes)]
    command = [sys.executable, str(CHILD), str(devices), dtype, "all"]
    children = [
        subprocess.Popen([*command, *own], stdout=subprocess.PIPE, text=True, env=runs.environment(Path("unused")))
        for own in team
    ]
    for child in children:
        said, _ = child.communicate(timeout=3000)
        assert child.returncode == 0
        for name, found in json.loads(said.splitlines()[-1]).items():
            factor = max((times for kind, times in AMPLIFIED.items() if name.startswith(kind)), default=1.0)
            assert found <= ALLOWED[dtype] * factor, (name, found)
