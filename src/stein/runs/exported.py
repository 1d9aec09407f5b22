"""The ensemble of a finished run: predictions for new inputs, without the training data."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import jax
import msgspec
import numpy as np

from stein import data, inputs, predict
from stein.calibration import Spread
from stein.data import cells, files
from stein.likelihoods import Likelihood
from stein.predictions import ClassPrediction, Prediction
from stein.runs import configs, dataset, tables
from stein.runs.build import resolved
from stein.runs.calibrated import Calibration, Temperature, applied
from stein.runs.environment import precision
from stein.runs.folder import RunFolder
from stein.runs.kinds import Kind
from stein.runs.named import make_likelihood, make_model
from stein.runs.record import Scales, standardiser
from stein.runs.schema import Config
from stein.storage import checkpoint, documents, untrusted
from stein.tables import Recipe, is_gap
from stein.types import Model, Particles

LARGEST = 1e19  # its square is a number in float32


class _Estimator(msgspec.Struct, frozen=True):
    """What a prediction needs of the facts of an estimator (:mod:`stein.sklearn`)."""

    temperature: Temperature | None = None


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
    draws: Annotated[int, msgspec.Meta(ge=1, le=10**9)] = 1  # of each particle, if it is a chain
    labels: tuple[str, ...] = ()
    standardiser: Scales | None = None
    units: Scales | None = None
    recipe: Recipe | None = None
    calibration: Calibration | None = None
    spread: tuple[float, float | None] = (1.0, None)  # of an estimator, which keeps the rest of its calibration
    sklearn: _Estimator = _Estimator()


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
        alive, rows: the numbers of the living members, and the number of training rows.
        standardiser, units: scales of the inputs and of the targets; ``None`` if they are not standardised.
        constant: the constant prediction to beat: the most frequent class, or the mean of the training targets.
        recipe: how the columns of a table become inputs; ``None`` if the columns have no names of their own.
        calibration: conformal scores, and the threshold of unusual rows; ``None`` without a summary.
        spread, temperature: the calibrated spread of predicted numbers, and the temperature of classes.
    """

    def __init__(self, folder: RunFolder, model: Model | None = None):
        folder.check_is_finished()
        self.folder = folder
        written = configs.load_run(folder.config)
        description = checkpoint.read_about(folder.ensemble)
        if "shape" not in description:  # written by an older version
            description |= _described_by_the_data(folder, written)
        about: _About = untrusted.convert(folder.ensemble, description, _About)
        self._about = about
        self.standardiser = None if about.standardiser is None else standardiser(about.standardiser)
        units = None if about.units is None else standardiser(about.units)
        self.config: Config = resolved(written, about.kind, about.rows)
        self.likelihood: Likelihood = make_likelihood(
            self.config, about.kind, None if units is None else float(units.scale[0])
        )
        self.model: Model = make_model(self.config, self.likelihood, about.shape, about.answers, model)
        self.labels, self.columns, self.target = about.labels, about.inputs, about.target
        self.kind, self.shape, self.constant = about.kind, about.shape, about.constant
        self.units, self.recipe, self.calibration = units, about.recipe, about.calibration
        self.alive, self.rows = about.alive, about.rows
        self.spread, self.temperature = Spread(*about.spread), about.sklearn.temperature or 1.0
        if about.calibration is not None:
            self.spread, self.temperature = about.calibration.spread, about.calibration.temperature
        n = self.config.method.particles * about.draws
        with precision(self.config):
            like = jax.eval_shape(jax.vmap(self.model.init), jax.random.split(jax.random.key(0), n))
            particles, _ = checkpoint.load_export(folder.ensemble, like)
            self.members: Particles = predict.living(particles, np.isin(np.arange(n), about.alive))

    def predict(self, x: Any) -> Prediction:
        """The ensemble's prediction for inputs, in the units of the data: :mod:`stein.predictions`.

        Args:
            x: one row per input, as in the training data: a pandas, polars or Arrow table with columns of the same
                names, in any order; or an array with its columns in the same order, as :meth:`read` returns it. Not
                standardised.
        """
        return self.predict_prepared(self.inputs(x))

    def predict_prepared(self, x: np.ndarray) -> Prediction:
        """The ensemble's prediction for inputs that are already prepared (:meth:`inputs`)."""
        with precision(self.config):
            # Whole chunks: the last bits do not depend on how many rows are asked at once.
            outputs = predict.in_chunks(self.model, self.members, x, full=True)
        prediction = self.likelihood.predictive(outputs)
        if isinstance(prediction, ClassPrediction):
            prediction = prediction._replace(labels=self.labels)
        elif self.units is not None:
            prediction = prediction.in_units(self.units.scale, self.units.mean)
        return applied(prediction, self.spread, self.temperature)

    def inputs(self, x: Any) -> np.ndarray:
        """Inputs as the network takes them: columns in order, standardised as in training."""
        names = column_names(x)
        if names is not None and self.columns:
            for name in self.columns:
                if names.count(name) > 1:
                    raise ValueError(f"x has two columns called {name!r}")
            missing = [column for column in self.columns if column not in names]
            if missing:
                raise ValueError(f"x has no column {missing[0]!r}; the run was trained on {', '.join(self.columns)}")
            x = x[list(self.columns)] if self.recipe is None else self._encoded(x)
        rows = np.asarray(inputs.batch(x))
        if rows.shape[1:] != self.shape:
            raise ValueError(f"x has rows of shape {rows.shape[1:]}; the run was trained on {self.shape}")
        # In float64 first, as in training: a year minus the mean year loses its digits in float32.
        rows = rows if self.standardiser is None else self.standardiser(rows.astype(np.float64))
        # A number that no network can take is taken for a huge one: one bad cell is no reason to predict nothing.
        with np.errstate(over="ignore"):
            return np.clip(rows.astype(self.config.train.precision), -LARGEST, LARGEST)

    def notes(self, x: Any) -> list[str]:
        """What is unusual about each row of a table: gaps, new levels, values outside the range of training."""
        if self.recipe is None or column_names(x) is None:
            raise ValueError("notes are about a table with named columns, of a run that was trained on one")
        return self.recipe.notes(self._columns(x))

    def _encoded(self, table: Any) -> np.ndarray:
        assert self.recipe is not None  # noqa: S101
        columns = self._columns(table)
        missing = [name for name, values in columns.items() if is_gap(values).any()]
        if missing and not self.config.data.impute:
            raise ValueError(f"x: values of column {missing[0]!r} are missing; fill them in, or drop these rows")
        return self.recipe.encode(columns)

    def _columns(self, table: Any) -> dict[str, np.ndarray]:
        """The columns of a table in memory that the recipe needs."""
        kinds = {} if self.recipe is None else self.recipe.kinds
        return {
            name: cells.column(np.asarray(table[name]), kind, _row_of(name))
            for name, kind in kinds.items()
            if name in (column_names(table) or [])
        }

    def read(self, path: Path | str) -> np.ndarray:
        """Inputs from a file: .csv, .parquet or .arrow with the run's columns, in any order; .npy or .npz."""
        path, section = Path(path), self.config.data
        if path.suffix.lower() in (".npy", ".npz"):
            return data.load_inputs(path)
        if self.recipe is not None:
            return tables.inputs(path, section, self.recipe)
        if not section.target:
            raise ValueError(f"{path}: the run's own columns have no names; must be a .npy or .npz file")
        return files.read_table(str(path), section.target, section.split_column, self.columns, labelled=False).x

    def labelled(self, path: Path | str) -> data.Arrays:
        """Labelled points from a file with the run's columns: prepared inputs, and targets in their units."""
        section = self.config.data
        if self.recipe is not None:
            x, raw = tables.labelled(path, section, self.recipe)
        else:
            columns = self.columns if section.target else ()
            x, raw, *_ = files.read_table(path, section.target, section.split_column, columns)
        if x.shape[1:] != self.shape:
            raise ValueError(f"{path}: rows of shape {x.shape[1:]}; the run is trained on {self.shape}")
        if self.kind == "categorical":
            y = tables.codes(raw, self.labels, str(path)) if self.labels else raw.astype(np.int64)
            return data.Arrays(self.inputs(x), y, self.labels)
        if raw.dtype.kind == "U":
            raise ValueError(f"{path}: {self.target!r} holds text; must be numbers")
        y = raw.reshape(len(raw), -1).astype(np.float64)
        if y.shape[1] != self._about.answers:
            raise ValueError(f"{path}: y has {y.shape[1]} numbers a row; not as many as in training")
        return data.Arrays(self.inputs(x), y)


def column_names(x: Any) -> list[str] | None:
    """The names of a table's columns in pandas, polars or Arrow; None for arrays."""
    names = getattr(x, "column_names", None)  # of an Arrow table, whose `columns` are the values
    names = getattr(x, "columns", None) if names is None else names
    return None if names is None else [str(name) for name in names]


def _row_of(name: str) -> Callable[[int], str]:
    return lambda row: f"x: row {row}, column {name!r}"
