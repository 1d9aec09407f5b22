"""Many ensembles for one table: trained in processes of their own, averaged over seeds, compared seed by seed.

A cell is one ensemble of a table. What it leaves behind is on disk, so that a run that was cut goes on with the cells
that are missing.
"""

import contextlib
import itertools
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, wait
from pathlib import Path
from typing import TypeVar

import numpy as np

from stein.experiments import config as configs
from stein.experiments import folder as folders
from stein.experiments import run, signals
from stein.experiments.run import use_compilation_cache
from stein.experiments.schema import Config
from stein.terminal import Begin

Numbers = dict[str, float]
Cell = TypeVar("Cell")


def in_processes(work: Callable[[Cell], None], cells: Sequence[Cell], workers: int, watch: Callable[[], None]) -> None:
    """``work`` on every cell, in so many processes of one thread each.

    A cell that fails does not keep the others from being finished; its error is raised when they are.

    Args:
        watch: called every second, to show how far they are.
    """
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), _prepare) as pool:
        futures = [pool.submit(_while_wanted, work, cell) for cell in cells]
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
    threading.Thread(target=_stop_with_parent, daemon=True).start()
    use_compilation_cache()


def _stop_with_parent() -> None:
    """A killed command leaves nobody behind who trains for nobody: each process saves and stops, as `kill` asks."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)


def _while_wanted(work: Callable[[Cell], None], cell: Cell) -> None:
    """A process has its next cell in hand already when the last one is stopped."""
    parent = multiprocessing.parent_process()
    if parent is None or parent.is_alive():
        work(cell)


def make_missing(
    work: Callable[..., None], missing: Mapping[Path, Cell], steps: int, workers: int, begin: Begin
) -> None:
    """``work`` on the cells that are missing, each a run in its directory, in so many processes.

    Args:
        work: called with a cell; with one process also with ``show=True``, to draw its own bar.
        steps: of all cells together.
    """
    if workers == 1:
        for cell in missing.values():
            work(cell, show=True)
    elif missing:
        tick = begin(f"{len(missing)} ensembles", steps)

        def watch() -> None:
            tick(sum(folders.read_json(place / "progress.json").get("step", 0) for place in missing))

        in_processes(work, list(missing.values()), min(workers, len(missing)), watch)


@contextlib.contextmanager
def trained(config: Config, place: Path, show: bool = False) -> Iterator[None]:
    """A run that is trained to its end, from wherever it was; inside, it is ours alone.

    Its ``seconds.json`` says how long that took, over all the times that it was begun again.
    """

    def warn(message: str) -> None:
        print(f"warning: {place.name}: {message}", file=sys.stderr)

    new, begun = not (place / "config.toml").exists(), time.monotonic()
    if not new and configs.load_run(place / "config.toml") != config:
        raise ValueError(f"{place}: was begun with other settings; delete it, or give another --out")
    with folders.claimed(place, new), signals.requests() as requests:
        try:
            if new:
                run.start(config, place, requests, show, warn)
            elif not folders.is_finished(place):
                run.resume(place, requests, show, warn)
        finally:
            _add_seconds(place, time.monotonic() - begun)
        yield


def seconds(place: Path) -> float:
    return round(folders.read_json(place / "seconds.json").get("seconds", 0.0), 1)


def _add_seconds(place: Path, more: float) -> None:
    path = place / "seconds.json"
    if place.exists():
        folders.write_json(path, {"seconds": folders.read_json(path).get("seconds", 0.0) + more})


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
