"""A run's directory: one writer, any number of readers, nothing half-written. Imports no jax.

::

    config.toml        the resolved config; with it a directory is a run
    env.json           versions, devices, threads, commit
    metrics.jsonl      a line for each logged step
    progress.json      step and speed, for `stein status`; may be lost without harm
    checkpoints/       step-00001200/ ...
    tb/                TensorBoard events
    metrics.json       the last numbers; with it a run is finished
    failed.json        why the last attempt ended with an error
    ensemble.safetensors, card.md
    evaluation.json, curves.json, figures/     what `stein evaluate` found
"""

import contextlib
import errno
import fcntl
import io
import json
import os
import shutil
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from stein import durable
from stein.experiments.signals import StoppedError

_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS}


class LockedError(ValueError):
    """Another process writes to this run."""


@contextlib.contextmanager
def claimed(folder: Path, new: bool) -> Iterator[None]:
    """Be the one writer of a new run or of an existing one, or fail within a second.

    A new directory goes away again if no run has begun in it.
    """
    made = new and not folder.exists()
    if new:
        _make(folder)
    with _locked(folder):
        if new and (folder / "config.toml").exists():
            raise ValueError(f"{folder}: already holds a run; `stein resume {folder}` goes on with it")
        try:
            yield
        finally:
            if made and not (folder / "config.toml").exists():
                shutil.rmtree(folder, ignore_errors=True)


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ".lock").touch()
    except (FileExistsError, NotADirectoryError):
        places = (place for place in (folder, *folder.parents) if place.exists() and not place.is_dir())
        file = next(places, folder)
        raise ValueError(f"{folder}: {'' if file == folder else f'{file} '}is a file; give another --out") from None
    except (FileNotFoundError, PermissionError) as error:
        raise ValueError(f"{folder}: no run can be written here ({error.strerror}); give another --out") from None


@contextlib.contextmanager
def ended(folder: Path) -> Iterator[None]:
    """Note in failed.json why a run that has begun ended with an error; a disk that is full gets its remedy."""
    mark = folder / "failed.json"
    if mark.exists():
        mark.unlink()
    try:
        yield
    except Exception as error:
        told = _disk_trouble(folder, error)
        if (folder / "config.toml").exists() and not is_finished(folder) and not isinstance(error, StoppedError):
            _note(mark, " ".join(str(told).split()))
        if told is error:
            raise
        raise told from error


def _note(mark: Path, reason: str) -> None:
    """On a disk that is full to the last byte in the place of progress.json, which may be lost."""
    for attempt in range(2):
        with contextlib.suppress(OSError):
            if attempt:
                (mark.parent / "progress.json").unlink(missing_ok=True)
            write_json(mark, {"reason": reason})
            return


def _disk_trouble(folder: Path, error: Exception) -> Exception:
    """The error itself, or one with what was saved and what to do, where the disk refused to write."""
    if not isinstance(error, OSError) or error.errno not in _DISK:
        return error
    saved = f"step {steps_done(folder)} is saved" if steps_done(folder) else "no step is saved"
    go_on = f"`stein resume {folder}`" if (folder / "config.toml").exists() else "the same command"
    return RuntimeError(f"{folder}: the disk does not take more ({error.strerror}); {saved}; make room, then {go_on}")


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """The kernel frees the lock when its holder dies, however that happens, so that there are no stale ones."""
    for attempt in range(5):
        with open(folder / ".lock", "a+", encoding="utf-8") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if attempt == 4:
                    file.seek(0)
                    holder = file.read().strip() or "another process"
                    raise LockedError(f"{folder}: in use by {holder}; wait for it, or use another --out") from None
                time.sleep(0.1)  # a reader may have been looking (`is_running`)
                continue
            file.truncate(0)
            file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
            file.flush()
            yield
            return


def is_running(folder: Path) -> bool:
    """Whether somebody writes to this run now."""
    try:
        with open(folder / ".lock", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def check_is_run(folder: Path) -> None:
    if not folder.is_dir():
        raise ValueError(f"{folder}: no such directory; a run is made by `stein train CONFIG --out {folder}`")
    if not (folder / "config.toml").is_file():
        raise ValueError(f"{folder}: not a run (it has no config.toml)")


def is_finished(folder: Path) -> bool:
    return (folder / "metrics.json").exists()


def steps_done(folder: Path) -> int:
    """The steps of a run that need not be done again: all of a finished one, else those of its newest checkpoint."""
    if is_finished(folder):
        return int(read_json(folder / "metrics.json").get("steps", 0))
    return newest_step(folder)


def newest_step(folder: Path) -> int:
    """The step of the newest checkpoint, good or damaged; 0 where there is none."""
    names = [path.name.removeprefix("step-") for path in (folder / "checkpoints").glob("step-*")]
    return max((int(name) for name in names if name.isdigit()), default=0)


def threads(folder: Path) -> int | None:
    """The number of CPU threads to go on with: as many as before."""
    before = str(read_json(folder / "env.json").get("CPU threads", ""))
    return int(before) if before.isdigit() else None


def read_json(path: Path) -> dict[str, Any]:
    """A small file of ours; empty where it is missing or was cut off by a crash."""
    try:
        found = json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    durable.replace(path, (json.dumps(value, indent=2) + "\n").encode())


def write_text(path: Path, text: str) -> None:
    durable.replace(path, f"{text.rstrip()}\n".encode())


def write_figure(path: Path, figure: Any, dpi: int) -> None:
    """A matplotlib figure as PNG."""
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=dpi)
    durable.replace(path, picture.getvalue())


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Every whole line of metrics.jsonl."""
    return [json.loads(line) for line in _lines(path)]


def last_row(path: Path) -> dict[str, Any]:
    """The last whole line; empty where there is none."""
    try:
        return json.loads((_lines(path) or [b"{}"])[-1])
    except ValueError:
        return {}


def _lines(path: Path) -> list[bytes]:
    """What ends in a line break: the writer may be in the middle of the next one."""
    try:
        return [line for line in path.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]
    except FileNotFoundError:
        return []


def cut(path: Path, length: int) -> int:
    """Forget what was logged after the checkpoint that a run is resumed from; returns the bytes that are left."""
    with open(path, "a+b") as file:
        if file.tell() < length:  # somebody shortened it: keep the whole lines
            file.seek(0)
            length = file.read().rfind(b"\n") + 1
        file.truncate(length)
    return length
