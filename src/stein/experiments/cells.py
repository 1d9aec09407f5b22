"""Many ensembles for one table: trained in processes of their own, averaged over seeds, compared seed by seed.

A cell is one ensemble of a table. What it leaves behind is on disk, so that a run that was cut goes on with the cells
that are missing.
"""

import itertools
import multiprocessing
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, wait
from typing import TypeVar

import numpy as np

from stein.experiments.run import use_compilation_cache

Numbers = dict[str, float]
Begin = Callable[[str, int], Callable[[int], None]]
"""Called with the words for a piece of work and its length; returns what is told how much is done."""
Cell = TypeVar("Cell")


def in_processes(work: Callable[[Cell], None], cells: Sequence[Cell], workers: int, watch: Callable[[], None]) -> None:
    """``work`` on every cell, in so many processes of one thread each.

    A cell that fails does not keep the others from being finished; its error is raised when they are.

    Args:
        watch: called every second, to show how far they are.
    """
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), _prepare) as pool:
        futures = [pool.submit(work, cell) for cell in cells]
        try:
            while wait(futures, timeout=1).not_done:
                watch()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    watch()
    for error in filter(None, (future.exception() for future in futures)):
        raise error


def _prepare() -> None:
    """In each process, before it computes anything."""
    os.environ["NPROC"] = "1"  # read by XLA when it makes its thread pool
    use_compilation_cache()


def summary(rows: Iterable[Numbers]) -> dict[str, tuple[float, float | None]]:
    """Mean and standard error (n - 1) of every number over seeds; a single seed has no error."""
    rows = list(rows)
    columns = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    error = len(rows) ** -0.5
    return {
        name: (float(v.mean()), float(v.std(ddof=1) * error) if len(rows) > 1 else None) for name, v in columns.items()
    }


def with_error(value: float, error: float | None, digits: int = 2) -> str:
    """A number as it stands in a table."""
    return f"{value:.{digits}f}" + ("" if error is None else f" ± {error:.{digits}f}")


def paired(larger: Sequence[float], smaller: Sequence[float]) -> dict[str, float | None]:
    """Is one method's number larger than the other's? Over the same seeds, by flipping signs.

    ``p`` is the probability of so large a mean difference if the sign of every seed's difference were a coin's: exact,
    without assuming a distribution, and never below 2**-seeds.
    """
    difference = np.array(larger) - np.array(smaller)
    flips = np.array(list(itertools.product((1.0, -1.0), repeat=len(difference))))
    p = float(np.mean(flips @ difference >= difference.sum() - 1e-12))
    error = float(difference.std(ddof=1) / len(difference) ** 0.5) if len(difference) > 1 else None
    return {"difference": float(difference.mean()), "error": error, "p": p}
