"""Real training processes for the reliability tests: started, killed, resumed, compared."""

import contextlib
import hashlib
import io
import os
import random
import signal
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

STEIN = Path(sys.executable).with_name("stein")
# As in a terminal, even where the tests themselves run in the background, where Ctrl-C is ignored.
HEARING_SIGNALS = [
    sys.executable,
    "-c",
    "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); os.execv(sys.argv[1], sys.argv[1:])",
]
# What tests set for themselves, and what JAX sets when it is imported: it would let XLA talk in our children.
HIDDEN = ("XLA_FLAGS", "STEIN_FAILPOINT", "TF_CPP_MIN_LOG_LEVEL")
# For what compiles for seconds and runs for milliseconds. XLA aborts where it does not know a flag.
QUICK = {
    "NPROC": "1",
    "XLA_FLAGS": "--xla_backend_optimization_level=0"
    + (" --xla_cpu_use_fusion_emitters=false" if version("jaxlib").startswith("0.10.") else ""),
}
# The trials of a search: a second each.
SEARCH = """
[base.data]
name = "digits"
classes = [0, 1]
[base.method]
name = "de"
particles = 2
[base.model]
hidden = [4]
[base.train]
steps = {steps}
batch_size = 16
log_every = 10
[base.evaluation]
every = {evaluated}
[base.checkpoints]
every = {saved}
[base.tracking]
diagnostics = false
tensorboard = false
"""
# Small networks and many checkpoints: the process spends its time where a crash hurts.
CONFIG = """
[data]
name = "regression-1d"
[method]
particles = 4
[model]
hidden = [8]
[train]
steps = 12000
batch_size = 16
log_every = 50
[evaluation]
every = 500
[checkpoints]
every = 100
keep = 2
best = true
[tracking]
diagnostics = false
"""
# fmt: off
METHODS = {
    "w-svgd": ["--method", "w-svgd"],
    "de": ["--method", "de", "--set", "tracking.diagnostics=true"],
    "sampler": ["--method", "w-svgd", "--stochastic"],
    "sghmc": ["--method", "sghmc", "--set", "method.draws=10", "--set", "method.thin=7"],
    "mile": ["--method", "mile", "--set", "train.batch_size=0", "--set", "method.burn_in=6000",
             "--set", "method.tuning_steps=3000", "--set", "method.draws=40", "--set", "method.thin=30"],
}
# fmt: on
# Every place where the process writes something that it needs again.
FAILPOINTS = [
    *(
        f"{name}.{place}"
        for name in ("particles.safetensors", "opt.safetensors", "rng.safetensors", "manifest.json")
        for place in ("open", "half", "written", "synced")
    ),
    *(f"folder.{place}" for place in ("rename", "renamed", "remove", "hidden", "removed")),
    *(f"metrics.jsonl.{place}" for place in ("open", "half", "written")),
]  # fmt: skip
LAST_FAILPOINTS = [
    f"{name}.{place}"
    for name in ("ensemble.safetensors", "card.md", "metrics.json")
    for place in ("open", "half", "written", "rename", "renamed")
]


def stein(*arguments: str, **extra: str) -> subprocess.CompletedProcess[str]:
    """A command as a user gives it, to its end."""
    plain = {key: value for key, value in os.environ.items() if key not in ("XLA_FLAGS", "COLUMNS")}
    return subprocess.run([STEIN, *arguments], capture_output=True, text=True, env=plain | extra, timeout=600)


class Said(NamedTuple):
    """The exit code of a command, and the lines that it wrote."""

    code: int
    out: list[str]
    err: list[str]


def here(*arguments: object) -> Said:
    """A command in this process, which the tests' type checker watches."""
    import jax  # not before the tests have set its flags

    from stein import cli

    out, err = io.StringIO(), io.StringIO()
    before = jax.config.jax_enable_x64
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = cli.main([str(argument) for argument in arguments])
    jax.config.update("jax_enable_x64", before)  # what a float32 run turns off
    return Said(code, out.getvalue().splitlines(), err.getvalue().splitlines())


def anonymous_memory(pid: int) -> int:
    """RssAnon of a process in bytes; 0 when it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("RssAnon")), 0)


def environment(cache: Path, **extra: str) -> dict[str, str]:
    """A user's, not a test's: one device, usual compilation, a cache that all processes share."""
    kept = {name: value for name, value in os.environ.items() if name not in HIDDEN}
    return kept | {"XDG_CACHE_HOME": str(cache)} | extra


def start(arguments: list, cache: Path, **extra: str) -> subprocess.Popen:
    command = [*HEARING_SIGNALS, STEIN, *map(str, arguments)]
    return subprocess.Popen(
        command, env=environment(cache, **extra), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def run(arguments: list, cache: Path, timeout: float = 600, **extra: str) -> subprocess.CompletedProcess:
    command = [STEIN, *map(str, arguments)]
    return subprocess.run(command, env=environment(cache, **extra), capture_output=True, text=True, timeout=timeout)


def write_config(folder: Path, text: str = CONFIG) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "config.toml"
    path.write_text(text)
    return path


def wait_for(path: Path, process: subprocess.Popen, seconds: float = 120) -> None:
    """Until the file is there and not empty."""
    end = time.monotonic() + seconds
    while not (path.exists() and path.stat().st_size):
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < end, f"{path} does not appear"
        time.sleep(0.005)


def result(run: Path) -> dict[str, str]:
    """SHA-256 of everything that must not depend on how often a run was killed."""
    last = max((run / "checkpoints").glob("step-*"), key=lambda path: path.name)
    files = [*last.glob("*.safetensors"), run / "metrics.jsonl", run / "metrics.json", run / "ensemble.safetensors"]
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def leftovers(run: Path) -> list[str]:
    return [str(path) for path in run.rglob(".tmp-*")]


def kill_chain(folder: Path, config: Path, method: str, kills: int, seed: int, cache: Path) -> dict:
    """One run, killed ``kills`` times with SIGKILL, half of them at random times, and resumed to its end.

    Returns where it was killed and what came out of it.
    """
    chooser = random.Random(seed)
    places = chooser.sample(FAILPOINTS, min(kills, len(FAILPOINTS)))
    arguments = ["train", config, *METHODS[method], "--out", folder, "--quiet"]
    killed: list[str] = []
    while len(killed) < kills:
        if len(killed) % 2:
            place = f"{places[len(killed) % len(places)]}:{chooser.randint(1, 3)}"
            process = start(arguments, cache, STEIN_FAILPOINT=place)
            process.wait(timeout=120)
        else:
            process = start(arguments, cache)
            if len(killed) % 4:  # at any time from the launch on: imports, compilation
                delay = chooser.uniform(0.05, 3.0)
                place = f"{delay:.2f} s after launch"
            else:  # while it trains
                lines = folder / "metrics.jsonl"
                before = lines.stat().st_size if lines.exists() else 0
                while process.poll() is None and not (lines.exists() and lines.stat().st_size != before):
                    time.sleep(0.002)
                delay = chooser.uniform(0.0, 0.4)
                place = f"{delay:.2f} s after the first log"
            time.sleep(delay)
            process.send_signal(signal.SIGKILL)
            process.wait(timeout=10)
        process.communicate()
        if process.returncode != -signal.SIGKILL:  # it was done before the blow fell
            break
        killed.append(place)
        if (folder / "config.toml").exists():
            arguments = ["resume", folder, "--quiet"]
    last = run(arguments, cache)
    assert last.returncode == 0, last.stderr
    return {"killed": killed, "result": result(folder), "leftovers": leftovers(folder), "stderr": last.stderr}
