"""results.json as a page: every row with its milliseconds, ratio, limit and verdict, and where a peer is faster."""

from harness import measurement

HEAD = """<!-- written by `make bench`; do not edit -->
# Measured speed

Every ratio is our time over the other side's, both measured in turns in one run: **smaller is better**, and below 1 we
are faster. The promise holds if the ratio is at most the limit. A ratio is the median over neighbouring pairs, with its
quartiles; times are medians. `docs/performance.md` explains the rows.
"""


def page(rows: list[dict]) -> str:
    parts = [HEAD, _machines(rows), _table(rows), _slower(rows), *map(_curve, rows), _notes(rows)]
    return "\n".join(part for part in parts if part)


def _machines(rows: list[dict]) -> str:
    """Which measurements are of which machine: milliseconds of two machines say nothing about each other."""
    measured: dict[str, dict[str, None]] = {}
    for r in rows:
        words = "; ".join(f"{name} {value}" for name, value in r["machine"].items())
        measured.setdefault(words, {})[measurement(r["row"])] = None
    return "\n".join(f"- {words}: {', '.join(names)}" for words, names in measured.items()) + "\n"


def _table(rows: list[dict]) -> str:
    lines = ["| row | ours | other side | ratio | quartiles | limit | |", "|---|---:|---:|---:|---:|---:|---|"]
    for r in rows:
        quartiles = " to ".join(f"{q:.3g}" for q in r.get("quartiles", ()))
        limit = "" if r["limit"] is None else f"{r['limit']:.3g}"
        other = "" if r["peer_seconds"] == 1 else _amount(r["peer_seconds"], r)  # an amount by itself has none
        cells = [r["row"], _amount(r["seconds"], r), other, f"{r['ratio']:.3g}", quartiles]
        lines.append("| " + " | ".join([*cells, limit, verdict(r)]) + " |")
    return "\n".join(lines) + "\n"


def verdict(r: dict) -> str:
    return {True: "holds", False: "**fails**", None: "no limit"}[r["holds"]]


def _amount(value: float, r: dict) -> str:
    """Seconds as milliseconds when they are few; rows with another unit name it."""
    unit = r.get("unit", "seconds")
    if unit.startswith("seconds"):
        of = " a step" if unit == "seconds per step" else ""
        return f"{1e3 * value:.4g} ms{of}" if value < 10 else f"{value:.4g} s{of}"
    return f"{value / 1e6:.4g} MB" if unit == "bytes" else f"{value:.4g} {unit}"


def _slower(rows: list[dict]) -> str:
    """Plainly: which other libraries are faster, and by how much."""
    peers = [r for r in rows if "peer" in r]
    if not peers:
        return ""
    faster = [f"- {r['row']}: {r['peer']} takes {1 / r['ratio']:.2f} of our time." for r in peers if r["ratio"] > 1]
    return "\n".join(["## Where a peer is faster", "", *(faster or ["In no row measured."]), ""])


def _curve(r: dict) -> str:
    """A row that is made of several points: the points."""
    if not r.get("curve"):
        return ""
    names = list(r["curve"][0])
    lines = [f"## {r['row']}", "", "| " + " | ".join(names) + " |", "|---:" * len(names) + "|"]
    for point in r["curve"]:
        lines.append("| " + " | ".join(_cell(point[name]) for name in names) + " |")
    return "\n".join([*lines, ""])


def _cell(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _notes(rows: list[dict]) -> str:
    """What was measured: sizes, peers, seconds of compilation, and how far the two sides' directions agree."""
    lines = ["## What each row measured", ""]
    for r in rows:
        words = [r["size"]]
        words += [f"against {r['peer']}"] if "peer" in r else []
        words += [f"compilation: ours {r['compile_seconds']:.1f} s"] if r.get("compile_seconds") is not None else []
        if r.get("peer_compile_seconds") is not None:
            words.append(f"{'theirs' if 'peer' in r else 'other side'} {r['peer_compile_seconds']:.1f} s")
        words += [f"checked: {r['checked']}"] if "checked" in r else []
        words += [r["note"]] if "note" in r else []
        lines.append(f"- {r['row']}: {'; '.join(words)}.")
    return "\n".join([*lines, ""])
