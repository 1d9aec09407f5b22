"""A finished run as one program through ``jax.export``: whatever is numeric in ``stein predict``, for any rows.

The program takes a table as numbers in float64, one column per column of the table, and returns the columns of
``predictions.csv`` in order. Texts and dates become numbers before it, because StableHLO has neither: ``encoding.json``
says how, and :mod:`stein.serve.loader`, which is copied beside it, does it. Everything else is inside: gaps are filled,
levels and dates become inputs, inputs are standardised, the members predict in the precision of their training, and
their mixture is put into the units of the target and calibrated.

:mod:`stein.predictions` is NumPy, which JAX cannot trace: what it computes is written here once more, and the tests
compare the two for every kind of likelihood.
"""

import hashlib
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy import special
from jaxtyping import Array, Bool, Float

from stein import __version__
from stein.calibration import Conformal
from stein.data import Standardiser
from stein.metrics import ties
from stein.predictions import NORMAL, ClassPrediction
from stein.runs.environment import precision
from stein.runs.exported import LARGEST, Exported
from stein.runs.streaming import Say, answers, class_names, usable_conformal
from stein.serve import loader
from stein.storage import documents, durable
from stein.tables import Column, Recipe

Numbers = Float[Array, "b k"]
Program = Callable[[Array], tuple[Array, ...]]


def export(finished: Exported, folder: Path, coverage: float, warn: Say = print) -> None:
    """Write the program, its encoding and its loader into a new directory, which appears when it is complete.

    Args:
        coverage: of the intervals or sets, which are part of the program.
        warn: called with one line if the intervals cannot be conformal.
    """
    conformal = usable_conformal(finished, coverage, warn)
    content = _serialized(program(finished, coverage, conformal), row_shape(finished))
    about = encoding(finished, coverage) | {"sha256": hashlib.sha256(content).hexdigest()}
    with durable.new_folder(folder) as new:
        durable.write(new / loader.PROGRAM, content)
        documents.write_json(new / loader.ENCODING, about)
        durable.write(new / "stein_program.py", Path(loader.__file__).read_bytes())


def _serialized(work: Program, shape: tuple[int, ...]) -> bytes:
    from jax import export

    with jax.enable_x64(True):
        (rows,) = export.symbolic_shape("b")
        exported = export.export(jax.jit(work))(jax.ShapeDtypeStruct((rows, *shape), jnp.float64))
    try:
        return bytes(exported.serialize())
    except ImportError:
        raise ImportError("an export needs flatbuffers: pip install '.[export]' in the checkout") from None


def row_shape(finished: Exported) -> tuple[int, ...]:
    """The shape of one row of the program's inputs."""
    return finished.shape if finished.recipe is None else (len(finished.recipe.columns),)


def encoding(finished: Exported, coverage: float) -> dict[str, Any]:
    """What ``encoding.json`` says: the columns of the table, and those of the answers. docs/deploy.md describes it."""
    columns = None
    if finished.recipe is not None:
        columns = [
            {"name": column.name, "kind": column.kind}
            | ({"levels": list(column.levels)} if column.kind == "text" else {})
            for column in finished.recipe.columns
        ]
    one = finished.predict_prepared(np.zeros((1, *finished.shape), finished.config.train.precision))
    classes = class_names(finished, one) if isinstance(one, ClassPrediction) else ()
    return {
        "format": loader.FORMAT,
        "written_by": f"stein {__version__}, jax {jax.__version__}",
        "target": finished.target,
        "coverage": coverage,
        "columns": columns,
        "shape": list(row_shape(finished)),
        "answers": list(answers(finished, one, coverage, None, False)),
        "classes": list(classes),
    }


def program(finished: Exported, coverage: float, conformal: Conformal | None) -> Program:
    """The function that is exported: tables as numbers in, the columns of the answer out. Traced with x64 on."""
    probe = finished.likelihood.predictive(np.zeros((1, 1, _outputs(finished))))

    def work(x: Array) -> tuple[Array, ...]:
        far = jnp.zeros(x.shape[0], bool)
        if finished.recipe is not None:
            far = _far(finished.recipe, x)
            x = encoded(finished.recipe, x)
        if finished.standardiser is not None:
            x = _standardised(finished.standardiser, x)
        # As in Exported.inputs: a number that no network can take is taken for a huge one.
        x = jnp.clip(x.astype(finished.config.train.precision), -LARGEST, LARGEST)
        with precision(finished.config):  # a network may make arrays of the default type
            outputs = jax.vmap(finished.model.apply, (0, None))(finished.members, x)
        outputs = outputs.astype(jnp.float64)
        if isinstance(probe, ClassPrediction):
            columns, score = _of_classes(outputs, finished.temperature, coverage, conformal)
        else:
            columns, score = _of_numbers(_mixture(finished, outputs), finished, coverage, conformal)
        if finished.calibration is not None:
            columns.append((score > finished.calibration.unusual) | far)
        return tuple(columns)

    return work


def _outputs(finished: Exported) -> int:
    """Outputs of one network."""
    x = jax.ShapeDtypeStruct((1, *finished.shape), finished.config.train.precision)
    member = jax.tree.map(lambda leaf: leaf[0], finished.members)
    with precision(finished.config):
        return jax.eval_shape(finished.model.apply, member, x).shape[1]


# -- from a table to the inputs of a network ----------------------------------------------------------------


def encoded(recipe: Recipe, table: Numbers) -> Float[Array, "b features"]:
    """:meth:`stein.tables.Recipe.encode` of columns that are numbers: texts are the positions of their levels."""
    fills = np.array([_fill(column) for column in recipe.columns])
    missing = jnp.isnan(table)
    filled = jnp.where(missing, fills[None], table)
    if recipe.is_plain:
        return filled
    parts = [part for i, c in enumerate(recipe.columns) for part in _parts(c, filled[:, i], missing[:, i])]
    return jnp.stack([part.astype(jnp.float64) for part in parts], axis=1)


def _fill(column: Column) -> float:
    return float(column.levels.index(str(column.fill)) if column.kind == "text" else column.fill)


def _parts(column: Column, filled: Array, missing: Array) -> list[Array]:
    parts = [filled]
    if column.kind == "text":
        parts = [filled == code for code in range(len(column.levels))]
    if column.kind == "date":
        parts = _date(column, filled)
    return [*parts, *([missing] if column.gaps else [])]


def _date(column: Column, days: Array) -> list[Array]:
    whole = jnp.trunc(days)

    def start(year: Array) -> Array:
        """The days from 1970 to the first of January."""
        before = year - 1
        return 365 * before + jnp.floor(before / 4) - jnp.floor(before / 100) + jnp.floor(before / 400) - 719162

    year = jnp.floor(whole / 365.2425) + 1970  # or its neighbour
    year = jnp.where(whole < start(year), year - 1, year)
    year = jnp.where(whole >= start(year + 1), year + 1, year)
    first, end = start(year), start(year + 1)
    phases = [(days - first) / (end - first), (days + 3) / 7, *([days] if column.times else [])]
    waves = [wave(2 * np.pi * phase) for phase in phases for wave in (jnp.sin, jnp.cos)]
    return [days - column.low] * column.trend + waves


def _far(recipe: Recipe, table: Numbers) -> Bool[Array, " b"]:
    """:meth:`stein.tables.Recipe.far`; comparisons with NaN are false."""
    ranged = [i for i, c in enumerate(recipe.columns) if c.kind in ("number", "date") and c.trend]
    low, high = (np.array([getattr(recipe.columns[i], end) for i in ranged])[None] for end in ("low", "high"))
    values = table[:, np.array(ranged, int)]
    return (jnp.maximum(low - values, values - high) > high - low).any(axis=1)


def _standardised(by: Standardiser, x: Array) -> Array:
    z = (x - by.mean[None]) / by.scale[None]
    if by.unskewing is None:
        return z
    power, mean, scale = (values[None] for values in by.unskewing)
    right, left = _boxcox1p(jnp.maximum(z, 0), power), _boxcox1p(jnp.maximum(-z, 0), 2 - power)
    return (jnp.where(z >= 0, right, -left) - mean) / scale


def _boxcox1p(z: Array, power: np.ndarray) -> Array:
    safe = np.where(power == 0, 1.0, power)
    return jnp.where(power == 0, jnp.log1p(z), jnp.expm1(safe * jnp.log1p(z)) / safe)


# -- numbers ------------------------------------------------------------------------------------------------


class _Mixture(NamedTuple):
    """:class:`stein.predictions.RegressionPrediction` in JAX; ``degrees`` of Student's t, infinite for the normal."""

    means: Float[Array, "n b k"]
    sigmas: Float[Array, "n b k"]
    deviation: float
    degrees: float
    counts: bool

    def cdf(self, y: Numbers) -> Numbers:
        if self.counts:
            whole = jnp.floor(jnp.maximum(y, 0))[None]
            return jnp.where(y < 0, 0.0, special.gammaincc(whole + 1, self.means).mean(axis=0))
        z = (y[None] - self.means) / self.sigmas
        if math.isinf(self.degrees):
            return special.ndtr(z).mean(axis=0)
        tail = 0.5 * special.betainc(0.5 * self.degrees, 0.5, self.degrees / (self.degrees + z**2))
        return jnp.where(z < 0, tail, 1 - tail).mean(axis=0)


def _mixture(finished: Exported, outputs: Array) -> _Mixture:
    """The calibrated prediction of the members, in the units of the target."""
    likelihood, spread = finished.likelihood, finished.spread
    at_zero = likelihood.predictive(np.zeros((1, 1, outputs.shape[2])))
    assert not isinstance(at_zero, ClassPrediction)  # noqa: S101
    family = at_zero.family
    if family.counts:
        rates = jnp.exp(outputs + jnp.log(at_zero.means))
        return _Mixture(rates, jnp.sqrt(rates), family.deviation, math.inf, True)
    if likelihood.extra_outputs or likelihood.shared_sigma:
        means, log_sigmas = jnp.split(outputs, 2, axis=2)
        sigmas = jnp.exp(jnp.minimum(log_sigmas, 300.0))
    else:
        means, sigmas = outputs, jnp.broadcast_to(at_zero.sigmas, outputs.shape)
    if finished.units is not None:
        scale, shift = finished.units.scale[None, None], finished.units.mean[None, None]
        means, sigmas = means * scale + shift, sigmas * scale
    middle = means.mean(axis=0, keepdims=True)
    means, sigmas = middle + spread.width * (means - middle), spread.width * sigmas
    family = spread(at_zero).family
    degrees = math.inf if family is NORMAL else spread.degrees or finished.config.likelihood.degrees
    return _Mixture(means, sigmas, family.deviation, degrees, False)


def _of_numbers(
    mixture: _Mixture, finished: Exported, coverage: float, conformal: Conformal | None
) -> tuple[list[Array], Array]:
    """The columns of the answer, and the epistemic score."""
    mean, epistemic = mixture.means.mean(axis=0), mixture.means.std(axis=0)
    aleatoric = mixture.deviation * jnp.sqrt((mixture.sigmas**2).mean(axis=0))
    std = jnp.hypot(aleatoric, epistemic)
    if conformal is None:
        low, high = (_quantile(mixture, mean, std, 0.5 + side * coverage / 2) for side in (-1, 1))
    else:
        half = conformal.threshold(coverage)[None] * std
        low, high = mean - half, mean + half
    columns = [part[:, k] for k in range(mean.shape[1]) for part in (mean, std, epistemic, aleatoric, low, high)]
    scale = 1.0 if finished.units is None else finished.units.scale[None]
    return columns, (epistemic / scale).mean(axis=1)


def _quantile(mixture: _Mixture, mean: Numbers, std: Numbers, level: float) -> Numbers:
    """By bisection between the ends of Cantelli's inequality, as :meth:`RegressionPrediction.quantile`."""
    odds = math.sqrt(1 / level - 1)

    def halved(_: Any, ends: tuple[Numbers, Numbers]) -> tuple[Numbers, Numbers]:
        low, high = ends
        middle = 0.5 * (low + high)
        below = mixture.cdf(middle) < level
        return jnp.where(below, middle, low), jnp.where(below, high, middle)

    low, high = jax.lax.fori_loop(0, 80, halved, (mean - std * odds, mean + std / odds))
    return jnp.round(high) if mixture.counts else 0.5 * (low + high)


# -- classes ------------------------------------------------------------------------------------------------


def _of_classes(
    outputs: Array, temperature: float, coverage: float, conformal: Conformal | None
) -> tuple[list[Array], Array]:
    """The columns of the answer, and the epistemic score: the mutual information."""
    members = jax.nn.log_softmax(outputs, axis=2)
    each = jnp.exp(members)
    mean = each.mean(axis=0)
    p = mean
    if temperature != 1:
        p = jax.nn.softmax(special.logsumexp(members, axis=0) / temperature, axis=1)
    nats = math.log(p.shape[1])
    information = special.kl_div(each, jnp.broadcast_to(mean[None], each.shape)).sum(axis=2).mean(axis=0) / nats
    order = jnp.argsort(-p, axis=1, stable=True)
    totals = jnp.take_along_axis(p, order, axis=1).cumsum(axis=1)
    totals = jnp.take_along_axis(totals, jnp.argsort(order, axis=1), axis=1)
    chosen = p.argmax(axis=1)
    if conformal is None:
        inside = totals - p < coverage
    else:
        first = jnp.arange(p.shape[1])[None] == chosen[:, None]
        inside = (totals <= conformal.threshold(coverage)[None] * (1 + ties.ROUNDING)) | first
    entropy = special.entr(p).sum(axis=1) / nats
    return [chosen.astype(jnp.int32), *p.T, inside, entropy, information], information
