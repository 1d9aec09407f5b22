"""Runs the tests as other machines would: other instruction sets, other numbers of threads, a busy processor.

``make test-machines`` writes ``results/test-machines``: for each configuration what passed, failed and was skipped, and
the instruction sets that this processor does not have. ``python tests/machines.py NAME ...`` runs some configurations
only, and brings the result up to date for these; a row's ``commit`` says which source and tests it is about.
"""

import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parent.parent
OUT = ROOT / "results" / "test-machines" / "test-machines.json"
NUMBERS = ["tests/unit", "tests/contract", "tests/statistical"]  # what can depend on the order of a sum
PYTEST = [sys.executable, "-m", "pytest", "-n", "2", "--dist", "loadfile", "--no-header", "-m", "not long"]
FLAGS = {"SSE4_2": "sse4_2", "AVX2": "avx2", "AVX512": "avx512f"}  # XLA's name: the kernel's, in /proc/cpuinfo
THREADS = {"1 thread": "1", "4 threads": "4"}  # of XLA's pool; two processes run side by side in any case
BUSY = "busy"
NAMES = [*FLAGS, *THREADS, BUSY]


def missing() -> list[str]:
    """The instruction sets that this processor does not have."""
    about = Path("/proc/cpuinfo")
    found = re.search(r"^flags\s*:(.*)$", about.read_text() if about.exists() else "", re.MULTILINE)
    flags = found[1].split() if found else []
    return [name for name, flag in FLAGS.items() if flag not in flags]


def setting(name: str) -> dict[str, str]:
    """The environment variables of a configuration."""
    if name in FLAGS:
        return {"XLA_FLAGS": f"--xla_cpu_max_isa={name}"}
    return {"NPROC": THREADS[name]} if name in THREADS else {}


def counts(output: str) -> dict[str, int]:
    """Numbers of tests by outcome, from the last lines of all runs of pytest in this output."""
    total = Counter({"passed": 0, "failed": 0, "skipped": 0})
    for line in re.findall(r"^(?:=+ )?(\d+ [a-z]+.*) in [\d.]+s", output, re.MULTILINE):
        for number, outcome in re.findall(r"(\d+) (passed|failed|skipped|error)", line):
            total["failed" if outcome == "error" else outcome] += int(number)
    return dict(total)


def run(name: str) -> dict:
    """One configuration, to its end: a row of the result."""
    command = ["make", "test"] if name == BUSY else [*PYTEST, *NUMBERS]
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2 if name == BUSY else 0)]
    began = time.monotonic()
    try:
        environment = os.environ | setting(name)
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    finally:
        for other in others:
            other.kill()
            other.wait()
    row = {
        "configuration": name,
        "setting": " ".join(f"{key}={value}" for key, value in setting(name).items())
        or "two other processes keep the processor busy",
        "tests": "make test" if name == BUSY else " ".join(NUMBERS),
        **counts(done.stdout),
        "minutes": round((time.monotonic() - began) / 60, 1),
    }
    row["ok"] = done.returncode == 0 and row["failed"] == 0 and row["passed"] > 0
    if not row["ok"]:
        print(done.stdout[-10_000:] + done.stderr[-2_000:])
    return row


def main(names: list[str]) -> int:
    if unknown := [name for name in names if name not in NAMES]:
        print(f"error: {unknown[0]!r}: must be one of {', '.join(NAMES)}", file=sys.stderr)
        return 2
    absent = missing()
    before = json.loads(OUT.read_text())["configurations"] if names and OUT.exists() else []
    rows = {row["configuration"]: row for row in before}
    git = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    for name in names or NAMES:
        if name in absent:
            print(f"{name:10} not on this CPU", flush=True)
            rows.pop(name, None)
            continue
        row = rows[name] = run(name) | {"commit": commit}
        print(
            f"{name:10} {row['passed']} passed, {row['failed']} failed, {row['skipped']} skipped, "
            f"{row['minutes']} minutes{'' if row['ok'] else ': FAILED'}",
            flush=True,
        )
        ordered = [rows[known] for known in NAMES if known in rows]
        result = {"command": "make test-machines", "not_on_this_cpu": absent, "configurations": ordered}
        OUT.parent.mkdir(parents=True, exist_ok=True)
        OUT.write_text(json.dumps(result, indent=2) + "\n")
    bad = [name for name, row in rows.items() if not row["ok"]]
    left = [name for name in NAMES if name not in rows and name not in absent]
    print(f"failed: {', '.join(bad)}" if bad else f"all pass{', not run: ' + ', '.join(left) if left else ''}")
    return int(bool(bad or left))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
