r"""How a force becomes a move: an optimiser, a Langevin step without or with momentum, or, for reproduction, noise
inside an optimiser.

A particle whose move is not finite keeps its position, and is reported dead. Its optimiser state is of no account from
then on: keeping the old one too until the move is known would take as much memory as two more ensembles.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Int

from stein import inputs, tree
from stein.schedules import Schedule, as_schedule
from stein.types import Particles


class Move(NamedTuple):
    """The inputs of a step: the rule's force, and the mean likelihood gradient for preconditioners."""

    drift: Particles
    noise: Particles | None
    loglik_w: Particles
    alive: Bool[Array, " n"]
    step: Int[Array, ""]


class Step(NamedTuple):
    """``init(particles)``; ``update(particles, state, move) -> (particles, state, alive)``; ``restart(mask, particles,
    state)`` resets the state of the masked particles. ``takes_noise``: whether the step accepts noise."""

    init: Callable[[Particles], Any]
    update: Callable[[Particles, Any, Move], tuple[Particles, Any, Array]]
    restart: Callable[[Array, Particles, Any], Any]
    takes_noise: bool


def descend(optimiser: optax.GradientTransformation) -> Step:
    """An Optax optimiser along the drift, one per particle, so that clipping and similar act on each alone."""
    return _optimised(optimiser, lambda move: move.drift, takes_noise=False)


def noise_inside(optimiser: optax.GradientTransformation, step_size: float | Schedule) -> Step:
    r"""Reproduction only: :math:`\phi + \zeta/\sqrt{\epsilon}` passed to an adaptive optimiser, as in the tables.

    Wrong: Adam divides by the root of the second moment v, noise included, so that in each coordinate the chain
    runs at the temperature :math:`1/\sqrt v` instead of 1 (:eq:`temperature`); at :math:`\epsilon = 0.0025` below
    0.035 for SGLD. Use :func:`langevin`.
    """
    epsilon = _rate(step_size)

    def gradient(move: Move) -> Particles:
        return tree.add(move.drift, tree.scale(epsilon(move.step) ** -0.5, move.noise))

    return _optimised(optimiser, gradient, takes_noise=True)


class Preconditioner(NamedTuple):
    """``init(particles)``, and ``update(state, move) -> (state, P)``; P has a particle axis, of length 1 if shared."""

    init: Callable[[Particles], Any]
    update: Callable[[Any, Move], tuple[Any, Particles]]
    shared: bool


def rms(
    decay: float = 0.99, epsilon: float = 1e-5, shared: bool = True, freeze_after: int | None = None
) -> Preconditioner:
    r"""RMSprop scaling :math:`P = 1/(\lambda + \sqrt V)`, :math:`V \leftarrow \alpha V + (1-\alpha)\,\bar g^2`.

    :math:`\bar g` is the mean minibatch likelihood gradient ``move.loglik_w``, :math:`\alpha` is ``decay`` and
    :math:`\lambda` is ``epsilon``.

    Args:
        shared: one P for all particles, from :math:`\bar g^2` averaged over them. Coupled rules need this, so that
            :math:`D = K/n \otimes \operatorname{diag} P` is a diffusion matrix. ``False`` is pSGLD.
        freeze_after: keep P fixed from this step on; while it changes, its divergence is neglected.

    Limits: V starts at zero, as published, so that the first P is 10 over the gradient: a chain that starts where its
        gradient is nearly zero makes a very large first step. A larger ``epsilon`` prevents it.

    Reference: Li et al. (2016), "Preconditioned stochastic gradient Langevin dynamics".
    """
    if not 0 <= decay < 1:
        raise ValueError(f"decay = {decay}: must be in [0, 1)")
    inputs.positive(epsilon=epsilon)
    if freeze_after is not None:
        inputs.whole(1, freeze_after=freeze_after)

    def init(particles: Particles) -> Particles:
        zeros = jax.tree.map(jnp.zeros_like, particles)
        return jax.tree.map(lambda leaf: leaf[:1], zeros) if shared else zeros

    def update(second: Particles, move: Move) -> tuple[Particles, Particles]:
        squares = jax.tree.map(jnp.square, move.loglik_w)
        if shared:
            squares = jax.tree.map(lambda leaf: leaf[None], tree.mean(squares, move.alive))
        moved = jax.tree.map(lambda v, s: decay * v + (1 - decay) * s, second, squares)
        if freeze_after is not None:
            moved = jax.tree.map(lambda a, b: jnp.where(move.step < freeze_after, a, b), moved, second)
        return moved, jax.tree.map(lambda v: 1 / (epsilon + jnp.sqrt(v)), moved)

    return Preconditioner(init, update, shared)


def langevin(step_size: float | Schedule, preconditioner: Preconditioner | None = None) -> Step:
    r"""Euler-Maruyama: :math:`w \leftarrow w + \epsilon P \circ \phi + \sqrt{\epsilon P} \circ \zeta`, as in
    :eq:`preconditioned`.

    :math:`\phi` is the rule's drift, :math:`\zeta` its noise. Without noise it is plain gradient ascent.

    Args:
        step_size: :math:`\epsilon`, a number or a schedule such as :func:`stein.schedules.polynomial`. It refers to the
            full-data posterior: a learning rate over the number of data points is a good start.
        preconditioner: P, see :func:`rms`; ``None`` is the identity.
    """
    epsilon = _rate(step_size)

    def init(particles: Particles) -> Any:
        return () if preconditioner is None else preconditioner.init(particles)

    def update(particles: Particles, state: Any, move: Move) -> tuple[Particles, Any, Array]:
        size = epsilon(move.step)
        drift, noise, moved = move.drift, move.noise, state
        if preconditioner is not None:
            moved, scale = preconditioner.update(state, move)
            drift = jax.tree.map(jnp.multiply, scale, drift)
            noise = None if noise is None else jax.tree.map(lambda p, z: jnp.sqrt(p) * z, scale, noise)
        proposal = tree.add(particles, tree.scale(size, drift))
        if noise is not None:
            proposal = tree.add(proposal, tree.scale(size**0.5, noise))
        alive = move.alive & tree.healthy(proposal)
        return tree.where(alive, proposal, particles), moved, alive

    def restart(mask: Array, particles: Particles, state: Any) -> Any:
        if preconditioner is None or preconditioner.shared:
            return state
        return tree.where(mask, preconditioner.init(particles), state)

    return Step(init, update, restart, takes_noise=True)


def sghmc(step_size: float | Schedule, friction: float = 0.1, gradient_noise: float = 0.0) -> Step:
    r"""Stochastic gradient Hamiltonian Monte Carlo: Langevin dynamics with momentum.

    .. math:: p \leftarrow (1 - a)\, p + \epsilon\, \phi + \sqrt{a - \epsilon^2 \beta/2}\; \zeta, \qquad
        w \leftarrow w + \epsilon\, p

    :math:`\phi` is the rule's drift and :math:`\zeta = \sqrt 2\, \xi` its noise. In the symbols of the reference
    :math:`a = \alpha\epsilon`. The momenta are standard normal for every small :math:`\epsilon`, so that it
    may follow a schedule.

    Args:
        step_size: :math:`\epsilon`, a number or a schedule. Its square plays the part of a learning rate for the
            full-data posterior: the root of a learning rate over the number of data points is a good start.
        friction: a, the fraction of the momentum that is lost in a step; 1 is plain Langevin dynamics with steps
            :math:`\epsilon^2`.
        gradient_noise: :math:`\beta`, an estimate of the variance of the stochastic gradient, by which less noise is
            added. Default: none, which is right for small :math:`\epsilon`.

    Limits: for rules without interaction. A particle that comes to life again starts at rest.
    Reference: Chen et al. (2014), "Stochastic gradient Hamiltonian Monte Carlo".
    """
    if not 0 < friction <= 1:
        raise ValueError(f"friction = {friction}: must be above 0 and at most 1")
    inputs.positive(or_zero=True, gradient_noise=gradient_noise)
    epsilon = _rate(step_size)
    if not callable(step_size) and step_size**2 * gradient_noise > 2 * friction:
        raise ValueError(
            f"gradient_noise = {gradient_noise}: is more than the step may have, 2 friction / step_size^2; "
            "use a shorter step"
        )

    def init(particles: Particles) -> Particles:
        return jax.tree.map(jnp.zeros_like, particles)

    def update(particles: Particles, momenta: Particles, move: Move) -> tuple[Particles, Particles, Array]:
        size = epsilon(move.step)
        pushed = tree.add(tree.scale(1 - friction, momenta), tree.scale(size, move.drift))
        if move.noise is not None:
            variance = jnp.maximum(friction - size**2 * gradient_noise / 2, 0)
            pushed = tree.add(pushed, tree.scale(jnp.sqrt(variance), move.noise))
        proposal = tree.add(particles, tree.scale(size, pushed))
        alive = move.alive & tree.healthy(proposal)
        return tree.where(alive, proposal, particles), pushed, alive

    def restart(mask: Array, particles: Particles, momenta: Particles) -> Particles:
        return tree.where(mask, init(particles), momenta)

    return Step(init, update, restart, takes_noise=True)


def _rate(step_size: float | Schedule) -> Schedule:
    if not callable(step_size):
        inputs.positive(step_size=step_size)
    return as_schedule(step_size)


def _optimised(
    optimiser: optax.GradientTransformation, gradient: Callable[[Move], Particles], takes_noise: bool
) -> Step:
    def each(function: Callable) -> Callable:
        """``function`` for every particle, under the dtype promotion rules that Optax needs."""

        def relaxed(*arguments: Any) -> Any:
            with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
                return jax.vmap(function)(*arguments)

        return relaxed

    init, optimise = each(optimiser.init), each(optimiser.update)

    def update(particles: Particles, state: Any, move: Move) -> tuple[Particles, Any, Array]:
        updates, state = optimise(tree.scale(-1.0, gradient(move)), state, particles)
        proposal = optax.apply_updates(particles, updates)
        alive = move.alive & tree.healthy(proposal)
        return tree.where(alive, proposal, particles), state, alive

    def restart(mask: Array, particles: Particles, state: Any) -> Any:
        return tree.where(mask, init(particles), state)

    return Step(init, update, restart, takes_noise)
