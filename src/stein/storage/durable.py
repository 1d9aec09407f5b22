"""Files that survive a crash: complete or absent, and on disk before anything else relies on them.

Everything that a run must not lose is written here. The points where a crash must be harmless have names; with
``STEIN_FAILPOINT=name:k`` in the environment the process kills itself with SIGKILL when it passes ``name`` for the k-th
time (``name:k:SIGTERM`` sends another signal), which the tests use.
"""

import contextlib
import io
import os
import shutil
import signal
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

_passed: Counter[str] = Counter()


def passing(point: str) -> None:
    """A named point where a crash must be harmless."""
    wanted = os.environ.get("STEIN_FAILPOINT")
    if wanted is None:
        return
    _passed[point] += 1
    name, count, *sent = wanted.split(":")
    if (point, str(_passed[point])) == (name, count):
        os.kill(os.getpid(), signal.Signals[sent[0] if sent else "SIGKILL"])


def write(path: Path, data: bytes) -> None:
    """Write a new file, which is on disk when this returns."""
    _write(path, "xb", data, path.name)
    sync(path)
    passing(f"{path.name}.synced")


def append(path: Path, data: bytes) -> None:
    """Append to a file; the bytes are on disk only after :func:`sync`."""
    _write(path, "ab", data, path.name)


def sync(path: Path) -> None:
    """Flush a file or directory to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def user_cache() -> Path | None:
    """The user's cache directory; None without a home directory."""
    base = os.environ.get("XDG_CACHE_HOME") or (os.environ.get("HOME") and f"{os.environ['HOME']}/.cache")
    return Path(base) / "stein" if base else None


def replace(path: Path, data: bytes) -> None:
    """Replace a file atomically: readers see the old content or the new."""
    temporary = path.parent / f".tmp-{os.getpid()}-{uuid.uuid4().hex}-{path.name}"
    try:
        _write(temporary, "xb", data, path.name)
        publish(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[TextIO]:
    """A text file that replaces ``path`` when it is complete; after an error nothing of it is left."""
    temporary = path.parent / f".tmp-{os.getpid()}-{uuid.uuid4().hex}-{path.name}"
    try:
        with temporary.open("x", encoding="utf-8", newline="") as file:
            yield file
        publish(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def publish(temporary: Path, path: Path) -> None:
    """Rename a complete file to its final path, replacing any old file. Both are on the same disk."""
    sync(temporary)
    passing(f"{path.name}.rename")
    os.replace(temporary, path)
    sync(path.parent)
    passing(f"{path.name}.renamed")


@contextlib.contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A directory that gets its name when its contents are complete and on disk, or not at all.

    Yields the temporary directory to fill (with :func:`write`).
    """
    temporary = path.parent / f".tmp-{os.getpid()}-{uuid.uuid4().hex}"
    temporary.mkdir(parents=True)
    try:
        yield temporary
        sync(temporary)
        passing("folder.rename")
        os.rename(temporary, path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    sync(path.parent)
    passing("folder.renamed")


def remove(folder: Path) -> None:
    """Delete a directory; a crash leaves it complete or leaves only a temporary directory."""
    temporary = folder.parent / f".tmp-{os.getpid()}-{uuid.uuid4().hex}"
    passing("folder.remove")
    os.rename(folder, temporary)
    passing("folder.hidden")
    shutil.rmtree(temporary)
    passing("folder.removed")


def sweep(folder: Path) -> None:
    """Delete what crashes left behind. Only the directory's single writer may call this."""
    for leftover in folder.glob(".tmp-*"):
        shutil.rmtree(leftover) if leftover.is_dir() and not leftover.is_symlink() else leftover.unlink()


def _write(path: Path, mode: str, data: bytes, name: str) -> None:
    """Write in two halves, so that a test crash between them leaves a torn file."""
    passing(f"{name}.open")
    with io.FileIO(path, mode) as file:
        _write_all(file, memoryview(data)[: len(data) // 2])
        passing(f"{name}.half")
        _write_all(file, memoryview(data)[len(data) // 2 :])
    passing(f"{name}.written")


def _write_all(file: io.FileIO, data: memoryview) -> None:
    while data:
        data = data[file.write(data) :]
