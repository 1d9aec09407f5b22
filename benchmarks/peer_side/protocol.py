"""The other end of benchmarks/peers.py: a peer's problem, the direction that is checked, and its answers.

Run as ``python <script>.py problem.npz direction.npz threads ...``, in the peers' environment.
"""

import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

# Libraries print; the harness reads. So the answers have their own descriptor, and everything else goes to stderr.
ANSWERS = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)


class Problem:
    """Weights leaf by leaf, with a leading axis of particles, the data, and the rows of every batch."""

    def __init__(self, path: str):
        with np.load(path) as file:
            self.given = dict(file)
        self.leaves = [self.given[f"leaf{i}"] for i in range(sum(name.startswith("leaf") for name in self.given))]
        self.x, self.y, self.rows = (self.given.get(name) for name in ("x", "y", "rows"))
        self.members = len(self.leaves[0])
        self.rate = float(self.given["rate"])

    def number(self, name: str) -> float:
        return float(self.given[name])


def arguments() -> tuple[Problem, int, list[str]]:
    """The problem, the number of threads, and what else the row asks for."""
    return Problem(sys.argv[1]), int(sys.argv[3]), sys.argv[4:]


def fastest(ways: dict[str, Callable[[int], None]], rounds: int) -> tuple[str, dict[str, float]]:
    """The way whose steps take the shortest time here, and what the compilation of each took: a peer is measured at its
    best. The ways take turns, and the median of their rounds decides: a machine that slows down for a moment does not.
    """
    taken = {name: [] for name in ways}
    for t in range(1 + rounds):
        for name, step in ways.items():
            began = time.perf_counter()
            step(t)
            taken[name].append(time.perf_counter() - began)
    usual = {name: statistics.median(times[1:]) for name, times in taken.items()}
    return min(usual, key=usual.get), {name: times[0] - usual[name] for name, times in taken.items()}


def serve(
    name: str,
    direction: Sequence[np.ndarray],
    step: Callable[[int], None],
    finish: Callable[[], None] = lambda: None,
    compile_seconds: float | None = None,
) -> None:
    """Say what is ready, then do as many steps as each line says.

    Args:
        direction: of the first batch, from the weights of the problem, leaf by leaf.
        step: does step t.
        finish: waits until all steps are done.
        compile_seconds: if it is known. Default: what the first step takes longer than the second.
    """
    np.savez(Path(sys.argv[2]), **{f"leaf{i}": np.asarray(leaf) for i, leaf in enumerate(direction)})
    done = 0

    def seconds(steps: int) -> float:
        nonlocal done
        began = time.perf_counter()
        for _ in range(steps):
            step(done)
            done += 1
        finish()
        return time.perf_counter() - began

    first, second = seconds(1), seconds(1)
    compiled = max(0.0, first - second if compile_seconds is None else compile_seconds)
    print(json.dumps({"name": name, "compile_seconds": compiled}), file=ANSWERS, flush=True)
    for line in sys.stdin:
        print(seconds(int(line)), file=ANSWERS, flush=True)
