r"""Microcanonical Langevin dynamics: Markov chains by BlackJAX, each of which tunes itself while it runs.

A chain has a position w in d dimensions and a direction u of length 1. A step of size :math:`\epsilon` moves along u,
which the gradient turns, and refreshes u partially, so that it is forgotten after a length L. There is no rejection:
the change E of the energy in a step, zero but for the discretisation, measures the error. The tuning has three phases:

1. 80 % of its steps: :math:`\epsilon` such that the energy's variance per dimension is :math:`v_t`, which falls
   linearly from 5v to v = ``energy_variance`` until the end of the second phase (published: from 0.5 to 0.1). Var E
   grows as :math:`\epsilon^6`, so every step gives an estimate,

   .. math:: \xi = \frac{E^2}{d\, v_t} + 10^{-8}, \quad \omega = e^{-\frac12 (\log\xi/9)^2}, \quad
       \bar x \leftarrow \gamma \bar x + \omega\, \xi/\epsilon^6, \quad \bar t \leftarrow \gamma \bar t + \omega, \quad
       \epsilon = (\bar x/\bar t)^{-1/6}, \quad \gamma = \tfrac{99}{101}

   at most 0.8 of a step that ended in numbers that are not finite.
2. 10 %: the same, and then :math:`L = \sqrt{\sum_j \operatorname{Var} w_j}`.
3. 10 %: :math:`L = 0.4\, \epsilon\, \operatorname{mean}_j \tau_j` with autocorrelation times of ten batches,
   that is :math:`\tau_j = B \operatorname{Var}(\text{means of } B \text{ steps})/\operatorname{Var} w_j`.
   (Published: from the effective sample size of all these steps, which would have to be kept.)

Reference: Robnik et al. (2023), "Microcanonical Hamiltonian Monte Carlo"; Sommer et al. (2025), "Microcanonical
    Langevin ensembles", for the tuning.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int

from stein import tree
from stein.types import Key, Particles, Weights

LEAST_TUNING = 100
"""Steps of tuning: ten in the last phase, one for each batch."""
BATCHES = 10
PUBLISHED = 0.1
"""The aim for the variance of the energy per dimension at the end of the tuning."""


class Moments(NamedTuple):
    """Weighted mean of vectors and weighted sum of squared distances from it."""

    weight: Float[Array, "..."]
    mean: Float[Array, "... d"]
    squares: Float[Array, "... d"]


class Chain(NamedTuple):
    """What a chain needs beside its position, which is flat here; in a state every leaf has a particle axis.

    ``longest`` is the largest allowed step; ``needed`` and ``trust`` are the averages behind the step size; ``moments``
    and ``of_batches`` those behind the length, and ``batch`` is the mean of the current batch so far.
    """

    momentum: Float[Array, "... d"]
    gradient: Float[Array, "... d"]
    log_density: Float[Array, "..."]
    step_size: Float[Array, "..."]
    length: Float[Array, "..."]
    longest: Float[Array, "..."]
    needed: Float[Array, "..."]
    trust: Float[Array, "..."]
    moments: Moments
    batch: Float[Array, "... d"]
    of_batches: Moments


def init(particles: Particles) -> Chain:
    """Chains that have not begun; their first steps are short, because the start is a trained network."""

    def one(weights: Weights) -> Chain:
        zeros = jnp.zeros_like(ravel_pytree(weights)[0])
        none, unit = jnp.zeros((), zeros.dtype), jnp.sqrt(jnp.asarray(zeros.size, zeros.dtype))
        nothing = Moments(none, zeros, zeros)
        return Chain(
            zeros, zeros, none, 1e-3 * unit, unit, none + jnp.inf, none, none, nothing, zeros, nothing
        )  # fmt: skip

    return jax.vmap(one)(particles)


def advance(
    key: Key,
    t: Int[Array, ""],
    ids: Int[Array, " n"],
    particles: Particles,
    chains: Chain,
    log_prob: Callable[[Weights], Float[Array, ""]],
    tuning_steps: int,
    energy_variance: float,
) -> tuple[Particles, Chain, Float[Array, " n"]]:
    """Positions and chains after step ``t`` of the chains, the first ``tuning_steps`` of which tune, and the change of
    energy in it.

    Cost: two gradients for each chain.
    """
    import blackjax  # here, because all methods import this module, and few need a second for BlackJAX
    from blackjax.mcmc.integrators import IntegratorState

    kernel = blackjax.mclmc.build_kernel()
    unravel = ravel_pytree(tree.index(particles, 0))[1]

    def density(flat: Array) -> Array:
        return log_prob(unravel(flat))

    def begun(key: Key, flat: Array, chain: Chain) -> Chain:
        start = blackjax.mclmc.init(flat, density, key)
        return chain._replace(
            momentum=start.momentum, log_density=start.logdensity, gradient=start.logdensity_grad
        )  # fmt: skip

    def one(i: Array, weights: Weights, chain: Chain) -> tuple[Weights, Chain, Array]:
        key_start, key_move = jax.random.split(jax.random.fold_in(key, i))
        flat = ravel_pytree(weights)[0]
        chain = jax.lax.cond(t == 0, lambda: begun(key_start, flat, chain), lambda: chain)
        state = IntegratorState(flat, chain.momentum, chain.log_density, chain.gradient)
        moved, info = kernel(key_move, state, density, 1.0, chain.length, chain.step_size)
        chain = chain._replace(
            momentum=moved.momentum, log_density=moved.logdensity, gradient=moved.logdensity_grad
        )  # fmt: skip
        chain = jax.lax.cond(
            t < tuning_steps,
            lambda: tuned(chain, moved.position, info.energy_change, info.nonans, t, tuning_steps, energy_variance),
            lambda: chain,
        )
        return unravel(moved.position), chain, info.energy_change

    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):  # as BlackJAX needs
        return jax.vmap(one)(ids, particles, chains)


def tuned(
    chain: Chain, w: Float[Array, " d"], energy_change: Array, finite: Array, t: Int[Array, ""], steps: int, aim: float
) -> Chain:
    """The chain at w after step ``t`` of ``steps`` of its tuning to an energy variance of ``aim`` per dimension."""
    second, third, d = 8 * steps // 10, 9 * steps // 10, w.size
    variance = aim * (5 - 4 * (t / third).astype(w.dtype))
    xi = energy_change**2 / (d * variance) + 1e-8
    omega = jnp.exp(-0.5 * (jnp.log(xi) / 9) ** 2)
    needed = 99 / 101 * chain.needed + omega * xi / chain.step_size**6
    trust = 99 / 101 * chain.trust + omega
    longest = jnp.where(finite, chain.longest, 0.8 * chain.step_size)
    step_size = jnp.minimum((needed / trust) ** (-1 / 6), longest)
    adapts = t < third
    chain = chain._replace(
        needed=needed, trust=trust, longest=longest, step_size=jnp.where(adapts, step_size, chain.step_size)
    )  # fmt: skip

    begins = (t == second) | (t == third)  # a phase of its own moments
    moments = jax.tree.map(lambda value: jnp.where(begins, jnp.zeros_like(value), value), chain.moments)
    weight = jnp.where(adapts, jnp.where(finite & (t >= second), chain.step_size, 0.0), 1.0)
    moments = _with(moments, w, weight)
    size = (steps - third) // BATCHES
    in_batch = t - third
    batch = chain.batch + jnp.where(adapts, 0, w / size)
    complete = ~adapts & ((in_batch + 1) % size == 0) & (in_batch < BATCHES * size)
    of_batches = _with(chain.of_batches, batch, complete.astype(w.dtype))
    chain = chain._replace(moments=moments, of_batches=of_batches, batch=jnp.where(complete, 0, batch))

    variance = moments.squares / moments.weight
    times = size * of_batches.squares / (BATCHES - 1) / jnp.where(variance > 0, variance, 1)
    length = jnp.where(t == third - 1, jnp.sqrt(jnp.sum(variance)), chain.length)
    length = jnp.where(t == steps - 1, 0.4 * chain.step_size * jnp.mean(times), length)
    return chain._replace(length=length)


def _with(moments: Moments, w: Float[Array, " d"], weight: Array) -> Moments:
    """The moments with one more vector (Welford's update, which does not subtract large squares)."""
    total = moments.weight + weight
    mean = moments.mean + weight / jnp.where(total > 0, total, 1) * (w - moments.mean)
    return Moments(total, mean, moments.squares + weight * (w - moments.mean) * (w - mean))
