"""How far runs are, read from their directories. Imports no jax, and never disturbs the writer."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stein.experiments import config as configs
from stein.experiments import folder as folders


def survey(places: Sequence[Path]) -> list[dict[str, Any]]:
    """One dict for each run among ``places`` and, where a place is not a run, among its subdirectories."""
    found = []
    for place in places:
        inside = sorted(p for p in place.iterdir() if (p / "config.toml").is_file()) if place.is_dir() else []
        if (place / "config.toml").is_file() or not inside:
            folders.check_is_run(place)
            inside = [place]
        found += [look(run) for run in inside]
    return found


def look(run: Path) -> dict[str, Any]:
    """``state`` is running, finished, or stopped; ``seconds_left`` only of a running one."""
    config = configs.load(run / "config.toml")
    progress = folders.read_json(run / "progress.json")
    row = folders.last_row(run / "metrics.jsonl")
    running, finished = folders.is_running(run), folders.is_finished(run)
    speed, written = (progress.get(name) for name in ("speed", "time"))
    speed = speed if isinstance(speed, float) and speed > 0 else None
    fresh = isinstance(written, float) and time.time() - written < 600
    step = row.get("step", 0)
    return {
        "run": str(run),
        "state": "finished" if finished else "running" if running else "stopped",
        "method": config.method.name + (" stochastic" if config.method.stochastic else ""),
        "step": step,
        "steps": config.train.steps,
        "steps_per_second": speed,
        "seconds_left": (config.train.steps - step) / speed if running and fresh and speed else None,
        "alive": row.get("alive"),
        "members": config.method.particles,
        "metrics": {name: value for name, value in row.items() if isinstance(value, float)},
    }


def table(found: Sequence[dict[str, Any]]) -> Any:
    """What :func:`survey` found, for people."""
    from rich.table import Table

    shown = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for name in ("run", "state", "method"):
        shown.add_column(name, overflow="fold")
    for name in ("step", "step/s", "left", "alive", "loss", "test nll"):
        shown.add_column(name, justify="right", no_wrap=True)
    for run in found:
        metrics, speed = run["metrics"], run["steps_per_second"]
        loss = metrics.get("log_likelihood")
        shown.add_row(
            run["run"],
            run["state"],
            run["method"],
            f"{run['step']}/{run['steps']}",
            f"{speed:.0f}" if speed else "",
            _duration(run["seconds_left"]),
            "" if run["alive"] is None else f"{run['alive']}/{run['members']}",
            "" if loss is None else f"{-loss:.3g}",
            f"{metrics['test_nll']:.3g}" if "test_nll" in metrics else "",
        )
    return shown


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return ""
    minutes, left = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{left:02}"
