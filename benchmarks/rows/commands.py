"""P7 and P13: whole commands as a user runs them. Minutes and seconds, not ratios."""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from harness import row

from stein.paper import variants

REPEATS = 7
COMMAND = str(Path(sys.executable).with_name("stein"))

# What `stein train` does until its first step is done; it prints the time.
FIRST_STEP = """
import pathlib, sys, time
import jax
from stein import train
from stein.runs import configs
from stein.runs.build import assemble
parts = assemble(configs.load(pathlib.Path(sys.argv[1])))
state = train.begin(parts.algorithm, jax.random.key(0), 50)
train.run(parts.algorithm, state, parts.batches, 1)
print(time.time())
"""


def start_up() -> list[dict]:
    """P13: the help, the first step of training, and what the compilation cache saves."""

    def timed(*arguments: str, **extra: str) -> float:
        began = time.perf_counter()
        subprocess.run([COMMAND, *arguments], check=True, capture_output=True, env=os.environ | extra)
        return time.perf_counter() - began

    helped = min(timed("--help") for _ in range(REPEATS))
    cold, warm, first = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "toy.toml"
        config.write_text('[data]\nname = "regression-1d"\n[method]\nname = "w-svgd"\nparticles = 50\n'
                          "[train]\nsteps = 1\nlog_every = 1\nbatch_size = 64\n[checkpoints]\nevery = 1\n")  # fmt: skip
        for i in range(5):
            cache = f"{folder}/cache{i}"
            for taken, name in ((cold, "cold"), (warm, "warm")):
                taken.append(timed("train", str(config), "--out", f"{folder}/{name}{i}", XDG_CACHE_HOME=cache))
            began = time.time()
            script = [sys.executable, "-c", FIRST_STEP, str(config)]
            done = subprocess.run(script, check=True, capture_output=True, text=True)
            first.append(float(done.stdout) - began)
    size = "w-svgd, 1-50-50-1, n = 50, B = 64; no compilation cache"
    whole = "a whole `stein train` of one step, diagnostics, checkpoint and export included"
    return [
        row("P13 stein --help", "seconds", helped, 1.0, 0.5),
        row("P13 first training step", f"{size}; seconds from launch", statistics.median(first), 1.0, 5.0),
        row("P13 second run / first run", whole, statistics.median(warm), statistics.median(cold), 1.0),
    ]


def regression_figure() -> list[dict]:
    """P7: every method of the regression figure, one seed, at the paper's settings, against the committed posterior."""
    columns = [variant.label for variant in variants.DETERMINISTIC if variant.column]
    with tempfile.TemporaryDirectory() as folder:
        where = ["--tasks", "regression", "--seeds", "42", "--out", folder, "--methods", *columns]
        began = time.perf_counter()
        subprocess.run([COMMAND, "reproduce", "fig1", *where], check=True, capture_output=True)
        taken = time.perf_counter() - began
    size = f"{', '.join(columns)}: 50 members, 10,000 steps"
    return [row("P7 regression figure, minutes", size, taken / 60, 1.0, 3.0, unit="minutes")]
