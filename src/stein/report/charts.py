"""Figures of a page: SVG that is complete without the script, and the numbers that the script shows under the pointer.

Coordinates are whole tenths of a unit, relative to the point before: half as long as others.
"""

import base64
import io
import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup

from stein.report import page, style
from stein.report.page import Key
from stein.report.style import Look

WIDTH, HEIGHT = 420, 270
LEFT, RIGHT, TOP, BOTTOM = 70, 22, 10, 40
PLAIN = Look(0, "-")
MOST = 240  # points of a line
BLURRED = {"accuracy": "Accuracy", "ece": "ECE", "nll": "NLL", "auroc_h": "AUROC, blurred against clean"}
"""What is shown over the width of a blur, and its title."""


class Series(NamedTuple):
    """One line, or one cloud of points. ``key`` switches it on and off; ``error`` is drawn as whiskers."""

    name: str
    x: Sequence[float]
    y: Sequence[float | None]
    look: Look = PLAIN
    key: str = ""
    low: Sequence[float | None] | None = None
    high: Sequence[float | None] | None = None
    error: Sequence[float | None] | None = None
    points: bool = False
    bars: float | None = None  # width of bars, in units of x
    labels: Sequence[str] | None = None


class Axis(NamedTuple):
    """From numbers to places: ``low`` is at ``start``, ``high`` at ``end``."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, values: Any) -> np.ndarray:
        values = np.array(values, float)  # None becomes NaN
        low, high = self.low, self.high
        if self.log:
            with np.errstate(divide="ignore", invalid="ignore"):
                values = np.log(values)
            low, high = math.log(low), math.log(high)
        return self.start + (values - low) / (high - low) * (self.end - self.start)

    @property
    def ticks(self) -> list[float]:
        if self.log:
            powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            every = -(-len(powers) // 6)
            some = [10.0**p for p in powers if p % every == 0]
            inside = [value for value in some if self.low <= value * 1.0001 and value <= self.high * 1.0001]
            if len(inside) > 1:
                return inside
            return [self.low, (self.low * self.high) ** 0.5, self.high]
        rough = (self.high - self.low) / 5
        unit = 10.0 ** math.floor(math.log10(rough))
        step = next(unit * factor for factor in (1, 2, 2.5, 5, 10) if unit * factor >= rough * 0.999)
        first = math.ceil(self.low / step - 1e-9)
        return [i * step for i in range(first, math.floor(self.high / step + 1e-9) + 1)]


def chart(
    title: str,
    series: Sequence[Series],
    xlabel: str,
    ylabel: str,
    *,
    alt: str = "",
    note: str = "",
    xlim: tuple[float, float] | None = None,
    ylim: tuple[float, float] | None = None,
    ylog: bool = False,
    diagonal: str = "",
    names: Sequence[str] = (),
    square: bool = False,
    legend: bool | None = None,
    turned: bool = False,
) -> Markup:
    """A figure with axes, lines or points, and their legend.

    Args:
        alt: what it shows, for those who do not see it. Default: the title and the names.
        diagonal: the name of a dashed line x = y; empty: none.
        names: of the places 0, 1, ... on the x axis, if they have names.
        square: as high as wide.
        turned: the x axis falls from left to right.
    """
    series = [_thinned(each) for each in series if any(_is_number(y) for y in each.y)]
    height = WIDTH - LEFT - RIGHT + TOP + BOTTOM if square else HEIGHT
    xlow, xhigh = xlim or _limits(
        x + side * (each.bars or 0) / 2 for each in series for x in each.x for side in (-1, 1)
    )
    spread = [v for each in series for v in _extent(each)]
    ylog = ylog and bool(spread) and min(spread) > 0
    ylow, yhigh = ylim or _padded(*_limits(spread), ylog, zero=any(each.bars for each in series))
    if turned:
        xlow, xhigh = xhigh, xlow
    x = Axis(xlow, xhigh, LEFT, WIDTH - RIGHT)
    y = Axis(ylow, yhigh, height - BOTTOM, TOP, ylog)
    drawn = [_frame(x, y, xlabel, ylabel, height, names)]
    if diagonal:
        drawn.append(Markup('<path class="guide" d="{}"/>').format(_straight(x, y)))
    drawn += [_drawn(each, x, y) for each in series]
    alt = alt or f"{title}: {ylabel} over {xlabel}, {', '.join(dict.fromkeys(s.name for s in series if s.name))}"
    data = {
        "x": _axis(x), "y": _axis(y), "xlabel": xlabel, "ylabel": ylabel,
        "points": all(each.points for each in series), "series": [_numbers(each) for each in series],
    }  # fmt: skip
    if names:
        data["names"] = [page.shortened(name) for name in names]
    keys = list({each.name: Key(each.key, each.name, each.look) for each in series if each.name}.values())
    if diagonal:
        note = f"Dashed: {diagonal}." + (f" {note}" if note else "")
    shown = len(keys) > 1 if legend is None else legend
    return page.figure(title, _svg(drawn, alt, height), htmlsafe_json_dumps(data), keys if shown else (), note)


def over_seeds(key: Key, x: Sequence[float], values: Sequence[Sequence[float | None]]) -> Series:
    """The mean over seeds, with a standard error (n - 1) if there are several: one row of ``values`` per seed."""
    numbers = np.array(values, float)
    error = (numbers.std(axis=0, ddof=1) / len(numbers) ** 0.5).tolist() if len(numbers) > 1 else None
    return Series(key.name, x, numbers.mean(axis=0).tolist(), key.look, key.key, error=error)


def functions(
    title: str,
    grid: Sequence[float],
    frames: Sequence[np.ndarray],
    xlabel: str,
    ylabel: str,
    ylim: tuple[float, float],
    points: tuple[Sequence[float], Sequence[float]] | None,
    look: Look = PLAIN,
    most: int = 30,
    reference: tuple[str, np.ndarray] | None = None,
) -> Markup:
    """The members' functions of one input with mean and bands, for every snapshot; the last is shown.

    Args:
        frames: per snapshot, the values of every member on ``grid``.
        points: the data.
        most: how many members are drawn as lines; mean and bands are of all.
        reference: a name and the values of other functions, such as the posterior's: drawn dotted, two standard
            deviations around their mean.
    """
    x, y = Axis(grid[0], grid[-1], LEFT, WIDTH - RIGHT), Axis(*ylim, HEIGHT - BOTTOM, TOP)
    places = x(grid)
    drawings = []
    for members in frames:
        mean, std = members.mean(axis=0), members.std(axis=0, ddof=min(1, len(members) - 1))
        some = members[:: -(-len(members) // most)]
        drawings.append(
            {
                **{f"band{w}": _ring(places, y(mean - w * std), y(mean + w * std)) for w in (1, 2)},
                "members": "".join(_path(places, y(line)) for line in some),
                "mean": _path(places, y(mean)),
                "series": [
                    {"name": name, "c": look.number, "x": _short(grid), "y": _short(values)}
                    for name, values in (("mean", mean), ("two standard deviations above", mean + 2 * std))
                ],
            }
        )
    last = drawings[-1]
    parts = [
        Markup('<path class="area f{}" data-part="band{}" d="{}"/>').format(look.number, w, last[f"band{w}"])
        for w in (2, 1)
    ]
    for part, kind in (("members", "line thin"), ("mean", "line")):
        parts.append(Markup('<path class="{} s{}" data-part="{}" d="{}"/>').format(kind, look.number, part, last[part]))
    note = ""
    if reference is not None:
        name, draws = reference
        mean, std = draws.mean(axis=0), draws.std(axis=0, ddof=1)
        for edge in (mean - 2 * std, mean + 2 * std):
            parts.append(Markup('<path class="guide" d="{}"/>').format(_path(places, y(edge))))
        note = f"Dashed: two standard deviations around the mean of {name}."
    drawn = [_frame(x, y, xlabel, ylabel, HEIGHT), _clipped(parts, y)]
    if points is not None:
        drawn.append(_dots(x(points[0]), y(points[1]), "data", 2.4))
    data = {
        "x": _axis(x), "y": _axis(y), "xlabel": xlabel, "ylabel": ylabel, "points": False,
        "series": last["series"], "frames": drawings if len(drawings) > 1 else [],
    }  # fmt: skip
    alt = f"{title}: mean, bands of one and two standard deviations, and members, over {xlabel}"
    return page.figure(title, _svg(drawn, alt, HEIGHT), htmlsafe_json_dumps(data), note=note)


def matrix(
    title: str,
    frames: Sequence[np.ndarray],
    label: str,
    members: Sequence[Sequence[int]] = (),
    axes: tuple[Sequence[float], Sequence[float]] | None = None,
    points: tuple[Sequence[float], Sequence[float], Sequence[int]] | None = None,
) -> Markup:
    """A matrix or a map of values from 0 to 1 as colours, for every snapshot; the last is shown.

    Args:
        members: numbers of the rows and columns, per snapshot.
        axes: of a map, whose rows go upwards.
        points: of a map: places and classes.
    """
    size = 320
    left, bottom = (LEFT, BOTTOM) if axes else (8, 8)
    x, y = Axis(0, 1, left, size - 8), Axis(0, 1, size - bottom, 8)
    drawings = [
        {"picture": _coloured(values), "values": _coded(values), "rows": len(values), "columns": values.shape[1]}
        | ({"members": list(members[i])} if members else {})
        for i, values in enumerate(np.flipud(frame) if axes else frame for frame in frames)
    ]
    last = drawings[-1]
    drawn = [
        Markup(
            '<image class="pixelated" data-part="picture" href="{}" x="{}" y="{}" width="{}" height="{}" '
            'preserveAspectRatio="none"/>'
        ).format(last["picture"], left, 8, size - 8 - left, size - 8 - bottom)
    ]
    if axes:
        first, second = (Axis(axis[0], axis[-1], *ends[2:4]) for axis, ends in zip(axes, (x, y), strict=True))
        drawn.append(_frame(first, second, "first input", "second input", size, width=size, lines=False))
        if points is not None:
            for c in sorted(set(points[2])):
                own = [i for i, of in enumerate(points[2]) if of == c]
                places = first([points[0][i] for i in own]), second([points[1][i] for i in own])
                drawn.append(_dots(*places, f"dot f{c % len(style.COLOURS)}", 2))
    data = {"x": _axis(x), "y": _axis(y), "xlabel": "", "ylabel": label} | last
    data["frames"] = drawings if len(drawings) > 1 else []
    return page.figure(title, _svg(drawn, f"{title}: {label}", size, size), htmlsafe_json_dumps(data))


def strip(values: Sequence[float], truth: float | None, label: str) -> Markup:
    """The members' answers to one question as ticks on a line, and the true one as a dot."""
    some = [*values, *([] if truth is None else [truth])]
    axis = Axis(*_padded(*_limits(some)), 8, 232)
    ticks = "".join(f"M{place:.1f} 8v14" for place in axis(values))
    drawn = [Markup('<path class="axis" d="M4 22H236"/><path class="line s0" d="{}"/>').format(ticks)]
    if truth is not None:
        drawn.append(Markup('<circle class="data" r="4" cx="{:.1f}" cy="15"/>').format(float(axis([truth])[0])))
    for value, anchor, at in ((min(some), "start", 4), (max(some), "end", 236)):
        drawn.append(Markup('<text x="{}" y="36" text-anchor="{}">{}</text>').format(at, anchor, number(value)))
    return Markup('<svg viewBox="0 0 240 40" role="img" aria-label="{}">{}</svg>').format(label, Markup("").join(drawn))


def number(value: float, step: float = 0.0) -> str:
    """A number on an axis, with as many digits as the distance ``step`` between two of them needs.

    >>> number(47250.0, 250.0), number(0.1, 0.05), number(3e-7), number(1042000.0)
    ('47,250', '0.10', '3e-07', '1,042,000')
    """
    if value == 0 or not 1e-4 <= abs(value) < 1e10:
        return f"{value:.3g}"
    if step:
        return f"{value:,.{min(8, max(0, -math.floor(math.log10(step) + 1e-9), _halves(step)))}f}"
    return f"{float(f'{value:.4g}'):,.10g}"


def _halves(step: float) -> int:
    """Digits behind the point that a step such as 0.25 needs."""
    return next(digits for digits in range(9) if digits == 8 or abs(round(step, digits) - step) < 1e-6 * step)


# -- pieces -------------------------------------------------------------------------------------------------


def _svg(drawn: Iterable[Markup], alt: str, height: int, width: int = WIDTH) -> Markup:
    return Markup(
        '<svg viewBox="0 0 {} {}" role="img" tabindex="0" aria-label="{}">{}<g class="marks"></g></svg>'
    ).format(width, height, page.shortened(alt, 400), Markup("").join(drawn))


def _frame(
    x: Axis,
    y: Axis,
    xlabel: str,
    ylabel: str,
    height: int,
    names: Sequence[str] = (),
    width: int = WIDTH,
    lines: bool = True,
) -> Markup:
    """Axes, ticks and labels."""
    parts = []
    bottom = y.start
    step = 0.0 if y.log or len(y.ticks) < 2 else y.ticks[1] - y.ticks[0]
    for value, at in zip(y.ticks, y(y.ticks), strict=True):
        if lines:
            parts.append(Markup('<path class="tick" d="M{} {:.1f}H{}"/>').format(LEFT, at, width - RIGHT))
        text = Markup('<text x="{}" y="{:.1f}" text-anchor="end">{}</text>')
        parts.append(text.format(LEFT - 6, at + 4, number(value, step)))
    ticks: list[tuple[float, str]]
    if names:
        every = -(-len(names) // 6)
        most = max(6, 54 * every // len(names))
        ticks = [(i, page.shortened(name, most)) for i, name in enumerate(names) if i % every == 0]
    else:
        low, high = sorted((x.low, x.high))
        places = Axis(low, high, 0, 1, x.log).ticks
        ticks = [(value, number(value, places[1] - places[0] if len(places) > 1 else 0.0)) for value in places]
    for (_, words), at in zip(ticks, x([value for value, _ in ticks]), strict=True):
        parts.append(Markup('<text x="{:.1f}" y="{}" text-anchor="middle">{}</text>').format(at, bottom + 16, words))
    parts.append(Markup('<path class="axis" d="M{} {}V{}H{}"/>').format(LEFT, y.end, bottom, width - RIGHT))
    middle, right = (x.start + x.end) / 2, (y.start + y.end) / 2
    parts.append(
        Markup('<text class="name" x="{}" y="{}" text-anchor="middle">{}</text>').format(
            middle, height - 8, page.shortened(xlabel, 48)
        )
    )
    parts.append(
        Markup('<text class="name" transform="translate(12 {}) rotate(-90)" text-anchor="middle">{}</text>').format(
            right, page.shortened(ylabel, 32)
        )
    )
    return Markup("").join(parts)


def _drawn(series: Series, x: Axis, y: Axis) -> Markup:
    px, py, c = x(series.x), y(series.y), series.look.number
    parts = []
    if series.low is not None and series.high is not None:
        low, high = y(series.low), y(series.high)
        if series.points:
            whiskers = "".join(f"M{a:.1f} {b:.1f}V{d:.1f}" for a, b, d in zip(px, low, high, strict=True) if b == b)
            parts.append(Markup('<path class="whisker s{}" d="{}"/>').format(c, whiskers))
        else:
            parts.append(Markup('<path class="area f{}" d="{}"/>').format(c, _ring(px, low, high)))
    if series.error is not None:
        around = np.array(series.y, float), np.array(series.error, float)
        low, high = y(around[0] - around[1]), y(around[0] + around[1])
        whiskers = "".join(f"M{a:.1f} {b:.1f}V{d:.1f}" for a, b, d in zip(px, low, high, strict=True) if b == b)
        parts.append(Markup('<path class="whisker s{}" d="{}"/>').format(c, whiskers))
    if series.bars is not None:
        half = abs(float(np.diff(x([0, series.bars]))[0])) / 2
        bars = "".join(
            f"M{a - half:.1f} {y.start:.1f}V{b:.1f}h{2 * half:.1f}V{y.start:.1f}z"
            for a, b in zip(px, py, strict=True)
            if b == b
        )
        parts.append(Markup('<path class="bar f{}" d="{}"/>').format(c, bars))
    elif series.points:
        parts.append(_dots(px, py, f"dot f{c}", 2.6))
    else:
        dash = Markup(' stroke-dasharray="{}"').format(series.look.dasharray) if series.look.dasharray else Markup("")
        parts.append(Markup('<path class="line s{}"{} d="{}"/>').format(c, dash, _path(px, py)))
        if len(series.x) <= 12:
            parts.append(_dots(px, py, f"dot f{c}", 2.6))
    key = Markup(' data-key="{}"').format(series.key) if series.key else Markup("")
    return Markup("<g{}>{}</g>").format(key, _clipped(parts, y))


def _clipped(parts: Iterable[Markup], y: Axis) -> Markup:
    """An inner picture between the ends of the y axis: what is above or below is not drawn over the labels."""
    return Markup('<svg y="{0}" width="{1}" height="{2}" viewBox="0 {0} {1} {2}">{3}</svg>').format(
        y.end - 4, WIDTH, y.start - y.end + 8, Markup("").join(parts)
    )


def _dots(x: np.ndarray, y: np.ndarray, kind: str, radius: float) -> Markup:
    """Circles as one path: two half circles each."""
    arcs = "".join(
        f"M{a - radius:.1f} {b:.1f}a{radius} {radius} 0 1 0 {2 * radius} 0a{radius} {radius} 0 1 0 -{2 * radius} 0"
        for a, b in zip(x, y, strict=True)
        if a == a and b == b
    )
    return Markup('<path class="{}" d="{}"/>').format(kind, arcs)


def _path(x: np.ndarray, y: np.ndarray) -> str:
    """Relative lines, in tenths; a gap begins a new one. Far outside is as good as just outside."""
    x, y = np.round(x, 1), np.round(np.clip(y, -2000, 2000), 1)
    words, last = [], None
    for a, b in zip(x.tolist(), y.tolist(), strict=True):
        if a != a or b != b:
            last = None
            continue
        words.append(f"M{_tight(a)} {_tight(b)}" if last is None else f"l{_tight(a - last[0])} {_tight(b - last[1])}")
        last = (a, b)
    return "".join(words)


def _ring(x: np.ndarray, low: np.ndarray, high: np.ndarray) -> str:
    keep = np.isfinite(low) & np.isfinite(high)
    if not keep.any():
        return ""
    return _path(np.concatenate([x[keep], x[keep][::-1]]), np.concatenate([low[keep], high[keep][::-1]])) + "z"


def _tight(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _straight(x: Axis, y: Axis) -> str:
    low, high = max(min(x.low, x.high), y.low), min(max(x.low, x.high), y.high)
    return _path(x([low, high]), y([low, high]))


def _thinned(series: Series) -> Series:
    if len(series.x) <= MOST or series.points:
        return series
    some = np.unique(np.linspace(0, len(series.x) - 1, MOST).round().astype(int)).tolist()

    def kept(values: Any) -> Any:
        return None if values is None else [values[i] for i in some]

    return series._replace(
        x=kept(series.x), y=kept(series.y), low=kept(series.low), high=kept(series.high), error=kept(series.error)
    )


def _numbers(series: Series) -> dict[str, Any]:
    found: dict[str, Any] = {"name": page.shortened(series.name), "c": series.look.number}
    if series.key:
        found["key"] = series.key
    for name in ("x", "y", "error", *(("low", "high") if series.points else ())):
        values = getattr(series, name)
        if values is not None:
            found[name] = _short(values)
    if series.labels is not None:
        found["labels"] = [page.shortened(label) for label in series.labels]
    return found


def _short(values: Iterable[Any]) -> list[float | None]:
    return [float(f"{value:.5g}") if _is_number(value) else None for value in values]


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, np.number)) and math.isfinite(value)


def _extent(series: Series) -> list[float]:
    found = [float(value) for value in series.y if _is_number(value)]  # type: ignore[arg-type]
    if series.low is not None:
        found += [float(v) for values in (series.low, series.high) for v in values or () if _is_number(v)]  # type: ignore[arg-type]
    for value, error in zip(series.y, series.error or (), strict=False):
        if _is_number(value) and _is_number(error):
            found += [value - error, value + error]  # type: ignore[operator]
    return found


def _limits(values: Iterable[Any]) -> tuple[float, float]:
    some = [float(value) for value in values if _is_number(value)] or [0.0, 1.0]
    low, high = min(some), max(some)
    return (low, high) if high > low else (low - (abs(low) or 1) * 0.5, high + (abs(high) or 1) * 0.5)


def _padded(low: float, high: float, log: bool = False, zero: bool = False) -> tuple[float, float]:
    if log:
        factor = (high / low) ** 0.05
        return low / factor, high * factor
    room = (high - low) * 0.06
    return (0.0 if zero and low >= 0 else low - room), high + room


def _axis(axis: Axis) -> list[Any]:
    return [float(f"{value:.7g}") for value in axis[:4]] + [axis.log]


def _coloured(values: np.ndarray) -> str:
    """A matrix from 0 to 1 as a PNG, one pixel per number."""
    import matplotlib
    from PIL import Image

    pixels = (matplotlib.colormaps[style.MAP](np.clip(np.nan_to_num(values), 0, 1))[:, :, :3] * 255).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def _coded(values: np.ndarray) -> str:
    """Numbers from 0 to 1 as one character each, in ninetieths."""
    codes = (np.clip(np.nan_to_num(values), 0, 1) * 90).round().astype(int) + 35
    return "".join(map(chr, codes.ravel().tolist()))
