"""Thinned states of Markov chains, kept while the chains run: the ensemble of a sampler."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from stein import inputs
from stein.types import Particles


class Draws(NamedTuple):
    """A ring of kept states: every leaf of ``particles`` is (particles, draws, ...); ``taken`` counts all ever kept.

    The particle axis is the first, as everywhere, so that draws are spread over devices as their chains are.
    """

    particles: Particles
    taken: Int[Array, ""]

    def in_order(self) -> Particles:
        """The kept states, the oldest first: every leaf is (draws, particles, ...)."""
        room, taken = jax.tree.leaves(self.particles)[0].shape[1], int(self.taken)
        order = np.arange(max(taken - room, 0), taken) % room
        return jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 1, 0)[order], self.particles)


class Keep(NamedTuple):
    """Which states are kept: every ``thin``-th after ``burn_in`` steps, and of these the last ``draws``."""

    draws: int
    thin: int = 1
    burn_in: int = 0

    def check(self) -> None:
        """Raise ``ValueError`` for numbers that make no sense."""
        inputs.whole(1, draws=self.draws, thin=self.thin)
        inputs.whole(0, burn_in=self.burn_in)

    def nothing(self, particles: Particles) -> Draws:
        """Room for the draws of these particles."""
        rooms = jax.tree.map(lambda leaf: jnp.zeros((len(leaf), self.draws, *leaf.shape[1:]), leaf.dtype), particles)
        return Draws(rooms, jnp.zeros((), jnp.int32))

    def add(self, draws: Draws, particles: Particles, steps: Int[Array, ""]) -> Draws:
        """The draws with those of the chains after ``steps`` steps, if they are to be kept."""
        after = steps - self.burn_in
        due = (after > 0) & (after % self.thin == 0)
        slot = draws.taken % self.draws

        def put(ring: Array, now: Array) -> Array:
            # One slot is written in every step, with what was there if nothing is due: this needs no copy of the ring.
            return ring.at[:, slot].set(jnp.where(due, now, ring[:, slot]))

        return Draws(jax.tree.map(put, draws.particles, particles), draws.taken + due.astype(jnp.int32))
