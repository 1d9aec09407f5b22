"""Reading untrusted files: safetensors and JSON, checked before use.

Nothing in a file is executed, imported or used as a path, links and pipes are not followed, and nothing is allocated
before its size is verified. Errors are one line, without control characters.
"""

import contextlib
import errno
import json
import os
import re
import stat
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import msgspec
import numpy as np

MAX_JSON = 2**21  # parsed JSON takes up to 35 times its own size; ten thousand leaves need about 1 MB
MAX_OBJECTS = 50_000

_DTYPES = {
    **{f"I{8 * size}": np.dtype(f"i{size}") for size in (1, 2, 4, 8)},
    **{f"U{8 * size}": np.dtype(f"u{size}") for size in (1, 2, 4, 8)},
    **{f"F{8 * size}": np.dtype(f"f{size}") for size in (2, 4, 8)},
    "BF16": np.dtype(jnp.bfloat16),
    "BOOL": np.dtype(bool),
    "C64": np.dtype(np.complex64),
}


class CheckpointError(ValueError):
    """``file: what is wrong; what to do``, on one line."""


class DamagedError(CheckpointError):
    """The file is corrupt; an older checkpoint may still be valid."""

    def __init__(self, file: Path, why: str) -> None:
        super().__init__(f"{file}: damaged ({shown(why)}); restore it from a copy or use another checkpoint")
        self.file, self.why = file, shown(why)


class _Tensor(msgspec.Struct, forbid_unknown_fields=True):
    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


def tensors(where: Path, data: bytes, expected: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """The tensors of a safetensors file by name, and its metadata; ``expected`` are their shapes and dtypes.

    Does not use the safetensors package, which has no bfloat16 for NumPy and does not check gaps and limits.
    """
    start = 8 + int.from_bytes(data[:8], "little")
    if len(data) < 8 or start > min(len(data), 8 + MAX_JSON):
        raise DamagedError(where, "its header does not fit")
    header = json_object(where, data[8:start])
    metadata = convert(where, header.pop("__metadata__", {}), dict[str, str])
    entries = convert(where, header, dict[str, _Tensor])
    check_described(
        where,
        {name: f"{_DTYPES.get(entry.dtype, entry.dtype)}{entry.shape}" for name, entry in entries.items()},
        described(expected),
    )
    arrays, at = {}, 0
    for name, entry in sorted(entries.items(), key=lambda item: item[1].data_offsets):
        end = at + expected[name].size * expected[name].dtype.itemsize
        if entry.data_offsets != (at, end) or start + end > len(data):
            raise DamagedError(where, f"{name} is not where the tensor before it ends")
        array: Any = np.ndarray(expected[name].shape, expected[name].dtype, data, start + at)
        if array.dtype == bool and array.view(np.uint8).max(initial=0) > 1:
            raise DamagedError(where, f"{name} is neither true nor false")
        arrays[name], at = jnp.asarray(array), end
        if arrays[name].dtype != array.dtype:
            raise CheckpointError(f"{where}: {name} is {array.dtype}; set JAX_ENABLE_X64=1, as it was")
    if start + at != len(data):
        raise DamagedError(where, "there is something behind its last tensor")
    return arrays, metadata


def metadata(where: Path) -> dict[str, str]:
    """The metadata of a safetensors file; its tensors are not read."""
    with opened(where, 2**62) as file:
        length = int.from_bytes(file.read(8), "little")
        if length > MAX_JSON:
            raise DamagedError(where, "its header does not fit")
        raw = file.read(length)
    return convert(where, json_object(where, raw).get("__metadata__", {}), dict[str, str])


def largest(expected: dict[str, Any]) -> int:
    """The maximum size of a file with these tensors."""
    return 8 + MAX_JSON + sum(leaf.size * leaf.dtype.itemsize for leaf in expected.values())


def read(path: Path, most: int, size: int | None = None) -> bytes:
    with opened(path, most, size) as file:
        return file.read(most if size is None else size)


@contextlib.contextmanager
def opened(path: Path, most: int, size: int | None = None) -> Iterator[BufferedReader]:
    """Open a regular file of a known size, never a link or a pipe."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise DamagedError(path, "not a regular file")
            if size not in (None, status.st_size):
                raise DamagedError(path, f"{status.st_size} bytes, it had {size}")
            if status.st_size > most:
                raise DamagedError(path, f"{status.st_size} bytes, at most {most} are needed")
            yield file
    except OSError as error:
        why = "a symbolic link" if error.errno == errno.ELOOP else error.strerror
        raise DamagedError(path, f"cannot be read: {why}") from error


def json_object(where: Path, raw: bytes) -> dict[str, Any]:
    """A JSON object; rejects what parsers disagree about: duplicate keys, NaN, other encodings."""
    if raw.count(b"{") > MAX_OBJECTS:
        raise DamagedError(where, f"more than {MAX_OBJECTS} tensors")
    try:
        parsed = json.loads(raw.decode(), object_pairs_hook=_unique, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise DamagedError(where, f"not JSON: {error}") from error
    if not isinstance(parsed, dict):
        raise DamagedError(where, "not a JSON object")
    return parsed


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) < len(pairs):
        raise ValueError("duplicate keys")
    return dict(pairs)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no number")


def convert(where: Path, parsed: Any, schema: Any) -> Any:
    try:
        return msgspec.convert(parsed, schema)
    except msgspec.ValidationError as error:
        raise DamagedError(where, str(error)) from error


def described(leaves: dict[str, Any]) -> dict[str, str]:
    return {name: f"{leaf.dtype}{list(leaf.shape)}" for name, leaf in leaves.items()}


def check_described(where: Path, saved: dict[str, str], expected: dict[str, str]) -> None:
    """Check that names, shapes and dtypes are those of the config."""
    for name in sorted(saved.keys() ^ expected.keys()):
        has = "is not in it" if name in expected else "is in it, but not in this config"
        raise CheckpointError(f"{where}: {shown(name)} {has}; it was written under another config")
    for name, description in expected.items():
        if saved[name] != description:
            wide = re.match(r"(float|int|uint|complex)(64|128)", saved[name]) and jnp.result_type(float) != np.float64
            raise CheckpointError(
                f"{where}: {name} is {shown(saved[name])}, this config makes {description}; "
                + ("set JAX_ENABLE_X64=1, as it was" if wide else "it was written under another config")
            )


def shown(text: str) -> str:
    """Text from a file or a library, on one line without control characters."""
    return ascii(text)[1:-1][:120]
