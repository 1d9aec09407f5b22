"""Many ensembles, each trained in its own process.

A cell is one ensemble of a table. Its results are on disk, so that an interrupted command continues with the missing
cells.
"""

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, wait
from pathlib import Path
from typing import TypeVar

from stein.datasets.fetch import Progress
from stein.runs import configs, signals, training
from stein.runs.environment import use_compilation_cache
from stein.runs.folder import RunFolder
from stein.runs.schema import Config
from stein.storage import documents

Cell = TypeVar("Cell")


def in_processes(work: Callable[[Cell], None], cells: Sequence[Cell], workers: int, watch: Callable[[], None]) -> None:
    """Call ``work`` on every cell, in ``workers`` processes with one thread each.

    If a cell fails, the others still finish; then its error is raised.

    Args:
        watch: called every second, to show progress.
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
    """Initialise a worker process."""
    os.environ["NPROC"] = "1"  # read by XLA when it makes its thread pool
    threading.Thread(target=_stop_with_parent, daemon=True).start()
    use_compilation_cache()


def _stop_with_parent() -> None:
    """Workers stop when their parent is killed: each saves a checkpoint and exits, as on SIGTERM."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)


def _while_wanted(work: Callable[[Cell], None], cell: Cell) -> None:
    """Skip the cell if the parent is dead: a worker may already have fetched its next cell."""
    parent = multiprocessing.parent_process()
    if parent is None or parent.is_alive():
        work(cell)


def make_missing(
    work: Callable[..., None], missing: Mapping[Path, Cell], steps: int, workers: int, begin: Progress
) -> None:
    """Call ``work`` on the missing cells, each a run in its own directory, in ``workers`` processes.

    Args:
        work: called with a cell; with one worker also with ``show=True``, to draw its own bar.
        steps: total over all cells.
    """
    if workers == 1:
        for cell in missing.values():
            work(cell, show=True)
    elif missing:
        tick = begin(f"{len(missing)} ensembles", steps)

        def watch() -> None:
            tick(sum(documents.read_json(RunFolder(place).progress).get("step", 0) for place in missing))

        in_processes(work, list(missing.values()), min(workers, len(missing)), watch)


@contextlib.contextmanager
def trained(config: Config, place: Path, show: bool = False) -> Iterator[None]:
    """Train a run to its end, from wherever it was; inside the context it is locked.

    Its ``seconds.json`` has the training time, summed over all attempts.
    """

    def warn(message: str) -> None:
        print(f"warning: {place.name}: {message}", file=sys.stderr)

    folder, begun = RunFolder(place), time.monotonic()
    new = folder.state == "new"
    if not new and configs.load_run(folder.config) != config:
        raise ValueError(f"{place}: was begun with other settings; delete it, or give another --out")
    with folder.claimed(new), signals.requests() as requests:
        try:
            if new:
                training.start(config, folder, requests, show, warn)
            elif not folder.is_finished:
                training.resume(folder, requests, show, warn)
        finally:
            _add_seconds(folder, time.monotonic() - begun)
        yield


def seconds(place: Path) -> float:
    return round(documents.read_json(RunFolder(place).seconds).get("seconds", 0.0), 1)


def _add_seconds(folder: RunFolder, more: float) -> None:
    if folder.path.exists():
        spent = documents.read_json(folder.seconds).get("seconds", 0.0)
        documents.write_json(folder.seconds, {"seconds": spent + more})
