"""From the parameters of an estimator to the config of a run: the same keys, limits and errors."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from stein import defaults
from stein.runs import configs
from stein.runs.schema import Config

PATIENCE = 10
"""Evaluations without a better validation nll before early stopping."""

# The key of a config that each parameter becomes.
KEYS = {
    "method": "method.name",
    "n_particles": "method.particles",
    "stochastic": "method.stochastic",
    "repulsion": "method.repulsion",
    "extra_points": "method.extra_points",
    "hidden": "model.hidden",
    "unskew": "data.unskew",
    "steps": "train.steps",
    "batch_size": "train.batch_size",
    "learning_rate": "optimiser.learning_rate",
    "prior": "prior.scale",
    "anneal": "annealing.name",
    "validation_fraction": "data.validation_fraction",
    "precision": "train.precision",
    "noise": "likelihood.sigma",
    "likelihood": "likelihood.name",
}


def config(name: str, given: Mapping[str, Any], rows: int, seed: int, y: np.ndarray) -> Config:
    """The config of an estimator called ``name`` for training data of this size.

    Args:
        given: the estimator's parameters; ``likelihood`` is ``"categorical"`` for classes.
        y: the training targets, for the typical count.
    """
    is_classifier = given["likelihood"] == "categorical"
    auto = defaults.for_table("classes" if is_classifier else "regression", rows)
    meant = {
        "method": auto.method,
        "n_particles": auto.particles,
        "hidden": auto.hidden,
        "steps": auto.steps,
        "batch_size": auto.batch_size,
        "learning_rate": auto.learning_rate,
        "prior": auto.prior,
        "noise": auto.noise if given["model"] is None else "learned",  # your own network has one output per target
    }
    chosen = {key: meant[key] if key in meant and _is(value, "auto") else value for key, value in given.items()}
    chains = defaults.of_chains(chosen["method"], None if _is(given["steps"], "auto") else given["steps"])
    for parameter, key in KEYS.items():
        if key in chains and _is(given[parameter], "auto"):
            chosen[parameter] = chains[key]
    size: Any = rows if chosen["batch_size"] is None else chosen["batch_size"]
    chosen["batch_size"] = 0 if is_number(size) and size >= rows else size
    if given["model"] is not None and not _is(given["hidden"], "auto"):
        raise ValueError("hidden: has no effect if model is given; leave it out")
    document: dict[str, dict[str, Any]] = {
        "data": {"name": "arrays", "test_fraction": 0.0, "validation_fraction": 0.0},
        "model": {"name": "mlp" if given["model"] is None else "given", "activation": auto.activation},
        "method": {"start": "model"},
        "prior": {"name": "fan-in"},
        "optimiser": {"schedule": "cosine"},
        "train": {"seed": seed},
        "evaluation": {"every": 0},
    }
    for parameter, key in KEYS.items():
        if parameter != "noise" and (parameter != "validation_fraction" or given["early_stopping"]):
            section, _, name_of_key = key.partition(".")
            document.setdefault(section, {})[name_of_key] = _plain(chosen[parameter])
    for key, value in chains.items():
        section, _, name_of_key = key.partition(".")
        document[section].setdefault(name_of_key, value)
    document["likelihood"] |= _likelihood(chosen["likelihood"], given["noise"], chosen["noise"], y)
    if _is(chosen["noise"], "input-dependent") and chosen["likelihood"] in ("gaussian", "student-t"):
        document["likelihood"]["modulation"] = auto.modulation
    steps = document["train"]["steps"]
    every = chunk(steps) if is_number(steps) and steps >= 1 else 1
    document["train"]["log_every"] = document.setdefault("checkpoints", {})["every"] = every
    if given["early_stopping"]:
        document["train"]["early_stop"] = PATIENCE
        document["evaluation"]["every"] = every
    return configs.checked(document, Path(name), {key: parameter for parameter, key in KEYS.items()})


def chunk(steps: int) -> int:
    """Steps between two calls of the hooks, at most 100: a divisor, because another length would be compiled too."""
    return next((size for size in range(min(100, steps), 49, -1) if steps % size == 0), min(100, steps))


def _likelihood(likelihood: Any, given: Any, noise: Any, y: np.ndarray) -> dict[str, Any]:
    """The keys of the likelihood that depend on the noise, or on the counts."""
    if likelihood == "categorical":
        return {}
    if likelihood == "poisson":
        if not _is(given, "auto"):
            raise ValueError(f"noise = {given!r}: the spread of counts follows from their rate; leave it out")
        mean = max(float(np.mean(y)), 1e-3)
        return {"rate": 2.0 ** round(math.log2(mean))}  # a round number: nearly equal data share what is compiled
    if _is(noise, "input-dependent") and likelihood == "gaussian":
        return {"name": "heteroscedastic"}
    return {"sigma": float(noise) if is_number(noise) else noise}


def _is(value: Any, word: str) -> bool:
    return isinstance(value, str) and value == word


def is_number(value: Any) -> bool:
    """Whether a parameter is a number, of Python or NumPy, and not a word or a truth value."""
    return isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)


def _plain(value: Any) -> Any:
    """NumPy's numbers as Python's: a grid search tries values of an array."""
    if isinstance(value, np.generic):
        return value.item()
    return [_plain(item) for item in value] if isinstance(value, (tuple, list, np.ndarray)) else value
