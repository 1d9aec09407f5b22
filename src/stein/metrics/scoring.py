"""Scores of predictions: how good an ensemble's answers are. Members come first, data points second."""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from stein import versions
from stein.inputs import shaped

versions.require()


@shaped
def nll(log_probs: Float[Array, "n b"]) -> Float[Array, ""]:
    r"""Negative log-likelihood of the mixture of all members, :math:`-\frac1b \sum_b \log \frac1n \sum_i p_i(y_b)`.

    Never above the mean of the members' own (Jensen).
    """
    n = log_probs.shape[0]
    return -jnp.mean(jax.nn.logsumexp(log_probs, axis=0) - math.log(n))


@shaped
def accuracy(probabilities: Float[Array, "n b c"], y: Int[Array, " b"]) -> Float[Array, ""]:
    """Fraction of points where the class of the largest mean probability is the right one."""
    right = jnp.argmax(jnp.mean(probabilities, axis=0), axis=1) == y
    return jnp.mean(right.astype(probabilities.dtype))


@shaped
def rmse(means: Float[Array, "n b k"], y: Float[Array, "b k"]) -> Float[Array, ""]:
    """Root mean square error of the mean over members."""
    return jnp.sqrt(jnp.mean(jnp.square(jnp.mean(means, axis=0) - y)))
