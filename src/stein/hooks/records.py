"""Hooks for the log, checkpoints and early stopping."""

import json
import math
import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from stein import processes
from stein.ensembles import State
from stein.storage import checkpoint, durable
from stein.train import Hook, Moment


def early_stopping(patience: int, metric: str = "test_nll", past: Iterable[Mapping[str, Any]] = ()) -> Hook:
    """Ends the run when ``metric`` (lower is better) has not improved for ``patience`` evaluations.

    Args:
        past: the metrics so far, if the run is resumed.
    """
    if patience < 1:
        raise ValueError(f"patience = {patience}: must be at least 1")
    seen = [row[metric] for row in past if metric in row]

    def hook(moment: Moment) -> bool:
        # Only finite values: the log, which `past` comes from, has no others.
        if metric in moment.metrics and is_finite(moment.metrics[metric]):
            seen.append(moment.metrics[metric])
        return has_stalled(seen, patience)

    return hook


def has_stalled(values: Sequence[float], patience: int) -> bool:
    """Whether none of the last ``patience`` values is below all earlier ones."""
    return len(values) > patience and min(values[-patience:]) >= min(values[:-patience])


class Log:
    """Appends the step and its metrics to a file, one JSON line each; non-finite numbers are left out.

    If the disk is full, lines are kept for the next attempt; the first failure gives a warning.
    """

    def __init__(self, path: Path | str, warn: Callable[[str], None] = warnings.warn):
        self.path, self._warn = Path(path), warn
        self._pending, self._waiting = b"", False
        self._size = self.path.stat().st_size if self.path.exists() else 0

    def __call__(self, moment: Moment) -> None:
        row = {"step": moment.step} | {k: v for k, v in moment.metrics.items() if is_finite(v)}
        self._pending += (json.dumps(row) + "\n").encode()
        try:
            self.write()
        except OSError as error:
            if not self._waiting:
                self._warn(f"step {moment.step} not logged ({error.strerror}); trying again at every step logged")
            self._waiting = True

    def write(self) -> int:
        """Write the pending lines; returns the size of the file."""
        if self._pending:
            try:
                durable.append(self.path, self._pending)
            except OSError:
                os.truncate(self.path, self._size)  # half a line would corrupt the next
                raise
            self._size += len(self._pending)
            self._pending, self._waiting = b"", False
        return self._size


class Checkpoints:
    """Saves the state every ``every`` steps and at the last one, and keeps the newest ``keep`` and the best.

    A full disk does not end the run at once: the old checkpoints stay, and saving is tried again at the next interval.
    The first failure gives a warning; the third in a row is raised.

    Args:
        best: name of a metric (lower is better) whose best checkpoint is kept too.
        facts: called before each save; its result goes into the manifest.
        past: the metrics so far, if the run is resumed.
        mine: this process's rows of a state that is spread over devices (:meth:`stein.sharding.Spread.mine`).
    """

    def __init__(
        self,
        folder: Path | str,
        every: int,
        keep: int = 2,
        *,
        best: str | None = None,
        facts: Callable[[], Mapping[str, Any]] = dict,
        past: Iterable[Mapping[str, Any]] = (),
        warn: Callable[[str], None] = warnings.warn,
        mine: Callable[[State], State] = lambda state: state,
    ):
        for name, value, least in (("every", every, 1), ("keep", keep, 1)):
            if value < least:
                raise ValueError(f"{name} = {value}: must be at least {least}")
        self.folder, self.every, self.keep = Path(folder), every, keep
        self._best, self._facts, self._warn, self._mine = best, facts, warn, mine
        self._failures = 0
        self._saved: int | None = None
        here = {path.name for path in checkpoint.steps(self.folder)}
        self._scores = {
            row["step"]: row[best]
            for row in past
            if best is not None and best in row and checkpoint.name_of(row["step"]) in here
        }

    def __call__(self, moment: Moment) -> None:
        if moment.step % self.every and moment.step != moment.last_step:
            return
        score = moment.metrics.get(self._best or "")
        if score is not None and is_finite(score):  # comparisons with NaN are false
            self._scores[moment.step] = score
        self.save(moment.state)

    def save(self, state: State) -> None:
        """Save now, unless this step has just been saved."""
        if self._saved == int(state.step):
            return
        try:
            own, facts = jax.process_index(), self._facts() if processes.is_first() else {}
            good = checkpoint.save(self.folder, self._mine(state), facts, processes.exchange, own)
        except OSError as error:
            self._failures += 1
            if self._failures == 3 or jax.process_count() > 1:  # other processes are in the middle of it
                raise
            if self._failures == 1:
                self._warn(
                    f"checkpoint of step {int(state.step)} not written ({error.strerror}); trying again twice, "
                    f"every {self.every} steps"
                )
            return
        self._failures, self._saved = 0, int(state.step)
        best = min(self._scores, key=lambda step: self._scores[step], default=None)
        kept = None if best is None else self.folder / checkpoint.name_of(best)
        if processes.is_first():
            checkpoint.prune(self.folder, self.keep, kept, good)


def is_finite(value: Any) -> bool:
    """Whether a metric can be written as JSON."""
    return not isinstance(value, float) or math.isfinite(value)
