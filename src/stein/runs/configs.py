"""Configs: TOML in and out, with errors that name the file, the key, the allowed values and the nearest name.

The keys are defined in :mod:`stein.runs.schema`. No jax here: help and errors must be fast.
"""

import difflib
import hashlib
import math
import os
import re
import reprlib
import stat
import textwrap
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import tomli_w

from stein.runs import conflicts
from stein.runs.schema import FORMER, IMAGES, KEYS, SECTIONS, UCI, WITH_WEIGHT_DECAY, Config, Data, Key

Section = TypeVar("Section", bound=msgspec.Struct)

MAX_BYTES = 1_000_000
WIDTH = 120
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
    document = read(path)
    changes = [(*_override(item, _printable(str(path))), "--set") for item in overrides]
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
    return checked(document, path, {f"{section}.{_name(key)}": option for section, key, _, option in changes})


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
    where = _printable(str(path))
    return _document(_read(path, where), where)


def checked(document: Mapping[str, Any], path: Path, sources: Mapping[str, str]) -> Config:
    """The config in a document from ``path``, with absolute paths; ``sources`` as in ``_config``."""
    where = _printable(str(path))
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
        return f"is not valid TOML: {_printable(complaint)}"
    number = int(found[1])
    line = shown(text.split("\n")[number - 1].strip())
    reason = complaint[: found.start()]
    if reason.startswith(("Cannot overwrite", "Cannot declare")):
        reason = "given twice"
    return f"line {number}: {line}: is not valid TOML: {_printable(reason)}"


def _override(item: str, where: str) -> tuple[str, str, Any]:
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
            raise fail(_name(section), f"unknown section; one of {', '.join(SECTIONS)}{_home(section, SECTIONS)}")
        sections[section] = SECTIONS[section](**values(table, section, KEYS[section], fail))
    config = Config(**sections)
    for name, complaint in _conflicts(config):
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
        name = f"{section}.{_name(key)}"
        if key not in known:
            raise fail(name, f"unknown key; one of {', '.join(known)}{_home(key, known)}")
        try:
            found[key] = msgspec.convert(value, known[key].type)
            unknown = known[key].choices and value not in known[key].options
            if unknown or (isinstance(value, float) and not math.isfinite(value)):
                raise msgspec.ValidationError
        except msgspec.ValidationError:
            hint = _hint(value, known[key].options) if isinstance(value, str) else ""
            raise fail(name, f"got {shown(value)}; must be {known[key].allowed}{hint}") from None
    return found


def _conflicts(config: Config) -> Iterator[tuple[str, str]]:
    """Keys that are valid alone but not together."""
    yield from _data_conflicts(config.data)
    yield from conflicts.of_method(config)
    train, optimiser, annealing = config.train, config.optimiser, config.annealing
    for name, every in (("evaluation.every", config.evaluation.every), ("checkpoints.every", config.checkpoints.every)):
        if every % train.log_every:
            nearest = max(1, round(every / train.log_every)) * train.log_every
            yield name, f"got {every}; must be a multiple of train.log_every = {train.log_every}, such as {nearest}"
    if optimiser.warmup_steps >= train.steps:
        yield "optimiser.warmup_steps", f"got {optimiser.warmup_steps}; must be below train.steps = {train.steps}"
    if optimiser.weight_decay and optimiser.name not in WITH_WEIGHT_DECAY:
        yield "optimiser.weight_decay", f"{optimiser.name} has none; must be 0, or use {', '.join(WITH_WEIGHT_DECAY)}"
    if annealing.name != "none":
        least = max(2, annealing.cycles if annealing.name == "cyclical" else 0)
        if not least <= config.annealing_steps <= train.steps:
            yield "annealing.steps", f"is {config.annealing_steps}; must be from {least} to train.steps = {train.steps}"
    for name, wanted in (("checkpoints.best", config.checkpoints.best), ("train.early_stop", train.early_stop)):
        if wanted and config.data.reading == "checked" and not (config.validation_fraction or config.data.split_column):
            yield name, "needs validation points; must be off, or data.validation_fraction above 0"
        if wanted and not config.evaluation.every:
            yield name, "needs evaluations during training; must be off, or evaluation.every above 0"


def _data_conflicts(data: Data) -> Iterator[tuple[str, str]]:
    sources = [key for key in ("name", "file", "inputs") if getattr(data, key)]
    if bool(data.inputs) != bool(data.targets):
        given, missing = ("inputs", "targets") if data.inputs else ("targets", "inputs")
        yield f"data.{missing}", f"is missing; data.{given} is given and both are needed"
    if not sources:
        names = ", ".join(KEYS["data"]["name"].options)
        yield "data.name", f"no data; must be one of {names}, or give data.file, or data.inputs and data.targets"
    if len(sources) > 1:
        yield f"data.{sources[1]}", f"data.{sources[0]} is given too; must be one of data.name, data.file, data.inputs"
    tables = (".npz", ".csv", ".parquet")
    allowed = {"file": tables, "test_file": tables, "inputs": (".npy",), "targets": (".npy",)}
    for key, suffixes in allowed.items():
        path = getattr(data, key)
        if path and not path.lower().endswith(suffixes):
            yield f"data.{key}", f"got {shown(path)}; must end in {' or '.join(suffixes)}"
    has_columns = data.file.lower().endswith((".csv", ".parquet"))
    if has_columns and not data.target:
        yield "data.target", "is missing; must be the name of the target column"
    if data.target and not has_columns:
        yield "data.target", "must be empty: only .csv and .parquet files have named columns"
    if data.test_file and not (data.file or data.inputs):
        yield "data.test_file", "goes with data.file, or with data.inputs and data.targets"
    if has_columns and data.test_file and not data.test_file.lower().endswith((".csv", ".parquet")):
        yield "data.test_file", "must end in .csv or .parquet, as data.file: its columns are found by name"
    if data.split_column and not has_columns:
        yield "data.split_column", "must be empty: only .csv and .parquet files have named columns"
    if data.split_column and data.split_column == data.target:
        yield "data.split_column", f"got {shown(data.split_column)}; must not be the target column"
    if data.split_column and (data.test_file or data.validation_fraction != "auto"):
        given = "data.test_file" if data.test_file else "data.validation_fraction"
        yield "data.split_column", f"says which rows are held out; {given} must not be given too"
    if data.split and data.name not in UCI:
        yield "data.split", f"is for UCI tables; data.name must be one of {', '.join(UCI)}"
    if data.folder and data.name not in (*IMAGES, *UCI):
        yield "data.folder", f"is for sets by name; data.name must be one of {', '.join((*IMAGES, *UCI))}"
    if data.name not in IMAGES:
        for key in ("classes", "most_test", "validate"):
            if getattr(data, key):
                yield f"data.{key}", f"is for images by name; data.name must be one of {', '.join(IMAGES)}"
    if len(set(data.classes)) != len(data.classes):
        yield "data.classes", f"got {list(data.classes)}; a class is there twice"


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


# -- words --------------------------------------------------------------------------------------------------

_short = reprlib.Repr()
_short.maxstring = _short.maxother = _short.maxlong = 80


def shown(value: Any) -> str:
    """A value from the file, on one short line."""
    if isinstance(value, bool):
        return str(value).lower()
    try:
        return _short.repr(value)
    except ValueError:  # Python formats no integer of more than 4300 digits
        return "a number too long to show"


def _name(key: str) -> str:
    """A key from the file; quoted if it has unusual characters."""
    return key if re.fullmatch(r"[\w-]{1,60}", key) else shown(key)


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text)


def _hint(word: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(word[:100].lower(), known, n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def _home(key: str, known: Iterable[str]) -> str:
    """The hint for an unknown key: the section where it belongs, or the nearest name."""
    homes = [f"{section}.{key}" for section, keys in KEYS.items() if key in keys]
    return f"; did you mean {homes[0]!r}?" if homes else _hint(key, known)


# -- help ---------------------------------------------------------------------------------------------------


def template() -> str:
    """A config with every key at its default, explained in comments: what ``stein config init`` writes."""
    lines = [
        "# A run of stein. `stein train FILE` starts it; every line but data.name is the default and may be left out."
    ]
    for section, keys in KEYS.items():
        lines += ["", f"[{section}]  # {SECTIONS[section].__doc__}"]
        values = {key: "regression-1d" if (section, key) == ("data", "name") else keys[key].default for key in keys}
        settings = {key: f"{key} = {_toml(value)}" for key, value in values.items()}
        indent = max(map(len, settings.values())) + 2
        for key, setting in settings.items():
            comment = textwrap.wrap(_explained(keys[key]), WIDTH - indent - 2, break_on_hyphens=False)
            starts = [setting, *[""] * (len(comment) - 1)]
            lines += [f"{start:<{indent}}# {words}" for start, words in zip(starts, comment, strict=True)]
    return "\n".join(lines) + "\n"


def describe() -> Any:
    """The table of all keys for ``stein train --help``, to be printed by rich."""
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    table.add_column("key", no_wrap=True, style="bold")
    table.add_column("default", overflow="fold")
    table.add_column("meaning")
    for section, keys in KEYS.items():
        for name, key in keys.items():
            table.add_row(f"{section}.{name}", _toml(key.default), _explained(key))
    return table


def _toml(value: Any) -> str:
    """One value as TOML, a list on one line."""
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return tomli_w.dumps({"value": value}).removeprefix("value = ").strip()


def _explained(key: Key) -> str:
    plain = key.allowed.startswith(("true", "text"))  # adds nothing to the default
    return key.meaning if plain else f"{key.meaning}; {key.allowed}"
