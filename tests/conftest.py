"""Every test runs in strict mode: no silent dtype or rank promotion, shapes checked, four simulated devices."""

import ctypes
import gc
import json
import os
import resource
import sys
from collections.abc import Iterator

import runs

# Tests that run longer ask for more effort themselves, and XLA's own settings, which users run, are tested in processes
# of their own.
os.environ["XLA_FLAGS"] = " ".join(
    [os.environ.get("XLA_FLAGS", ""), "--xla_force_host_platform_device_count=4", runs.QUICK["XLA_FLAGS"]]
)
os.environ["MPLBACKEND"] = "Agg"

from pathlib import Path

import jax
import pytest
from hypothesis import HealthCheck, settings

import checked

jax.config.update("jax_enable_x64", True)  # exact identities are checked to 1e-10; float32 tests cast
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")

if "STEIN_TESTS_UNCHECKED" not in os.environ:  # where they are only collected
    checked.install("stein")

# The same examples everywhere, however slow the machine.
settings.register_profile("same", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("same")


MEMORY = 1.5e9
"""Bytes that a worker of ``make test`` may take, its child processes not counted."""


def forget() -> None:
    """Drop all compiled programs, which together are gigabytes, and give their memory back."""
    jax.clear_caches()
    gc.collect()
    if hasattr(libc := ctypes.CDLL(None), "malloc_trim"):
        libc.malloc_trim(0)  # else glibc keeps what was freed


def memory_now() -> int:
    statm = Path("/proc/self/statm")
    return int(statm.read_text().split()[1]) * resource.getpagesize() if statm.exists() else 0


def peak_memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


@pytest.fixture(autouse=True)
def _forget_in_time() -> Iterator[None]:
    """Compiling again costs seconds: only where the worker has come three quarters of the way to the limit."""
    yield
    if memory_now() > MEMORY * 3 / 4:
        forget()


@pytest.fixture(autouse=True, scope="module")
def _little_memory(request: pytest.FixtureRequest) -> Iterator[None]:
    """The module that takes more memory than there is is named. It begins with at least half of the memory free."""
    if memory_now() > MEMORY / 2:
        forget()
    before = peak_memory()
    yield
    peak = peak_memory()
    long = any(item.get_closest_marker("long") for item in request.session.items)
    assert long or peak <= max(MEMORY, before), f"{request.node.nodeid} took the worker to {peak / 1e9:.2f} GB"


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compiled programs of the training processes that tests start, shared by the workers of pytest-xdist."""
    return tmp_path_factory.getbasetemp().parent / "cache"


@pytest.fixture(autouse=True, scope="session")
def _compiled_once(cache: Path) -> None:
    """What one worker has compiled, or has forgotten, is not compiled again."""
    if "JAX_COMPILATION_CACHE_DIR" in os.environ:  # as tests/mutants.py has it
        return
    jax.config.update("jax_compilation_cache_dir", str(cache / "tests"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What `make test-long` leaves behind: every test with its outcome, and the numbers that it printed."""
    path = os.environ.get("STEIN_TEST_RESULTS")
    if path is None:
        return
    reports = [r for kind in ("passed", "failed", "skipped", "error") for r in terminalreporter.stats.get(kind, [])]
    seconds = sum(report.duration for report in reports)
    tests = {
        report.nodeid: {"outcome": report.outcome, "printed": report.capstdout.splitlines()[:20]} for report in reports
    }
    counts = {kind: len(terminalreporter.stats.get(kind, [])) for kind in ("passed", "failed", "skipped")}
    result = {"command": "make test-long", **counts, "processor_minutes": round(seconds / 60, 1), "tests": tests}
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(json.dumps(result, indent=1, sort_keys=True) + "\n")
