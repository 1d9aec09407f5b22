"""Images as stored, one byte per pixel and colour, and as network inputs. No file is ever executed."""

import io
import math
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from stein.datasets import sources
from stein.datasets.fetch import Progress, obtain

MOST_BYTES = 4 * 2**30  # of a user's own images, unpacked
MOST_RATIO = 100  # of unpacked to packed bytes; images stay far below


class Images(NamedTuple):
    """Images ``x`` (n, height, width, colours) in uint8, from 0 to ``top``, and their classes ``y``, if known.

    ``note`` must accompany any result that uses them.
    """

    x: np.ndarray
    y: np.ndarray | None
    name: str
    note: str = ""
    top: int = 255


def load_images(
    name: str | Path,
    part: Literal["train", "test"] = "train",
    data_dir: Path | str | None = None,
    offline: bool = False,
    progress: Progress | None = None,
) -> Images:
    """A named data set, verified by its digest, or unlabelled images from a ``.npy`` or ``.npz`` file.

    Searched in ``data_dir``, STEIN_DATA, the system's package and the user's cache, then downloaded.

    Args:
        name: fashion-mnist, mnist, cifar10, svhn, digits, or a path. A file has uint8 images (n, height, width) or
            (n, height, width, colours); in an archive, as the array x or the only array.
        part: which part of a named data set; a file has only one.
        data_dir: a directory with torchvision's folder names. Downloads go there too. Default: the user's cache.
        offline: open no connection; a missing file is an error.
        progress: as ``stein.cli.terminal.bars`` makes it.

    Raises:
        ValueError: one line with the file and what is wrong with it.
        ConnectionError: no server sent it.
    """
    if Path(name).suffix.lower() in (".npy", ".npz"):
        return Images(_own_images(Path(name)), None, Path(name).stem)
    name = str(name)
    if part not in ("train", "test"):
        raise ValueError(f"part = {part!r}: 'train' or 'test'")
    if sources.dataset(name).name not in _READERS:
        raise ValueError(f"{name}: has no images; load_uci reads it")
    folder = None if data_dir is None else Path(data_dir)

    def paths(*files: sources.File) -> list[Path]:
        return obtain(files, folder, offline, progress)

    if name == "svhn" and part == "test" and sources.find(sources.SVHN_TEST, folder) is None:
        partial = sources.find(sources.SVHN_PARTIAL, folder)
        if partial is not None:
            return _svhn_partial(partial)
    return _READERS[name](name, part, paths)


def to_floats(images: Images, flat: bool = False) -> np.ndarray:
    """Pixels in float32 from 0 to 1: (n, height, width, colours), or (n, all pixels) if ``flat``."""
    x = images.x.astype(np.float32) / np.float32(images.top)
    return x.reshape(len(x), -1) if flat else x


# -- named data sets ------------------------------------------------------------------------------------------------

Paths = Callable[..., list[Path]]


def _mnist(name: str, part: str, paths: Paths) -> Images:
    files = sources.DATASETS[name].files[:2] if part == "train" else sources.DATASETS[name].files[2:]
    x, y = (_verified(path, file, _read_idx) for path, file in zip(paths(*files), files, strict=True))
    return Images(x[..., None], _labels(y, len(x), files[1].path), name)


def _cifar10(name: str, part: str, paths: Paths) -> Images:
    files = sources.DATASETS[name].files[:-1] if part == "train" else sources.DATASETS[name].files[-1:]
    batches = [_verified(path, file, _read_cifar) for path, file in zip(paths(*files), files, strict=True)]
    return Images(np.concatenate([x for x, _ in batches]), np.concatenate([y for _, y in batches]), name)


def _svhn(name: str, part: str, paths: Paths) -> Images:
    file = sources.SVHN_TRAIN if part == "train" else sources.SVHN_TEST
    (path,) = paths(file)
    content = sources.read(path, file)
    sources.check(content, file, str(path))  # first: SciPy's reader is not safe for untrusted files
    return Images(*_read_svhn(content, str(path)), name)


def _svhn_partial(path: Path) -> Images:
    x = _verified(path, sources.SVHN_PARTIAL, lambda content, where: _as_images(_array(content, where), where))
    return Images(x, None, "svhn", f"partial SVHN: {len(x)} of its training images, not the 26,032 of its test set")


def _digits(name: str, part: str, paths: Paths) -> Images:
    """The first 1,437 are for training; the last 360 are by other writers."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise ImportError("digits come with scikit-learn: pip install '.[sklearn]' in the checkout") from None
    digits = load_digits()
    rows = slice(None, 1437) if part == "train" else slice(1437, None)
    return Images(digits.images[rows, ..., None].astype(np.uint8), digits.target[rows].astype(np.int32), name, top=16)


_READERS: dict[str, Callable[[str, str, Paths], Images]] = {
    "fashion-mnist": _mnist,
    "mnist": _mnist,
    "cifar10": _cifar10,
    "svhn": _svhn,
    "digits": _digits,
}


def _verified(path: Path, file: sources.File, reader: Callable[[bytes, str], Any]) -> Any:
    """The content of a file. The reader runs before the digest check, because its errors are more specific."""
    content = sources.read(path, file)
    result = reader(content, str(path))
    sources.check(content, file, str(path))
    return result


# -- formats --------------------------------------------------------------------------------------------------------


def _read_idx(content: bytes, where: str) -> np.ndarray:
    """MNIST's format: two zero bytes, 8 for uint8, the number of axes, their lengths, the values."""
    axes = content[3] if len(content) > 3 else 0
    if content[:3] != b"\0\0\x08" or axes not in (1, 3):
        what = "a web page" if sources.is_web_page(content) else f"it begins with {content[:4].hex(' ') or 'nothing'}"
        raise ValueError(f"{where}: is no idx file of images or labels, {what}; {sources.AGAIN}")
    header = 4 + 4 * axes
    shape = tuple(int.from_bytes(content[i : i + 4], "big") for i in range(4, header, 4))
    if len(content) != header + math.prod(shape):
        raise ValueError(
            f"{where}: has {len(content)} bytes, its header promises {header + math.prod(shape)}; {sources.AGAIN}"
        )
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


def _read_cifar(content: bytes, where: str) -> tuple[np.ndarray, np.ndarray]:
    """CIFAR-10's binary format: one byte for the class, then 1,024 each of red, green and blue."""
    if not content or len(content) % 3073:
        what = "a web page" if sources.is_web_page(content) else f"{len(content)} bytes are no multiple of 3073"
        raise ValueError(f"{where}: is no batch of CIFAR-10, {what}; {sources.AGAIN}")
    rows = np.frombuffer(content, np.uint8).reshape(-1, 3073)
    x = rows[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(x), _labels(rows[:, 0], len(rows), where)


def _read_svhn(content: bytes, where: str) -> tuple[np.ndarray, np.ndarray]:
    """SVHN's MATLAB arrays: X (32, 32, 3, n), and y (n, 1), where 10 stands for the digit 0."""
    from scipy.io import loadmat

    arrays = loadmat(io.BytesIO(content), variable_names=["X", "y"])
    x, y = arrays["X"].transpose(3, 0, 1, 2), arrays["y"][:, 0]
    return np.ascontiguousarray(x), _labels(np.where(y == 10, 0, y), len(x), where)


def _labels(y: np.ndarray, images: int, where: str) -> np.ndarray:
    if len(y) != images:
        raise ValueError(f"{where}: {len(y)} labels for {images} images; {sources.AGAIN}")
    for i in np.flatnonzero(y > 9)[:1]:
        raise ValueError(f"{where}: label {y[i]} of image {i}: must be 0 to 9; {sources.AGAIN}")
    return y.astype(np.int32)


# -- a user's own images --------------------------------------------------------------------------------------------


def _own_images(path: Path) -> np.ndarray:
    if not path.is_file():
        raise ValueError(f"{path}: no such file")
    if path.suffix.lower() == ".npy":
        if path.stat().st_size > MOST_BYTES:
            raise ValueError(f"{path}: has more than {MOST_BYTES} bytes; take fewer images")
        return _as_images(_array(path.read_bytes(), str(path)), str(path))
    try:
        with zipfile.ZipFile(path) as archive:
            member = _only_array(archive, path)
            content = archive.read(member)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise ValueError(f"{path}: cannot be read: {error or type(error).__name__}; save it again") from None
    return _as_images(_array(content, f"{path}: {member.filename}"), f"{path}: {member.filename}")


def _only_array(archive: zipfile.ZipFile, path: Path) -> zipfile.ZipInfo:
    """The member with the images, if its sizes are plausible; zipfile reads no more than they declare."""
    names = Counter(archive.namelist())
    twice = [name for name, count in names.items() if count > 1]
    if twice:
        raise ValueError(f"{path}: two arrays are called {twice[0]!r}; save it again")
    if "x.npy" not in names and len(names) != 1:
        raise ValueError(f"{path}: no array x; it has {', '.join(names) or 'none'}")
    member = archive.getinfo("x.npy" if "x.npy" in names else next(iter(names)))
    if member.file_size > min(MOST_BYTES, MOST_RATIO * member.compress_size):
        raise ValueError(
            f"{path}: {member.filename}: {member.compress_size} bytes unpack to {member.file_size}: "
            f"more than {MOST_RATIO} times as many, or than {MOST_BYTES}; save it uncompressed or take fewer images"
        )
    return member


def _array(content: bytes, where: str) -> np.ndarray:
    """An array in NumPy's format. Its header is compared with the content before anything is allocated."""
    file = io.BytesIO(content)
    try:
        old = np.lib.format.read_magic(file) == (1, 0)
        read_header = np.lib.format.read_array_header_1_0 if old else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read_header(file)
    except (ValueError, TypeError) as error:
        what = "is a web page" if sources.is_web_page(content) else " ".join(str(error).split())[:120]
        raise ValueError(f"{where}: is no NumPy array: {what}; save it with numpy.save") from None
    if dtype.hasobject:
        raise ValueError(f"{where}: holds Python objects; must be images in uint8")
    size = math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or len(content) - file.tell() != size:
        raise ValueError(
            f"{where}: has {len(content) - file.tell()} bytes of data, its header promises {size}; save it again"
        )
    values = np.frombuffer(content, dtype, offset=file.tell())
    return values.reshape(shape, order="F" if fortran else "C")


def _as_images(x: np.ndarray, where: str) -> np.ndarray:
    """Images with a colour axis; raises ValueError for other arrays."""
    shape = x.shape
    if x.ndim == 3:
        x = x[..., None]
    if x.ndim != 4 or not x.size or x.shape[-1] not in (1, 3):
        hint = "transpose to put the colours last" if len(shape) == 4 and shape[1] in (1, 3) else "reshape it"
        raise ValueError(f"{where}: shape {shape}: must be (n, height, width) or (n, height, width, 1 or 3); {hint}")
    if x.dtype.kind not in "iu":
        raise ValueError(f"{where}: type {x.dtype}: must be uint8, from 0 to 255; convert it")
    outside = np.argwhere((x < 0) | (x > 255)) if x.dtype != np.uint8 else np.empty((0, 4), int)
    for index in outside[:1].tolist():
        raise ValueError(f"{where}: {x[tuple(index)]} at {index}: pixels must be 0 to 255; convert it to uint8")
    return np.ascontiguousarray(x, np.uint8)
