"""Numbers that change with the step: annealing of the driving force, decay of the Langevin step size.

A schedule is a function ``step -> number``; wherever a schedule is accepted a plain number is too.
"""

from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from stein import inputs, versions

versions.require()

Schedule = Callable[[Int[Array, ""]], Float[Array, ""]]


def as_schedule(value: float | Schedule) -> Schedule:
    """A number as a constant schedule."""
    return value if callable(value) else constant(value)


def constant(value: float = 1.0) -> Schedule:
    """The same number at every step; ``constant()`` is no annealing."""
    inputs.positive(or_zero=True, value=value)
    return lambda step: jnp.asarray(value, float)


def linear(steps: int) -> Schedule:
    r"""Linear annealing: :math:`\gamma_t = t/(A-1)` for ``t < steps`` :math:`= A`, then 1.

    >>> float(linear(11)(jnp.asarray(5)))
    0.5
    """
    inputs.whole(2, steps=steps)
    return lambda step: jnp.minimum(step.astype(float) / (steps - 1), 1.0)


def hyperbolic(steps: int, power: float = 10.0) -> Schedule:
    r"""Hyperbolic annealing: :math:`\gamma_t = \tanh\big[(1.3\,t/(A-1))^p\big]` for ``t < steps``, then 1.

    With the default ``power`` the driving force stays below 1 % for the first half: a phase of repulsion only.
    Reference: D'Angelo & Fortuin (2021), "Annealed Stein variational gradient descent".
    """
    inputs.whole(2, steps=steps)
    inputs.positive(power=power)

    def gamma(step: Int[Array, ""]) -> Float[Array, ""]:
        rise = jnp.tanh((1.3 * step.astype(float) / (steps - 1)) ** power)
        return jnp.where(step < steps, rise, 1.0)

    return gamma


def cyclical(steps: int, cycles: int = 5, power: float = 10.0) -> Schedule:
    r"""Cyclical annealing: :math:`\gamma_t = \big((t \bmod L)/L\big)^p`, :math:`L = \lfloor A/c \rfloor`,
    for ``t < steps``, then 1.

    Reference: D'Angelo & Fortuin (2021), "Annealed Stein variational gradient descent".
    """
    inputs.whole(1, cycles=cycles)
    inputs.whole(cycles, steps=steps)
    inputs.positive(power=power)
    length = steps // cycles

    def gamma(step: Int[Array, ""]) -> Float[Array, ""]:
        return jnp.where(step < steps, ((step % length).astype(float) / length) ** power, 1.0)

    return gamma


def cosine_cycles(initial: float, steps: int, cycles: int = 4) -> Schedule:
    r"""Cyclical step sizes: :math:`\epsilon_t = \tfrac{\epsilon_0}{2} \big[\cos(\pi (t \bmod L)/L) + 1\big]`,
    :math:`L = \lceil T/M \rceil`.

    A cycle begins with long steps, which leave a mode, and ends with short ones, which sample the next.

    Args:
        initial: :math:`\epsilon_0`, the step size at the beginning of every cycle.
        steps: T, the steps of all cycles.
        cycles: M.

    Reference: Zhang et al. (2020), "Cyclical stochastic gradient MCMC for Bayesian deep learning".

    >>> print(f"{cosine_cycles(0.5, steps=100, cycles=5)(jnp.asarray(30)):.2f}")
    0.25
    """
    inputs.positive(initial=initial)
    length = _cycle(steps, cycles)
    return lambda step: initial / 2 * (jnp.cos(jnp.pi * (step % length).astype(float) / length) + 1)


def late_in_cycles(steps: int, cycles: int = 4, exploration: float = 0.8) -> Schedule:
    """0 in the first part of every cycle of :func:`cosine_cycles`, a fraction ``exploration`` of it, then 1.

    As ``noise_scale`` of :func:`stein.ensemble` it turns the noise off while the steps are long.
    """
    length = _cycle(steps, cycles)
    if not 0 <= exploration < 1:
        raise ValueError(f"exploration = {exploration}: must be in [0, 1)")
    return lambda step: jnp.where((step % length).astype(float) < exploration * length, 0.0, 1.0)


def _cycle(steps: int, cycles: int) -> int:
    """The length of a cycle, rounded up."""
    inputs.whole(1, cycles=cycles)
    inputs.whole(cycles, steps=steps)
    return -(-steps // cycles)


def polynomial(initial: float, offset: float = 1.0, power: float = 0.55) -> Schedule:
    r"""Polynomial decay :math:`\epsilon_t = \epsilon_0\,(1 + t/b)^{-\gamma}` of a Langevin step size.

    For ``power`` in (0.5, 1] the steps sum to infinity and their squares do not, the Robbins-Monro condition
    under which stochastic-gradient Langevin dynamics converges. ``offset`` is b, the steps before the decay sets in.

    >>> float(polynomial(0.5, offset=1.0, power=1.0)(jnp.asarray(3)))
    0.125
    """
    inputs.positive(initial=initial, offset=offset, power=power)
    return lambda step: initial * (1.0 + step.astype(float) / offset) ** (-power)
