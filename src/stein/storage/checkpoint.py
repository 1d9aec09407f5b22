"""Checkpoints: a complete state on disk, which is loaded bit for bit or rejected.

A checkpoint is a directory ``step-00001200`` with three safetensors files and ``manifest.json``, which holds the size
and SHA-256 of each of them and of itself. If several processes save together, each of them writes files of its own,
``particles.1-of-2.safetensors``, with its rows of the particles, and the first one writes the manifest. The directory
gets its name only when it is complete and on disk (:mod:`stein.storage.durable`), and is read as an untrusted file
(:mod:`stein.storage.untrusted`).
"""

import contextlib
import hashlib
import json
import platform
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import jaxlib
import msgspec
import numpy as np
import safetensors.numpy

from stein import __version__
from stein.storage import durable, untrusted
from stein.storage.untrusted import CheckpointError, DamagedError

FORMAT_VERSION = 3  # 2 adds to a run's facts how the key of its batches is derived; 3 has files of several processes
MANIFEST = "manifest.json"
FILES = {
    "particles.safetensors": ("particles",),
    "opt.safetensors": ("opt_state", "memory", "draws"),
    "rng.safetensors": ("key", "step", "ids", "alive"),
}


class _File(msgspec.Struct, forbid_unknown_fields=True):
    size: Annotated[int, msgspec.Meta(ge=0)]
    sha256: str
    tensors: dict[str, str]


class _Manifest(msgspec.Struct, forbid_unknown_fields=True):
    """Formats 1 to 3. The first two fields and the signature are the same in every format."""

    format_version: Annotated[int, msgspec.Meta(ge=1)]
    written_by: str
    step: Annotated[int, msgspec.Meta(ge=0)]
    files: dict[str, _File]
    generators: dict[str, str]
    versions: dict[str, str]
    facts: dict[str, Any]
    sha256: str


def name_of(step: int) -> str:
    """The name of a step's directory."""
    return f"step-{step:08d}"


def save(
    folder: Path,
    state: Any,
    facts: Mapping[str, Any] = {},
    exchange: Callable[[str], list[str]] = lambda word: [word],
    own: int = 0,
) -> Path:
    """Write the state to ``folder/step-XXXXXXXX``; an intact checkpoint of that step is not replaced.

    Args:
        facts: other data of the state, as JSON: a hash of the config, the length of a log.
        exchange: if several processes save together, each its own rows of the state: gives the words of all of them
            (:func:`stein.processes.exchange`). Default: one process.
        own: the number of this process. The first, 0, writes the manifest.

    Returns:
        The path of the checkpoint, which is on disk.
    """
    generators: dict[str, str] = {}
    arrays = _on_host(_plain(state, generators))
    path = folder / name_of(int(arrays["step"]))
    parts = len(words := exchange("there" if own == 0 and _is_intact(path) else ""))
    if words[0]:
        return path
    contents = {
        name: safetensors.numpy.save(_part(file, arrays))
        for file in FILES
        for number, name in enumerate(_names(file, parts))
        if number == own
    }
    files = {
        name: {"size": len(data), "sha256": _sha256(data), "tensors": untrusted.described(_part(_whole(name), arrays))}
        for name, data in contents.items()
    }
    written = [json.loads(word) for word in exchange(json.dumps(files))]
    if own == 0:
        together = {name: entry for files in written for name, entry in files.items()}
        manifest = _manifest(path, int(arrays["step"]), parts, together, generators, facts)
        folder.mkdir(parents=True, exist_ok=True)
        durable.sync(folder.parent)
        if path.exists():
            durable.remove(path)
    with durable.new_folder(path) if own == 0 else contextlib.nullcontext(folder) as made:
        temporary = folder / exchange(made.name)[0]
        for file, data in contents.items():
            durable.write(temporary / file, data)
        exchange("written")
        if own == 0:
            durable.write(temporary / MANIFEST, manifest)
    exchange("complete")
    return path


def _manifest(
    path: Path, step: int, parts: int, files: dict[str, Any], generators: dict[str, str], facts: Mapping[str, Any]
) -> bytes:
    try:
        facts = json.loads(json.dumps(dict(facts), allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"facts: not JSON: {error}") from error
    manifest = _signed(
        {
            "format_version": 2 if parts == 1 else FORMAT_VERSION,  # what older versions can read, they may
            "written_by": __version__,
            "step": step,
            "files": files,
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
    if len(manifest) > untrusted.MAX_JSON or manifest.count(b"{") > untrusted.MAX_OBJECTS:
        raise ValueError(
            f"{path / MANIFEST}: {len(manifest)} bytes, {untrusted.MAX_JSON} are allowed; too many leaves or facts"
        )
    return manifest


def load(path: Path, like: Any) -> tuple[Any, dict[str, Any]]:
    """Verify a checkpoint, and build the state from it.

    Args:
        like: a state of the same config, or its shapes: ``jax.eval_shape(algorithm.init, key, n)``.

    Returns:
        The state, and the facts saved with it.
    """
    generators: dict[str, str] = {}
    expected = jax.eval_shape(lambda state: _plain(state, generators), like)
    manifest = read_manifest(path)
    files, parts = manifest["files"], _parts(manifest["files"])
    wanted = {name: _wanted(saved["tensors"], _part(_whole(name), expected), parts) for name, saved in files.items()}
    for name, saved in files.items():  # first: a size that differs because of the config is not damage
        untrusted.check_described(path / MANIFEST, saved["tensors"], untrusted.described(wanted[name]))
    if manifest["generators"] != generators:
        theirs = untrusted.shown(str(manifest["generators"]))
        raise CheckpointError(
            f"{path / MANIFEST}: random keys of {theirs}, here {generators}; set JAX_DEFAULT_PRNG_IMPL"
        )
    read: dict[str, list[Any]] = {}
    for name in (name for file in FILES for name in _names(file, parts)):  # rows in the order of the processes
        data = untrusted.read(path / name, untrusted.largest(wanted[name]), files[name]["size"])
        if _sha256(data) != files[name]["sha256"]:
            raise DamagedError(path / name, "its SHA-256 is not the one in the manifest")
        for leaf, array in untrusted.tensors(path / name, data, wanted[name])[0].items():
            read.setdefault(leaf, []).append(array)
    arrays: dict[str, Any] = {leaf: rows[0] if len(rows) == 1 else jnp.concatenate(rows) for leaf, rows in read.items()}
    untrusted.check_described(path / MANIFEST, untrusted.described(arrays), untrusted.described(expected))
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
    raw = untrusted.read(where, untrusted.MAX_JSON)
    manifest = untrusted.json_object(where, raw)
    try:
        intact = _signed({key: value for key, value in manifest.items() if key != "sha256"}) == raw
    except (ValueError, RecursionError):
        intact = False
    if not intact:
        raise DamagedError(where, "its SHA-256 is not the one in it")
    version, writer = manifest.get("format_version"), untrusted.shown(str(manifest.get("written_by")))
    if type(version) is int and version > FORMAT_VERSION:
        raise CheckpointError(
            f"{where}: written by stein {writer} (format {untrusted.shown(str(version))}), this is stein "
            f"{__version__}, which reads format {FORMAT_VERSION}; upgrade stein"
        )
    untrusted.convert(where, manifest, _Manifest)
    names = [name for file in FILES for name in _names(file, _parts(manifest["files"]))]
    if manifest["files"].keys() != set(names):
        raise DamagedError(where, f"it does not list exactly {', '.join(names[:9])}")
    if path.name.startswith("step-") and path.name != name_of(manifest["step"]):
        raise DamagedError(where, f"it says step {manifest['step']}, the directory another")
    return manifest


def verify(path: Path) -> dict[str, Any]:
    """Compare every file with the manifest, without a config. Returns the manifest."""
    manifest = read_manifest(path)
    for file, saved in manifest["files"].items():
        with untrusted.opened(path / file, saved["size"], saved["size"]) as opened:
            digest = hashlib.file_digest(opened, "sha256").hexdigest()
        if digest != saved["sha256"]:
            raise DamagedError(path / file, "its SHA-256 is not the one in the manifest")
    return manifest


def steps(folder: Path) -> list[Path]:
    """The checkpoints in a directory, good or damaged, newest first."""
    named = [path for path in folder.glob("step-*") if re.fullmatch(r"step-[0-9]{8,18}", path.name)]
    found = [path for path in named if path.is_dir() and not path.is_symlink()]
    return sorted(found, key=lambda path: int(path.name.removeprefix("step-")), reverse=True)


def newest(folder: Path, like: Any, warn: Callable[[str], None]) -> tuple[Any, dict[str, Any], Path] | None:
    """The newest good checkpoint: its state, its facts and its path. ``None`` if there is none, good or damaged.

    Args:
        warn: called with one line for each damaged checkpoint that is skipped.
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
    """Delete all but the newest ``keep`` checkpoints, the ``best`` one and always the newest good one.

    Args:
        good: a checkpoint known to be good, such as the one just saved. Default: files are read to find one.
    """
    found = steps(folder)
    spared = {path.name for path in [*found[:keep], best, good or next(filter(_is_good, found), None)] if path}
    for path in found:
        if path.name not in spared:
            durable.remove(path)


def export(path: Path, particles: Any, about: Mapping[str, Any]) -> None:
    """Write the particles to one safetensors file, which other tools can read.

    Its header has one entry, ``stein``: ``about`` as JSON, with a digest of it and of the particles. (safetensors
    writes several entries in random order, and equal runs must have equal files.)
    """
    arrays = _on_host(_named(particles, "particles"))
    signed = {**about, "sha256": _digest(arrays, about)}
    durable.replace(path, safetensors.numpy.save(arrays, metadata={"stein": json.dumps(signed)}))


def load_export(path: Path, like: Any) -> tuple[Any, dict[str, Any]]:
    """Particles with the structure, shapes and dtypes of ``like``, and their description.

    Raises :class:`DamagedError` if the digest does not match; files of stein 0.1 have none.
    """
    expected = _named(like, "particles")
    arrays, metadata = untrusted.tensors(path, untrusted.read(path, untrusted.largest(expected)), expected)
    about = _about(path, metadata)
    if "sha256" in about and about.pop("sha256") != _digest(arrays, about):
        raise DamagedError(path, "its SHA-256 is not the one in its header")
    return jax.tree.unflatten(jax.tree.structure(like), [arrays[name] for name in expected]), about


def read_about(path: Path) -> dict[str, Any]:
    """The description in an ensemble's file; the particles are not read, and nothing is verified."""
    return _about(path, untrusted.metadata(path))


def _about(path: Path, metadata: Mapping[str, str]) -> dict[str, Any]:
    return untrusted.json_object(path, metadata.get("stein", "").encode())


def _digest(arrays: Mapping[str, Any], about: Mapping[str, Any]) -> str:
    """SHA-256 of the description and of every array, in the order of their names."""
    total = hashlib.sha256(json.dumps(json.loads(json.dumps(about)), sort_keys=True).encode())
    for name in sorted(arrays):
        total.update(name.encode())
        total.update(np.asarray(arrays[name], order="C").tobytes())
    return total.hexdigest()


def _is_intact(path: Path) -> bool:
    """Whether there is a checkpoint that need not be saved again, as after a run fell back to an earlier step."""
    try:
        return path.exists() and bool(verify(path))
    except DamagedError:
        return False


def _is_good(path: Path) -> bool:
    try:
        verify(path)
    except CheckpointError:
        return False
    return True


def _named(tree: Any, root: str = "") -> dict[str, Any]:
    """Leaves by path: ``particles[0].weight``."""
    return {
        f"{root}{jax.tree_util.keystr(path)}".removeprefix("."): leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


def _plain(state: Any, generators: dict[str, str]) -> dict[str, Any]:
    """Leaves by name, random keys as raw data; the names of their generators go into a dict."""
    leaves = _named(jax.tree.map(jnp.asarray, state))
    for name, leaf in leaves.items():
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaves[name], generators[name] = jax.random.key_data(leaf), str(jax.random.key_impl(leaf))
    return leaves


def _on_host(leaves: dict[str, Any]) -> dict[str, np.ndarray]:
    """Arrays in C order, since safetensors writes the raw memory."""
    return {name: np.asarray(leaf, order="C") for name, leaf in jax.device_get(leaves).items()}


def _names(file: str, parts: int) -> list[str]:
    """The files that hold the leaves of a file: one of each process. The last, which is small, is not divided."""
    if parts == 1 or file == "rng.safetensors":
        return [file]
    return [file.replace(".", f".{number}-of-{parts}.") for number in range(parts)]


def _parts(files: Mapping[str, Any]) -> int:
    """How many processes wrote these files."""
    return max(sum(name.startswith("particles.") for name in files), 1)


def _whole(name: str) -> str:
    """The file of which a process wrote this part."""
    return re.sub(r"\.[0-9]+-of-[0-9]+", "", name)


def _wanted(saved: Mapping[str, str], expected: dict[str, Any], parts: int) -> dict[str, Any]:
    """The leaves of one process's file: of those that are in it, as many rows as it says."""
    if parts == 1:
        return expected
    rows = {name: re.match(r"[a-z0-9]+\[([0-9]{1,9})\b", saved[name]) for name in saved.keys() & expected.keys()}
    return {
        name: expected[name]
        if found is None
        else jax.ShapeDtypeStruct((int(found[1]), *expected[name].shape[1:]), expected[name].dtype)
        for name, found in rows.items()
    }


def _part(file: str, leaves: dict[str, Any]) -> dict[str, Any]:
    """The leaves that belong in a file."""
    return {name: leaf for name, leaf in leaves.items() if name.startswith(FILES[file])}


def _signed(manifest: dict[str, Any]) -> bytes:
    """The bytes of the manifest file. They are compared as a whole, so that every flipped bit is detected."""
    digest = _sha256(json.dumps(manifest, allow_nan=False).encode())
    return json.dumps({**manifest, "sha256": digest}, allow_nan=False, separators=(",\n", ": ")).encode()


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
