"""Two pieces of work side by side: measured in turns, made into a row, and kept in results.json.

A ratio is ours over the other side's, so smaller is better everywhere. Where a promise reads "15 times a peer's speed",
its limit here is 1/15.
"""

import json
import statistics
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

PAIRS = 20
PAUSE = 0.02  # seconds between the sides: threads that spin after their work are asleep by then

Side = Callable[[], float]
"""Does its work once and returns the seconds that one step of it took."""


def clocked(work: Callable[[], object], steps: int = 1) -> Side:
    """The side whose ``work`` is ``steps`` steps."""

    def seconds() -> float:
        began = time.perf_counter()
        work()
        return (time.perf_counter() - began) / steps

    return seconds


def in_turns(sides: list[Side], rounds: int) -> list[list[float]]:
    """The seconds of every side in every round. One side works at a time, and every second round is in reverse order:
    a machine whose speed drifts favours none of them."""
    for side in sides:
        side()  # compiles, or fills caches
    taken: list[list[float]] = [[] for _ in sides]
    for i in range(rounds):
        order = range(len(sides)) if i % 2 == 0 else reversed(range(len(sides)))
        for at in order:
            time.sleep(PAUSE)
            taken[at].append(sides[at]())
    return taken


def paired(
    name: str, size: str, ours: Side, theirs: Side, limit: float | None, pairs: int = PAIRS, **more: Any
) -> dict:
    """The median of the ratios of neighbours: these can be compared where a machine's speed drifts within minutes."""
    mine, other = in_turns([ours, theirs], pairs)
    return row(
        name, size, statistics.median(mine), statistics.median(other), limit,
        **spread([a / b for a, b in zip(mine, other, strict=True)]), **more,
    )  # fmt: skip


def spread(ratios: list[float]) -> dict:
    """Median and quartiles; the fields of a row that was measured more than once."""
    quarter, ratio, three = statistics.quantiles(ratios, n=4)
    return {"ratio": ratio, "quartiles": [quarter, three], "pairs": len(ratios)}


def row(
    name: str, size: str, ours: float, theirs: float, limit: float | None, unit: str = "seconds", **more: Any
) -> dict:
    """A row of results.json; ``unit`` is that of ``seconds`` and ``peer_seconds``, whatever these hold."""
    ratio = more.pop("ratio", ours / theirs)
    holds = None if limit is None else ratio <= limit
    times = {"seconds": ours, "peer_seconds": theirs, "unit": unit}
    if unit == "seconds per step":
        times |= {"ms_per_step": 1e3 * ours, "peer_ms_per_step": 1e3 * theirs}
    verdict = {"limit": limit, "limit_kind": "the ratio is at most the limit", "holds": holds}
    return {"row": name, "size": size, **times, "ratio": ratio, **verdict, **more}


# -- results.json --------------------------------------------------------------------------------------------------


def measurement(name: str) -> str:
    """The measurement that a row belongs to: the first word of its name."""
    return name.split()[0]


def merge(before: Iterable[dict], measured: Iterable[dict], known: Iterable[str]) -> list[dict]:
    """The measured rows, and those of other measurements as they were; in the order of ``known``.

    A measurement replaces all of its rows: one that was renamed does not stay beside its successor.
    """
    measured, order = list(measured), list(known)
    again = {measurement(r["row"]) for r in measured}
    kept = [r for r in before if measurement(r["row"]) in set(order) - again]
    return sorted([*kept, *measured], key=lambda r: order.index(measurement(r["row"])))


def load(path: Path) -> list[dict]:
    return json.loads(path.read_text())["rows"] if path.exists() else []


def save(path: Path, rows: list[dict]) -> None:
    """Every row has the ``machine`` that measured it: rows that stay may be of another one."""
    path.write_text(json.dumps({"command": "make bench", "rows": rows}, indent=2) + "\n")
