"""From a trained ensemble and labelled data to one flat dict of numbers."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from stein import predict
from stein.likelihoods import Likelihood
from stein.metrics import scoring
from stein.types import Model, Particles


def held_out(model: Model, likelihood: Likelihood, x: Array, y: Array) -> Callable[[Particles], dict[str, float]]:
    """An evaluation on data that training does not see.

    Returns:
        A function of particles, without the dead (:func:`stein.predict.living`): ``test_nll`` of the ensemble,
        ``test_nll_members``, the mean of its members' own, and ``test_accuracy`` or ``test_rmse``.
    """

    @jax.jit
    def scores(particles: Particles, x: Array, y: Array) -> dict[str, Float[Array, ""]]:
        outputs = predict.outputs(model, particles, x)
        log_probs = jax.vmap(likelihood.log_prob, (0, None))(outputs, y)
        found = {"test_nll": scoring.nll(log_probs), "test_nll_members": -jnp.mean(log_probs)}
        if "probabilities" in likelihood.features:
            return found | {"test_accuracy": scoring.accuracy(jax.nn.softmax(outputs), y)}
        means = jax.vmap(likelihood.features["outputs"].forward)(outputs)
        return found | {"test_rmse": scoring.rmse(means, y.reshape(means.shape[1:]))}

    return lambda particles: {name: float(value) for name, value in scores(particles, x, y).items()}
