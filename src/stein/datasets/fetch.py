"""Downloads that are retried, resumed, verified and then renamed: the result is the correct file or none.

Incomplete files are in ``.partial`` of the data root, where only the next attempt reads them. They are kept if the
connection is lost. Files that fail verification are deleted.
"""

import contextlib
import fcntl
import functools
import http.client
import os
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO

from stein import __version__
from stein.datasets import archives, sources
from stein.datasets.sources import Download, File
from stein.storage import durable

Progress = Callable[[str, int], Callable[[int], None]]
"""Called with a task's description and length (in kB for downloads); returns a function to report how much is done."""

ATTEMPTS = 4  # in a row without progress
PAUSE = 1.0  # seconds before the second attempt; doubles each time
TIMEOUT = 30.0  # seconds without data after which the connection counts as lost


class _LostError(Exception):
    """The server did not answer or stopped midway: retry."""


class _RefusedError(Exception):
    """The server answered, but not with the file: a retry would not help."""


def obtain(
    files: Sequence[File], data_dir: Path | None = None, offline: bool = False, progress: Progress | None = None
) -> list[Path]:
    """The paths of the files, which are downloaded if necessary.

    Downloads go to ``data_dir``; default: the user's cache. With ``offline`` no connection is opened.
    """
    missing = [file for file in files if sources.find(file, data_dir) is None]
    if missing and offline:
        raise ValueError(f"{missing[0].path}: not on this machine; give --data-dir or STEIN_DATA, or drop --offline")
    if missing:
        root = data_dir or sources.cache_folder()
        if root is None:
            raise ValueError("no place for downloads: HOME and XDG_CACHE_HOME are not set; give --data-dir")
        download(missing, root, progress)
    return [_found(file, data_dir) for file in files]


def _found(file: File, data_dir: Path | None) -> Path:
    path = sources.find(file, data_dir)
    if path is None:
        raise ValueError(f"{file.path}: disappeared; somebody else deleted it")
    return path


def download(files: Sequence[File], root: Path, progress: Progress | None = None) -> None:
    """Fetch files into a data root; files that another process fetched in the meantime are used.

    Raises:
        ValueError: a server sent the wrong content.
        ConnectionError: no server sent the file.
    """
    folder = root / ".partial"
    progress = functools.cache(progress) if progress else None  # a second connection continues the same bar
    try:
        for wanted in dict.fromkeys(file.download for file in files):
            if wanted is None:
                path = next(file.path for file in files if file.download is None)
                raise ValueError(f"{path}: nobody offers it for download; put it under --data-dir or STEIN_DATA")
            with _alone(folder / f"{wanted.name}.lock"):
                missing = [file for file in files if file.download == wanted and not (root / file.path).is_file()]
                if missing:
                    _from_some_mirror(wanted, missing, root, folder / f"{wanted.name}.part", progress)
    finally:
        with contextlib.suppress(OSError):  # another process may be using it
            folder.rmdir()


@contextlib.contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """One process at a time; the others wait, and then find the files."""
    while (file := _claimed(lock)) is None:
        pass
    with file:
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)


def _claimed(lock: Path) -> IO[bytes] | None:
    """The lock, as soon as it is free; None if its holder deleted it, so that another process may hold a new one."""
    lock.parent.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        lock.parent.mkdir()
    with contextlib.suppress(FileNotFoundError), contextlib.ExitStack() as stack:
        file = stack.enter_context(lock.open("ab"))
        fcntl.flock(file, fcntl.LOCK_EX)
        if os.path.samestat(os.fstat(file.fileno()), lock.stat()):
            stack.pop_all()
            return file
    return None


def _from_some_mirror(
    wanted: Download, files: Sequence[File], root: Path, part: Path, progress: Progress | None
) -> None:
    complaints, wrong_content, mirrors = [], False, list(wanted.urls)
    while mirrors:
        url = mirrors.pop(0)
        resumed = part.exists()
        try:
            _receive(url, wanted, part, progress)
            _accept(url, wanted, files, root, part)
            return
        except (_LostError, _RefusedError) as error:
            complaints.append(f"{url}: {error}")
        except ValueError as error:
            part.unlink(missing_ok=True)
            if resumed:  # the resumed part may belong to another file
                mirrors.insert(0, url)
                continue
            complaints.append(str(error).removesuffix(f"; {sources.AGAIN}"))
            wrong_content = True
        except OSError:  # for example a full disk: do not fill it further
            part.unlink(missing_ok=True)
            raise
    advice = "try again later, or put the file under --data-dir or STEIN_DATA"
    raise (ValueError if wrong_content else ConnectionError)(f"{'; '.join(complaints)}; {advice}")


def _receive(url: str, wanted: Download, part: Path, progress: Progress | None) -> None:
    """The complete download in ``part``, over as many connections as necessary."""
    failures, furthest = 0, 0
    while True:
        try:
            return _connect(url, wanted, part, progress)
        except _LostError as error:
            reached = part.stat().st_size if part.exists() else 0
            failures = 1 if reached > furthest else failures + 1
            furthest = max(reached, furthest)
            if failures == ATTEMPTS:
                raise _LostError(f"{error}, {ATTEMPTS} times in a row") from None
        time.sleep(PAUSE * 2 ** (failures - 1))


def _connect(url: str, wanted: Download, part: Path, progress: Progress | None) -> None:
    """One connection: the rest of ``part``, or all of it if the server does not support ranges."""
    done = part.stat().st_size if part.exists() else 0
    with _answer(url, done, part) as answer:
        if answer.status != 206:
            done = 0
        expected = None if answer.length is None else done + answer.length
        if (expected or 0) > wanted.limit:
            raise ValueError(f"{url}: has {expected} bytes; the right file has at most {wanted.limit}")
        report = progress(f"{wanted.name}, kB", (expected or wanted.limit) // 1024) if progress else None
        with part.open("ab") as file:
            file.truncate(done)
            while chunk := _chunk(answer):
                done += len(chunk)
                if done > wanted.limit:
                    raise ValueError(f"{url}: has more than the {wanted.limit} bytes of the right file")
                file.write(chunk)
                if report:
                    report(done // 1024)
    if expected is not None and done < expected:
        raise _LostError(f"the connection was lost at {done} of {expected} bytes")


def _answer(url: str, done: int, part: Path) -> http.client.HTTPResponse:
    headers = {"User-Agent": f"stein/{__version__}"} | ({"Range": f"bytes={done}-"} if done else {})
    try:
        answer = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=TIMEOUT)  # noqa: S310 - our own
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416:  # range not satisfiable: `part` belongs to another file
            part.unlink()
            raise _LostError("the file there is shorter than what was fetched before") from None
        reason = " ".join(f"answers {error.code} {error.reason}".split())
        raise (_LostError if error.code >= 500 or error.code in (408, 429) else _RefusedError)(reason) from None
    except (OSError, http.client.HTTPException) as error:
        raise _LostError(f"no answer: {getattr(error, 'reason', None) or error or type(error).__name__}") from None
    begins = re.match(r"bytes (\d+)-", answer.headers.get("Content-Range", ""))
    if answer.status == 206 and (begins is None or int(begins[1]) != done):
        answer.close()
        part.unlink()
        raise _LostError("sent another part of the file than it was asked for")
    return answer


def _chunk(answer: http.client.HTTPResponse) -> bytes:
    try:
        return answer.read(2**16)
    except (OSError, http.client.HTTPException) as error:
        raise _LostError(f"the connection was lost: {error or type(error).__name__}") from None


def _accept(url: str, wanted: Download, files: Sequence[File], root: Path, part: Path) -> None:
    """Verify a download and move it to its final path."""
    if wanted.unpacked:
        for file, content in archives.members(part, files, wanted.unpacked, url):
            path = _place(file, root)
            durable.sweep(path.parent)  # the lock makes this process the only writer
            durable.replace(path, content)
        part.unlink()
        return
    (file,) = files
    sources.check(sources.read(part, file, url), file, url)
    durable.publish(part, _place(file, root))


def _place(file: File, root: Path) -> Path:
    """The final path of the file; its directory is created."""
    path = root / file.path
    path.parent.mkdir(parents=True, exist_ok=True)
    return path
