"""Stein variational neural-network ensembles: members that talk to each other."""

# Everything is imported on first use, so that `stein --help` does not wait for jax.
import importlib as _importlib
import typing as _typing

__version__ = "0.1.0"

if _typing.TYPE_CHECKING:
    from stein.ensembles import build, ensemble
    from stein.runs.run import load
    from stein.sharding import shard
    from stein.storage import checkpoint
    from stein.targets import density, posterior

    from . import (
        batches,
        calibration,
        data,
        datasets,
        draws,
        evaluate,
        features,
        functional_priors,
        hmc,
        hooks,
        kernels,
        likelihoods,
        measurements,
        methods,
        metrics,
        microcanonical,
        models,
        predict,
        predictions,
        priors,
        rules,
        runs,
        samples,
        schedules,
        scores,
        sharding,
        steps,
        targets,
        train,
        tree,
        types,
    )

__all__ = [
    "batches",
    "build",
    "calibration",
    "checkpoint",
    "data",
    "datasets",
    "density",
    "draws",
    "ensemble",
    "evaluate",
    "features",
    "functional_priors",
    "hmc",
    "hooks",
    "kernels",
    "likelihoods",
    "load",
    "measurements",
    "methods",
    "metrics",
    "microcanonical",
    "models",
    "posterior",
    "predict",
    "predictions",
    "priors",
    "rules",
    "runs",
    "samples",
    "schedules",
    "scores",
    "shard",
    "sharding",
    "steps",
    "targets",
    "train",
    "tree",
    "types",
]

_HOME = {
    "build": "stein.ensembles",
    "checkpoint": "stein.storage",
    "density": "stein.targets",
    "ensemble": "stein.ensembles",
    "load": "stein.runs.run",
    "posterior": "stein.targets",
    "shard": "stein.sharding",
}


def __getattr__(name: str) -> _typing.Any:
    if name == "checkpoint":
        value: _typing.Any = _importlib.import_module("stein.storage.checkpoint")
    elif name in _HOME:
        value = getattr(_importlib.import_module(_HOME[name]), name)
    elif name in __all__:
        value = _importlib.import_module(f"stein.{name}")
    else:
        raise AttributeError(f"module 'stein' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(["__version__", *__all__])
