"""What a step of w-SVGD costs on many devices: read from compiled programs up to 8, computed on paper beyond.

``PYTHONPATH=tests python benchmarks/scale.py`` prints the tables of docs/scale.md and draws docs/images/scale.png.
Nothing is run: the programs are compiled for simulated devices, from shapes.
"""

import os
from pathlib import Path
from typing import NamedTuple

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"

import jax
import matplotlib.pyplot as plt
import numpy as np
import optax

import collectives
from stein import devices, rules, sharding, targets, train
from stein.ensembles import ensemble
from stein.report import style

MEMBERS, WEIGHTS, ITEM = 16, 2**22, 4
PASSES = 20  # over the weights of a member in a step: gradients, Adam's moments, prior, distances, products


class Machine(NamedTuple):
    """An accelerator, as data sheets of 2024 have them, at the speed that large products reach."""

    flops: float = 150e12  # per second
    memory: float = 2e12  # bytes per second
    near: float = 300e9  # bytes per second to the other accelerators of a host
    far: float = 25e9  # bytes per second and accelerator to other hosts
    latency: float = 20e-6  # seconds per collective
    host: int = 8  # accelerators per host


class Cost(NamedTuple):
    """Of a step on one device: operations and bytes of the products, bytes sent."""

    flops: float
    sent: float


def model(members: int, weights: int, over: int) -> Cost:
    """Distances and one mixed sum of all members: 2n² operations a weight each, spread over the devices.

    An all-to-all passes a device's rows once for the distances, and twice for the sum. Two means are all-reduced.
    """
    rows = -(-members // over)
    passes = 3 * devices.passed(rows, weights, ITEM, over) if over > 1 else 0
    return Cost(2 * 2 * members**2 * weights / over, passes + (2 * ITEM * weights if over > 1 else 0))


def measured(over: int) -> tuple[Cost, int]:
    """The same of a compiled step, and the bytes that a device holds."""
    target = targets.density(
        lambda w: -0.5 * (w**2).sum(), lambda key: jax.random.normal(key, (WEIGHTS // 1024, 1024)), lambda w: w[:4, :8]
    )
    algorithm = ensemble(target, rules.w_svgd(), optax.adam(1e-3))
    like = jax.eval_shape(lambda key: algorithm.init(key, MEMBERS), jax.random.key(0))
    spread = sharding.Spread(sharding.mesh(jax.devices()[:over]), like)
    step = train._jitted_advance().lower(spread.algorithm(algorithm).step, spread.shapes(like), None, None, 1).compile()
    found = collectives.sent(step.as_text())
    used = step.memory_analysis()
    held = used.argument_size_in_bytes + used.output_size_in_bytes + used.temp_size_in_bytes
    sent = sum(collectives.total(instructions) for instructions in found.values())
    return Cost(step.cost_analysis()["flops"], sent), held


def seconds(members: int, weights: int, rows: int, over: int, machine: Machine = Machine()) -> dict[str, float]:
    """A step on paper: networks, products, passes over memory, and what is sent. ``rows`` is the size of the batch."""
    own = members / over
    cost = model(members, weights, over)
    link = machine.near if over <= machine.host else machine.far
    wire = cost.sent + 2 * ITEM * weights  # a ring moves what it reduces twice
    return {
        "networks": 6 * weights * rows * own / machine.flops,
        "products": cost.flops / machine.flops,
        "memory": PASSES * own * weights * ITEM / machine.memory,
        "communication": (wire * (over - 1) / over / link + 40 * machine.latency) if over > 1 else 0.0,
    }


def main() -> None:
    measures = {over: measured(over) for over in (1, 2, 4, 8)}
    print(f"{MEMBERS} members of {WEIGHTS:,} weights, compiled:\n")
    print("| devices | MB sent, model | MB sent, program | MB held | held x devices / held by one |")
    print("|---|---|---|---|---|")
    for over, (cost, held) in measures.items():
        ours, ratio = model(MEMBERS, WEIGHTS, over).sent, held * over / measures[1][1]
        print(f"| {over} | {ours / 1e6:.1f} | {cost.sent / 1e6:.1f} | {held / 1e6:.0f} | {ratio:.3f} |")
    print("\n1,024 members of 25 million weights, batches of 256 rows, on paper:\n")
    print("| accelerators | networks | products | memory | communication | a step |")
    print("|---|---|---|---|---|---|")
    for over in (8, 64, 1024):
        parts = seconds(1024, 25_000_000, 256, over)
        words = [f"{1e3 * value:.3g} ms" for value in (*parts.values(), sum(parts.values()))]
        print(f"| {over:,} | " + " | ".join(words) + " |")
    draw(measures)


def draw(measures: dict[int, tuple[Cost, int]]) -> None:
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    some = np.array([2, 4, 8])
    left.plot(some, [model(MEMBERS, WEIGHTS, over).sent / 1e6 for over in some], color=style.COLOURS[0], label="model")
    programs = [measures[over][0].sent / 1e6 for over in some]
    left.plot(some, programs, style.MARKERS[1], color=style.COLOURS[1], label="compiled program")
    left.set(xscale="log", xlabel="devices", ylabel="MB sent by a device in a step", xticks=some, title="Measured")
    left.set_xticks(some, [str(over) for over in some])
    left.set_xticks([], minor=True)
    many = 2 ** np.arange(3, 11)
    parts = {over: seconds(1024, 25_000_000, 256, over) for over in many}
    for number, name in enumerate(("networks", "products", "memory", "communication")):
        values = [1e3 * parts[over][name] for over in many]
        right.plot(many, values, "--", color=style.COLOURS[number + 2], label=f"{name}, on paper")
    right.plot(many, [1e3 * sum(parts[o].values()) for o in many], "--", color=style.INK, label="a step, on paper")
    for over in (8, 64, 1024):
        right.axvline(over, color=style.MUTED, linewidth=0.5)
    right.set(xscale="log", yscale="log", xlabel="accelerators", ylabel="milliseconds", title="Extrapolated")
    right.set_xticks([8, 64, 1024], ["8", "64", "1,024"])
    right.set_xticks([], minor=True)
    style.bare(left, right)
    style.legend(figure, (left, right))
    figure.savefig(Path(__file__).parents[1] / "docs" / "images" / "scale.png", dpi=150)


if __name__ == "__main__":
    main()
