"""The measured promises of the engine, each a ratio taken side by side in one run: ``make bench``.

``make bench ROWS="P1 P2"`` measures some and keeps the other rows. Writes benchmarks/results.json and results.md. A
machine that does something else at the same time measures something else.
"""

import sys
import time
import traceback
from pathlib import Path

import harness
import numpy as np
import table
from rows import (
    commands,
    convolution,
    deep_ensemble,
    exact,
    growth,
    interaction,
    loop,
    memory,
    prediction,
    sampling,
    serving,
    svgd_peers,
)

from stein.runs.environment import environment

HERE = Path(__file__).parent
MACHINE = ("jax", "jaxlib", "python", "platform", "CPU", "instructions", "CPU threads")
MEASUREMENTS = {
    "P1": deep_ensemble.step,
    "P2": interaction.on_weights,
    "P3": interaction.on_functions,
    "P4": exact.step,
    "P5": svgd_peers.step,
    "P6": memory.step,
    "P7": commands.regression_figure,
    "P8": loop.overhead,
    "P9": convolution.step,
    "P10": growth.step,
    "P11": sampling.gradients,
    "P12": prediction.images,
    "P13": commands.start_up,
    "P14": serving.load,
    "P15": loop.stream,
    "convolutions": lambda: [*convolution.own_network(), *convolution.turns()],
}


def main(chosen: list[str]) -> int:
    """Measure, all or the chosen; every measurement is written when it is done. The exit code is 1 if a limit fails."""
    unknown = set(chosen) - set(MEASUREMENTS)
    if unknown:
        print(f"no row {min(unknown)}; there are {', '.join(MEASUREMENTS)}", file=sys.stderr)
        return 2
    found = environment()
    machine = {name: found[name] for name in MACHINE}
    worked = [measure(name, machine) for name in chosen or MEASUREMENTS]
    return int(not all(worked))


def measure(name: str, machine: dict) -> bool:
    """One measurement into the files; whether all of its limits hold. One that breaks leaves its old rows."""
    began = time.perf_counter()
    try:
        rows = [row | {"machine": machine} for row in MEASUREMENTS[name]()]
    except Exception:
        traceback.print_exc()
        print(f"{name}: not measured", file=sys.stderr)
        return False
    results = HERE / "results.json"
    merged = harness.merge(harness.load(results), rows, MEASUREMENTS)
    harness.save(results, merged)
    (HERE / "results.md").write_text(table.page(merged))
    for r in rows:
        limit = "" if r["limit"] is None else f"limit {r['limit']:5.3g}"
        print(f"{r['row']:64} {r['ratio']:8.3f}  {limit:12} {table.verdict(r).strip('*')}")
    print(f"{name} took {time.perf_counter() - began:.0f} s", flush=True)
    return all(r["holds"] is not False for r in rows)


if __name__ == "__main__":
    np.seterr(all="raise")
    sys.exit(main(sys.argv[1:]))
