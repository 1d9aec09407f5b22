"""A fitted estimator as a directory: an exported ensemble, its config, and what the estimator knows besides."""

from pathlib import Path
from typing import Any

import jax
import msgspec
import numpy as np

from stein import __version__
from stein.calibration import Conformal, Spread
from stein.runs import configs
from stein.runs.exported import Exported
from stein.runs.folder import RunFolder
from stein.sklearn.networks import adapted
from stein.storage import checkpoint, documents, durable, untrusted

CALIBRATION = "calibration.safetensors"


class _Facts(msgspec.Struct):
    """What an estimator knows besides the ensemble, in the description of ``ensemble.safetensors``."""

    estimator: str
    parameters: dict[str, Any]
    usual: list[float]
    history: dict[str, list[float]]
    features: list[str] | None = None
    classes: list[bool | int | float | str] | None = None
    classes_type: str = ""
    flat: bool = True
    temperature: float | None = None
    calibrated: tuple[int, int] | None = None


def save(estimator: Any, path: Path) -> None:
    """Write a fitted estimator; metrics.json, which marks it as complete, comes last."""
    folder = RunFolder(path)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise ValueError(f"{path}: exists already; give another path")
    path.mkdir(parents=True, exist_ok=True)
    classes, conformal = getattr(estimator, "classes_", None), estimator.conformal_
    names = getattr(estimator, "feature_names_in_", None)
    facts = _Facts(
        type(estimator).__name__,
        _parameters(estimator),
        estimator._usual.tolist(),
        estimator.history_,
        None if names is None else list(map(str, names)),
        None if classes is None else classes.tolist(),
        "" if classes is None else classes.dtype.str,
        getattr(estimator, "_flat", True),
        estimator.temperature_,
        None if conformal is None else conformal.scores.shape,
    )
    about = {
        "version": __version__,
        "config": msgspec.to_builtins(estimator.config_),
        **estimator._about,
        "spread": tuple(estimator.spread_),
        "sklearn": msgspec.to_builtins(facts),
    }
    durable.replace(folder.config, configs.dump(estimator.config_).encode())
    checkpoint.export(folder.ensemble, estimator.members_, about)
    if conformal is not None:
        checkpoint.export(path / CALIBRATION, {"scores": np.asarray(conformal.scores, np.float64)}, {})
    method = {"method": estimator.config_.method.name, "stochastic": estimator.config_.method.stochastic}
    documents.write_json(folder.numbers, method | {"steps": int(estimator.history_["step"][-1])})


def load(kind: type, path: Path, model: Any) -> Any:
    """The estimator of class ``kind`` in a directory."""
    folder = RunFolder(path)
    folder.check_is_finished()
    about = checkpoint.read_about(folder.ensemble)
    if "sklearn" not in about:
        raise ValueError(f"{path}: was not saved by an estimator; stein.load({str(path)!r}) reads runs")
    facts: _Facts = untrusted.convert(folder.ensemble, about["sklearn"], _Facts)
    if facts.estimator != kind.__name__:
        raise ValueError(f"{path}: holds a {untrusted.shown(facts.estimator)}; load it with that class")
    shape = about.get("shape")
    inputs = shape[0] if isinstance(shape, list) and shape and isinstance(shape[0], int) else 1
    exported = Exported(folder, adapted(model, inputs))  # checks everything else
    estimator = kind(**_known(kind, facts.parameters), model=model)
    estimator.config_, estimator.members_ = exported.config, jax.device_get(exported.members)
    estimator.history_, estimator._usual = facts.history, np.array(facts.usual)
    estimator._about = {
        name: about[name] for name in about if name not in ("sklearn", "spread", "sha256", "config", "version")
    }
    estimator.n_features_in_ = exported.shape[0]
    if facts.features is not None:
        estimator.feature_names_in_ = np.array(facts.features, object)
    if facts.classes is not None:
        estimator.classes_ = np.array(facts.classes, _dtype(folder.ensemble, facts.classes_type))
    else:
        estimator._flat = facts.flat
    estimator.temperature_, estimator.spread_ = facts.temperature, Spread(*exported.spread)
    estimator.conformal_ = None
    if facts.calibrated is not None:
        like = {"scores": jax.ShapeDtypeStruct(facts.calibrated, np.float64)}
        with jax.enable_x64(True):
            scores = np.asarray(checkpoint.load_export(path / CALIBRATION, like)[0]["scores"])
        estimator.conformal_ = Conformal(scores)
    return estimator


def _parameters(estimator: Any) -> dict[str, Any]:
    """The parameters as JSON: without the network, and without a generator of random numbers."""
    found = {name: value for name, value in estimator.get_params(deep=False).items() if name != "model"}
    if not isinstance(found["random_state"], (int, np.integer, type(None))):
        found["random_state"] = None
    if isinstance(found.get("class_weight"), dict):  # its keys need not be text
        found["class_weight"] = {"pairs": [[_item(key), _item(value)] for key, value in found["class_weight"].items()]}
    return {name: [_item(v) for v in value] if isinstance(value, (tuple, list)) else _item(value)
            for name, value in found.items()}  # fmt: skip


def _known(kind: type, parameters: dict[str, Any]) -> dict[str, Any]:
    """The parameters that this version has, as they were."""
    names = kind._get_param_names()  # type: ignore[attr-defined]
    found: dict[str, Any] = {
        name: tuple(v) if isinstance(v, list) else v for name, v in parameters.items() if name in names
    }
    if isinstance(found.get("class_weight"), dict):
        pairs: Any = found["class_weight"]["pairs"]
        found["class_weight"] = dict(pairs)
    return {name: value for name, value in found.items() if name != "model"}


def _item(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _dtype(path: Path, name: str) -> np.dtype:
    """The type of class labels: numbers, truth values, text or, from a table, text as objects."""
    try:
        found = np.dtype(name)
    except TypeError:
        found = np.dtype("V")
    if found.kind not in "biufUO":
        raise untrusted.CheckpointError(
            f"{path}: class labels of type {untrusted.shown(name)}; must be numbers or text"
        )
    return found
