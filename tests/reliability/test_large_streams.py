"""Training on files that are larger than the memory it may take, killed and resumed."""

import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

import runs

COLUMNS, ROWS, ROWS_A_BLOCK = 128, 3_000_000, 50_000  # 1.54 GB in float32
MOST = 700_000_000
CONFIG = """
[data]
stream = true
inputs = "x.npy"
targets = "y.npy"
[method]
particles = 4
[model]
hidden = [16]
[train]
steps = 600
log_every = 50
[evaluation]
every = 300
[checkpoints]
every = 100
keep = 10
"""


def write_rows(folder: Path) -> None:
    """Block by block; every block has another mean, so that the order of rows matters."""
    random = np.random.default_rng(0)
    values = random.normal(size=(ROWS_A_BLOCK, COLUMNS)).astype(np.float32)
    x = np.lib.format.open_memmap(folder / "x.npy", "w+", np.float32, (ROWS, COLUMNS))
    y = np.lib.format.open_memmap(folder / "y.npy", "w+", np.float32, (ROWS,))
    for start in range(0, ROWS, ROWS_A_BLOCK):
        block = values + np.float32(start / ROWS)
        x[start : start + ROWS_A_BLOCK] = block
        y[start : start + ROWS_A_BLOCK] = block[:, :3].sum(axis=1)


def peak_of(process: subprocess.Popen) -> int:
    peak = 0
    while process.poll() is None:
        peak = max(peak, runs.anonymous_memory(process.pid))
        time.sleep(0.02)
    process.communicate()
    return peak


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc")
def test_a_large_stream_is_killed_and_goes_on_in_little_memory(tmp_path: Path, cache: Path) -> None:
    """Catches data that are held in memory or read from the start again, and a resumed run with other batches."""
    config = runs.write_config(tmp_path, CONFIG)
    try:
        write_rows(tmp_path)
        size = (tmp_path / "x.npy").stat().st_size
        whole = runs.start(["train", config, "--out", tmp_path / "whole", "--quiet"], cache)
        peaks = [peak_of(whole)]
        assert whole.returncode == 0
        arguments = ["train", config, "--out", tmp_path / "killed", "--quiet"]
        killed = runs.start(arguments, cache, STEIN_FAILPOINT="particles.safetensors.half:4")
        peaks.append(peak_of(killed))
        assert killed.returncode == -signal.SIGKILL
        assert (tmp_path / "killed" / "checkpoints" / "step-00000300").exists()
        resumed = runs.start(["resume", tmp_path / "killed", "--quiet"], cache)
        peaks.append(peak_of(resumed))
        assert resumed.returncode == 0
    finally:
        for name in ("x.npy", "y.npy"):
            (tmp_path / name).unlink(missing_ok=True)
    print(f"{size / 1e9:.2f} GB; peaks of RssAnon {', '.join(f'{peak / 1e6:.0f} MB' for peak in peaks)}")
    assert 0 < max(peaks) < MOST < size
    assert runs.result(tmp_path / "killed") == runs.result(tmp_path / "whole")
