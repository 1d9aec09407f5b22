r"""The target distribution of the particles, and the view of it that a rule gets.

A :class:`Target` turns particles and a minibatch into a :class:`View`: scores in weight space and in output
space, function values, and one vjp that maps forces on functions back to weights. Rules see only views,
never a model, a likelihood or data.
"""

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.tree_util import Partial
from jaxtyping import Array, Bool, Float, Int

from stein import features, functional_priors, inputs, pullbacks, tree
from stein.features import Space
from stein.likelihoods import FeatureMap, Likelihood
from stein.priors import Prior
from stein.pullbacks import Jacobians, Pulled
from stein.types import Batch, Key, Model, Particles, Weights


class View(NamedTuple):
    """The ensemble at one step. Rows of dead particles are finite, and zero in every sum, but for ``weights`` and
    the two reports: kernels and ``tree`` leave the dead out by ``alive``, without a copy of all weights.

    ``drive`` below is gamma_t / T, the annealing factor over the temperature.
    """

    weights: Particles
    score_w: Particles  # drive * posterior_w
    posterior_w: Particles  # N * mean_b grad_w log p(y_b | w) + grad_w log p(w): neither annealed nor tempered
    loglik_w: Particles  # mean_b grad_w log p(y_b | w), for preconditioners
    score: Pulled  # score_w, before the first layer's product with the inputs if these are the measurement points
    features: Float[Array, "n m k"]  # what the functional kernel compares at the m measurement points
    jacobians: Jacobians  # of the outputs at these points; what they pull back is zero for the dead
    lift: Callable[[Array], Array]  # cotangent on features -> on outputs; features of another kind stand for outputs
    score_f: Float[Array, "n m c"]  # drive * likelihood score in output space; zero at points without a label
    prior_f: Float[Array, "n m k"]  # drive * functional prior score
    ids: Int[Array, " n"]  # random draws depend on these, not on position or device
    alive: Bool[Array, " n"]
    log_likelihood: Float[Array, " n"]  # mean over the batch, for diagnostics
    log_prior: Float[Array, " n"]

    def backward(self, cotangent: Float[Array, "n m c"]) -> Particles:
        """J_i^T u_i for every particle i, J_i the Jacobian of the *outputs* in the weights; zero for the dead."""
        return self.jacobians.expand(self.jacobians.pull(cotangent))

    def pullback(self, cotangent: Float[Array, "n m k"]) -> Particles:
        """J_i^T v_i for every particle i, J_i the Jacobian of the *features* in the weights."""
        return self.backward(self.lift(cotangent))

    def pulled(self, cotangent: Float[Array, "n m k"]) -> Pulled:
        """The same, before the first layer's product with the inputs."""
        return self.jacobians.pull(self.lift(cotangent))

    def num_alive(self) -> Float[Array, ""]:
        """Number of living particles, the n that coupled sums are divided by."""
        return jnp.maximum(jnp.sum(self.alive), 1).astype(self.features.dtype)


class Measurement(NamedTuple):
    """The points at which the functional kernel compares members.

    Args:
        where: ``"batch"``, the gradient batch; ``"independent"``, the inputs ``batch.measure`` of a separately drawn
            batch, without which the averaged drift of a stochastic rule is biased; or ``"extra"``, only the points
            below.
        subset: use only this many of these points, the first ones (a batch is in random order anyway).
        extra: further inputs without labels: an array, or a function of a random key and the batch's inputs that makes
            new ones in every step (see :mod:`stein.measurements`; a function of the key alone works too).
    """

    where: str = "batch"
    subset: int | None = None
    extra: Array | Callable[..., Array] | None = None

    def is_gradient_batch(self) -> bool:
        """Whether all labelled points are measured, as the functional rules require."""
        return self.where == "batch" and self.subset is None


class Target(NamedTuple):
    """A distribution over one network's weights.

    ``sample(key)`` draws from its prior, ``init(key)`` from the model's own initialiser; ``view(...)`` is
    documented at :func:`posterior`; ``check(x, y, whole=True)`` raises ``ValueError`` for data (with ``whole=False``
    for a batch) that do not fit it; ``spaces`` are the names of the feature maps of its outputs, and ``network`` says
    whether it has others (:mod:`stein.features`). ``log_prob(weights, batch)`` is the mean log-likelihood of one
    network and its log-prior; the log density is ``num_data`` times the first, plus the second.
    """

    sample: Callable[[Key], Weights]
    init: Callable[[Key], Weights]
    view: Callable[..., View]
    check: Callable[..., None]
    spaces: tuple[str, ...]
    measurement: Measurement
    num_data: int
    log_prob: Callable[[Weights, Batch | None], tuple[Float[Array, ""], Float[Array, ""]]]
    network: bool = True


def posterior(
    model: Model,
    likelihood: Likelihood,
    prior: Prior,
    num_data: int,
    *,
    measurement: Measurement = Measurement(),
    functional_prior: functional_priors.FunctionalPrior = functional_priors.none(),
) -> Target:
    r"""The posterior of a network's weights given data.

    .. math:: \log p(w \mid D) = \tfrac{N}{B} \sum_b \log p(y_b \mid f(x_b; w)) + \log p(w) + \mathrm{const}

    on a minibatch of B points of the N = ``num_data``: an unbiased estimate of the full sum. The prior is
    counted once.

    Args:
        measurement: the points of the functional kernel. Default: the gradient batch.
        functional_prior: prior over functions, used by the functional rules only (``f-svgd``, ``kde-fwgd`` ...).

    Returns:
        A :class:`Target`, whose ``view(key, particles, batch, ids, alive, drive, space, functional)`` costs one
        forward pass per particle, plus whatever else the rule reads (under ``jit``).
    """
    inputs.in_jax(model)
    _check_settings(num_data, measurement)
    shapes = jax.eval_shape(model.init, jax.random.key(0))

    def sample(key: Key) -> Weights:
        return prior.sample(key, shapes)

    def view(
        key: Key,
        particles: Particles,
        batch: Batch,
        ids: Int[Array, " n"],
        alive: Bool[Array, " n"],
        drive: Float[Array, ""],
        space: Space,
        functional: bool,
    ) -> View:
        of_outputs = likelihood.features.get(space) if isinstance(space, str) else None
        key_extra, key_prior = jax.random.split(key)
        shared = measurement.is_gradient_batch() and of_outputs is not None
        extra = _extra_points(measurement, key_extra, batch.x)
        data = _at_the_data(model, likelihood, particles, batch, extra[: None if shared else 0])
        log_prior = jax.vmap(prior.log_prob)(particles)
        prior_w = jax.vmap(prior.score)(particles)

        def with_prior(likelihood: Any, prior: Any) -> Any:
            return jax.tree.map(lambda lik, pri: num_data * lik + pri, likelihood, prior)

        score = tree.scale(drive, with_prior(data.pulled, data.jacobians.known(prior_w)))
        inputs, outputs, jacobians = data.inputs, data.outputs, data.jacobians
        if not shared:
            inputs = jnp.concatenate([_measured_inputs(batch, measurement)[: measurement.subset], extra])
            if of_outputs is not None:
                outputs, jacobians = pullbacks.outputs(model, particles, inputs)
            else:
                see = _other_features(space, model, likelihood, batch.y)
                outputs, jacobians = pullbacks.of_function(see, particles, inputs)

        # A particle with a non-finite value that affects the others counts as dead from here on.
        seen = (outputs, data.outputs, data.log_likelihood, log_prior)
        alive = alive & tree.healthy(particles) & tree.healthy(seen)
        alive = alive & (tree.healthy(data.point_scores) if functional else tree.healthy(data.jacobians.bound(score)))
        outputs = tree.where(alive, outputs, 0)
        loglik_w = tree.where(alive, data.jacobians.expand(data.pulled), 0)
        posterior_w = with_prior(loglik_w, tree.where(alive, prior_w, 0))
        score_w = tree.scale(drive, posterior_w)
        to_features = of_outputs or FeatureMap(lambda outputs: outputs, lambda outputs, u: u)
        features = jax.vmap(to_features.forward)(outputs)
        prior_f = jnp.zeros_like(features)
        if functional:
            draw = _prior_draws(model, sample, to_features)
            prior_f = functional_prior(key_prior, features, alive, inputs, draw)
        score_f = data.point_scores * (num_data / batch.x.shape[0]) if shared else jnp.zeros_like(outputs)
        return View(
            weights=particles,
            score_w=score_w,
            posterior_w=posterior_w,
            loglik_w=loglik_w,
            score=tree.where(alive, score, 0) if shared else jacobians.known(score_w),
            features=features,
            jacobians=jacobians.among(alive),
            lift=Partial(jax.vmap(to_features.back), outputs),
            score_f=tree.where(alive, tree.scale(drive, score_f), 0),
            prior_f=tree.where(alive, tree.scale(drive, prior_f), 0),
            ids=ids,
            alive=alive,
            log_likelihood=data.log_likelihood,
            log_prior=log_prior,
        )

    def check(x: Any, y: Any, whole: bool = True) -> None:
        if whole and len(x) == len(y) != num_data:
            raise ValueError(f"num_data = {num_data}: the data has {len(x)} rows")
        check_data(model, likelihood, x, y)

    def log_prob(weights: Weights, batch: Batch | None) -> tuple[Float[Array, ""], Float[Array, ""]]:
        assert batch is not None  # noqa: S101 - of a target with data
        return jnp.mean(likelihood.log_prob(model.apply(weights, batch.x), batch.y)), prior.log_prob(weights)

    return Target(sample, model.init, view, check, tuple(likelihood.features), measurement, num_data, log_prob)


class _AtTheData(NamedTuple):
    """The networks at the labelled points of a batch, and at the extra points behind them."""

    inputs: Array
    outputs: Float[Array, "n m c"]
    jacobians: Jacobians
    log_likelihood: Float[Array, " n"]
    point_scores: Float[Array, "n m c"]  # of the likelihood, in output space; zero at points without a label
    pulled: Pulled  # mean_b grad_w log p(y_b | w)


def _at_the_data(model: Model, likelihood: Likelihood, weights: Particles, batch: Batch, extra: Array) -> _AtTheData:
    """One vjp for all of these points, if the functional kernel looks at them."""
    size, inputs = batch.x.shape[0], jnp.concatenate([batch.x, extra])
    outputs, jacobians = pullbacks.outputs(model, weights, inputs)
    labelled = outputs[:, :size]
    log_likelihood = jnp.mean(jax.vmap(likelihood.log_prob, (0, None))(labelled, batch.y), axis=1)
    point_scores = jax.vmap(likelihood.score, (0, None))(labelled, batch.y)
    point_scores = jnp.pad(point_scores, ((0, 0), (0, inputs.shape[0] - size), (0, 0)))
    return _AtTheData(inputs, outputs, jacobians, log_likelihood, point_scores, jacobians.pull(point_scores / size))


def _other_features(
    space: Space, model: Model, likelihood: Likelihood, y: Array
) -> Callable[[Weights, Array], Float[Array, "m k"]]:
    """The features of one network that are not a function of its outputs."""

    def apply(weights: Weights, x: Array) -> Array:
        return likelihood.features["outputs"].forward(model.apply(weights, x))

    def see(weights: Weights, x: Array) -> Array:
        outputs = jax.eval_shape(apply, weights, x)
        labels = jnp.ones(outputs.shape, outputs.dtype)
        if "probabilities" in likelihood.features:
            classes = (y if y.ndim == 1 else y[:, 0]).astype(jnp.int32)  # a second column is the weight
            labels = jax.nn.one_hot(classes[: x.shape[0]], outputs.shape[1], dtype=outputs.dtype)
        points = x.astype(outputs.dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x  # gradients have their type
        return features.at(space, apply, points, labels)(weights)

    return see


def _prior_draws(model: Model, sample: Callable[[Key], Weights], to_features: FeatureMap) -> functional_priors.Draw:
    """Features of networks drawn from the prior, for functional priors that are estimated from them."""

    def draw(key: Key, number: int, at: Array) -> Array:
        drawn = jax.vmap(sample)(jax.random.split(key, number))
        return jax.vmap(to_features.forward)(jax.vmap(model.apply, (0, None))(drawn, at))

    return draw


def density(
    log_prob: Callable[[Weights], Float[Array, ""]],
    sample: Callable[[Key], Weights],
    features: Callable[[Weights], Float[Array, "m k"]] | None = None,
) -> Target:
    """Any differentiable density over a pytree: no network, no data, no minibatches (the batch is ignored).

    Args:
        log_prob: log density of one particle, up to a constant.
        sample: draws a particle's starting point.
        features: what a functional kernel compares, an (m, k) array per particle. Default: the particle itself,
            flattened.
    """
    compare = features or (lambda w: jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(w)])[:, None])

    def view(
        key: Key,
        particles: Particles,
        batch: Any,
        ids: Int[Array, " n"],
        alive: Bool[Array, " n"],
        drive: Float[Array, ""],
        space: str,
        functional: bool,
    ) -> View:
        values, gradient = jax.vmap(jax.value_and_grad(log_prob))(particles)
        outputs, jacobians = pullbacks.of_function(lambda w, _: compare(w), particles, None)
        alive = alive & tree.healthy((particles, values, gradient, outputs))
        outputs = tree.where(alive, outputs, 0)
        gradient = tree.where(alive, gradient, 0)
        zero = jnp.zeros_like(outputs)
        return View(
            weights=particles,
            score_w=tree.scale(drive, gradient),
            posterior_w=gradient,
            loglik_w=gradient,
            score=jacobians.known(tree.scale(drive, gradient)),
            features=outputs,
            jacobians=jacobians.among(alive),
            lift=Partial(lambda u: u),
            score_f=zero,
            prior_f=zero,
            ids=ids,
            alive=alive,
            log_likelihood=values,
            log_prior=jnp.zeros_like(values),
        )

    return Target(
        sample,
        sample,
        view,
        lambda x, y, whole=True: None,
        ("outputs",),
        Measurement("extra"),  # there is no batch
        1,
        lambda weights, batch: (log_prob(weights), jnp.zeros(())),
        network=False,
    )


def _check_settings(num_data: int, measurement: Measurement) -> None:
    if num_data < 1:
        raise ValueError(f"num_data = {num_data}: must be at least 1")
    if measurement.where not in ("batch", "independent", "extra"):
        raise ValueError(f"measurement.where = {measurement.where!r}: 'batch', 'independent' or 'extra'")
    if measurement.where == "extra" and (measurement.extra is None or measurement.subset is not None):
        raise ValueError("measurement.where = 'extra': the points are those of measurement.extra, without a subset")
    if measurement.subset is not None and measurement.subset < 1:
        raise ValueError(f"measurement.subset = {measurement.subset}: must be at least 1")


def _extra_points(measurement: Measurement, key: Key, like: Array) -> Array:
    """The unlabelled inputs of this step, in the precision of the others."""
    if measurement.extra is None:
        return like[:0]
    extra = measurement.extra
    if callable(extra):
        needed = [p for p in inspect.signature(extra).parameters.values() if p.default is p.empty]
        extra = extra(key, like) if len(needed) > 1 else extra(key)
    return jnp.asarray(extra, like.dtype)


def _measured_inputs(batch: Batch, measurement: Measurement) -> Array:
    if measurement.where != "independent":
        return batch.x[: None if measurement.where == "batch" else 0]
    if batch.measure is None:
        raise ValueError("measurement.where = 'independent': the batch has no `measure` inputs")
    return batch.measure


def check_data(model: Model, likelihood: Likelihood, x: Any, y: Any) -> None:
    """Raise ``ValueError`` for data that do not fit this model and this likelihood."""
    x, y = inputs.batch(x), inputs.array("y", y)
    inputs.same_rows(x, y)
    inputs.finite("y", y)
    weights = jax.eval_shape(model.init, jax.random.key(0))
    rows = jax.ShapeDtypeStruct((2, *x.shape[1:]), jax.tree.leaves(weights)[0].dtype)
    with inputs.applying(x):
        outputs = jax.eval_shape(model.apply, weights, rows)
    inputs.answers(rows, outputs.shape)
    likelihood.check(outputs.shape[1], y)
