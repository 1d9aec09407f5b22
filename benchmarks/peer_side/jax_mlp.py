"""The perceptron and its posterior as a user of a JAX library writes them."""

import jax
import jax.numpy as jnp


def outputs(leaves, x):
    """Logits of one network; the leaves are weight (outputs, inputs) and bias of every layer."""
    hidden = x
    for layer in range(0, len(leaves), 2):
        hidden = hidden @ leaves[layer].T + leaves[layer + 1]
        hidden = jax.nn.relu(hidden) if layer < len(leaves) - 2 else hidden
    return hidden


def log_likelihood(leaves, x, y):
    """Summed over the batch."""
    return jnp.sum(jnp.take_along_axis(jax.nn.log_softmax(outputs(leaves, x)), y[:, None], axis=1))


def log_prior(leaves):
    return -0.5 * sum(jnp.sum(leaf**2) for leaf in leaves)
