"""P2 and P3: what the interaction of members costs, over a step of the deep ensemble of the same networks."""

from harness import paired
from works import Steps, method, work_m

STEPS, PAIRS = 40, 8  # a chunk shuffles all data once: the more steps, the more like a run, whose chunks have 1,000


def compared(row: str, name: str, limit: float, **options: object) -> dict:
    """A method's step over the deep ensemble's. The faster that one is, the larger the ratio: see the milliseconds."""
    work = work_m()
    ours, alone = (Steps(a, work, STEPS) for a in (method(name, work, **options), method("de", work)))
    return paired(
        f"{row} {name} step / deep-ensemble step", work.words, ours, alone, limit, PAIRS, unit="seconds per step",
        compile_seconds=ours.compile_seconds, peer_compile_seconds=alone.compile_seconds,
    )  # fmt: skip


def on_weights() -> list[dict]:
    return [compared("P2", "w-svgd", 1.25)]


def on_functions() -> list[dict]:
    return [compared("P3", name, 1.75, repulsion="local") for name in ("fw-svgd", "h-svgd")]
