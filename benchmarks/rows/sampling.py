"""P11: leapfrog gradients per second of eight chains, against NumPyro."""

import time

import jax
import jax.numpy as jnp
import numpy as np
from harness import paired
from peers import Peer
from works import work_t

from stein import hmc, likelihoods, priors, train
from stein.ensembles import build

CHAINS, DOUBLINGS, SIZE = 8, 8, 1e-4  # so short a step that no trajectory turns: all have 2^8 - 1 gradients
TRANSITIONS, PAIRS = 4, 8
TOLERANCE = 1e-9  # of float64 sums


def gradients() -> list[dict]:
    with jax.enable_x64(True):
        return compared()


def compared() -> list[dict]:
    work = work_t(CHAINS)
    x, y = (jnp.asarray(np.asarray(values), float) for values in (work.batches.x, work.batches.y))
    log_prob = hmc.log_posterior(work.model, likelihoods.gaussian(1.0), priors.normal(), x, y)
    fit = build("de", work.target)
    start = train.run(fit, train.begin(fit, jax.random.key(0), CHAINS), work.batches, 500)[0].particles
    start = jax.tree.map(lambda leaf: jnp.asarray(leaf, float), start)
    ours = Chains(log_prob, start)
    given = {f"leaf{i}": np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(start))}
    given |= {"x": np.asarray(x), "y": np.asarray(y), "rate": 0.0}
    force = jax.vmap(jax.grad(log_prob))(start)
    rows = []
    for kind in ("NUTS", "HMC"):
        with Peer("numpyro_hmc", kind, str(SIZE), str(DOUBLINGS), problem=given, steps=TRANSITIONS) as peer:
            apart = peer.agreement(force, TOLERANCE)
            each = CHAINS * (2**DOUBLINGS - 1)
            found = paired(
                f"P11 gradient of stein.hmc / of NumPyro's {kind}", f"1-50-50-1, {CHAINS} chains, all {len(x)} points, "
                f"float64, {2**DOUBLINGS - 1} leapfrog steps a transition; times are those of a transition", ours, peer,
                1.0, PAIRS, unit="seconds per step", peer=peer.name, compile_seconds=ours.compile_seconds,
                peer_compile_seconds=peer.compile_seconds, checked=f"same gradients, {apart:.1g} of their size apart",
            )  # fmt: skip
            speeds = {"per_second": each / found["seconds"], "peer_per_second": each / found["peer_seconds"]}
            words = f"{speeds['per_second']:.0f} gradients a second, theirs {speeds['peer_per_second']:.0f}"
            rows.append(found | speeds | {"note": words})
    return rows


class Chains:
    """Transitions of ``stein.hmc`` in the training loop: a side of a comparison."""

    def __init__(self, log_prob, start):
        self._algorithm = hmc.nuts(log_prob, DOUBLINGS)
        state = self._algorithm.init(jax.random.key(0), CHAINS, start)
        self._state = state._replace(opt_state=state.opt_state._replace(step_size=jnp.full(CHAINS, SIZE)))
        first, second = self(), self()
        self.compile_seconds = (first - second) * TRANSITIONS

    def __call__(self) -> float:
        began = time.perf_counter()
        moved = train.run(self._algorithm, self._state, None, TRANSITIONS, chunk=TRANSITIONS)
        self._state, info = jax.block_until_ready(moved)
        taken = time.perf_counter() - began
        if not np.all(np.asarray(info.more["leapfrogs"]) == 2**DOUBLINGS - 1):
            raise ValueError(f"leapfrog steps: {np.asarray(info.more['leapfrogs'])}, expected {2**DOUBLINGS - 1} each")
        return taken / TRANSITIONS
