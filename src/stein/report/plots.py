"""One function a figure: arrays in, a matplotlib figure out."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure

INK, DATA, BAND = "#1f3b57", "#c8553d", "#4a8fc4"


def regression(
    grid: np.ndarray,
    members: Mapping[str, np.ndarray],
    x: np.ndarray,
    y: np.ndarray,
    ylim: tuple[float, float] = (-12, 8),
) -> Figure:
    """A panel for each method: mean, bands of one and two standard deviations, the members as thin lines, the data."""
    figure = Figure(figsize=(4.6 * len(members), 3.6), layout="constrained")
    axes = np.atleast_1d(figure.subplots(1, len(members), sharey=True))
    for axis, (method, functions) in zip(axes, members.items(), strict=True):
        _regression_panel(axis, grid, functions, x, y)
        axis.set(title=method, xlabel="x", xlim=(grid[0], grid[-1]), ylim=ylim)
    axes[0].set_ylabel("y")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    return figure


def _regression_panel(axis: Any, grid: np.ndarray, functions: np.ndarray, x: np.ndarray, y: np.ndarray) -> None:
    mean, std = functions.mean(axis=0), functions.std(axis=0, ddof=1)
    for width, alpha in ((2, 0.18), (1, 0.32)):
        axis.fill_between(
            grid, mean - width * std, mean + width * std, color=BAND, alpha=alpha, lw=0, label=f"±{width} std"
        )
    axis.plot(grid, functions.T, color=INK, alpha=0.15, lw=0.6)
    axis.plot(grid, mean, color=INK, lw=2, label="mean")
    axis.plot([], [], color=INK, alpha=0.5, lw=0.8, label="members")
    axis.plot(x, y, "o", color=DATA, ms=3.2, mec="white", mew=0.4, label="data")
    axis.spines[["top", "right"]].set_visible(False)
