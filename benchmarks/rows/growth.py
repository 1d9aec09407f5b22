"""P10: the time of a step per member, from few members to many, beside what its operations and bytes would take."""

import statistics

import jax
import jax.numpy as jnp
from costs import operations, weights
from harness import clocked, in_turns, row, spread
from works import WIDTHS, Steps, method, work_m

MEMBERS = (5, 10, 20, 50, 100, 200)
ROUNDS, BATCH, AT_ONCE = 5, 256, 200  # so many members' steps in a measurement, whatever n is


def step() -> list[dict]:
    return [growth(name) for name in ("de", "w-svgd")]


def moved_bytes(n: int) -> int:
    """Adam reads w, g, m, v and writes w, m, v."""
    return 7 * 4 * n * weights(WIDTHS)


def growth(name: str) -> dict:
    works = [work_m(n) for n in MEMBERS]
    sides = [Steps(method(name, work), work, max(1, AT_ONCE // work.members)) for work in works]
    *taken, product, copied = in_turns([*sides, *rates()], ROUNDS)
    seconds = [statistics.median(times) for times in taken]
    per_flop, per_byte = statistics.median(product), statistics.median(copied)
    curve = [
        {
            "n": n,
            "ms a step": 1e3 * t,
            "ms a step and member": 1e3 * t / n,
            "ms by the model": 1e3 * (operations(name, n, WIDTHS, BATCH) * per_flop + moved_bytes(n) * per_byte),
            "algebra's share of FLOPs": 1 - operations("de", n, WIDTHS, BATCH) / operations(name, n, WIDTHS, BATCH),
        }
        for n, t in zip(MEMBERS, seconds, strict=True)
    ]
    counted = [i for i, point in enumerate(curve) if point["algebra's share of FLOPs"] < 0.5]
    flat = [unevenness([taken[i][r] / MEMBERS[i] for i in counted]) for r in range(ROUNDS)]
    per_member = [seconds[i] / MEMBERS[i] for i in counted]
    upto = MEMBERS[counted[-1]]
    left_out = "times are per member; sizes at which the n x n algebra is most of the operations do not count"
    return row(
        f"P10 {name}, slowest / fastest step per member, n = 5 to {upto}", works[0].words.replace("n = 5", "all n"),
        max(per_member), min(per_member), 1.3, unit="seconds per step", **spread(flat), curve=curve, note=left_out,
    )  # fmt: skip


def unevenness(times: list[float]) -> float:
    return max(times) / min(times)


def rates() -> tuple:
    """Seconds for an operation of a product in the shape of the first layer, and for a byte of a pass over memory."""
    x, w = jnp.ones((BATCH, WIDTHS[0])), jnp.ones((WIDTHS[0], 5000))
    product, scaled = jax.jit(jnp.matmul), jax.jit(lambda a: 0.999 * a, donate_argnums=0)
    buffer = jnp.ones(2**24)

    def multiply() -> None:
        for _ in range(5):
            product(x, w).block_until_ready()

    def copy() -> None:
        nonlocal buffer
        for _ in range(5):
            buffer = scaled(buffer).block_until_ready()

    return clocked(multiply, 5 * 2 * x.size * w.shape[1]), clocked(copy, 5 * 2 * 4 * buffer.size)
