"""The config of `stein fit`: a table and its target are given, everything else has a default. No jax here."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stein import defaults
from stein.data.blocks import SUFFIXES, source
from stein.runs import configs, dataset
from stein.runs.dataset import Loaded
from stein.runs.schema import Config
from stein.runs.tables import MOST_COLUMNS

LEAST_ROWS = 20
CALIBRATION_ROWS = 20
TASKS = {"regression": "gaussian", "classes": "categorical"}


def config(
    file: Path, data: Mapping[str, Any], method: str, task: str, chosen: Mapping[str, Any], overrides: Sequence[str]
) -> tuple[Config, Loaded]:
    """The resolved config for a table, and the data.

    Args:
        data: keys of the section data, other than ``file``.
        method: the name of a method, or "auto".
        task: "auto", "regression" or "classes".
        chosen: other keys, as ``section.key``.
        overrides: items ``section.key=value``, which win.

    Raises:
        ValueError: for bad data or settings; nothing has been written.
    """
    if file.suffix.lower() not in SUFFIXES:
        raise ValueError(f"{file}: must end in {', '.join(SUFFIXES)}")
    if len(names := source(file, (data["target"],)).names) > MOST_COLUMNS:
        raise ValueError(f"{file}: has {len(names)} columns; a fit takes at most {MOST_COLUMNS}: drop some")
    document: dict[str, dict[str, Any]] = {
        "data": {"file": os.path.realpath(file), **{key: value for key, value in data.items() if value}},
        "evaluation": {"summary": True},
        # Kernels and forces are for those who study a method; compiling them takes as long as the training step.
        "tracking": {"diagnostics": False, "tensorboard": False},
    }
    if data.get("test_file"):
        document["data"]["test_file"] = os.path.realpath(data["test_file"])
    for name, value in chosen.items():
        if value is not None:
            _put(document, name, value)
    if method != "auto":
        _put(document, "method.name", method)
    if task != "auto":
        _put(document, "likelihood.name", TASKS[task])
    by_hand = {f"{section}.{key}": value for section, key, value in (configs.override(i, str(file)) for i in overrides)}
    steps = by_hand.get("train.steps", chosen["train.steps"])
    for name, value in defaults.of_chains(by_hand.get("method.name", method), steps).items():
        _put(document, name, value)
    given = {f"{section}.{key}" for section, keys in document.items() for key in keys} | set(by_hand)
    draft = configs.amended(_copy(document), file, overrides)
    try:
        loaded = dataset.load(draft)
    except ValueError as error:
        raise ValueError(_in_words_of_a_fit(str(error), file)) from None
    _check_size(file, loaded)
    for name, value in _defaults(loaded, data).items():
        if name not in given:
            _put(document, name, value)
    return configs.amended(document, file, overrides), loaded


def _defaults(loaded: Loaded, data: Mapping[str, Any]) -> dict[str, Any]:
    """What "auto" means for a table of this size, key by key."""
    rows = len(loaded.train.x)
    setting = defaults.for_table("classes" if loaded.kind == "categorical" else "regression", rows)
    found: dict[str, Any] = {
        "method.name": setting.method,
        "method.particles": setting.particles,
        "model.hidden": list(setting.hidden),
        "model.activation": setting.activation,
        "method.start": "model",
        "prior.name": "fan-in",
        "train.steps": setting.steps,
        "train.batch_size": setting.batch_size if setting.batch_size < rows else 0,
        "optimiser.learning_rate": setting.learning_rate,
        "optimiser.schedule": "cosine",
        "data.standardise": True,
        "data.unskew": True,
        "data.standardise_targets": True,
        "likelihood.name": loaded.kind,
    }
    if loaded.kind == "gaussian" and setting.noise == "input-dependent":
        found |= {"likelihood.name": "heteroscedastic", "likelihood.modulation": setting.modulation}
    elif loaded.kind == "gaussian":
        found["likelihood.sigma"] = setting.noise
    if not data.get("split_column"):
        among = rows + (0 if loaded.validation is None else len(loaded.validation.x))
        found["data.validation_fraction"] = max(0.1, min(0.2, CALIBRATION_ROWS / among))
    return found


def _check_size(file: Path, loaded: Loaded) -> None:
    parts = (loaded.train, loaded.validation, loaded.test)
    rows = sum(len(part.x) for part in parts if part is not None)
    for name, part in (("validation", loaded.validation), ("test", loaded.test)):
        if part is None:
            raise ValueError(f"{file}: there are no {name} rows; a fit needs training, validation and test rows")
    if rows < LEAST_ROWS:
        raise ValueError(f"{file}: has {rows} rows; a fit with a test needs at least {LEAST_ROWS}")


def _in_words_of_a_fit(message: str, file: Path) -> str:
    """An error about the data that names the file, and options instead of keys."""
    for task, name in TASKS.items():
        message = message.replace(f"`--set likelihood.name={name}`", f"`--task {task}`")
    return message if str(file) in message or str(file.resolve()) in message else f"{file}: {message}"


def _put(document: dict[str, dict[str, Any]], name: str, value: Any) -> None:
    section, _, key = name.partition(".")
    document.setdefault(section, {})[key] = value


def _copy(document: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {section: dict(keys) for section, keys in document.items()}
