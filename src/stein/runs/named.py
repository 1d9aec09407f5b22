"""The objects that a config names. Only names listed here are possible."""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from stein import (
    functional_priors,
    inputs,
    kernels,
    likelihoods,
    measurements,
    methods,
    models,
    priors,
    rules,
    schedules,
    tree,
)
from stein.runs import dataset
from stein.runs.dataset import Loaded
from stein.runs.kinds import Kind
from stein.runs.schema import IMAGES, WITH_WEIGHT_DECAY, Config
from stein.runs.schema import Model as NetworkSection
from stein.types import Model

ACTIVATIONS: dict[str, Callable] = {
    "relu": jax.nn.relu,
    "tanh": jnp.tanh,
    "silu": jax.nn.silu,
    "gelu": jax.nn.gelu,
    "elu": jax.nn.elu,
    "softplus": jax.nn.softplus,
}
PRIORS: dict[str, Callable[[float], priors.Prior]] = {
    "normal": priors.normal,
    "laplace": priors.laplace,
    "fan-in": priors.fan_in,
}
KERNELS: dict[str, Callable[[Any], kernels.Kernel]] = {"rbf": kernels.rbf, "imq": kernels.imq}
FUNCTIONAL_PRIORS: dict[str, Callable[..., functional_priors.FunctionalPrior]] = {
    "ssge": functional_priors.ssge,
    "moment-matched": functional_priors.moment_matched,
}
OPTIMISERS: dict[str, Callable[..., optax.GradientTransformation]] = {
    "adam": optax.adam,
    "adamw": optax.adamw,
    "sgd": optax.sgd,
    "momentum": lambda rate: optax.sgd(rate, momentum=0.9),
    "nadam": optax.nadam,
    "radam": optax.radam,
    "rmsprop": optax.rmsprop,
    "adagrad": optax.adagrad,
    "lion": optax.lion,
    "lamb": optax.lamb,
}


def is_relu_mlp(config: Config) -> bool:
    return (config.model.name, config.model.activation) == ("mlp", "relu")


def make_likelihood(config: Config, kind: Kind, scale: float | None) -> likelihoods.Likelihood:
    """The likelihood of a resolved config, for targets of a kind, divided by ``scale`` if not None."""
    if kind == "categorical":
        return likelihoods.categorical(config.likelihood.center_logits)
    if config.likelihood.center_logits:
        raise ValueError("likelihood.center_logits = true: the targets are numbers, not classes; must be false")
    if kind == "heteroscedastic":
        return likelihoods.heteroscedastic()
    if kind == "poisson":
        return likelihoods.poisson(config.likelihood.rate)
    sigma = config.likelihood.sigma
    given = None if isinstance(sigma, str) else sigma / (scale or 1.0)
    if kind == "student-t":
        return likelihoods.student_t(sigma if sigma == "input-dependent" else given, config.likelihood.degrees)
    return likelihoods.gaussian(given)


def make_model(
    config: Config,
    likelihood: likelihoods.Likelihood,
    shape: tuple[int, ...],
    answers: int,
    network: Model | None = None,
) -> Model:
    """The network of a config, for inputs of this ``shape`` and ``answers`` targets or classes.

    Args:
        network: the model if ``model.name`` is ``"given"``.
    """
    outputs = answers * (1 + likelihood.extra_outputs)
    if config.model.name == "given":
        if network is None:
            raise ValueError("model.name = 'given': the network was given in Python; load(path, model=...) needs it")
        _check_outputs(network, shape, outputs)
        return _finished(network, config, likelihood, answers)
    if config.model.name == "resnet32":
        if len(shape) != 3 or "probabilities" not in likelihood.features:
            raise ValueError(
                f"model.name = 'resnet32': needs classes of images (rows, height, width, channels), not rows of {shape}"
            )
    elif len(shape) != 1:
        raise ValueError(f"model.name = 'mlp': needs a table (rows, columns), but a row of the inputs is {shape}")
    return _finished(_network(config.model, shape, outputs), config, likelihood, answers)


@functools.lru_cache(maxsize=64)
def _network(section: NetworkSection, shape: tuple[int, ...], outputs: int) -> Model:
    """One object for equal networks: what was compiled for it serves other methods, and evaluations after training."""
    if section.name == "resnet32":
        return models.resnet32(outputs, shape[2], section.blocks, section.filters, section.stride)
    return models.mlp([shape[0], *section.hidden, outputs], ACTIVATIONS[section.activation])


def _finished(model: Model, config: Config, likelihood: likelihoods.Likelihood, answers: int) -> Model:
    """The network in its precision, with a learned noise if the likelihood needs one."""
    if config.train.precision == "float64":
        model = _wide(model)
    if config.model.bfloat16:
        model = models.in_bfloat16(model)
    modulation = config.likelihood.modulation if likelihood.extra_outputs else 0.0
    if likelihood.shared_sigma or modulation:
        return models.with_log_sigma(model, targets=answers, modulation=modulation)
    return model


def _check_outputs(network: Model, shape: tuple[int, ...], outputs: int) -> None:
    weights = jax.eval_shape(network.init, jax.random.key(0))
    rows = jax.ShapeDtypeStruct((2, *shape), jax.tree.leaves(weights)[0].dtype)
    with inputs.applying(rows):
        found = jax.eval_shape(network.apply, weights, rows)
    if found.shape != (2, outputs):
        raise ValueError(f"model: its outputs for 2 rows have shape {found.shape}; must be (2, {outputs})")


def _wide(model: Model) -> Model:
    def init(key: jax.Array) -> Any:
        return jax.tree.map(lambda leaf: leaf.astype(jnp.float64), model.init(key))

    return model._replace(init=init)


def extra_points(config: Config, loaded: Loaded) -> measurements.Source | None:
    section = config.method
    if not section.extra_points:
        return None
    if section.extra_source == "noise":
        return measurements.noise(section.extra_points)
    if section.extra_source == "mixture":
        return measurements.mixture(section.extra_points)
    if section.extra_source in ("augmented", "patches"):
        make = getattr(measurements, section.extra_source)
        return make(section.extra_points, _image_shape(config, loaded.train.x.shape[1:]))
    if section.extra_source == "box":
        return measurements.box(loaded.train.x, section.extra_points)
    return measurements.rows_of(dataset.unlabelled(section.extra_source, config, loaded), section.extra_points)


def measured(config: Config) -> str:
    return "extra" if methods.lookup(config.method.name).unlabelled else config.method.measurement


def _image_shape(config: Config, shape: tuple[int, ...]) -> tuple[int, int, int]:
    """Height, width and channels of the images, also if an mlp gets them as flat rows."""
    if len(shape) == 3:
        return shape[0], shape[1], shape[2]
    if config.data.name not in IMAGES:
        raise ValueError(
            f"method.extra_source = {config.method.extra_source!r}: needs images, not rows of {shape}; "
            "must be box, noise, mixture or a file"
        )
    channels = 3 if config.data.name == "cifar10" else 1
    side = math.isqrt(shape[0] // channels)
    return side, side, channels


def functional_prior(
    config: Config, shape: tuple[int, ...] = (), kind: Kind = "gaussian"
) -> functional_priors.FunctionalPrior:
    """The prior over functions of a resolved config; ``shape`` is that of an input, ``kind`` that of the targets."""
    section = config.method
    if section.functional_prior == "none":
        return functional_priors.none()
    if section.functional_prior == "gaussian-process":
        # The same jitter as moment matching: in float32 a smooth covariance of many points is singular without it.
        covariance = _rbf_covariance(section.gp_scale, section.gp_length)
        prior = functional_priors.gaussian_process(covariance, jitter=1e-3 * section.gp_scale**2)
    elif section.functional_prior == "infinite-width":
        sizes, classes = (*shape, *config.model.hidden, 1), kind == "categorical"
        # Logits of standard normal weights are in the thousands: such a prior is flat to f-SVGD, and its own
        # probabilities are 0 and 1 (docs/design.md).
        scale = 2.0 if classes else float(config.prior.scale)
        fan_in = classes or config.prior.name == "fan-in"
        prior = functional_priors.infinite_width(
            sizes, [scale / m**0.5 if fan_in else scale for m in sizes[:-1]], scale
        )
    else:
        draws = None if section.prior_draws == "auto" else section.prior_draws
        prior = FUNCTIONAL_PRIORS[section.functional_prior](draws=draws)
    return functional_priors.on_points(prior, section.prior_points) if section.prior_points else prior


def _rbf_covariance(scale: float, length: float) -> Callable[[jax.Array, jax.Array], jax.Array]:
    """scale² exp(-|x - x'|²/(2 length²)) of a set of points with itself."""

    def covariance(x: jax.Array, same: jax.Array) -> jax.Array:
        squared = tree.squared_distances(x, jnp.ones(len(x), bool))
        return scale**2 * jnp.exp(-0.5 / length**2 * squared)

    return covariance


def learning_rate(config: Config) -> float | schedules.Schedule:
    section = config.optimiser
    rate, steps, left = section.learning_rate, config.train.steps - section.warmup_steps, section.final_fraction
    if section.schedule == "cyclical":
        return schedules.cosine_cycles(rate, steps, section.cycles)
    falling: Any = {
        "constant": optax.constant_schedule(rate),
        "cosine": optax.cosine_decay_schedule(rate, steps, left),
        "exponential": optax.exponential_decay(rate, steps, left),
        # With this offset the published power reaches the final fraction at the last step.
        "polynomial": schedules.polynomial(rate, offset=steps / (left ** (-1 / 0.55) - 1)),
    }[section.schedule]
    if not section.warmup_steps:
        return rate if section.schedule == "constant" else falling
    growing = optax.linear_schedule(rate / (section.warmup_steps + 1), rate, section.warmup_steps)
    return optax.join_schedules([growing, falling], [section.warmup_steps])


def noise_scale(config: Config) -> schedules.Schedule | None:
    section, cycles = config.method, config.optimiser.cycles
    if not section.exploration:
        return None
    return schedules.late_in_cycles(config.train.steps, cycles, section.exploration)


def optimiser(config: Config) -> Callable[[Any], optax.GradientTransformation]:
    section = config.optimiser
    make = OPTIMISERS[section.name]
    decay = {"weight_decay": section.weight_decay} if section.name in WITH_WEIGHT_DECAY else {}

    def optimiser(rate: Any) -> optax.GradientTransformation:
        chosen = make(rate, **decay)
        return optax.chain(optax.clip_by_global_norm(section.clip), chosen) if section.clip else chosen

    return optimiser


def annealing(config: Config) -> schedules.Schedule:
    section = config.annealing
    steps = config.annealing_steps
    if section.name == "linear":
        return schedules.linear(steps)
    if section.name == "hyperbolic":
        return schedules.hyperbolic(steps, section.power)
    if section.name == "cyclical":
        return schedules.cyclical(steps, section.cycles, section.power)
    return schedules.constant()


def rule_options(config: Config) -> dict[str, Any]:
    """The same kernel for every kernel that the method takes, and its repulsion."""
    section = config.method
    bandwidth = kernels.median() if section.bandwidth == "median" else section.bandwidth
    if section.freeze_bandwidth_after:
        bandwidth = kernels.frozen(kernels.median(), section.freeze_bandwidth_after)
    options: dict[str, Any] = {
        name: KERNELS[section.kernel](bandwidth) for name in methods.lookup(section.name).kernels
    }
    if section.compares != "auto":
        options["space"] = section.compares
    if section.repulsion != "auto":
        options["repulsion"] = section.repulsion
    if section.repulsion_energy != "auto" or section.repulsion_directions:
        energy = 1.0 if section.repulsion_energy == "auto" else section.repulsion_energy
        options["repulsion"] = rules.exact(energy, section.repulsion_probe, section.repulsion_directions or None)
    return options
