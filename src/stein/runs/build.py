"""Puts together what a config describes: data, network, algorithm, first state."""

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import msgspec
import numpy as np

from stein import (
    data,
    defaults,
    ensembles,
    features,
    likelihoods,
    measurements,
    methods,
    priors,
    targets,
    train,
)
from stein.predictions import ClassPrediction, Prediction
from stein.runs import dataset, named, sizes
from stein.runs.dataset import Loaded
from stein.runs.kinds import Kind
from stein.runs.schema import FORMER, Config, Data
from stein.types import Model

STREAM = 2  # how new runs derive the key of their batches
MOST_IN_A_BATCH = 256  # default for tables


class Parts(NamedTuple):
    """The objects of a run, made from its config."""

    model: Model
    likelihood: likelihoods.Likelihood
    algorithm: ensembles.Algorithm
    batches: data.Batches | data.Stream
    data: Loaded


def assemble(
    config: Config, before: Mapping[str, Any] | None = None, changed: Callable[[str], None] | None = None
) -> Parts:
    """The parts of a run. Raises ``ValueError`` for data that the config's model or likelihood cannot take.

    Args:
        before, changed: as in :func:`stein.runs.dataset.load`.
    """
    return parts(config, dataset.load(config, before, changed))


def parts(config: Config, loaded: Loaded, network: Model | None = None, own_priors: bool = False) -> Parts:
    """The parts of a run whose data are at hand: the objects of an earlier call with equal settings and shapes, with
    all that was compiled for them.

    Args:
        network: the model if ``model.name`` is ``"given"``.
        own_priors: the scale of each member's prior is part of its weights (:func:`stein.priors.with_own_scale`).
    """
    rows = loaded.rows
    config = resolved(config, loaded.kind, rows)
    x, y, _ = loaded.train
    sizes.check(x, y)
    if config.tracking.far_spread and (loaded.stream is not None or loaded.kind in ("categorical", "poisson")):
        raise ValueError("tracking.far_spread = true: is for regression with data in memory, but not for counts")
    extra = named.extra_points(config, loaded)
    axes = features.principal_axes(x) if config.method.principal_axes else None
    # Everything else about the data is an argument of the compiled functions.
    make = _reused if extra is None and axes is None else _objects
    anonymous = msgspec.structs.replace(config, data=Data(), train=msgspec.structs.replace(config.train, seed=0))
    scale = None if loaded.units is None or isinstance(config.likelihood.sigma, str) else float(loaded.units.scale[0])
    weights = loaded.weights
    model, likelihood, algorithm = make(
        anonymous, loaded.kind, scale, x.shape[1:], loaded.answers, rows, weights is not None, network, extra, axes,
        own_priors,
    )  # fmt: skip
    if weights is not None:
        y = np.column_stack([y, weights]).astype(x.dtype)
    algorithm.target.check(x, y, whole=loaded.stream is None)
    size = int(config.train.batch_size)  # no longer "auto"
    if size > rows:
        raise ValueError(f"train.batch_size = {size}: the training data has {rows} rows; 0 uses all in every step")
    if loaded.stream is not None:
        return Parts(model, likelihood, algorithm, loaded.stream(size or rows, config.train.seed), loaded)
    independent = config.method.measurement == "independent"
    section = config.train
    batches = data.Batches(x, y, size or None, batch_key(section.seed), independent, section.crop, section.flip)
    return Parts(model, likelihood, algorithm, batches, loaded)


def _objects(
    config: Config,
    kind: Kind,
    scale: float | None,
    shape: tuple[int, ...],
    answers: int,
    rows: int,
    weighted: bool,
    network: Model | None,
    extra: measurements.Source | None,
    axes: np.ndarray | None,
    own_priors: bool,
) -> tuple[Model, likelihoods.Likelihood, ensembles.Algorithm]:
    """Model, likelihood and algorithm; ``scale`` is that of the targets, if sigma is given in their units."""
    likelihood = named.make_likelihood(config, kind, scale)
    model = named.make_model(config, likelihood, shape, answers, network)
    prior = named.PRIORS[config.prior.name](1.0 if own_priors else float(config.prior.scale))
    if own_priors:
        model, prior = _with_scale(model), priors.with_own_scale(prior)
    target = targets.posterior(
        model,
        likelihoods.weighted(likelihood) if weighted else likelihood,
        prior,
        rows,
        measurement=targets.Measurement(named.measured(config), config.method.measurement_subset or None, extra),
        functional_prior=named.functional_prior(config, shape, kind),
    )
    algorithm = ensembles.build(
        config.method.name,
        target,
        learning_rate=named.learning_rate(config),
        optimiser=named.optimiser(config),
        stochastic=config.method.stochastic,
        noise=config.method.noise,
        noise_place=config.method.noise_place,
        freeze_preconditioner_after=config.method.freeze_preconditioner_after or None,
        anneal=named.annealing(config),
        temperature=config.method.temperature,
        friction=config.method.friction,
        draws=config.method.draws,
        thin=config.method.thin,
        burn_in=config.method.burn_in,
        tuning_steps=config.method.tuning_steps,
        energy_variance=config.method.energy_variance,
        noise_scale=named.noise_scale(config),
        start=config.method.start,
        on_nan=config.train.on_nan,
        **named.rule_options(config),
        **({} if axes is None else {"axes": axes}),
    )
    return model, likelihood, algorithm


def _with_scale(model: Model) -> Model:
    """The model, with the scale of its prior beside its weights."""

    def init(key: jax.Array) -> Any:
        weights = model.init(key)
        return {"weights": weights, "scale": jnp.ones((), jax.tree.leaves(weights)[0].dtype)}

    return Model(init, lambda weights, x: model.apply(weights["weights"], x))


_reused: Callable[..., Any] = functools.lru_cache(maxsize=8)(_objects)


def begin(algorithm: ensembles.Algorithm, config: Config, weights: Any = None) -> ensembles.State:
    """The first state of a resolved config's run, or one that goes on from given weights."""
    return train.begin(algorithm, jax.random.key(config.train.seed), config.method.particles, weights)


def shapes(algorithm: ensembles.Algorithm, config: Config) -> ensembles.State:
    """The shapes of the first state; nothing is allocated."""
    key, members = jax.random.key(config.train.seed), config.method.particles
    return jax.eval_shape(lambda key: algorithm.init(key, members), key)


def batch_key(seed: int, stream: int = STREAM) -> jax.Array:
    """The key of a run's batches, by derivation number; checkpoints without a number use the first.

    The first was also the key of the run's noise: ``fold_in(key, 1)`` is ``split(key)[1]``. No split collides with the
    second.
    """
    return jax.random.fold_in(jax.random.key(seed), {1: 1, 2: 1 << 31}[stream])


def in_units(loaded: Loaded) -> Callable[[Prediction], Prediction]:
    """A function from predictions of standardised targets to predictions in their original units."""
    units = loaded.units

    def transformed(prediction: Prediction) -> Prediction:
        if units is None or isinstance(prediction, ClassPrediction):
            return prediction
        return prediction.in_units(units.scale, units.mean)

    return transformed


def resolved(config: Config, kind: Kind, rows: int) -> Config:
    """The config with "auto" resolved outside of ``data``, for targets of a kind and ``rows`` training rows."""
    meant = FORMER
    if config.is_table:
        meant = {
            "likelihood.sigma": "learned",
            # A network can memorise a few hundred rows, and the learned noise then goes to zero; with weights of this
            # size it stays near the noise on other rows (docs/data.md).
            "prior.scale": 0.5 if kind == "categorical" else 0.2,
            "train.batch_size": MOST_IN_A_BATCH if rows > MOST_IN_A_BATCH else 0,
            "optimiser.schedule": "cosine",
        }
    if methods.lookup(config.method.name).dynamics == "microcanonical":
        meant = meant | {"train.batch_size": 0}
    if config.prior.name == "fan-in":
        meant = meant | {
            "prior.scale": defaults.for_table("classes" if kind == "categorical" else "regression", rows).prior
        }
    sections: dict[str, Any] = {}
    for name in ("likelihood.sigma", "prior.scale", "train.batch_size", "optimiser.schedule"):
        section, _, key = name.partition(".")
        if getattr(getattr(config, section), key) == "auto":
            sections[section] = msgspec.structs.replace(getattr(config, section), **{key: meant[name]})
    if config.method.functional_prior == "auto":
        held = methods.lookup(config.method.name).functional and kind == "categorical" and named.is_relu_mlp(config)
        prior = "infinite-width" if held else "none"
        sections["method"] = msgspec.structs.replace(config.method, functional_prior=prior)
    return msgspec.structs.replace(config, **sections)
