"""A finished run as an MLflow model: the exported program with its loader, and no pickle.

The model is loaded by the module :mod:`stein.serve.loader`, which MLflow keeps in the model's own directory; stein is
not needed where it is loaded.
"""

import tempfile
import warnings
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from stein.runs.exported import Exported
from stein.runs.streaming import Say
from stein.serve import program
from stein.serve.rows import usual
from stein.storage import durable


def export(finished: Exported, folder: Path, coverage: float, warn: Say = print) -> None:
    """Write an MLflow model into a new directory, which appears when it is complete.

    Args:
        coverage, warn: as in :func:`stein.serve.program.export`.
    """
    needed = ("mlflow", "jax", "jaxlib", "numpy", "pandas", "flatbuffers")
    with tempfile.TemporaryDirectory() as scratch, durable.new_folder(folder) as new, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # MLflow's, about itself
        try:
            import mlflow.pyfunc
        except ImportError:
            raise ImportError(
                "an MLflow model needs MLflow and pandas: pip install '.[mlflow,export]' in the checkout"
            ) from None
        made = Path(scratch) / "program"
        program.export(finished, made, coverage, warn)
        mlflow.pyfunc.save_model(
            new,
            loader_module="stein_program",
            data_path=str(made),
            code_paths=[str(made / "stein_program.py")],
            signature=_signature(finished),
            input_example=_example(finished),
            pip_requirements=[f"{name}=={_version(name)}" for name in needed],
        )


def _version(name: str) -> str:
    """Of mlflow-skinny, which is a part of MLflow, it is the same."""
    return version("mlflow-skinny" if name == "mlflow" else name)


def _signature(finished: Exported) -> Any:
    """Names and types of the columns; none must be there. Dates may be text or times, and numbers whole ones: MLflow
    cannot say the one, and rejects the other where a double is expected."""
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, Schema, TensorSpec
    from mlflow.types.schema import AnyType

    if finished.recipe is None:
        return ModelSignature(Schema([TensorSpec(np.dtype(np.float64), (-1, *finished.shape))]))
    types: dict[str, Any] = {"number": AnyType(), "boolean": "boolean", "date": AnyType(), "text": "string"}
    inputs: list[Any] = [ColSpec(types[c.kind], c.name, required=False) for c in finished.recipe.columns]
    return ModelSignature(Schema(inputs))


def _example(finished: Exported) -> Any:
    import pandas

    if finished.recipe is None:
        return np.zeros((1, *finished.shape))
    return pandas.DataFrame({column.name: [usual(column)] for column in finished.recipe.columns})
