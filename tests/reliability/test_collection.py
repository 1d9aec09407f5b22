"""R26: what the tests are called depends on nothing but their source. The workers of pytest-xdist must agree on it."""

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

import mutants

TESTS = Path(__file__).parent.parent


def collect() -> list[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    command = [sys.executable, "-m", "pytest", "--collect-only", "--assert=plain", "-p", "no:cacheprovider", str(TESTS)]
    environment = kept | {"PYTHONHASHSEED": "1", "STEIN_TESTS_UNCHECKED": "1"}
    done = subprocess.run(command, env=environment, cwd=TESTS.parent, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-2000:]
    return [line for line in done.stdout.splitlines() if "::" in line]


def by_file(nodeids: Iterable[str]) -> dict[str, list[str]]:
    """In the order within each file: files may be given in any."""
    found: dict[str, list[str]] = {}
    for nodeid in nodeids:
        found.setdefault(nodeid.partition("::")[0], []).append(nodeid)
    return found


def test_ids_do_not_depend_on_the_time_or_the_order_of_sets(request: pytest.FixtureRequest) -> None:
    """The tests of this run, whose hashes Python has drawn at random, are collected again, seconds later and with other
    hashes, in the same order. Catches a compressed file that holds the time, an address, a temporary path or a set in
    an id."""
    here = [item.nodeid for item in request.session.items]
    chosen = set(here)
    again = collect()
    assert len(again) > 1000
    assert by_file(nodeid for nodeid in again if nodeid in chosen) == by_file(here)


def test_every_mutant_fits_the_source():
    """Catches an edit of the source after which a bug can no longer be planted. Mutants do not run this test."""
    for name, (file, *edits) in mutants.MUTANTS.items():
        text = (mutants.ROOT / "src" / "stein" / file).read_text()
        assert all(old in text for old, _ in edits), name
