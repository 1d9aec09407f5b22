"""One writer per directory. The kernel releases a lock when its holder dies, so no lock is stale."""

import contextlib
import fcntl
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path


class LockedError(ValueError):
    """Another process is writing to this directory."""


@contextlib.contextmanager
def locked(folder: Path, seconds: float = 0.4) -> Iterator[None]:
    """Lock a directory for writing, or fail if others have held it for this long."""
    end = time.monotonic() + seconds
    while True:
        with open(folder / ".lock", "a+", encoding="utf-8") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > end:
                    file.seek(0)
                    holder = file.read().strip() or "another process"
                    raise LockedError(f"{folder}: in use by {holder}; wait for it, or use another --out") from None
                time.sleep(0.1)  # a reader may hold it briefly (`is_locked`)
                continue
            file.truncate(0)
            file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
            file.flush()
            yield
            return


def is_locked(folder: Path) -> bool:
    """Whether another process is writing to a directory."""
    try:
        with open(folder / ".lock", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False
