"""Checkpoints: a whole state on disk, which is loaded bit for bit or refused.

A checkpoint is a directory ``step-00001200`` with three safetensors files and ``manifest.json``, which holds the size
and SHA-256 of each of them and of itself. It appears under its name only when it is complete and on the disk
(:mod:`stein.durable`). Files come from strangers: nothing in them is executed, imported or used as a path, and nothing
is allocated before its size is known to be the size that the config asks for.
"""

import contextlib
import errno
import hashlib
import json
import os
import platform
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from io import BufferedReader
from pathlib import Path
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import jaxlib
import msgspec
import numpy as np
import safetensors.numpy

from stein import __version__, durable
from stein.ensembles import State
from stein.types import Particles

FORMAT_VERSION = 1
MANIFEST = "manifest.json"
FILES = {
    "particles.safetensors": ("particles",),
    "opt.safetensors": ("opt_state", "memory"),
    "rng.safetensors": ("key", "step", "ids", "alive"),
}
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
    """Not what was once written. An older checkpoint may be good, which other errors do not give hope for."""

    def __init__(self, file: Path, why: str) -> None:
        super().__init__(f"{file}: damaged ({_shown(why)}); restore it from a copy or use another checkpoint")
        self.file, self.why = file, _shown(why)


class _File(msgspec.Struct, forbid_unknown_fields=True):
    size: Annotated[int, msgspec.Meta(ge=0)]
    sha256: str
    tensors: dict[str, str]


class _Manifest(msgspec.Struct, forbid_unknown_fields=True):
    """Format 1. In every format the first two fields and the signature stay as they are."""

    format_version: Annotated[int, msgspec.Meta(ge=1)]
    written_by: str
    step: Annotated[int, msgspec.Meta(ge=0)]
    files: dict[str, _File]
    generators: dict[str, str]
    versions: dict[str, str]
    facts: dict[str, Any]
    sha256: str


class _Tensor(msgspec.Struct, forbid_unknown_fields=True):
    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


def name_of(step: int) -> str:
    """The name of a step's directory."""
    return f"step-{step:08d}"


def save(folder: Path, state: State, facts: Mapping[str, Any] = {}) -> Path:
    """Write the state to ``folder/step-XXXXXXXX``; an intact checkpoint of that step is left as it is.

    Args:
        facts: whatever else belongs to the state, as JSON: a hash of the config, the length of a log.

    Returns:
        The checkpoint's path; it is on the disk.
    """
    generators: dict[str, str] = {}
    arrays = _on_host(_plain(state, generators))
    path = folder / name_of(int(arrays["step"]))
    if path.exists():
        try:
            verify(path)
            return path
        except DamagedError:
            pass  # a run that fell back to an earlier step passes here again
    contents = {file: safetensors.numpy.save(_part(file, arrays)) for file in FILES}
    try:
        facts = json.loads(json.dumps(dict(facts), allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"facts: not JSON: {error}") from error
    manifest = _signed(
        {
            "format_version": FORMAT_VERSION,
            "written_by": __version__,
            "step": int(arrays["step"]),
            "files": {
                file: {"size": len(data), "sha256": _sha256(data), "tensors": _described(_part(file, arrays))}
                for file, data in contents.items()
            },
            "generators": generators,
            "versions": {
                "jax": jax.__version__,
                "jaxlib": jaxlib.__version__,
                "numpy": np.__version__,
                "python": platform.python_version(),
            },
            "facts": facts,
        }
    )
    if len(manifest) > MAX_JSON or manifest.count(b"{") > MAX_OBJECTS:
        raise ValueError(f"{path / MANIFEST}: {len(manifest)} bytes, {MAX_JSON} are allowed; too many leaves or facts")
    folder.mkdir(parents=True, exist_ok=True)
    durable.sync(folder.parent)
    if path.exists():
        durable.remove(path)
    with durable.new_folder(path) as temporary:
        for file, data in contents.items():
            durable.write(temporary / file, data)
        durable.write(temporary / MANIFEST, manifest)
    return path


def load(path: Path, like: State) -> tuple[State, dict[str, Any]]:
    """Verify a checkpoint, and build the state from it.

    Args:
        like: a state of the same config, or only its shapes: ``jax.eval_shape(algorithm.init, key, n)``.

    Returns:
        The state, and the facts saved with it.
    """
    generators: dict[str, str] = {}
    expected = jax.eval_shape(lambda state: _plain(state, generators), like)
    manifest = read_manifest(path)
    for file, saved in manifest["files"].items():  # before all else: the size of a wrong config's files is no damage
        _check_config(path / MANIFEST, saved["tensors"], _described(_part(file, expected)))
    if manifest["generators"] != generators:
        theirs = _shown(str(manifest["generators"]))
        raise CheckpointError(
            f"{path / MANIFEST}: random keys of {theirs}, here {generators}; set JAX_DEFAULT_PRNG_IMPL"
        )
    arrays: dict[str, Any] = {}
    for file, saved in manifest["files"].items():
        wanted = _part(file, expected)
        data = _read(path / file, _most(wanted), saved["size"])
        if _sha256(data) != saved["sha256"]:
            raise DamagedError(path / file, "its SHA-256 is not the one in the manifest")
        arrays |= _tensors(path / file, data, wanted)[0]
    if int(arrays["step"]) != manifest["step"]:
        raise DamagedError(path / MANIFEST, f"it says step {manifest['step']}, the state says {arrays['step']}")
    for name, generator in generators.items():
        arrays[name] = jax.random.wrap_key_data(arrays[name], impl=generator)
    return jax.tree.unflatten(jax.tree.structure(like), [arrays[name] for name in _named(like)]), manifest["facts"]


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest alone, verified; the tensors are not read."""
    where = path / MANIFEST
    if path.is_symlink() or not path.is_dir():
        raise DamagedError(path, "not a directory")
    raw = _read(where, MAX_JSON)
    manifest = _json(where, raw)
    try:
        intact = _signed({key: value for key, value in manifest.items() if key != "sha256"}) == raw
    except (ValueError, RecursionError):
        intact = False
    if not intact:
        raise DamagedError(where, "its SHA-256 is not the one in it")
    version, writer = manifest.get("format_version"), _shown(str(manifest.get("written_by")))
    if type(version) is int and version > FORMAT_VERSION:
        raise CheckpointError(
            f"{where}: written by stein {writer} (format {_shown(str(version))}), this is stein {__version__}, "
            f"which reads format {FORMAT_VERSION}; upgrade stein"
        )
    _convert(where, manifest, _Manifest)
    if manifest["files"].keys() != FILES.keys():
        raise DamagedError(where, f"it does not list exactly {', '.join(FILES)}")
    if path.name.startswith("step-") and path.name != name_of(manifest["step"]):
        raise DamagedError(where, f"it says step {manifest['step']}, the directory another")
    return manifest


def verify(path: Path) -> dict[str, Any]:
    """Compare every file with the manifest, without a config and whatever the tensors are. Returns the manifest."""
    manifest = read_manifest(path)
    for file, saved in manifest["files"].items():
        with _opened(path / file, saved["size"], saved["size"]) as opened:
            digest = hashlib.file_digest(opened, "sha256").hexdigest()
        if digest != saved["sha256"]:
            raise DamagedError(path / file, "its SHA-256 is not the one in the manifest")
    return manifest


def steps(folder: Path) -> list[Path]:
    """The checkpoints in a directory, good or damaged, newest first."""
    named = [path for path in folder.glob("step-*") if re.fullmatch(r"step-[0-9]{8,18}", path.name)]
    found = [path for path in named if path.is_dir() and not path.is_symlink()]
    return sorted(found, key=lambda path: int(path.name.removeprefix("step-")), reverse=True)


def newest(folder: Path, like: State, warn: Callable[[str], None]) -> tuple[State, dict[str, Any], Path] | None:
    """The newest good checkpoint: its state, its facts and its path. ``None`` if there is none, good or damaged.

    Args:
        warn: told in one line of each damaged checkpoint that is passed over.
    """
    damaged: list[DamagedError] = []
    for path in steps(folder):
        try:
            state, facts = load(path, like)
        except DamagedError as error:
            damaged.append(error)
        else:
            for worse in damaged:
                warn(f"{worse.file} is damaged ({worse.why}); falling back")
            return state, facts, path
    if damaged:
        raise damaged[0]
    return None


def prune(folder: Path, keep: int, best: Path | None = None, good: Path | None = None) -> None:
    """Delete all but the newest ``keep`` checkpoints, the ``best`` one and, whatever happens, the newest good one.

    Args:
        good: one that is known to be good, such as the one just saved; unless given, files are read to find it.
    """
    found = steps(folder)
    spared = {path.name for path in [*found[:keep], best, good or next(filter(_is_good, found), None)] if path}
    for path in found:
        if path.name not in spared:
            durable.remove(path)


def export(path: Path, particles: Particles, metadata: Mapping[str, str]) -> None:
    """The particles alone in one safetensors file, which other tools read too; ``metadata`` goes into its header."""
    arrays = _on_host(_named(particles, "particles"))
    durable.replace(path, safetensors.numpy.save(arrays, metadata=dict(metadata)))


def load_export(path: Path, like: Particles) -> tuple[Particles, dict[str, str]]:
    """Particles with the structure, shapes and dtypes of ``like``, and the metadata, from such a file."""
    expected = _named(like, "particles")
    arrays, metadata = _tensors(path, _read(path, _most(expected)), expected)
    return jax.tree.unflatten(jax.tree.structure(like), [arrays[name] for name in expected]), metadata


def _is_good(path: Path) -> bool:
    try:
        verify(path)
    except CheckpointError:
        return False
    return True


def _named(tree: Any, root: str = "") -> dict[str, Any]:
    """Leaves by the expression that gives them: ``particles[0].weight``."""
    return {
        f"{root}{jax.tree_util.keystr(path)}".removeprefix("."): leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


def _plain(state: State, generators: dict[str, str]) -> dict[str, Any]:
    """Leaves by name, random keys as the numbers they are made of; the names of their generators go into a dict."""
    leaves = _named(jax.tree.map(jnp.asarray, state))
    for name, leaf in leaves.items():
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaves[name], generators[name] = jax.random.key_data(leaf), str(jax.random.key_impl(leaf))
    return leaves


def _on_host(leaves: dict[str, Any]) -> dict[str, np.ndarray]:
    """In C order: safetensors writes the memory as it lies."""
    return {name: np.asarray(leaf, order="C") for name, leaf in jax.device_get(leaves).items()}


def _part(file: str, leaves: dict[str, Any]) -> dict[str, Any]:
    """The leaves that belong into a file."""
    return {name: leaf for name, leaf in leaves.items() if name.startswith(FILES[file])}


def _described(leaves: dict[str, Any]) -> dict[str, str]:
    return {name: f"{leaf.dtype}{list(leaf.shape)}" for name, leaf in leaves.items()}


def _check_config(where: Path, saved: dict[str, str], expected: dict[str, str]) -> None:
    """Names, shapes and dtypes are those of the config."""
    for name in sorted(saved.keys() ^ expected.keys()):
        has = "is not in it" if name in expected else "is in it, but not in this config"
        raise CheckpointError(f"{where}: {_shown(name)} {has}; it was written under another config")
    for name, description in expected.items():
        if saved[name] != description:
            wide = re.match(r"(float|int|uint|complex)(64|128)", saved[name]) and jnp.result_type(float) != np.float64
            raise CheckpointError(
                f"{where}: {name} is {_shown(saved[name])}, this config makes {description}; "
                + ("set JAX_ENABLE_X64=1, as it was" if wide else "it was written under another config")
            )


def _tensors(where: Path, data: bytes, expected: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """The tensors of a safetensors file by name, and its metadata; ``expected`` says what they are.

    Not by the safetensors package, which has no bfloat16 for NumPy and leaves the gaps and limits to the caller.
    """
    start = 8 + int.from_bytes(data[:8], "little")
    if len(data) < 8 or start > min(len(data), 8 + MAX_JSON):
        raise DamagedError(where, "its header does not fit")
    header = _json(where, data[8:start])
    metadata = _convert(where, header.pop("__metadata__", {}), dict[str, str])
    entries = _convert(where, header, dict[str, _Tensor])
    _check_config(
        where,
        {name: f"{_DTYPES.get(entry.dtype, entry.dtype)}{entry.shape}" for name, entry in entries.items()},
        _described(expected),
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


def _most(expected: dict[str, Any]) -> int:
    """The largest size of a file with these tensors."""
    return 8 + MAX_JSON + sum(leaf.size * leaf.dtype.itemsize for leaf in expected.values())


def _read(path: Path, most: int, size: int | None = None) -> bytes:
    with _opened(path, most, size) as file:
        return file.read(most if size is None else size)


@contextlib.contextmanager
def _opened(path: Path, most: int, size: int | None = None) -> Iterator[BufferedReader]:
    """A regular file of a known size: no link to elsewhere, and no pipe to wait for."""
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


def _json(where: Path, raw: bytes) -> dict[str, Any]:
    """A JSON object without what parsers disagree about: duplicate keys, NaN, other encodings."""
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


def _convert(where: Path, parsed: Any, schema: Any) -> Any:
    try:
        return msgspec.convert(parsed, schema)
    except msgspec.ValidationError as error:
        raise DamagedError(where, str(error)) from error


def _signed(manifest: dict[str, Any]) -> bytes:
    """The bytes of the manifest file. They are compared as a whole, so that no flipped bit means the same."""
    digest = _sha256(json.dumps(manifest, allow_nan=False).encode())
    return json.dumps({**manifest, "sha256": digest}, allow_nan=False, separators=(",\n", ": ")).encode()


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _shown(text: str) -> str:
    """Text from a file or a library, on one line and harmless to a terminal."""
    return ascii(text)[1:-1][:120]
