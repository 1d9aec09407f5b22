"""P1: a step of a deep ensemble, against its limit on this machine and against torch."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from costs import operations, weights
from harness import Side, clocked, paired
from peers import Peer
from works import WIDTHS, Steps, Work, compared_particles, direction, first_batch, method, problem, work_m

from stein.types import Particles

STEPS, PAIRS = 40, 8  # a chunk shuffles all data once: the more steps, the more like a run, whose chunks have 1,000


def limit(members: int, batch: int = 256) -> Side:
    """FLOPs / GEMM rate + bytes / copy bandwidth, by doing both: one product of as many operations, in the shape of the
    first layer for all members, and a pass over as many bytes as Adam must move: it reads w, g, m, v, writes w, m, v.
    """
    flops, moved = operations("de", members, WIDTHS, batch), 7 * 4 * members * weights(WIDTHS)
    x = jnp.ones((batch, WIDTHS[0]))
    w = jnp.ones((WIDTHS[0], flops // (2 * batch * WIDTHS[0])))
    product, scaled = jax.jit(jnp.matmul), jax.jit(lambda a: 0.999 * a, donate_argnums=0)  # in place: no new pages
    buffer = jnp.ones(moved // 8)  # read once and written once, four bytes each

    def both() -> None:
        nonlocal buffer
        product(x, w).block_until_ready()
        buffer = scaled(buffer).block_until_ready()

    return repeated(both)


def gradients(work: Work) -> Side:
    """The gradient of all members and nothing else, as XLA computes it: no program inside XLA can be faster."""
    batch, particles = work.batches.at(0), Steps(method("de", work), work, 1).state.particles

    @jax.jit
    def gradient(particles: Particles) -> Particles:
        outputs, vjp = jax.vjp(lambda w: jax.vmap(work.model.apply, (0, None))(w, batch.x), particles)
        return vjp(outputs)[0]

    return repeated(lambda: jax.block_until_ready(gradient(particles)))


def repeated(work: Callable[[], None]) -> Side:
    def steps() -> None:
        for _ in range(STEPS):
            work()

    return clocked(steps, STEPS)


def step() -> list[dict]:
    work = work_m()
    ours = Steps(method("de", work), work, STEPS)
    shared = {"pairs": PAIRS, "unit": "seconds per step", "compile_seconds": ours.compile_seconds}
    limits = "the other side is one XLA product of as many operations and a pass over Adam's bytes"
    name = "P1 deep-ensemble step / its products and bytes"
    rows = [paired(name, work.words, ours, limit(work.members), 1 / 0.85, **shared, note=limits)]
    alone = "P1 deep-ensemble step / its gradient alone"
    rows.append(paired(alone, work.words, ours, gradients(work), None, **shared, note="both are XLA's; no limit"))
    particles = compared_particles(work)
    given = problem(work, particles)
    force = direction("de", work, particles, first_batch(given))
    for way in ("eager", "compiled"):
        with Peer("torch_mlp", "de", way, problem=given, steps=STEPS) as peer:
            apart = peer.agreement(force)
            rows.append(paired(
                f"P1 deep-ensemble step / torch's, {way}", work.words, ours, peer, 1.0, **shared, peer=peer.name,
                peer_compile_seconds=peer.compile_seconds, checked=f"same gradients, {apart:.1g} of their size apart",
            ))  # fmt: skip
    return rows
