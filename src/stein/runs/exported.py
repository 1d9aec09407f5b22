"""The ensemble of a finished run: predictions for new inputs, without the training data."""

import csv
import io
from pathlib import Path
from typing import Any

import jax
import msgspec
import numpy as np

from stein import data, inputs, predict
from stein.data import files
from stein.likelihoods import Likelihood
from stein.predictions import ClassPrediction, Prediction
from stein.runs import configs, dataset, tables
from stein.runs.build import make_likelihood, make_model, resolved
from stein.runs.environment import precision
from stein.runs.folder import RunFolder
from stein.runs.kinds import Kind
from stein.runs.schema import Config
from stein.storage import checkpoint, documents, durable, untrusted
from stein.types import Model, Particles


class _Scales(msgspec.Struct):
    mean: list[float]
    scale: list[float]

    def standardiser(self) -> data.Standardiser:
        return data.Standardiser(np.array(self.mean), np.array(self.scale))


class _About(msgspec.Struct):
    """The description in ``ensemble.safetensors``: all that a prediction needs."""

    alive: list[int]
    kind: Kind
    shape: tuple[int, ...]
    answers: int
    rows: int
    inputs: tuple[str, ...]
    target: str
    constant: float | list[float]
    labels: tuple[str, ...] = ()
    standardiser: _Scales | None = None
    units: _Scales | None = None


def _described_by_the_data(folder: RunFolder, config: Config) -> dict[str, Any]:
    """What older exports lack, derived from the training data, which must still exist."""
    return dataset.load(config, documents.read_json(folder.data)).description()


class Exported:
    """The exported ensemble of a finished run.

    Attributes:
        config: its config, without "auto".
        model, likelihood: its network and likelihood.
        members: the weights of the living members, along the first axis of every leaf.
        labels: names of the classes; empty if they have none.
        columns, shape: names of the inputs, in the order in which the network takes them; shape of one of them.
        kind, target: the kind of the targets, and their name.
        standardiser, units: scales of the inputs and of the targets; ``None`` if they are not standardised.
        constant: the constant prediction to beat: the most frequent class, or the mean of the training targets.
    """

    def __init__(self, folder: RunFolder):
        folder.check_is_finished()
        self.folder = folder
        written = configs.load_run(folder.config)
        description = checkpoint.read_about(folder.ensemble)
        if "shape" not in description:  # written by an older version
            description |= _described_by_the_data(folder, written)
        about: _About = untrusted.convert(folder.ensemble, description, _About)
        self._about = about
        self.standardiser = None if about.standardiser is None else about.standardiser.standardiser()
        units = None if about.units is None else about.units.standardiser()
        self.config: Config = resolved(written, about.kind, about.rows)
        self.likelihood: Likelihood = make_likelihood(self.config, about.kind, units)
        self.model: Model = make_model(self.config, self.likelihood, about.shape, about.answers)
        self.labels, self.columns, self.target = about.labels, about.inputs, about.target
        self.kind, self.shape, self.constant = about.kind, about.shape, about.constant
        self.units = units
        n = self.config.method.particles
        with precision(self.config):
            like = jax.eval_shape(jax.vmap(self.model.init), jax.random.split(jax.random.key(0), n))
            particles, _ = checkpoint.load_export(folder.ensemble, like)
            self.members: Particles = predict.living(particles, np.isin(np.arange(n), about.alive))

    def predict(self, x: Any) -> Prediction:
        """The ensemble's prediction for inputs, in the units of the data: :mod:`stein.predictions`.

        Args:
            x: one row per input, as in the training data: an array with its columns in the same order, or a pandas or
                polars table with columns of the same names, in any order. Not standardised.
        """
        return self.predict_prepared(self.inputs(x))

    def predict_prepared(self, x: np.ndarray) -> Prediction:
        """The ensemble's prediction for inputs that are already prepared (:meth:`inputs`)."""
        with precision(self.config):
            outputs = predict.in_chunks(self.model, self.members, x)
        prediction = self.likelihood.predictive(outputs)
        if isinstance(prediction, ClassPrediction):
            return prediction._replace(labels=self.labels)
        return prediction if self.units is None else prediction.in_units(self.units.scale, self.units.mean)

    def inputs(self, x: Any) -> np.ndarray:
        """Inputs as the network takes them: columns in order, standardised as in training."""
        names = getattr(x, "columns", None)
        if names is not None and self.columns:
            missing = [column for column in self.columns if column not in list(names)]
            if missing:
                raise ValueError(f"x has no column {missing[0]!r}; the run was trained on {', '.join(self.columns)}")
            x = x[list(self.columns)]
        rows = np.asarray(inputs.batch(x))
        if rows.shape[1:] != self.shape:
            raise ValueError(f"x has rows of shape {rows.shape[1:]}; the run was trained on {self.shape}")
        # In float64 first, as in training: a year minus the mean year loses its digits in float32.
        rows = rows if self.standardiser is None else self.standardiser(rows.astype(np.float64))
        return rows.astype(self.config.train.precision)

    def read(self, path: Path | str) -> np.ndarray:
        """Inputs from a file: .csv or .parquet with the run's columns, in any order; .npy or .npz."""
        path = Path(path)
        if path.suffix.lower() in (".npy", ".npz"):
            return data.load_inputs(path)
        if not self.config.data.target:
            raise ValueError(f"{path}: the run's own columns have no names; must be a .npy or .npz file")
        section = self.config.data
        return files.read_table(str(path), section.target, section.split_column, self.columns, labelled=False).x

    def labelled(self, path: Path | str) -> data.Arrays:
        """Labelled points from a file with the run's columns: prepared inputs, and targets in their units."""
        section, columns = self.config.data, self.columns if self.config.data.target else ()
        table = files.read_table(path, section.target, section.split_column, columns)
        if table.x.shape[1:] != self.shape:
            raise ValueError(f"{path}: rows of shape {table.x.shape[1:]}; the run is trained on {self.shape}")
        if self.kind == "categorical":
            y = tables.codes(table.y, self.labels, str(path)) if self.labels else table.y.astype(np.int64)
            return data.Arrays(self.inputs(table.x), y, self.labels)
        if table.y.dtype.kind == "U":
            raise ValueError(f"{path}: {table.target!r} holds text; must be numbers")
        y = table.y.reshape(len(table.y), -1).astype(np.float64)
        if y.shape[1] != self._about.answers:
            raise ValueError(f"{path}: y has {y.shape[1]} numbers a row; not as many as in training")
        return data.Arrays(self.inputs(table.x), y)

    def write_predictions(self, x: Any, path: Path, coverage: float = 0.9) -> int:
        """Write a CSV file with one row of :meth:`predict` per input; returns the number of rows."""
        columns = self._columns_of(self.predict(x), coverage)
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
        durable.replace(path, text.getvalue().encode())
        return len(next(iter(columns.values())))

    def _columns_of(self, prediction: Prediction, coverage: float) -> dict[str, list[Any]]:
        if isinstance(prediction, ClassPrediction):
            names = self.labels or tuple(map(str, range(self._about.answers)))
            return {
                self.target: prediction.named,
                **{f"p({name})": p.tolist() for name, p in zip(names, prediction.probabilities.T, strict=True)},
                "entropy": prediction.entropy.tolist(),
                "mutual_information": prediction.mutual_information.tolist(),
            }
        low, high = prediction.interval(coverage)
        numbers = {
            "mean": prediction.mean,
            "std": prediction.std,
            "epistemic": prediction.epistemic,
            "aleatoric": prediction.aleatoric,
            f"low_{100 * coverage:g}": low,
            f"high_{100 * coverage:g}": high,
        }
        targets = prediction.mean.shape[1]
        return {
            name if targets == 1 else f"{name}_{k}": values[:, k].tolist()
            for k in range(targets)
            for name, values in numbers.items()
        }
