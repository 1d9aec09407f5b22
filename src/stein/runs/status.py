"""The progress of runs, read from their directories. Imports no jax, and never disturbs the writer."""

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stein.runs import configs
from stein.runs.folder import RunFolder
from stein.storage import documents

LEAST = 12  # columns that the name of a run keeps on the narrowest terminal


def survey(places: Sequence[Path]) -> list[dict[str, Any]]:
    """One dict per run among ``places``, or among the subdirectories of a place that is not a run."""
    found = []
    for place in places:
        inside = sorted(p for p in place.iterdir() if (p / "config.toml").is_file()) if place.is_dir() else []
        if (place / "config.toml").is_file() or not inside:
            RunFolder(place).check_is_run()
            inside = [place]
        found += [look(RunFolder(run)) for run in inside]
    return found


def look(run: RunFolder) -> dict[str, Any]:
    """The progress of one run: its state, the reason if it failed, and the seconds left if it is running."""
    config = configs.load_run(run.config)
    progress = documents.read_json(run.progress)
    row, state = run.last_row(), run.state
    speed, written = (progress.get(name) for name in ("speed", "time"))
    speed = speed if isinstance(speed, float) and speed > 0 else None
    fresh = isinstance(written, float) and time.time() - written < 600
    step = row.get("step", 0)
    return {
        "run": str(run),
        "state": state,
        "reason": run.reason if state == "failed" else "",
        "method": config.method.title,
        "step": step,
        "steps": config.train.steps,
        "steps_per_second": speed,
        "seconds_left": (config.train.steps - step) / speed if state == "running" and fresh and speed else None,
        "alive": row.get("alive"),
        "members": config.method.particles,
        "metrics": {name: value for name, value in row.items() if isinstance(value, float)},
    }


def table(found: Sequence[dict[str, Any]], width: int) -> Any:
    """The result of :func:`survey` as a rich table, one line per run.

    If the terminal is narrow, paths are cut at the beginning, then columns are dropped, then names are cut.
    """
    from rich.markup import escape
    from rich.table import Table

    rows = [_row(run) for run in found]
    shown = {name: max(len(name), *(len(row[name]) for row in rows)) for name in rows[0] if any(r[name] for r in rows)}
    path, short = shown["run"], max(len(os.path.basename(row["run"])) for row in rows) + 2  # … and a slash
    shown["run"] = min(path, max(short, LEAST))
    for column in ("step/s", "alive", "loss", "left", "test nll"):  # the least important first
        if _total(shown) > width:
            shown.pop(column, None)
    shown["run"] = max(min(path, shown["run"] + width - _total(shown)), LEAST)
    drawn = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for name in shown:
        drawn.add_column(name, justify="left" if name in ("run", "state", "method") else "right", no_wrap=True)
    for row in rows:
        drawn.add_row(*(escape(_ending(row[name], size)) for name, size in shown.items()))
    return drawn


def _row(run: dict[str, Any]) -> dict[str, str]:
    metrics, speed, loss = run["metrics"], run["steps_per_second"], run["metrics"].get("log_likelihood")
    return {
        "run": run["run"],
        "state": run["state"],
        "method": run["method"],
        "step": f"{run['step']}/{run['steps']}",
        "step/s": f"{speed:.0f}" if speed else "",
        "left": _duration(run["seconds_left"]),
        "alive": "" if run["alive"] is None else f"{run['alive']}/{run['members']}",
        "loss": "" if loss is None else f"{-loss:.3g}",
        "test nll": f"{metrics['test_nll']:.3g}" if "test_nll" in metrics else "",
    }


def _total(widths: Mapping[str, int]) -> int:
    return sum(widths.values()) + 2 * (len(widths) - 1)


def _ending(text: str, size: int) -> str:
    return text if len(text) <= size else f"…{text[len(text) - size + 1 :]}"


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return ""
    minutes, left = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{left:02}"
