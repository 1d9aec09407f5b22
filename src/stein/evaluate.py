"""From a trained ensemble and labelled data to one flat dict of numbers."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from stein import predict
from stein.likelihoods import Likelihood
from stein.metrics import scoring
from stein.types import Model, Particles


def held_out(model: Model, likelihood: Likelihood, particles: Particles, x: Array, y: np.ndarray) -> dict[str, float]:
    """``test_nll`` of the ensemble and of its members one by one, and ``test_accuracy`` or ``test_rmse``.

    Leave dead members out of ``particles`` (:func:`stein.predict.living`).
    """
    outputs = predict.outputs(model, particles, x)
    log_probs = jax.vmap(likelihood.log_prob, (0, None))(outputs, jnp.asarray(y))
    found = {"test_nll": scoring.nll(log_probs), "test_nll_members": -jnp.mean(log_probs)}
    if "probabilities" in likelihood.features:
        found["test_accuracy"] = scoring.accuracy(jax.nn.softmax(outputs), jnp.asarray(y))
    else:
        means = jax.vmap(likelihood.features["outputs"].forward)(outputs)
        targets = jnp.asarray(np.reshape(y, means.shape[1:]), means.dtype)
        found["test_rmse"] = scoring.rmse(means, targets)
    return {name: float(value) for name, value in found.items()}
