"""`stein predict` on a file that is larger than the memory it may take."""

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from runs import anonymous_memory, environment, run

COLUMNS, BYTES, ROWS_A_BLOCK = 100, 2_000_000_000, 2_000
MOST = 1_000_000_000


def write_rows(path: Path, least_bytes: int) -> int:
    """Rows of 100 numbers with 17 digits; the same two thousand again and again, which reading cannot know."""
    values = np.random.default_rng(0).normal(size=(ROWS_A_BLOCK, COLUMNS))
    block = "".join(",".join(f"{value:.16e}" for value in row) + "\n" for row in values).encode()
    rows = 0
    with path.open("wb") as file:
        file.write((",".join(f"x{i}" for i in range(COLUMNS)) + "\n").encode())
        while file.tell() < least_bytes:
            file.write(block)
            rows += ROWS_A_BLOCK
    return rows


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc")
def test_two_gigabytes_in_less_than_one(tmp_path: Path, cache: Path) -> None:
    """Catches a table, its texts or its predictions that are held in memory all at once."""
    random = np.random.default_rng(1)
    x = random.normal(size=(200, COLUMNS))
    lines = [",".join([*map(str, row), str(y)]) for row, y in zip(x.tolist(), x[:, 0].tolist(), strict=True)]
    header = ",".join([*(f"x{i}" for i in range(COLUMNS)), "y"])
    (tmp_path / "t.csv").write_text("\n".join([header, *lines]) + "\n")
    options = ["--target", "y", "--steps", "100", "--out", tmp_path / "run", "--quiet"]
    done = run(["fit", tmp_path / "t.csv", *options], cache)
    assert done.returncode == 0, done.stderr
    large, out = tmp_path / "large.csv", tmp_path / "out.csv"
    try:
        rows = write_rows(large, BYTES)
        command = [sys.executable, "-m", "stein.cli", "predict", tmp_path / "run", large, "--out", out]
        start, peak = time.monotonic(), 0
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        process = subprocess.Popen(command, env=environment(cache), **quiet)
        while process.poll() is None:
            peak = max(peak, anonymous_memory(process.pid))
            time.sleep(0.05)
        minutes = (time.monotonic() - start) / 60
        size = large.stat().st_size
    finally:
        large.unlink(missing_ok=True)
    assert process.returncode == 0
    print(f"{size / 1e9:.2f} GB, {rows} rows in {minutes:.1f} minutes; peak RssAnon {peak / 1e6:.0f} MB")
    assert 0 < peak < MOST
    with out.open("rb") as file:
        assert sum(1 for _ in file) == rows + 1
    os.unlink(out)
