"""Steps of this checkout beside those of another commit, in turns: what all changes since then gained.

``python benchmarks/against.py COMMIT`` trains work M with every method below by both sources, each in a process of its
own, and writes results/against/COMMIT.json. A ratio below 1 says that this checkout is faster. The machine must do
nothing else.
"""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from harness import Side, paired

HERE = Path(__file__).resolve().parent
CASES = (("de", 50), ("w-svgd", 50), ("w-svgd", 20), ("fw-svgd", 50), ("h-svgd", 50))
STEPS, PAIRS = 40, 8


def serve(method: str, members: int) -> None:
    """Answer every line with the seconds of a step. Only what stein had before is used here."""
    import works

    work = works.work_m(members)
    steps = works.Steps(works.method(method, work), work, STEPS)
    for _ in sys.stdin:
        print(steps(), flush=True)


@contextlib.contextmanager
def steps_of(source: Path, method: str, members: int) -> Iterator[Side]:
    command = [sys.executable, __file__, "--serve", method, str(members)]
    environment = os.environ | {"PYTHONPATH": str(source / "src")}
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:

        def seconds() -> float:
            process.stdin.write("\n")
            process.stdin.flush()
            return float(process.stdout.readline())

        yield seconds
        process.stdin.close()


@contextlib.contextmanager
def checked_out(commit: str) -> Iterator[Path]:
    """The source of a commit, in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        git = ["git", "-C", str(HERE.parent), "worktree"]
        subprocess.run([*git, "add", "--detach", "-q", folder, commit], check=True)
        try:
            yield Path(folder)
        finally:
            subprocess.run([*git, "remove", "--force", folder], check=True)


def main(commit: str) -> None:
    from stein.runs.environment import environment

    found = environment()
    rows = []
    with checked_out(commit) as before:
        for method, members in CASES:
            with steps_of(HERE.parent, method, members) as ours, steps_of(before, method, members) as theirs:
                name = f"{method}, n = {members}: a step / one of {commit}"
                rows.append(paired(name, "work M", ours, theirs, None, PAIRS, unit="seconds per step"))
            print(f"{name:40} {rows[-1]['ratio']:.3f}", flush=True)
    machine = {name: found[name] for name in ("jax", "platform", "CPU", "instructions", "CPU threads")}
    path = HERE.parent / "results" / "against" / f"{commit}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    about = {"command": f"python benchmarks/against.py {commit}", "machine": machine, "rows": rows}
    path.write_text(json.dumps(about, indent=1) + "\n")


if __name__ == "__main__":
    serve(sys.argv[2], int(sys.argv[3])) if sys.argv[1] == "--serve" else main(sys.argv[1])
