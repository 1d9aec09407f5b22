"""The figures of an evaluation: from the results of :mod:`stein.evaluate` to matplotlib figures."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from stein.report.style import BAND, COLOURS, DATA, INK, MUTED, Look, bare, legend, looks


def reliability(bins: Mapping[str, Sequence[float]], ece: float) -> Figure:
    """Accuracy over confidence for every bin with points; below, the number of points per bin."""
    figure = Figure(figsize=(4.4, 4.8), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3.2, 1))
    count, confidence, accuracy = (np.array(bins[name]) for name in ("points", "confidence", "accuracy"))
    edges = np.linspace(0, 1, len(count) + 1)
    some = count > 0
    above.bar(
        edges[:-1][some], accuracy[some], 1 / len(count), align="edge", color=BAND, alpha=0.45, ec="white", lw=0.5
    )
    above.plot([0, 1], [0, 1], color="#888888", lw=1, ls="--", label="as often right as sure")
    above.plot(confidence[some], accuracy[some], "o", color=INK, ms=4, label=f"found: ECE {ece:.3f}")
    above.set(ylabel="accuracy", xlim=(0, 1), ylim=(0, 1.02))
    legend(figure, [above])
    below.bar(edges[:-1], count, 1 / len(count), align="edge", color=INK, alpha=0.75, ec="white", lw=0.5)
    below.set(xlabel="confidence (largest mean probability)", ylabel="points", yscale="log")
    below.set_ylim(0.7, 2 * max(count.max(), 5))
    bare(above, below)
    return figure


def calibration(
    panels: Mapping[str, Mapping[str, Mapping[str, Sequence[float]]]], perfect: bool = True, disagreement: bool = False
) -> Figure:
    """Accuracy on the most certain points, from all on the left to the most certain on the right, as in the paper.

    Args:
        panels: by title (in the paper: without noise on the left, with noise on the right), then by method:
            ``points`` and ``accuracy``, and ``perfect``, which is drawn dotted in the method's colour.
        disagreement: also draw, thinner, the curves ranked by model disagreement, ``accuracy_md``.
    """
    figure, axes, look = _panels(panels)
    for axis, (title, methods) in zip(axes, panels.items(), strict=True):
        for name, curve in methods.items():
            colour, dashes = look[name].colour, look[name].dashes
            axis.plot(curve["points"], curve["accuracy"], color=colour, ls=dashes, lw=1.6, label=name)
            if disagreement:
                axis.plot(curve["points"], curve["accuracy_md"], color=colour, lw=0.9)
            if perfect and "perfect" in curve:
                axis.plot(curve["points"], curve["perfect"], color=colour, lw=0.9, ls=":", alpha=0.8)
        if disagreement:
            axis.plot([], [], color=MUTED, lw=0.9, label="by disagreement")
        if perfect:
            axis.plot([], [], color=MUTED, lw=0.9, ls=":", label="perfect ranking")
        last = max(curve["points"][-1] for curve in methods.values())
        axis.set(xlim=(last, 1), xlabel="points answered, the most certain first", title=title)
        axis.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        axis.grid(alpha=0.25, lw=0.6)
    axes[0].set_ylabel("accuracy")
    bare(*axes)
    legend(figure, axes)
    return figure


def side_by_side(
    panels: Mapping[str, Mapping[str, tuple[float, float | None]]],
    others: Mapping[str, Mapping[str, float]],
    bars: Mapping[str, float],
    label: str,
) -> Figure:
    """One panel per data set, one line per model: mean ± standard error, lower is better.

    A model far from all others, by ten times their interquartile range, is a number at the edge.

    Args:
        panels: by data set, then by model: mean and standard error, if there is one.
        others: published numbers, by data set, then by model; drawn hollow.
        bars: by data set, a number to reach, drawn as a line.
    """
    names = list(dict.fromkeys(name for rows in panels.values() for name in rows))
    published = list(dict.fromkeys(name for rows in others.values() for name in rows))
    lines = {name: -place for place, name in enumerate([*names, *published])}
    figure = Figure(figsize=(3.1 * len(panels) + 1.4, 0.27 * len(lines) + 1.2), layout="constrained")
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axis, (title, rows) in zip(axes, panels.items(), strict=True):
        axis.axvline(bars[title], color=DATA, lw=1, ls="--", label="the bar")
        values = [*(mean for mean, _ in rows.values()), *others.get(title, {}).values(), bars[title]]
        low, middle, high = np.quantile(values, (0.25, 0.5, 0.75))
        for name, (mean, error) in rows.items():
            if abs(mean - middle) <= 10 * (high - low):
                axis.errorbar(mean, lines[name], xerr=error, fmt="o", color=INK, ms=4, lw=1.2, capsize=2)
            else:
                right = mean > middle
                text, at = (f"{mean:.2f} \u2192", 0.99) if right else (f"\u2190 {mean:.2f}", 0.01)
                axis.text(at, lines[name], text, transform=axis.get_yaxis_transform(), ha="right" if right else "left",
                          va="center", fontsize="small", color=INK)  # fmt: skip
        for name, value in others.get(title, {}).items():
            axis.plot(value, lines[name], "o", mfc="white", mec=BAND, ms=4.5)
        axis.set(title=title, xlabel=label)
        axis.set_yticks(list(lines.values()), [*names, *(f"{name}, published" for name in published)])
        axis.grid(axis="y", alpha=0.25, lw=0.6)
    bare(*axes)
    return figure


def learning(panels: Mapping[str, Mapping[str, Sequence[Mapping[str, float]]]]) -> Figure:
    """Held-out accuracy over training steps, to judge budgets: a curve that still rises is not finished.

    Args:
        panels: by title, then by method: rows with ``step`` and ``test_accuracy``.
    """
    figure, axes, look = _panels(panels)
    for axis, (title, methods) in zip(axes, panels.items(), strict=True):
        for name, rows in methods.items():
            colour, dashes = look[name].colour, look[name].dashes
            axis.plot(*zip(*((row["step"], row["test_accuracy"]) for row in rows), strict=True), color=colour,
                      ls=dashes, lw=1.6, label=name)  # fmt: skip
        axis.set(xlabel="training steps", title=title, xlim=(0, None))
        axis.grid(alpha=0.25, lw=0.6)
    curves = [[row["test_accuracy"] for row in rows] for methods in panels.values() for rows in methods.values()]
    lowest, highest = min(curve[-1] for curve in curves), max(map(max, curves))
    axes[0].set_ylim(max(0, lowest - 0.1), highest + 0.01)  # the ends matter; some curves start far below
    axes[0].set_ylabel("accuracy on test points")
    bare(*axes)
    legend(figure, axes)
    return figure


def corruption(rows: Mapping[str, Sequence[Sequence[Mapping[str, float]]]], among: Iterable[str] = ()) -> Figure:
    """Accuracy, ECE and AUROC over the width of the blur: mean and standard error (n - 1) over seeds.

    Args:
        rows: by method, per seed: the rows of :func:`stein.evaluate.corruption`.
        among: the methods of all related figures, so that each has the same style in all of them.
    """
    look = looks((*among, *rows))
    shown = {"accuracy": "accuracy", "ece": "ECE", "auroc_h": "AUROC, blurred against clean"}
    figure = Figure(figsize=(12, 3.7), layout="constrained")
    axes = figure.subplots(1, len(shown))
    for name, seeds in rows.items():
        sigmas = [row["sigma"] for row in seeds[0]]
        for axis, key in zip(axes, shown, strict=True):
            values = np.array([[row[key] for row in seed] for seed in seeds])
            error = values.std(axis=0, ddof=1) / len(seeds) ** 0.5 if len(seeds) > 1 else None
            axis.errorbar(sigmas, values.mean(axis=0), error, color=look[name].colour, ls=look[name].dashes,
                          marker=look[name].marker, ms=4, lw=1.4, capsize=2.5, label=name)  # fmt: skip
    for axis, words in zip(axes, shown.values(), strict=True):
        axis.set(xlabel="standard deviation of the blur (pixels)", title=words, xlim=(0, None))
        axis.grid(alpha=0.25, lw=0.6)
    bare(*axes)
    if len(rows) > 1:
        legend(figure, axes)
    return figure


def entropies(inside: np.ndarray, outside: Mapping[str, np.ndarray]) -> Figure:
    """Histograms of the entropy of the mean prediction, over log C: test points against out-of-distribution points."""
    figure = Figure(figsize=(6, 3.6), layout="constrained")
    axis = figure.subplots()
    edges = np.linspace(0, 1, 41).tolist()
    for i, (name, values) in enumerate({"test": inside, **outside}.items()):
        colour = INK if i == 0 else (DATA, *COLOURS[2:4], COLOURS[6])[(i - 1) % 4]
        weights = np.full(len(values), 1 / len(values))  # fractions: the sets have different sizes
        label = f"{name} ({len(values)} points)"
        axis.hist(values, edges, weights=weights, color=colour, alpha=0.2, lw=0)
        axis.hist(values, edges, weights=weights, color=colour, histtype="step", lw=1.5, label=label)
    axis.set(xlabel="entropy / log C", ylabel="share of the points", xlim=(0, 1))
    axis.legend(frameon=False)
    bare(axis)
    return figure


def intervals(coverage: Mapping[str, Sequence[float]]) -> Figure:
    """Actual over expected coverage of a regression's central intervals."""
    figure = Figure(figsize=(4.2, 4), layout="constrained")
    axis = figure.subplots()
    axis.plot([0, 1], [0, 1], color="#888888", lw=1, ls="--", label="calibrated")
    axis.plot(coverage["wanted"], coverage["found"], "o-", color=INK, ms=3.5, lw=1.4, label="found")
    axis.set(xlabel="central interval", ylabel="share of targets inside", xlim=(0, 1), ylim=(0, 1.02))
    axis.text(0.97, 0.05, "below the line: too sure", ha="right", color=MUTED, fontsize=9)
    axis.legend(loc="upper left", frameon=False)
    bare(axis)
    return figure


def _panels(panels: Mapping[str, Iterable[str]]) -> tuple[Figure, Any, dict[str, Look]]:
    """A figure with panels side by side, and the same style for a method in all of them."""
    figure = Figure(figsize=(5.2 * len(panels) + 0.4, 4.1), layout="constrained")
    names = dict.fromkeys(name for methods in panels.values() for name in methods)
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    return figure, axes, looks(names)
