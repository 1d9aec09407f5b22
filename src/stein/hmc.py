r"""The gold standard: Hamiltonian Monte Carlo, by BlackJAX, with the interface of every other algorithm.

The particles are chains. They do not interact, and each has its own step size and mass matrix, found by
:func:`warm_up`. Everything that runs, saves, resumes or collects an ensemble also works with chains::

    log_prob = hmc.log_posterior(model, likelihood, prior, x, y)
    algorithm = hmc.nuts(log_prob)
    state = hmc.warm_up(log_prob, algorithm.init(key, 8, weights=trained), steps=1000)
    state, draws = samples.collect(algorithm, state, None, burn_in=0, draws=500, thin=4)

Weights of a network are not identifiable, so diagnostics of the weights are meaningless; diagnose functions
(:func:`stein.samples.diagnose_functions`). Use float64: energies of thousands of weights lose precision in float32.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import blackjax
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from stein import inputs, targets, tree
from stein.ensembles import Algorithm, Info, State
from stein.likelihoods import Likelihood
from stein.priors import Prior
from stein.types import Key, Model, Particles, Weights

LogProb = Callable[[Weights], Float[Array, ""]]


class Tuning(NamedTuple):
    """The step size and the diagonal of the inverse mass matrix of every chain: ``State.opt_state`` of the chains."""

    step_size: Float[Array, " n"]
    inverse_mass: Float[Array, "n d"]


def log_posterior(model: Model, likelihood: Likelihood, prior: Prior, x: Any, y: Any) -> LogProb:
    """The log density whose gradient :func:`stein.posterior` gives, on all the data."""
    targets.check_data(model, likelihood, x, y)
    x, y = jnp.asarray(inputs.array("x", x)), jnp.asarray(inputs.array("y", y))

    def log_prob(weights: Weights) -> Float[Array, ""]:
        return jnp.sum(likelihood.log_prob(model.apply(weights, x), y)) + prior.log_prob(weights)

    return log_prob


def nuts(log_prob: LogProb, max_doublings: int = 8) -> Algorithm:
    """The no-U-turn sampler; a step is one transition of every chain.

    Args:
        max_doublings: a trajectory has at most two to this power leapfrog steps, each a gradient.

    Returns:
        An :class:`~stein.ensembles.Algorithm` whose ``init(key, num_particles, weights)`` needs the weights that the
        chains start from. Chains that start at prior draws of a network do not converge; start at trained networks.
        ``log_likelihood`` of its infos is the log density, prior included; ``more`` has acceptance, divergences and
        the number of leapfrog steps.

    Cost: up to ``2**max_doublings`` gradients on all the data per chain and step.
    Reference: Hoffman & Gelman (2014); Betancourt (2017) for the multinomial version used here.
    """
    inputs.whole(1, max_doublings=max_doublings)
    kernel = blackjax.nuts.build_kernel()

    def init(key: Key, num_particles: int, weights: Particles | None = None) -> State:
        if weights is None:
            raise ValueError(
                "weights = None: chains start from given weights, such as those of a trained deep ensemble"
            )
        inputs.key(key)
        found = {leaf.shape[0] for leaf in jax.tree.leaves(weights)}
        if found != {num_particles}:
            raise ValueError(f"weights: a leading axis of {sorted(found)}; must be num_particles = {num_particles}")
        ids = jnp.arange(num_particles, dtype=jnp.int32)
        size = sum(leaf[0].size for leaf in jax.tree.leaves(weights))
        dtype = tree.dtype(weights)
        tuning = Tuning(jnp.full(num_particles, 0.1 * size**-0.25, dtype), jnp.ones((num_particles, size), dtype))
        return State(weights, tuning, (), key, jnp.zeros((), jnp.int32), ids, tree.healthy(weights))

    def step(state: State, batch: Any) -> tuple[State, Info]:
        key = jax.random.fold_in(state.key, state.step)

        def transition(i: Array, weights: Weights, tuning: Tuning) -> tuple[Any, Any]:
            chain = blackjax.nuts.init(weights, log_prob)
            return kernel(jax.random.fold_in(key, i), chain, log_prob, *tuning, max_doublings)

        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):  # as BlackJAX needs
            chains, info = _each_chain(transition)(state.ids, state.particles, state.opt_state)
        alive = state.alive & tree.healthy(chains.position)
        particles = tree.where(alive, chains.position, state.particles)
        more = {
            "acceptance": info.acceptance_rate,
            "diverged": info.is_divergent,
            "leapfrogs": info.num_integration_steps,
        }
        info = Info(chains.logdensity, jnp.zeros_like(chains.logdensity), alive, more)
        return state._replace(particles=particles, step=state.step + 1, alive=alive), info

    def diagnose(state: State, batch: Any) -> dict[str, Float[Array, ""]]:
        return {"step_size": jnp.mean(state.opt_state.step_size)}

    def sample(key: Key) -> Weights:
        raise ValueError("chains start from given weights")

    return Algorithm(init, step, diagnose, targets.density(log_prob, sample), "freeze")


def warm_up(
    log_prob: LogProb, state: State, steps: int, max_doublings: int = 8, target_acceptance: float = 0.8
) -> State:
    """Chains after ``steps`` warm-up transitions, which adapt step size and mass matrix (Stan's windows).

    The transitions of the warm-up are not draws from the posterior and are discarded.
    """
    inputs.whole(20, steps=steps)  # otherwise the windows are empty
    if not 0 < target_acceptance < 1:
        raise ValueError(f"target_acceptance = {target_acceptance}: must be between 0 and 1")
    adaptation = blackjax.window_adaptation(
        blackjax.nuts,
        log_prob,
        target_acceptance_rate=target_acceptance,
        adaptation_info_fn=blackjax.adaptation.base.get_filter_adapt_info_fn(),
        max_num_doublings=max_doublings,
    )

    @jax.jit
    def adapted(key: Key, ids: Int[Array, " n"], weights: Particles) -> tuple[Particles, Tuning]:
        def one(i: Array, start: Weights) -> tuple[Weights, Tuning]:
            (chain, tuned), _ = adaptation.run(jax.random.fold_in(key, i), start, steps)
            return chain.position, Tuning(tuned["step_size"], tuned["inverse_mass_matrix"])

        return _each_chain(one)(ids, weights)

    key_warm, key_run = jax.random.split(state.key)
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        particles, tuning = adapted(key_warm, state.ids, state.particles)
    return state._replace(particles=particles, opt_state=tuning, key=key_run, alive=tree.healthy(particles))


def _each_chain(function: Callable) -> Callable:
    """``function`` for every chain, along the leading axis of its arguments.

    On a CPU the chains run one after the other: a trajectory then ends when it turns, not when the longest does, and
    branches are not evaluated on both sides. On other devices they run in parallel.
    """
    if jax.default_backend() == "cpu":
        return lambda *arguments: jax.lax.map(lambda one: function(*one), arguments)
    return jax.vmap(function)
