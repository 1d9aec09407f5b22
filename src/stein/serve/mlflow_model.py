"""A finished run as an MLflow model: the exported program with its loader, and no pickle.

The model is loaded by the module :mod:`stein.serve.loader`, which MLflow keeps in the model's own directory; stein is
not needed where it is loaded.
"""

import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from stein.runs.exported import Exported
from stein.runs.streaming import Say
from stein.serve import program
from stein.storage import durable

# The types of MLflow; those of dates also take text.
_TYPES = {"number": "double", "boolean": "boolean", "date": "datetime", "text": "string"}


def export(finished: Exported, folder: Path, coverage: float, warn: Say = print) -> None:
    """Write an MLflow model into a new directory, which appears when it is complete.

    Args:
        coverage, warn: as in :func:`stein.serve.program.export`.
    """
    try:
        import mlflow.pyfunc
    except ImportError:
        raise ImportError("an MLflow model needs MLflow and pandas: pip install 'stein[mlflow,export]'") from None
    needed = ("mlflow", "jax", "jaxlib", "numpy", "pandas", "flatbuffers")
    with tempfile.TemporaryDirectory() as scratch, durable.new_folder(folder) as new:
        made = Path(scratch) / "program"
        program.export(finished, made, coverage, warn)
        mlflow.pyfunc.save_model(
            new,
            loader_module="stein_program",
            data_path=str(made),
            code_paths=[str(made / "stein_program.py")],
            signature=_signature(program.encoding(finished, coverage)),
            pip_requirements=[f"{name}=={_version(name)}" for name in needed],
        )


def _version(name: str) -> str:
    """Of mlflow-skinny, which is a part of MLflow, it is the same."""
    return version("mlflow-skinny" if name == "mlflow" else name)


def _signature(about: dict[str, Any]) -> Any:
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, Schema, TensorSpec

    if about["columns"] is None:
        return ModelSignature(Schema([TensorSpec(np.dtype(np.float64), (-1, *about["shape"]))]))
    inputs: list[ColSpec | TensorSpec] = [
        ColSpec(_TYPES[column["kind"]], column["name"], required=False) for column in about["columns"]
    ]
    return ModelSignature(Schema(inputs))
