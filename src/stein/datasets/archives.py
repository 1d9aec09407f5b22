"""Reads named files from a downloaded tar archive into memory; nothing is ever extracted by path."""

import gzip
import io
import tarfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from stein.datasets import sources
from stein.datasets.sources import File

MOST_MEMBERS = 1000  # members to read before giving up; a hundred thousand empty members are an attack
WRONG = "it is not the archive it should be"


def members(path: Path, files: Sequence[File], unpacked: int, where: str) -> Iterator[tuple[File, bytes]]:
    """Each of ``files`` with its verified content, in archive order.

    Members are matched by name, and other members are skipped. At most ``unpacked`` bytes are decompressed.
    """
    wanted = {file.path: file for file in files}
    try:
        with (
            path.open("rb") as raw,
            gzip.GzipFile(fileobj=raw) as unzipped,
            tarfile.open(fileobj=_Capped(unzipped, unpacked, where), mode="r|") as archive,
        ):
            for number, member in enumerate(archive):
                if number == MOST_MEMBERS:
                    raise ValueError(f"{where}: has more than {MOST_MEMBERS} members; {WRONG}")
                if member.name in wanted:
                    file = wanted.pop(member.name)
                    yield file, _content(archive, member, file, f"{where}: {member.name}")
                if not wanted:  # the rest is not needed
                    return
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        with path.open("rb") as raw:
            web_page = sources.is_web_page(raw.read(64))
        raise ValueError(
            f"{where}: is {'a web page instead of data' if web_page else f'truncated or damaged: {error}'}"
        ) from None
    raise ValueError(f"{where}: has no {', '.join(wanted)}; {WRONG}")


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo, file: File, where: str) -> bytes:
    stream = archive.extractfile(member) if member.isreg() else None  # links are not followed
    if stream is None:
        raise ValueError(f"{where}: is no plain file; {WRONG}")
    if member.size > file.limit:
        raise ValueError(f"{where}: has {member.size} bytes, the right one {file.limit}; {WRONG}")
    content = stream.read()
    sources.check(content, file, where)
    return content


class _Capped(io.BufferedIOBase):
    """A stream that raises an error beyond its limit, so that a decompression bomb is never unpacked."""

    def __init__(self, stream: gzip.GzipFile, limit: int, where: str):
        self._stream, self._left, self._where = stream, limit, where

    def read(self, size: int | None = -1, /) -> bytes:
        most = self._left + 1
        data = self._stream.read(most if size is None or size < 0 else min(size, most))
        self._left -= len(data)
        if self._left < 0:
            raise ValueError(f"{self._where}: unpacks to more bytes than the right archive; {WRONG}")
        return data
