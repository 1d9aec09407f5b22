"""Other libraries, each in a process of its own that holds its work compiled and does steps when it is asked to.

They live in benchmarks/.peers, an environment that this module makes once: nothing that the library is measured against
is installed beside it. A process of benchmarks/peer_side reads its problem from one file, writes the direction of its
first step to another, says that it is ready, and then answers every number of steps with the seconds that they took.
"""

import importlib.metadata
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import jax
import numpy as np

from stein.runs.environment import facts

HERE = Path(__file__).parent
PLACE = HERE / ".peers"
# The same jax as ours: what differs is the library, not the compiler. jaxlib 0.10.2 and 0.11 sum wrongly on a CPU.
SOUND = "!=0.10.2,!=0.11.*"
PACKAGES = (
    "torch==2.13.0",
    "blackjax==1.7.1",
    "numpyro==0.22.*",
    "pyro-ppl==1.9.2",
    *(f"{name}=={importlib.metadata.version(name)},{SOUND}" for name in ("jax", "jaxlib")),
)
TOLERANCE = 1e-5
"""Of |ours - theirs| / |ours|, over all particles. Both sum up to thousands of float32 products in different orders: a
relative error of 2^-24 times the root of their number, 5e-6."""


def environment() -> Path:
    """The python of the peers; made, with a stamp of what is in it, when it is not there."""
    python, stamp = PLACE / "bin" / "python", PLACE / "packages.txt"
    wanted = "\n".join(PACKAGES) + "\n"
    if not (stamp.exists() and stamp.read_text() == wanted):
        print(f"making the peers' environment in {PLACE.relative_to(HERE.parent)}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", str(PLACE)], check=True)
        install = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", *PACKAGES]
        subprocess.run(install, check=True)
        stamp.write_text(wanted)
    return python


def threads() -> int:
    """Of our side, and so of every peer's."""
    return int(facts()["CPU threads"])


class Peer:
    """A process that does steps: a context, and inside of it a side of a comparison."""

    def __init__(self, script: str, *arguments: str, problem: dict[str, Any], steps: int):
        self.command = [script, *arguments]
        self.problem, self.steps = problem, steps

    def __enter__(self) -> "Peer":
        self._folder = tempfile.TemporaryDirectory()
        given, found = (Path(self._folder.name) / name for name in ("problem.npz", "direction.npz"))
        np.savez(given, **self.problem)
        count = str(threads())
        equal = dict.fromkeys(("NPROC", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), count)
        fresh = {"TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"}  # compilation takes what it takes the first time
        script, *arguments = self.command
        self._process = subprocess.Popen(
            [environment(), HERE / "peer_side" / f"{script}.py", given, found, count, *arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | equal | fresh,
        )  # fmt: skip
        try:
            said = json.loads(self._answer())
        except BaseException:
            self.__exit__()
            raise
        self.name, self.compile_seconds = said["name"], said["compile_seconds"]
        with np.load(found) as file:
            self.direction = [file[f"leaf{i}"] for i in range(len(file.files))]
        return self

    def __call__(self) -> float:
        """Seconds for a step."""
        self._process.stdin.write(f"{self.steps}\n")
        self._process.stdin.flush()
        return float(self._answer()) / self.steps

    def agreement(self, ours: Any, tolerance: float = TOLERANCE) -> float:
        """|ours - theirs| / |ours| over all leaves of the direction; an error if the peer does not compute the same."""
        leaves = [np.asarray(leaf, float) for leaf in jax.tree.leaves(ours)]
        apart = sum(np.sum((a - b) ** 2) for a, b in zip(leaves, self.direction, strict=True))
        relative = float(np.sqrt(apart / sum(np.sum(a**2) for a in leaves)))
        if not relative < tolerance:
            raise ValueError(
                f"the direction of {self.name} is {relative:.2g} of its size off ours, over {tolerance:.2g}"
            )
        return relative

    def _answer(self) -> str:
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the peer {' '.join(self.command)} ended; what it said is above")
        return line

    def __exit__(self, *error: object) -> None:
        self._process.stdin.close()  # the end of its questions is the end of the process
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._folder.cleanup()
