"""Configs: TOML in and out, with errors that name the file, the key, the allowed values and the nearest name.

The keys are defined in :mod:`stein.runs.schema`. No jax here: help and errors must be fast.
"""

import hashlib
import math
import os
import re
import stat
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import tomli_w

from stein.runs import conflicts
from stein.runs.keys import KEYS, SECTIONS, Key
from stein.runs.schema import FORMER, Config, Data
from stein.runs.wording import key_name, nearest, printable, shown, where_it_belongs

Section = TypeVar("Section", bound=msgspec.Struct)

MAX_BYTES = 1_000_000
SOURCES = {"name", "file", "inputs"}  # of the section data: one of them must be given
PATHS = ("file", "inputs", "targets", "test_file", "folder")  # of the section data


class ConfigError(ValueError):
    """An invalid config; one line: file, key, what is wrong, what is allowed."""


def load(
    path: Path, overrides: Sequence[str] = (), method: str | None = None, stochastic: bool | None = None
) -> Config:
    """Load and check the config in a file, with the command line's changes; paths become absolute.

    Args:
        overrides: items ``section.key=value``; the value is TOML or a bare string. Paths are relative to the current
            directory.
        method: replaces ``method.name``.
        stochastic: replaces ``method.stochastic``.

    Raises:
        ConfigError: for any error, in one line.
    """
    return amended(read(path), path, overrides, method, stochastic)


def amended(
    document: dict[str, Any],
    path: Path,
    overrides: Sequence[str] = (),
    method: str | None = None,
    stochastic: bool | None = None,
) -> Config:
    """The checked config in a document from ``path``, with changes as in :func:`load`."""
    changes = [(*override(item, printable(str(path))), "--set") for item in overrides]
    if method is not None:
        changes.append(("method", "name", method, "--method"))
    if stochastic is not None:
        changes.append(("method", "stochastic", stochastic, "--stochastic"))
    given = {key for section, key, *_ in changes if section == "data"}
    if given & SOURCES and isinstance(
        table := document.get("data"), dict
    ):  # one on the command line replaces the file's
        for key in (SOURCES | {"targets"}) - given:
            table.pop(key, None)
    for section, key, value, _ in changes:
        table = document.setdefault(section, {})
        if isinstance(table, dict):  # other types are rejected below
            table[key] = value
    return checked(document, path, {f"{section}.{key_name(key)}": option for section, key, _, option in changes})


def load_run(path: Path, steps: int | None = None) -> Config:
    """The config.toml of a run; keys that are newer than the run keep the run's old behaviour.

    Args:
        steps: replaces ``train.steps``.
    """
    document = read(path)
    for name, value in FORMER.items():
        section, _, key = name.partition(".")
        if isinstance(table := document.setdefault(section, {}), dict):
            table.setdefault(key, value)
    if steps is not None:
        document["train"]["steps"] = steps
    return checked(document, path, {} if steps is None else {"train.steps": "--steps"})


def read(path: Path) -> dict[str, Any]:
    """The content of a TOML file, unchecked."""
    where = printable(str(path))
    return _document(_read(path, where), where)


def checked(document: Mapping[str, Any], path: Path, sources: Mapping[str, str]) -> Config:
    """The config in a document from ``path``, with absolute paths; ``sources`` as in ``_config``."""
    where = printable(str(path))
    config = _config(document, where, sources)
    return msgspec.structs.replace(
        config,
        data=_absolute(config.data, "data", PATHS, path, where, sources),
        method=config.method
        if config.method.extra_source in conflicts.SOURCES
        else _absolute(config.method, "method", ("extra_source",), path, where, sources),
    )


def parse(text: str | bytes, where: str = "config") -> Config:
    """The config in a text; ``where`` is its name in error messages."""
    return _config(
        _document(text if isinstance(text, bytes) else text.encode(errors="surrogatepass"), where), where, {}
    )


def dump(config: Config) -> str:
    """All keys as TOML; ``parse(dump(config)) == config``."""
    return tomli_w.dumps(msgspec.to_builtins(config))


def fingerprint(config: Config) -> str:
    """SHA-256 of the non-default values, in hexadecimal: a later version's new keys and defaults do not change it."""
    chosen = {
        f"{section}.{key}": value
        for section, keys in msgspec.to_builtins(config).items()
        for key, value in keys.items()
        if value != msgspec.to_builtins(FORMER.get(f"{section}.{key}", KEYS[section][key].default))
        and (config.is_table or value != KEYS[section][key].default)  # otherwise "auto" means what it did before
    }
    return hashlib.sha256(tomli_w.dumps(chosen).encode()).hexdigest()


def _read(path: Path, where: str) -> bytes:
    content = None
    try:
        if stat.S_ISREG(path.stat().st_mode):  # a pipe could block forever
            with path.open("rb") as file:
                content = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise ConfigError(f"{where}: no such file; `stein config init` writes one") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise ConfigError(f"{where}: cannot be read: {getattr(error, 'strerror', error)}") from None
    if content is None:
        raise ConfigError(f"{where}: is {'a directory' if path.is_dir() else 'no regular file'}; must be a TOML file")
    if len(content) > MAX_BYTES:
        raise ConfigError(f"{where}: is larger than {MAX_BYTES:_} bytes; must be a config")
    return content


def _document(content: bytes, where: str) -> dict[str, Any]:
    try:
        text = content.decode("utf-8-sig")  # editors on Windows put a byte-order mark in front
        return tomllib.loads(f"{text}\n")  # with the line break, errors in the last line name it
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise ConfigError(f"{where}: line {line}: is not UTF-8 text; save the file as UTF-8") from None
    except RecursionError:
        raise ConfigError(f"{where}: is nested too deeply") from None
    except ValueError as error:  # TOMLDecodeError, and Python's own for numbers of more than 4300 digits
        raise ConfigError(f"{where}: {_syntax(str(error), text)}") from None


def _syntax(complaint: str, text: str) -> str:
    """A parser's error message with the line that it refers to."""
    found = re.search(r" \(at line (\d+), column \d+\)$", complaint)
    if not found:
        return f"is not valid TOML: {printable(complaint)}"
    number = int(found[1])
    line = shown(text.split("\n")[number - 1].strip())
    reason = complaint[: found.start()]
    if reason.startswith(("Cannot overwrite", "Cannot declare")):
        reason = "given twice"
    return f"line {number}: {line}: is not valid TOML: {printable(reason)}"


def override(item: str, where: str) -> tuple[str, str, Any]:
    """Section, key and value of an item ``section.key=value``; ``where`` is for messages."""
    name, equals, text = item.partition("=")
    section, dot, key = (part.strip() for part in name.partition("."))
    if not (equals and section and dot and key):
        raise ConfigError(f"{where}: --set {shown(item)}: must be section.key=value, such as train.steps=500")
    try:
        parsed = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        parsed = {}
    # A line break in the text could inject a second key.
    return section, key, parsed["value"] if parsed.keys() == {"value"} else text.strip()


def _config(document: Mapping[str, Any], where: str, sources: Mapping[str, str]) -> Config:
    """A checked config; ``sources`` names the options that overrode keys of the file."""

    def fail(name: str, complaint: str) -> ConfigError:
        source = f" (from {sources[name]})" if name in sources else ""
        return ConfigError(f"{where}: {name}{source}: {complaint}")

    sections: dict[str, Any] = {"data": Data()}
    for section, table in document.items():
        if section not in SECTIONS:
            raise fail(
                key_name(section), f"unknown section; one of {', '.join(SECTIONS)}{where_it_belongs(section, SECTIONS)}"
            )
        sections[section] = SECTIONS[section](**values(table, section, KEYS[section], fail))
    config = Config(**sections)
    for name, complaint in conflicts.of(config):
        raise fail(name, complaint)
    return config


def values(
    table: Any, section: str, known: Mapping[str, Key], fail: Callable[[str, str], ConfigError]
) -> dict[str, Any]:
    """The checked values of one section; ``fail`` makes the error from a key and a message."""
    if not isinstance(table, dict):
        raise fail(section, f"got {shown(table)}; must be a table: [{section}]")
    found = {}
    for key, value in table.items():
        name = f"{section}.{key_name(key)}"
        if key not in known:
            raise fail(name, f"unknown key; one of {', '.join(known)}{where_it_belongs(key, known)}")
        try:
            found[key] = msgspec.convert(value, known[key].type)
            unknown = known[key].choices and value not in known[key].options
            if unknown or (isinstance(value, float) and not math.isfinite(value)):
                raise msgspec.ValidationError
        except msgspec.ValidationError:
            hint = nearest(value, known[key].options) if isinstance(value, str) else ""
            raise fail(name, f"got {shown(value)}; must be {known[key].allowed}{hint}") from None
    return found


def _absolute(
    values: Section, section: str, keys: Sequence[str], path: Path, where: str, sources: Mapping[str, str]
) -> Section:
    """Paths made absolute: relative to the file, or for the command line to the current directory."""
    given = {key: getattr(values, key) for key in keys if getattr(values, key)}
    starts = {key: Path() if sources.get(f"{section}.{key}") == "--set" else path.parent for key in given}
    resolved = {key: os.path.realpath(starts[key] / value) for key, value in given.items()}
    for key, value in resolved.items():
        try:
            msgspec.convert(value, KEYS[section][key].type)
        except msgspec.ValidationError:
            allowed = KEYS[section][key].allowed
            raise ConfigError(f"{where}: {section}.{key}: {shown(value)} must be {allowed}") from None
    return msgspec.structs.replace(values, **resolved)
