"""Every method on one device, and over the devices of one or several processes: ten steps, and how far apart they are.

``python tests/over_devices.py DEVICES DTYPE METHODS [COORDINATOR PROCESSES ID]`` prints one line of JSON, the largest
relative difference of the weights by method. METHODS is ``all``, or names with commas between them.
"""

import json
import os
import sys

import runs

number, dtype, methods, *team = sys.argv[1:]
os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={number} {runs.QUICK['XLA_FLAGS']}"

import jax  # noqa: E402 - after what jax reads when it starts
import numpy as np  # noqa: E402 - after what jax reads when it starts

jax.config.update("jax_enable_x64", True)  # the narrow ones are cast, so that both start from the same draws
if team:
    jax.distributed.initialize(team[0], int(team[1]), int(team[2]))

from contract.test_rules import CASES, algorithm, batch  # noqa: E402 - after what jax reads when it starts
from stein import sharding, train  # noqa: E402 - after what jax reads when it starts

MEMBERS, STEPS = 7, 10


def difference(name: str, noisy: bool) -> float:
    """Of the weights after ten steps, over the largest of each leaf; of this process's members."""
    plain = algorithm(name, noisy, np.dtype(dtype))
    state = plain.init(jax.random.key(0), MEMBERS)
    alone, _ = train.run(plain, state, lambda step: batch(np.dtype(dtype)), STEPS)
    spread = sharding.Spread(sharding.mesh(), state)
    given = spread.everywhere(batch(np.dtype(dtype)))
    together, info = train.run(spread.algorithm(plain), spread.place(state), lambda step: given, STEPS)
    assert np.asarray(info.alive).shape == (STEPS, MEMBERS)
    mine = spread.mine(together).particles
    rows = -(-MEMBERS // jax.device_count()) * jax.local_device_count()
    first = jax.process_index() * rows
    pairs = zip(jax.tree.leaves(mine), jax.tree.leaves(alone.particles), strict=True)
    return max(
        float(np.max(np.abs(ours - np.asarray(theirs)[first : first + rows]), initial=0) / np.max(np.abs(theirs)))
        for ours, theirs in pairs
    )


cases = [case for case in CASES if methods == "all" or case[0] in methods.split(",")]
print(json.dumps({f"{name}{', noisy' if noisy else ''}": difference(name, noisy) for name, noisy in cases}))
