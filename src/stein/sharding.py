"""Sharding of the particle axis over devices."""

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from stein.ensembles import State


def shard(state: State, devices: list | None = None) -> State:
    """The same state with its particles spread over ``devices`` (default: all).

    The number of particles must be a multiple of the number of devices. Nothing else changes: ``algorithm.step`` and
    ``train.run`` take the sharded state like any other, and XLA moves what the kernel needs between devices.
    """
    chosen = devices or jax.devices()
    n = state.ids.shape[0]
    if n % len(chosen):
        raise ValueError(f"{n} particles on {len(chosen)} devices: the first must be a multiple of the second")
    mesh = Mesh(np.array(chosen), ("particles",), axis_types=(AxisType.Auto,))
    spread, everywhere = NamedSharding(mesh, PartitionSpec("particles")), NamedSharding(mesh, PartitionSpec())

    def place(leaf: jax.Array) -> jax.Array:
        by_particle = leaf.ndim > 0 and leaf.shape[0] == n
        return jax.device_put(leaf, spread if by_particle else everywhere)

    return jax.tree.map(place, state)
