"""Many ensembles, each a run in its own directory.

A cell is one ensemble of a table. Its results are on disk, so that an interrupted command continues with the missing
cells.
"""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from stein.datasets.fetch import Progress
from stein.runs import configs, signals, training
from stein.runs.folder import RunFolder
from stein.runs.launchers import Cell, Launcher, make_all
from stein.runs.schema import Config
from stein.storage import documents
from stein.train import Hook


def make_missing(
    work: Callable[..., None], missing: Mapping[Path, Cell], steps: int, launcher: Launcher, begin: Progress
) -> None:
    """Call ``work`` on the missing cells, each a run in its own directory.

    Args:
        work: called with a cell; in this process also with ``show=True``, to draw its own bar.
        steps: total over all cells.
    """
    if launcher.here:
        for cell in missing.values():
            work(cell, show=True)
    elif missing:
        tick = begin(f"{len(missing)} ensembles", steps)

        def watch() -> None:
            tick(sum(documents.read_json(RunFolder(place).progress).get("step", 0) for place in missing))

        make_all(launcher, work, list(missing.values()), watch)


@contextlib.contextmanager
def trained(config: Config, place: Path, show: bool = False, also: Sequence[Hook] = ()) -> Iterator[None]:
    """Train a run to its end, from wherever it was, with the hooks ``also``; inside the context it is locked.

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
                training.start(config, folder, requests, show, warn, also=also)
            elif not folder.is_finished:
                training.resume(folder, requests, show, warn, also=also)
        finally:
            _add_seconds(folder, time.monotonic() - begun)
        yield


def seconds(place: Path) -> float:
    return round(documents.read_json(RunFolder(place).seconds).get("seconds", 0.0), 1)


def _add_seconds(folder: RunFolder, more: float) -> None:
    if folder.path.exists():
        spent = documents.read_json(folder.seconds).get("seconds", 0.0)
        documents.write_json(folder.seconds, {"seconds": spent + more})
