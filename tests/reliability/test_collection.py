"""R26: what the tests are called depends on nothing but their source. The workers of pytest-xdist must agree on it."""

import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parent.parent


def collect(hash_seed: str) -> list[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    command = [sys.executable, "-m", "pytest", "--collect-only", "-p", "no:cacheprovider", str(TESTS)]
    environment = kept | {"PYTHONHASHSEED": hash_seed, "STEIN_TESTS_UNCHECKED": "1"}
    done = subprocess.run(command, env=environment, cwd=TESTS.parent, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-2000:]
    return [line for line in done.stdout.splitlines() if "::" in line]


def test_ids_do_not_depend_on_the_time_or_the_order_of_sets() -> None:
    """One collection after another, seconds apart, with different hashes. Sees a compressed file that holds the time,
    an address, a temporary path and a set in an id."""
    first, second = collect("1"), collect("2")
    assert len(first) > 1000
    assert first == second
