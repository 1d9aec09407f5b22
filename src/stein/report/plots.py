"""One function per figure: arrays in, a matplotlib figure out."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from stein.metrics import uncertainty
from stein.report.style import BAND, CLASSES, DATA, INK, MAP, bare, legend

YLIM = (-12, 8)
FEW = 6  # values of a key that get their own tick


def regression(grid: np.ndarray, members: Mapping[str, np.ndarray], x: np.ndarray, y: np.ndarray) -> Figure:
    """One panel per method: mean, bands of one and two standard deviations, the members as thin lines, the data."""
    columns = min(3, len(members))
    rows = -(-len(members) // columns)
    figure = Figure(figsize=(4.2 * columns, 3.1 * rows + 0.4), layout="constrained")
    axes = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    for axis in axes.flat[len(members) :]:
        axis.set_visible(False)
    for axis, (method, functions) in zip(axes.flat, members.items(), strict=False):
        _regression_panel(axis, grid, functions, x, y)
        axis.set_title(method)
    for axis in axes.flat[: len(members) - columns]:
        axis.set_xlabel("")
    for axis in axes.flat[
        len(members) - columns : len(members)
    ]:  # the lowest of each column, which sharex may get wrong
        axis.tick_params(labelbottom=True)
    legend(figure, [axes[0, 0]])
    return figure


def toys(
    grid: np.ndarray,
    functions: Mapping[str, np.ndarray],
    regression_data: tuple[np.ndarray, np.ndarray],
    side: np.ndarray,
    maps: Mapping[str, np.ndarray],
    classification_data: tuple[np.ndarray, np.ndarray],
) -> Figure:
    """The paper's first figure: regression above, classification below, one column per method.

    Args:
        functions: (n, g) per column: values on ``grid``.
        maps: (p, c) per column: mean probabilities on the square of ``side`` x ``side``.
    """
    figure = Figure(figsize=(2.75 * len(functions) + 0.8, 6.2), layout="constrained")
    axes = figure.subplots(2, len(functions), sharex="row", sharey="row", squeeze=False)
    for axis, (method, values) in zip(axes[0], functions.items(), strict=True):
        _regression_panel(axis, grid, values, *regression_data)
        axis.set_title(method)
    for axis, mean in zip(axes[1], maps.values(), strict=True):
        image = _entropy_panel(axis, side, mean, *classification_data)
    axes[0, 0].set_ylabel("y")
    axes[1, 0].set_ylabel("$x_2$")
    figure.colorbar(image, ax=axes[1], label="entropy / log 5", shrink=0.9, pad=0.01)
    legend(figure, [axes[0, 0]])
    return figure


def traces(values: Mapping[str, np.ndarray]) -> Figure:
    """One row per quantity, one line per chain: (chains, draws)."""
    figure = Figure(figsize=(9, 1.5 * len(values) + 0.5), layout="constrained")
    for axis, (name, chains) in zip(
        np.atleast_1d(figure.subplots(len(values), 1, sharex=True)), values.items(), strict=True
    ):
        axis.plot(chains.T, lw=0.6)
        axis.set_ylabel(name)
        bare(axis)
    axis.set_xlabel("kept draw")
    return figure


def search(settings: Sequence[Mapping[str, Any]], values: Sequence[float | None], metric: str, best: int) -> Figure:
    """One panel per searched key: the metric of every trial over the value of the key.

    Args:
        settings: settings of every trial, by key.
        values: metric of every trial; None for a failed trial, drawn as a cross above the panel.
        best: the number of the best trial.
    """
    keys = list(settings[0])
    columns = min(3, len(keys))
    rows = -(-len(keys) // columns)
    figure = Figure(figsize=(4.0 * columns + 0.4, 3.3 * rows + 0.4), layout="constrained")
    axes = figure.subplots(rows, columns, sharey=True, squeeze=False)
    good = np.array([value is not None for value in values])
    found = np.array([value for value in values if value is not None])
    for axis in axes.flat[len(keys) :]:
        axis.set_visible(False)
    for axis, key in zip(axes.flat, keys, strict=False):
        given = [trial[key] for trial in settings]
        x = _places(axis, given)
        if len(set(x)) <= FEW and _are_numbers(given):
            there = sorted(set(x[good]))
            edge = min if values[best] == found.min() else max
            axis.plot(
                there, [edge(found[x[good] == place]) for place in there], color=INK, lw=1, label="best of a value"
            )
        axis.plot(x[good], found, "o", color=BAND, alpha=0.55, ms=6, mec="white", mew=0.5, label="trial")
        axis.plot(x[best], values[best], "*", color=DATA, ms=13, mec="white", mew=0.6, label="best", zorder=3)
        if not good.all():
            above = np.full((~good).sum(), 1.03)
            axis.plot(x[~good], above, "x", color=INK, ms=6, transform=axis.get_xaxis_transform(), clip_on=False,
                      label="failed")  # fmt: skip
        axis.set_xlabel(key)
        axis.grid(axis="y", alpha=0.25, lw=0.6)
        bare(axis)
    if found.min() > 0 and found.max() > 10 * found.min():
        axes[0, 0].set_yscale("log")
    for axis in axes[:, 0]:
        axis.set_ylabel(metric)
    legend(figure, axes.flat)
    return figure


def _places(axis: Any, values: Sequence[Any]) -> np.ndarray:
    """Positions of values on the x axis: numbers as they are, on a log axis if they span decades; names in a row."""
    if _are_numbers(values):
        x = np.array(values, float)
        if x.min() > 0 and x.max() >= 10 * x.min():
            axis.set_xscale("log")
        if len(set(values)) <= FEW:
            axis.set_xticks(sorted(set(values)), [f"{value:g}" for value in sorted(set(values))])
            axis.set_xticks([], minor=True)
        return x
    names = list(dict.fromkeys(map(str, values)))
    axis.set_xticks(range(len(names)), names)
    axis.set_xlim(-0.5, len(names) - 0.5)
    return np.array([names.index(str(value)) for value in values], float)


def _are_numbers(values: Sequence[Any]) -> bool:
    return all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values)


def animation(
    path: Path,
    grid: np.ndarray,
    frames: Sequence[tuple[int, Mapping[str, np.ndarray]]],
    x: np.ndarray,
    y: np.ndarray,
) -> None:
    """A GIF of the members during training: ``frames`` are steps with the members' functions of each method."""
    from matplotlib.animation import FuncAnimation, PillowWriter
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    columns = len(frames[0][1])
    figure = Figure(figsize=(2.6 * columns, 2.7), dpi=64, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, columns, sharey=True, squeeze=False)[0]

    def draw(frame: tuple[int, Mapping[str, np.ndarray]]) -> list[Any]:
        step, members = frame
        for axis, (method, functions) in zip(axes, members.items(), strict=True):
            axis.clear()
            _regression_panel(axis, grid, functions, x, y)
            axis.set_title(f"{method}, step {step}", fontsize=9)
        return list(axes)

    draw(frames[0])
    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # layout is fixed: every frame has the same axes
    held = [*frames, *[frames[-1]] * (len(frames) // 4)]  # hold the end before the animation restarts
    FuncAnimation(figure, draw, frames=held, init_func=lambda: list(axes)).save(path, PillowWriter(fps=8))


def _regression_panel(axis: Any, grid: np.ndarray, functions: np.ndarray, x: np.ndarray, y: np.ndarray) -> None:
    mean, std = functions.mean(axis=0), functions.std(axis=0, ddof=1)
    for width, alpha in ((2, 0.18), (1, 0.32)):
        axis.fill_between(
            grid, mean - width * std, mean + width * std, color=BAND, alpha=alpha, lw=0, label=f"±{width} std"
        )
    few = functions[:: max(1, len(functions) // 50)]
    axis.plot(grid, few.T, color=INK, alpha=0.15, lw=0.6)
    axis.plot(grid, mean, color=INK, lw=2, label="mean")
    axis.plot([], [], color=INK, alpha=0.5, lw=0.8, label="members")
    axis.plot(x, y, "o", color=DATA, ms=3.2, mec="white", mew=0.4, label="data")
    axis.set(xlim=(grid[0], grid[-1]), ylim=YLIM, xlabel="x")
    bare(axis)


def _entropy_panel(axis: Any, side: np.ndarray, mean: np.ndarray, x: np.ndarray, labels: np.ndarray) -> Any:
    """Dark where the ensemble is certain; thin lines between the regions of the classes; the data."""
    size = len(side)
    extent = (side[0], side[-1], side[0], side[-1])
    entropy = uncertainty.entropy(mean).reshape(size, size)
    image = axis.imshow(entropy, origin="lower", extent=extent, cmap=MAP, vmin=0, vmax=1, aspect="equal")
    chosen = mean.argmax(axis=1).reshape(size, size)
    for label in range(mean.shape[1]):
        axis.contour(side, side, chosen == label, levels=[0.5], colors="white", linewidths=0.5, alpha=0.7)
    for label in np.unique(labels):
        axis.plot(*x[labels == label].T, "o", color=CLASSES[label], ms=2, mec="black", mew=0.2)
    axis.set_xlabel("$x_1$")
    return image
