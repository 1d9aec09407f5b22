"""Many independent copies of one ensemble, run side by side: what the statistical tests are made of.

Replicas share nothing, so the standard error of a statistic is the spread of its time averages over replicas,
whatever the autocorrelation within one.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stein.ensembles import Algorithm, State
from stein.types import Batch, Key

Build = Callable[[Any], Algorithm]
"""A replica's own parameter (a step size, a data set; ``None`` if there are none) -> its algorithm."""

BatchAt = Callable[[Key, jax.Array, Any], Batch | None]
"""(a replica's own key for this step, the step, the replica's parameter) -> its batch."""


def no_batch(key: Key, step: jax.Array, parameter: Any) -> None:
    """For :func:`stein.targets.density`, which has no data."""


def run(
    build: Build,
    statistic: Callable[[Any, Any], Any],
    *,
    seed: int,
    replicas: int,
    particles: int,
    burn_in: int,
    steps: int,
    batch_at: BatchAt = no_batch,
    parameters: Any = None,
) -> tuple[State, Any]:
    """The last states, and ``statistic(particles, parameter)`` averaged over ``steps`` steps after ``burn_in``.

    Every leaf of the parameters and of the results has a leading axis of length ``replicas``.
    """
    state, means = _run(build, statistic, batch_at, replicas, particles, burn_in, steps, seed, parameters)
    assert np.all(np.asarray(state.alive)), "a particle died"
    return state, jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), means)


def estimate(averages: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean over replicas and its standard error."""
    return averages.mean(axis=0), averages.std(axis=0, ddof=1) / np.sqrt(len(averages))


def check(name: str, measured: tuple[Any, Any], expected: Any, tolerance: float, sigmas: float = 4.0) -> None:
    """|value - expected| < tolerance, and the tolerance is at least ``sigmas`` standard errors wide."""
    value, error = map(np.asarray, measured)
    shown, wide, wanted = (np.round(number, 4).tolist() for number in (value, error, expected))
    show = f"{name}: {shown} +- {wide}, expected {wanted}"
    print(show)
    assert np.max(np.abs(value - np.asarray(expected))) < tolerance, f"off by more than {tolerance}; {show}"
    assert sigmas * np.max(error) <= tolerance, f"too few draws for a tolerance of {tolerance}; {show}"


# These programs run for seconds and take seconds to compile: the compiler's first level of effort is enough.
@partial(jax.jit, static_argnums=(0, 1, 2, 3, 4, 5, 6), compiler_options={"xla_backend_optimization_level": 1})
def _run(
    build: Build,
    statistic: Callable[[Any, Any], Any],
    batch_at: BatchAt,
    replicas: int,
    particles: int,
    burn_in: int,
    steps: int,
    seed: jax.Array,
    parameters: Any,
) -> tuple[State, Any]:
    def begin(key: Key, parameter: Any) -> State:
        return build(parameter).init(key, particles)

    def one(state: State, parameter: Any) -> tuple[State, Any]:
        key = jax.random.fold_in(jax.random.fold_in(state.key, 1 << 30), state.step)
        state, _ = build(parameter).step(state, batch_at(key, state.step, parameter))
        return state, statistic(state.particles, parameter)

    def body(carry: tuple[State, Any], t: jax.Array) -> tuple[tuple[State, Any], None]:
        state, total = carry
        state, now = jax.vmap(one)(state, parameters)
        return (state, jax.tree.map(lambda a, b: jnp.where(t < burn_in, a, a + b), total, now)), None

    keys = jax.random.split(jax.random.key(seed), replicas)
    state = jax.vmap(begin)(keys, parameters)
    shapes = jax.eval_shape(jax.vmap(one), state, parameters)[1]
    zero = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
    (state, total), _ = jax.lax.scan(body, (state, zero), jnp.arange(burn_in + steps))
    return state, jax.tree.map(lambda leaf: leaf / steps, total)
