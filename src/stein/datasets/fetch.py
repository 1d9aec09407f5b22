"""Downloads that end with the right file under its name, or with none: retried, resumed, verified, then renamed.

What is not complete yet lies in ``.partial`` of the data root, where nothing reads it but the next attempt. It stays
there when the connection was lost, and is deleted when it turned out to be wrong.
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
"""Called with the words for a piece of work and its length (of a download in kB); returns a function that is told how
much is done."""

ATTEMPTS = 4  # in a row without getting any further
PAUSE = 1.0  # seconds before the second; then twice as many each time
TIMEOUT = 30.0  # seconds of silence that count as a lost connection


class _LostError(Exception):
    """The server did not answer or stopped in the middle: worth another attempt."""


class _RefusedError(Exception):
    """The server answered, and not with the file: another attempt would end like this one."""


def obtain(
    files: Sequence[File], data_dir: Path | None = None, offline: bool = False, progress: Progress | None = None
) -> list[Path]:
    """Where the files are, downloaded first if they are nowhere.

    Downloads go to ``data_dir`` if given, else to the user's cache. With ``offline`` no socket is opened.
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
    """Fetch files into a data root; what another process fetched in the meantime is taken as it is.

    Raises:
        ValueError: what came is not what it should be.
        ConnectionError: nothing came.
    """
    folder = root / ".partial"
    progress = functools.cache(progress) if progress else None  # a second connection goes on with the same bar
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
        with contextlib.suppress(OSError):  # unless somebody else is at work in it
            folder.rmdir()


@contextlib.contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """One process at a time; the others wait, and then find the work done."""
    while (file := _claimed(lock)) is None:
        pass
    with file:
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)


def _claimed(lock: Path) -> IO[bytes] | None:
    """The lock, as soon as it is free; None if whoever had it tidied it or its directory away, and others may hold a
    new one."""
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
            if resumed:  # its beginning may have been of another file
                mirrors.insert(0, url)
                continue
            complaints.append(str(error).removesuffix(f"; {sources.AGAIN}"))
            wrong_content = True
        except OSError:  # the disk is full, say: do not fill it further
            part.unlink(missing_ok=True)
            raise
    advice = "try again later, or put the file under --data-dir or STEIN_DATA"
    raise (ValueError if wrong_content else ConnectionError)(f"{'; '.join(complaints)}; {advice}")


def _receive(url: str, wanted: Download, part: Path, progress: Progress | None) -> None:
    """All of a download in ``part``, over as many connections as it takes."""
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
    """One connection: what is missing of ``part``, or all of it where the server cannot start in the middle."""
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
        if error.code == 416:  # there is no such rest: this was no beginning of that file
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
    """What was received takes its place, if it is right."""
    if wanted.unpacked:
        for file, content in archives.members(part, files, wanted.unpacked, url):
            place = _place(file, root)
            durable.sweep(place.parent)  # the lock makes this process the only writer
            durable.replace(place, content)
        part.unlink()
        return
    (file,) = files
    sources.check(sources.read(part, file, url), file, url)
    durable.publish(part, _place(file, root))


def _place(file: File, root: Path) -> Path:
    """Where the file goes, in a directory that is there."""
    path = root / file.path
    path.parent.mkdir(parents=True, exist_ok=True)
    return path
