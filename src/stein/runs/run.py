"""A finished run as an object: predictions, evaluation, more training."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from stein.runs import assess, training
from stein.runs.exported import Exported
from stein.runs.folder import RunFolder
from stein.runs.signals import requests
from stein.types import Model


def load(path: Path | str, model: Model | None = None) -> "Run":
    """Load the ensemble of a finished run; the training data are not needed.

    Args:
        path: the directory of the run.
        model: the network, if the ensemble was trained with one given in Python.

    Example::

        run = stein.load("runs/houses")
        prediction = run.predict(new_houses)
        low, high = prediction.interval(0.9)
    """
    return Run(RunFolder(Path(path)), model)


class Run(Exported):
    """A finished run: predictions and, if its data are available, evaluation and further training."""

    def evaluate(self, ood: Sequence[str] = (), **options: Any) -> dict[str, Any]:
        """Evaluate on the held-out points; the run's data are read again (:func:`stein.runs.assess.run`)."""
        with self.folder.claimed(new=False):
            return assess.run(self.folder, ood, **options)

    def resume(self, steps: int, show: bool = False, warn: Callable[[str], None] = print) -> "Run":
        """Continue training to a new total of ``steps``. Returns the longer run."""
        with self.folder.claimed(new=False), self.folder.ended(), requests() as stop:
            training.resume(self.folder, stop, show, warn, steps=steps)
        return Run(self.folder)
