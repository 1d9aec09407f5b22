"""A run's directory: one writer, any number of readers, nothing half-written. Imports no jax.

::

    config.toml        the resolved config; marks a directory as a run
    env.json           versions, devices, threads, commit
    data.json          digest, columns, classes, split and scales of the data
    metrics.jsonl      one line per logged step
    progress.json      step and speed, for `stein status`; may be lost without harm
    checkpoints/       step-00001200/ ...
    tb/                TensorBoard events
    metrics.json       the last numbers; marks a run as finished
    failed.json        why the last attempt ended with an error
    ensemble.safetensors, card.md
    calibration.json, comparison.json, summary.md     if evaluation.summary is on, as after `stein fit`
    evaluation.json, curves.json, figures/     results of `stein evaluate`
    views.json, rows.json                      the same, for `stein report`; single rows of the data are in rows.json
    seconds.json       how long training took, for runs of a table or a search
    pruned.json        the step at which a search decided to end this trial early
"""

import contextlib
import errno
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from stein.runs.signals import StoppedError
from stein.storage import documents, locks

_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS}

RunState = Literal["new", "running", "finished", "failed", "interrupted"]


class RunFolder:
    """The paths in a run's directory, and the state of the run."""

    def __init__(self, path: Path):
        self.path = path
        self.config = path / "config.toml"
        self.environment = path / "env.json"
        self.data = path / "data.json"
        self.log = path / "metrics.jsonl"
        self.progress = path / "progress.json"
        self.checkpoints = path / "checkpoints"
        self.board = path / "tb"
        self.numbers = path / "metrics.json"
        self.failure = path / "failed.json"
        self.ensemble = path / "ensemble.safetensors"
        self.card = path / "card.md"
        self.calibration = path / "calibration.json"
        self.summary = path / "summary.md"
        self.comparison = path / "comparison.json"
        self.evaluation = path / "evaluation.json"
        self.curves = path / "curves.json"
        self.views = path / "views.json"
        self.rows_shown = path / "rows.json"
        self.figures = path / "figures"
        self.seconds = path / "seconds.json"
        self.pruned = path / "pruned.json"

    def __str__(self) -> str:
        return str(self.path)

    # -- states ---------------------------------------------------------------------------------------------

    @property
    def state(self) -> RunState:
        """``interrupted`` if it was stopped or killed, ``failed`` if it ended with an error."""
        if self.is_finished:
            return "finished"
        if locks.is_locked(self.path):
            return "running"
        if self.reason:
            return "failed"
        return "interrupted" if self.config.exists() else "new"

    @property
    def is_finished(self) -> bool:
        return self.numbers.exists()

    @property
    def has_ended(self) -> bool:
        """Whether a table or a search is done with this run: trained to its end, or failed for good."""
        return self.state in ("finished", "failed")

    @property
    def reason(self) -> str:
        """Why the last attempt ended with an error; empty if it did not."""
        return str(documents.read_json(self.failure).get("reason", ""))

    def check_is_run(self) -> None:
        if not self.path.is_dir():
            raise ValueError(f"{self}: no such directory; a run is made by `stein train CONFIG --out {self}`")
        if not self.config.is_file():
            raise ValueError(f"{self}: not a run (it has no config.toml)")

    def check_is_finished(self) -> None:
        self.check_is_run()
        if not self.is_finished:
            raise ValueError(f"{self}: not finished; `stein resume {self}` goes on with it")

    @property
    def steps_done(self) -> int:
        """The steps that are saved: all of a finished run, otherwise those of its newest checkpoint."""
        if self.is_finished:
            return int(documents.read_json(self.numbers).get("steps", 0))
        return self.newest_step

    @property
    def newest_step(self) -> int:
        """The step of the newest checkpoint, good or damaged; 0 if there is none."""
        names = [path.name.removeprefix("step-") for path in self.checkpoints.glob("step-*")]
        return max((int(name) for name in names if name.isdigit()), default=0)

    @property
    def threads(self) -> int | None:
        """The number of CPU threads that the run used before."""
        before = str(documents.read_json(self.environment).get("CPU threads", ""))
        return int(before) if before.isdigit() else None

    @property
    def devices(self) -> int | None:
        """The number of devices that the run used before; None if it was one, or if it had several processes."""
        before = str(documents.read_json(self.environment).get("devices used", ""))
        return int(before) if before.isdigit() and before != "1" else None

    # -- the one writer -------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def claimed(self, new: bool) -> Iterator[None]:
        """Lock a new or existing run for writing, or fail within a second.

        A new directory is deleted if no run has begun in it.
        """
        made = new and not self.path.exists()
        if new:
            self._make()
        with locks.locked(self.path):
            if new and self.config.exists():
                raise ValueError(f"{self}: already holds a run; `stein resume {self}` goes on with it")
            try:
                yield
            finally:
                if made and not self.config.exists():
                    shutil.rmtree(self.path, ignore_errors=True)

    def _make(self) -> None:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            (self.path / ".lock").touch()
        except (FileExistsError, NotADirectoryError):
            places = (place for place in (self.path, *self.path.parents) if place.exists() and not place.is_dir())
            file = next(places, self.path)
            which = "" if file == self.path else f"{file} "
            raise ValueError(f"{self}: {which}is a file; give another --out") from None
        except (FileNotFoundError, PermissionError) as error:
            raise ValueError(f"{self}: no run can be written here ({error.strerror}); give another --out") from None

    @contextlib.contextmanager
    def ended(self) -> Iterator[None]:
        """Write the error that ends a run to failed.json; for a full disk, the message says what to do."""
        if self.failure.exists():
            self.failure.unlink()
        try:
            yield
        except Exception as error:
            explained = self._disk_trouble(error)
            if self.config.exists() and not self.is_finished and not isinstance(error, StoppedError):
                self._note(" ".join(str(explained).split()))
            if explained is error:
                raise
            raise explained from error

    def _note(self, reason: str) -> None:
        """Write failed.json; on a full disk, delete progress.json to make room."""
        for attempt in range(2):
            with contextlib.suppress(OSError):
                if attempt:
                    self.progress.unlink(missing_ok=True)
                documents.write_json(self.failure, {"reason": reason})
                return

    def _disk_trouble(self, error: Exception) -> Exception:
        """The error itself; for disk errors, one that says what was saved and what to do."""
        if not isinstance(error, OSError) or error.errno not in _DISK:
            return error
        saved = f"step {self.steps_done} is saved" if self.steps_done else "no step is saved"
        unfinished = self.config.exists() and not self.is_finished
        go_on = f"`stein resume {self}`" if unfinished else "the same command"
        return RuntimeError(f"{self}: the disk does not take more ({error.strerror}); {saved}; make room, then {go_on}")

    # -- the log --------------------------------------------------------------------------------------------

    def rows(self) -> list[dict[str, Any]]:
        """The complete lines of the log."""
        return [json.loads(line) for line in self._lines()]

    def last_row(self) -> dict[str, Any]:
        """The last complete line of the log; empty if there is none."""
        try:
            return json.loads((self._lines() or [b"{}"])[-1])
        except ValueError:
            return {}

    def _lines(self) -> list[bytes]:
        """The lines that end in a line break: the last one may still be incomplete."""
        try:
            return [line for line in self.log.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]
        except FileNotFoundError:
            return []

    def cut_log(self, length: int) -> int:
        """Delete what was logged after the checkpoint that a run resumes from; returns the new size in bytes."""
        with open(self.log, "a+b") as file:
            if file.tell() < length:  # the file was shortened: keep the complete lines
                file.seek(0)
                length = file.read().rfind(b"\n") + 1
            file.truncate(length)
        return length

    def write_progress(self, **numbers: float) -> None:
        """Write numbers for `stein status`: readers always see a complete file, but a crash may lose it."""
        temporary = self.path / f".tmp-{os.getpid()}-progress"
        with contextlib.suppress(OSError):
            temporary.write_text(json.dumps(numbers))
            temporary.replace(self.progress)
