"""Minibatches outside of any jit: compiled once, and the same as inside."""

import jax
import jax.numpy as jnp
import numpy as np

from stein import data

X = np.arange(10.0)[:, None]


def compilations(function):
    """How many programs XLA compiles while ``function`` runs."""
    seen = []
    listener = lambda event, seconds, **_: seen.append(event)  # noqa: E731
    jax.monitoring.register_event_duration_secs_listener(listener)
    try:
        function()
    finally:
        jax.monitoring.unregister_event_duration_listener(listener)
    return sum("backend_compile" in event for event in seen)


def test_one_batch_after_the_other_compiles_once():
    """Catches a fresh program at every call: slow, and its memory is never given back."""
    batches = data.Batches(X, X, 3, jax.random.key(0), independent=True)
    assert compilations(lambda: batches.at(0)) > 0
    assert compilations(lambda: [batches.at(step) for step in range(1, 20)]) == 0
    again = data.Batches(X + 1, X, 3, jax.random.key(1), independent=True)
    assert compilations(lambda: again.at(5)) == 0


def test_batches_are_the_same_inside_and_outside_of_jit():
    """And go through every row once in an epoch."""
    batches = data.Batches(X, X, 3, jax.random.key(0))
    outside = np.stack([batches.at(step).x for step in range(20)])
    rows = jax.jit(lambda batches: batches.indices((0, 0), 20))(batches)
    inside = np.stack([batches.take(jax.tree.map(lambda leaf, t=t: leaf[t], rows)).x for t in range(20)])
    np.testing.assert_array_equal(outside, inside)
    np.testing.assert_array_equal(np.sort(outside.reshape(6, 10), axis=1), np.tile(np.arange(10.0), (6, 1)))
    np.testing.assert_array_equal(batches.at(jnp.asarray(7)).x, outside[7])
