"""A finished run as an object: predictions, evaluation, more training."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from stein.runs import assess, training
from stein.runs.exported import Exported
from stein.runs.folder import RunFolder
from stein.runs.signals import requests


def load(path: Path | str) -> "Run":
    """The ensemble of a finished run, ready to predict; the data that it was trained on are not needed.

    Args:
        path: the directory of the run.

    Example::

        run = stein.load("runs/houses")
        prediction = run.predict(new_houses)
        low, high = prediction.interval(0.9)
    """
    return Run(RunFolder(Path(path)))


class Run(Exported):
    """A finished run: its ensemble, and what can still be done with it where its data are at hand."""

    def evaluate(self, ood: Sequence[str] = (), **options: Any) -> dict[str, Any]:
        """Numbers on the held-out points of the run's data, which are read again: :func:`stein.runs.assess.run`."""
        with self.folder.claimed(new=False):
            return assess.run(self.folder, ood, **options)

    def resume(self, steps: int, show: bool = False, warn: Callable[[str], None] = print) -> "Run":
        """Train on to a new total of ``steps``. Returns the longer run."""
        with self.folder.claimed(new=False), self.folder.ended(), requests() as stop:
            training.resume(self.folder, stop, show, warn, steps=steps)
        return Run(self.folder)
