"""Data sets of a few bytes in the formats of the real ones, and their entries in the table of sources."""

import gzip
import hashlib
import io
import tarfile
from pathlib import Path

import numpy as np

from stein.datasets import sources

PIXELS = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
LABELS = np.array([7, 0], np.uint8)


def idx(array: np.ndarray) -> bytes:
    return b"\0\0\x08" + bytes([array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape) + array.tobytes()


def cifar(labels: list[int]) -> bytes:
    """Images whose red, green and blue are label, place in the image and 200."""
    rows = [[label, *[label] * 1024, *(place % 256 for place in range(1024)), *[200] * 1024] for label in labels]
    return np.array(rows, np.uint8).tobytes()


def tar(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def file(path: str, content: bytes, urls: tuple[str, ...] = (), limit: int | None = None) -> sources.File:
    """The entry of a file with this content, decompressed."""
    limit = len(content) if limit is None else limit
    download = sources.Download(path.replace("/", "-"), urls, limit + 1000)
    return sources.File(path, limit, (hashlib.sha256(content).hexdigest(),), download)


def put(root: Path, path: str, content: bytes) -> Path:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_bytes(content)
    return root / path


def mnist(name: str = "mnist") -> dict[str, bytes]:
    """The files of a tiny MNIST by their real paths, decompressed; the training and the test part differ."""
    paths = [entry.path for entry in sources.DATASETS[name].files]
    return dict(zip(paths, (idx(PIXELS), idx(LABELS), idx(PIXELS + 100), idx(LABELS + 1)), strict=True))


def known(name: str, contents: dict[str, bytes], **fields: object) -> sources.Dataset:
    """The entry of a data set that has these contents instead of the real ones."""
    files = []
    for old, (path, content) in zip(sources.DATASETS[name].files, contents.items(), strict=False):
        new = file(path, content)
        files.append(old._replace(path=path, limit=new.limit, digests=new.digests))
    return sources.DATASETS[name]._replace(files=tuple(files), **fields)


def zipped(content: bytes) -> bytes:
    return gzip.compress(content, mtime=0)
