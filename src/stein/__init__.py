"""Stein variational neural-network ensembles: members that talk to each other."""

# Everything is imported on first use, so that `stein --help` need not wait for jax.
import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from stein.ensembles import build, ensemble
    from stein.sharding import shard
    from stein.targets import density, posterior

    from . import (
        checkpoint,
        data,
        functional_priors,
        hmc,
        hooks,
        kernels,
        likelihoods,
        models,
        predict,
        priors,
        rules,
        samples,
        schedules,
        scores,
        sharding,
        steps,
        targets,
        train,
    )

__all__ = [
    "build",
    "checkpoint",
    "data",
    "density",
    "ensemble",
    "functional_priors",
    "hmc",
    "hooks",
    "kernels",
    "likelihoods",
    "models",
    "posterior",
    "predict",
    "priors",
    "rules",
    "samples",
    "schedules",
    "scores",
    "shard",
    "sharding",
    "steps",
    "targets",
    "train",
]

_HOME = {
    "build": "stein.ensembles",
    "density": "stein.targets",
    "ensemble": "stein.ensembles",
    "posterior": "stein.targets",
    "shard": "stein.sharding",
}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(importlib.import_module(_HOME[name]), name)
    elif name in __all__:
        value = importlib.import_module(f"stein.{name}")
    else:
        raise AttributeError(f"module 'stein' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
