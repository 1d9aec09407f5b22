"""The report of one run or of several as a page: every section that their files allow, and a line for each other."""

import shlex
from collections.abc import Callable, Sequence
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup
from scipy.spatial.distance import squareform

from stein import __version__
from stein.report import charts, page, style
from stein.report.charts import Series
from stein.report.numbers import BOLD, written
from stein.report.page import Cell, Head, Line, Missing, Section
from stein.report.style import Look
from stein.runs import configs, reading, standings
from stein.runs.reading import Snapshot, Subject
from stein.runs.wording import printable

OPEN = 3  # runs whose single rows are not folded away
TRACES = {
    "log_likelihood": ("Log-likelihood of the training data", "per point, mean of members"),
    "validation_nll": ("NLL on validation points", "lower is better"),
    "test_nll": ("NLL on test points", "lower is better"),
    "test_accuracy": ("Accuracy on test points", "higher is better"),
    "test_rmse": ("RMSE on test points", "lower is better"),
    "force_ratio": ("Repulsion against drive", "norm over that of the rest"),
    "bandwidth_weights": ("Bandwidth of the kernel on weights", "squared distance"),
    "bandwidth_functions": ("Bandwidth of the kernel on functions", "squared distance"),
    "effective_rank": ("Effective rank", "different functions"),
    "alive": ("Members alive", "members"),
}
LOGARITHMIC = ("force_ratio", "bandwidth_weights", "bandwidth_functions")
SCORES = {
    "entropy": "entropy / log C",
    "disagreement": "disagreement of the members",
    "spread": "spread of the members over that of the target",
}
GREY, MISSED = Look(7, "--"), Look(1, "-")
SETS = tuple(Look(number, "-") for number in (0, 1, 2, 3, 6, 7))
MOST_COLUMNS = 8  # of partial dependence
FEW_SNAPSHOTS = 5


def report(places: Sequence[Path], command: str, with_rows: bool = True) -> bytes:
    """The page of the runs at these places.

    Args:
        command: how the page was made; it is written at its end.
        with_rows: also show single rows or images of the data.
    """
    subjects = reading.subjects(places, with_rows)
    names = [subject.folder.path.resolve().name for subject in subjects]
    title = names[0] if len(names) == 1 else f"{len(names)} runs: {', '.join(names[:3])}{', ...' if names[3:] else ''}"
    comparable = standings.are_comparable(subjects)
    makers: list[tuple[str, str, Callable[[], Markup]]] = [
        ("summary", "In a few sentences", lambda: _summary(subjects, comparable)),
        ("methods", "In numbers", lambda: _numbers(subjects, comparable)),
        ("training", "How it was trained", lambda: _training(subjects)),
        ("functions", "What it has learned", lambda: _functions(subjects)),
        ("predictions", "Predicted and true", lambda: _predicted(subjects, with_rows)),
        ("reliability", "As sure as it is right?", lambda: _reliability(subjects)),
        ("ranking", "Most certain first", lambda: _ranking(subjects)),
        ("outside", "Does it notice what it does not know?", lambda: _outside(subjects)),
        ("corruption", "When images get worse", lambda: _corruption(subjects)),
        ("rows", "Most and least sure", lambda: _rows(subjects, with_rows)),
        ("members", "Who learned the same function?", lambda: _members(subjects)),
        ("made", "How to make it again", lambda: _made(subjects, with_rows)),
    ]
    if all(subject.is_classifier for subject in subjects):
        makers = [maker for maker in makers if maker[0] != "predictions"]
    elif not any(subject.is_classifier for subject in subjects):
        makers = [maker for maker in makers if maker[0] != "ranking"]
    if not any(subject.has_images for subject in subjects):
        makers = [maker for maker in makers if maker[0] != "corruption"]
    sections = [Section(name, words, make()) for name, words, make in makers]
    keys = list(dict.fromkeys(subject.key for subject in subjects))
    shows = any(subject.rows is not None for subject in subjects)
    privacy = (
        "This page contains single rows or images of the data; stein report --no-rows leaves them out."
        if shows
        else "This page contains no single row of the data."
    )
    return page.page(title, sections, keys, [privacy], f"Written by stein {__version__}: {printable(command)}")


def _line(subject: Subject, x: Any, y: Any, **how: Any) -> Series:
    """A line or points in the look of a run, switched on and off with it."""
    return Series(subject.key.name, x, y, **{"look": subject.key.look, "key": subject.key.key} | how)


def _run(subject: Subject) -> str:
    return shlex.quote(str(subject.folder))


def _needs(subjects: Sequence[Subject], what: str, command: str = "stein evaluate") -> Missing:
    """A line for a section of which there is nothing."""
    for subject in subjects:
        if subject.state != "finished":
            return Missing(f"{what} needs a finished run.", f"stein resume {_run(subject)}")
    return Missing(f"{what} is not here yet.", f"{command} {_run(subjects[0])}" if command else "")


# -- words and numbers --------------------------------------------------------------------------------------


def _summary(subjects: Sequence[Subject], comparable: bool) -> Markup:
    parts = [page.paragraphs(standings.sentences(subjects, comparable))]
    waiting = [subject for subject in subjects if subject.state == "finished" and not subject.evaluation]
    if waiting:
        more = f" and {len(waiting) - 1} more" if len(waiting) > 1 else ""
        words = f"Not evaluated yet: {page.shortened(waiting[0].folder.path.name)}{more}. Many sections need"
        parts.append(page.missing([Missing(words, f"stein evaluate {_run(waiting[0])}")]))
    return page.join(*parts)


def _numbers(subjects: Sequence[Subject], comparable: bool) -> Markup:
    found = standings.groups(subjects)
    header, lines = standings.table(found, comparable)
    several = [group for group in found if len(group.runs) > 1]
    note = "± is a standard error, over test points."
    if several:
        note = "± is a standard error: over seeds, of a single run over test points."
    if len(found) > 1:
        note += f" {BOLD}"
    parts = [page.table("Held-out points: the numbers that matter", header, lines, note)]
    one = subjects[0]
    if len(subjects) == 1 and one.comparison is not None:
        rows = [
            Line([Cell(score.name), *_score(score.error, score.remark), *_score(score.nll, "")])
            for score in one.comparison.scores
        ]
        heads = [Head("model"), Head(one.comparison.measure), Head("NLL")]
        parts.append(page.table("Beside other models, on the same test rows", heads, rows))
    return page.join(*parts)


def _score(value: float | None, remark: str) -> list[Cell]:
    return [Cell(remark or "–") if value is None else Cell(written(value), value)]


# -- training -----------------------------------------------------------------------------------------------


def _training(subjects: Sequence[Subject]) -> Markup:
    figures = []
    for name, (title, words) in TRACES.items():
        series = []
        for subject in subjects:
            rows = [row for row in subject.log if name in row and "step" in row]
            if rows:
                series.append(_line(subject, [row["step"] for row in rows], [row[name] for row in rows]))
        if name == "alive" and all(len(set(each.y)) == 1 for each in series):
            continue  # the table says it
        if series:
            figures.append(charts.chart(title, series, "step", words, ylog=name in LOGARITHMIC, legend=False))
    if not figures:
        return page.missing([Missing("Nothing is logged yet.", f"stein status {_run(subjects[0])}")])
    lines = []
    if not any("effective_rank" in row for subject in subjects for row in subject.log):
        words = "Repulsion, bandwidths and effective rank were not measured:"
        lines = [Missing(words, "stein train CONFIG --set tracking.diagnostics=true")]
    return page.join(page.grid(figures), page.missing(lines))


# -- functions ----------------------------------------------------------------------------------------------


def _functions(subjects: Sequence[Subject]) -> Markup:
    drawn = [subject for subject in subjects if subject.views is not None]
    without = [subject for subject in subjects if subject.views is None]
    figures = [figure for subject in drawn for figure in (*_of_one_input(subject), *_of_two_inputs(subject))]
    parts = [page.grid(figures)] if figures else _dependence(drawn)
    lines = [_needs(without, "A view of the function")] if without else []
    if drawn and not parts:
        lines.append(Missing("Of images no function can be drawn; see those that it is most and least sure of."))
    return page.join(*parts, page.missing(lines))


def _steps(subject: Subject) -> list[str]:
    return [f"{snapshot.step:,}" for snapshot in subject.snapshots]


def _of_one_input(subject: Subject) -> list[Markup]:
    """The members as functions of one input, with a slider."""
    points = subject.rows.points if subject.rows is not None else None
    grid = subject.views.function if subject.views is not None else None
    if grid is None or not subject.snapshots or not all(snapshot.drawn for snapshot in subject.snapshots):
        return []
    frames = [np.array(snapshot.drawn, float) for snapshot in subject.snapshots]
    seen = [*frames[-1].ravel(), *(points.y if points is not None else ())]
    low, high = float(np.nanmin(seen)), float(np.nanmax(seen))
    room = 0.1 * (high - low) or 1.0
    data = None if points is None else ([row[0] for row in points.x], points.y)
    what = "probability" if subject.is_classifier else subject.target
    limits = (low - room, high + room)
    drawing = charts.functions(subject.key.name, grid.x, frames, "input", what, limits, data, subject.key.look)
    return [page.frames("Step", _steps(subject), [drawing])]


def _of_two_inputs(subject: Subject) -> list[Markup]:
    """Entropy over two inputs, with a slider."""
    grid = subject.views.function if subject.views is not None else None
    if grid is None or not grid.y or not subject.snapshots or not all(s.entropy for s in subject.snapshots):
        return []
    points = None
    if subject.rows is not None and subject.rows.points is not None:
        given = subject.rows.points
        points = [row[0] for row in given.x], [row[1] for row in given.x], [int(y) for y in given.y]
    maps = [np.array(snapshot.entropy) for snapshot in subject.snapshots]
    title = f"{subject.key.name}: entropy, dark where it is sure"
    drawing = charts.matrix(title, maps, "entropy / log C", axes=(grid.x, grid.y), points=points)
    return [page.frames("Step", _steps(subject), [drawing])]


def _dependence(subjects: Sequence[Subject]) -> list[Markup]:
    """Partial dependence: one figure per column, one line per run; of a single classifier one per class."""
    found: dict[str, list[tuple[Subject, reading.Dependence]]] = {}
    for subject in subjects:
        for each in subject.views.dependence if subject.views is not None else ():
            found.setdefault(each.column, []).append((subject, each))
    figures = []
    for column, dependences in list(found.items())[:MOST_COLUMNS]:
        names = [str(value) for value in dependences[0][1].x] if isinstance(dependences[0][1].x[0], str) else []
        series = [one for subject, each in dependences for one in _bands(subject, each, alone=len(subjects) == 1)]
        what = "probability" if subjects[0].is_classifier else subjects[0].target
        limits = (-0.5, len(names) - 0.5) if dependences[0][1].levels else None
        shown = len(subjects) == 1 and subjects[0].is_classifier
        figures.append(charts.chart(column, series, column, what, names=names, legend=shown, xlim=limits))
    words = (
        "Partial dependence: the mean prediction as one column changes and all others stay as they are, for the "
        "columns that matter most. The band is two standard deviations of the members."
    )
    return [page.paragraphs([words]), page.grid(figures)] if figures else []


def _bands(subject: Subject, each: reading.Dependence, alone: bool) -> list[Series]:
    """The first target; of classes the second of two, which says it all, or every one."""
    chosen = [0] if not subject.is_classifier else [1] if len(each.mean) == 2 else range(len(each.mean))
    x = range(len(each.x)) if isinstance(each.x[0], str) else each.x
    found = []
    for c in chosen:
        mean, std = np.array(each.mean[c]), np.array(each.std[c])
        how: dict[str, Any] = {"low": (mean - 2 * std).tolist(), "high": (mean + 2 * std).tolist()}
        line = _line(subject, list(x), mean.tolist(), points=each.levels, **how)
        if subject.is_classifier and alone:
            line = line._replace(name=subject.named(c), look=Look(c % len(style.COLOURS), "-"))
        found.append(line)
    return found


# -- predictions and calibration ----------------------------------------------------------------------------


def _predicted(subjects: Sequence[Subject], with_rows: bool) -> Markup:
    figures = []
    for subject in subjects:
        if subject.rows is not None and subject.rows.predicted is not None:
            figures.append(_scatter(subject, subject.rows.predicted))
        elif subject.views is not None and subject.views.binned:
            each = subject.views.binned[0]
            series = [_line(subject, each.predicted, each.true, error=each.error, points=True)]
            title, note = f"{subject.key.name}: tenths of the test rows", "Whiskers: a standard error of the mean."
            axes = "mean prediction", "mean true value"
            figures.append(charts.chart(title, series, *axes, diagonal="predicted = true", note=note))
    lines = [] if with_rows else [Missing("Single rows are left out (--no-rows).")]
    if not figures:
        lines.append(_needs(subjects, "Predicted against true"))
    return page.join(page.grid(figures), page.missing(lines))


def _scatter(subject: Subject, given: reading.Predicted) -> Markup:
    points = list(zip(given.true, given.mean, given.low, given.high, strict=True))
    inside = [point for point in points if point[2] <= point[0] <= point[3]]
    series = []
    for word, look, some in (
        ("inside", subject.key.look, inside),
        ("outside", MISSED, [point for point in points if not point[2] <= point[0] <= point[3]]),
    ):
        true, mean, low, high = (list(column) for column in zip(*some, strict=True)) if some else ([], [], [], [])
        series.append(Series(f"{word} ({len(some)})", true, mean, look, "", low, high, points=True))
    words = f"{len(inside)} of {len(points)} true values are inside their {given.coverage:.0%} interval"
    return charts.chart(
        f"{subject.key.name}: {words}", series, "true", "predicted", diagonal="predicted = true", legend=True
    )


def _reliability(subjects: Sequence[Subject]) -> Markup:
    right, sure, covered = [], [], []
    for subject in subjects:
        bins = subject.curves.reliability if subject.curves is not None else None
        if bins is not None:
            some = [i for i, count in enumerate(bins.points) if count and bins.confidence[i] is not None]
            right.append(_line(subject, [bins.confidence[i] for i in some], [bins.accuracy[i] for i in some]))
            width, total = 1 / len(bins.points), sum(bins.points) or 1
            middles = [(i + 0.5) * width for i in range(len(bins.points))]
            bars = width if len(subjects) == 1 else None
            sure.append(_line(subject, middles, [count / total for count in bins.points], bars=bars))
        if subject.curves is not None and subject.curves.coverage is not None:
            covered.append(_line(subject, subject.curves.coverage.wanted, subject.curves.coverage.found))
    figures = []
    whole: dict[str, Any] = {"xlim": (0, 1), "ylim": (0, 1.02), "legend": False}
    if right:
        diagonal = "as often right as sure; below it is too sure"
        figures.append(charts.chart("Reliability", right, "confidence", "accuracy", diagonal=diagonal, **whole))
        shares = "share of the test points"
        figures.append(charts.chart("How sure it is", sure, "confidence", shares, xlim=(0, 1), legend=False))
    if covered:
        diagonal, what = "calibrated; below it is too sure", "share of targets inside"
        figures.append(charts.chart("Intervals", covered, "central interval", what, diagonal=diagonal, **whole))
    return page.grid(figures) if figures else page.missing([_needs(subjects, "The reliability diagram")])


def _ranking(subjects: Sequence[Subject]) -> Markup:
    sets: dict[str, list[tuple[Subject, reading.Ranked]]] = {}
    for subject in subjects:
        for name, curve in subject.curves.calibration.items() if subject.curves is not None else ():
            sets.setdefault(name, []).append((subject, curve))
    figures = []
    for name, curves in sets.items():
        series = []
        for subject, curve in curves:
            series.append(_line(subject, curve.points, curve.accuracy))
            dotted = Look(subject.key.look.number, ":")
            series.append(_line(subject, curve.points, curve.perfect, look=dotted)._replace(name="perfect ranking"))
            if len(subjects) == 1:
                other = _line(subject, curve.points, curve.accuracy_md, look=GREY)
                series.append(other._replace(name="by disagreement"))
        title = "Test points" if name == "test" else f"Test points and {name}"
        note = "Dotted: a perfect ranking, every right answer first."
        axes = "points answered, the most certain first", "accuracy"
        figures.append(charts.chart(title, series, *axes, turned=True, note=note, legend=len(subjects) == 1))
    return page.grid(figures) if figures else page.missing([_needs(subjects, "Accuracy by certainty")])


def _outside(subjects: Sequence[Subject]) -> Markup:
    histograms: list[Markup] = []
    sets: dict[str, list[Series]] = {}
    for subject in (subject for subject in subjects if subject.views is not None):
        assert subject.views is not None  # noqa: S101
        for score, histogram in subject.views.histograms.items():
            middles, width = [(a + b) / 2 for a, b in pairwise(histogram.edges)], histogram.edges[1]
            series = [
                Series(name, middles, shares, SETS[i % len(SETS)], bars=width)
                for i, (name, shares) in enumerate(histogram.shares.items())
            ]
            title = score if len(subjects) == 1 else f"{subject.key.name}: {score}"
            histograms.append(charts.chart(title, series, SCORES.get(score, score), "share of the points", legend=True))
        for name, scores in subject.views.roc.items():
            for i, (score, roc) in enumerate(scores.items()):
                line = _line(subject, roc.false, roc.found)
                if len(subjects) == 1:
                    line = line._replace(name=score, look=SETS[i % len(SETS)])
                if i == 0 or len(subjects) == 1:
                    sets.setdefault(name, []).append(line)
    axes = "share of test points called unusual", "share of the others found"
    limits: dict[str, Any] = {"xlim": (0, 1), "ylim": (0, 1.02), "diagonal": "a guess"}
    rocs = [charts.chart(f"Test against {name}", series, *axes, **limits) for name, series in sets.items()]
    lines = []
    if not histograms:
        lines.append(_needs(subjects, "The uncertainty on test points"))
    elif not rocs:
        words = "There are no out-of-distribution points to compare with:"
        lines.append(Missing(words, f"stein evaluate {_run(subjects[0])} --ood FILE"))
    body = page.grid(histograms)
    folded = page.details("Histograms of every run", body) if len(subjects) > OPEN and histograms else body
    return page.join(page.grid(rocs), folded, page.missing(lines))


def _corruption(subjects: Sequence[Subject]) -> Markup:
    figures = []
    for name, title in charts.BLURRED.items():
        series = []
        for group in standings.groups(subjects):
            runs = [run.curves.corruption for run in group.runs if run.curves is not None and run.curves.corruption]
            if runs:
                values = [[row.get(name) for row in rows] for rows in runs]
                series.append(charts.over_seeds(group.key, [row.get("sigma") or 0.0 for row in runs[0]], values))
        if series:
            figures.append(charts.chart(title, series, "standard deviation of the blur (pixels)", title, legend=False))
    needed = _needs(subjects, "Accuracy on blurred images", "stein evaluate --corruption")
    return page.grid(figures) if figures else page.missing([needed])


# -- single rows --------------------------------------------------------------------------------------------


def _rows(subjects: Sequence[Subject], with_rows: bool) -> Markup:
    if not with_rows:
        return page.missing([Missing("Single rows are left out (--no-rows).")])
    parts: list[Markup] = []
    for subject in subjects:
        if subject.rows is not None and subject.rows.least:
            body = page.join(
                page.rows("Least sure", [_entry(row) for row in subject.rows.least]),
                page.rows("Most sure", [_entry(row) for row in subject.rows.most]),
            )
            parts.append(body if len(subjects) == 1 else page.details(subject.key.name, body, not parts))
    return page.join(*parts) if parts else page.missing([_needs(subjects, "What it is most and least sure of")])


def _entry(row: reading.Row) -> dict[str, Any]:
    shown = {name: getattr(row, name) for name in ("name", "said", "true", "votes", "image", "values", "near")}
    words = f"the members' answers for {row.name} as ticks, the true value as a dot"
    return shown | {"drawing": charts.strip(row.members, row.truth, words) if row.members else ""}


# -- members ------------------------------------------------------------------------------------------------


def _members(subjects: Sequence[Subject]) -> Markup:
    dots: list[Series] = []
    matrices: list[Markup] = []
    for subject in subjects:
        if not subject.snapshots or len(subject.snapshots[-1].members) < 2:
            continue
        last = subject.snapshots[-1]
        pairs = [f"members {a + 1} and {b + 1}" for a, b in combinations(last.members, 2)]
        dots.append(_line(subject, last.weights, last.functions, points=True, labels=pairs))
        numbers = [snapshot.members for snapshot in subject.snapshots]
        panels = [
            charts.matrix(f"in {space}", [_gram(each, space) for each in subject.snapshots], "similarity", numbers)
            for space in ("functions", "weights")
        ]
        body = page.frames("Step", _steps(subject), panels, small=True)
        matrices.append(page.details(f"{subject.key.name}: how alike the members are", body, len(matrices) < OPEN))
    if not dots:
        return page.missing([_needs(subjects, "The distances between members")])
    words = (
        "Every dot is a pair of members. Far to the right and low: other weights, the same function. The matrices show "
        "similarity, exp(-squared distance / h) with 1/2 for the median pair, at the start, at every checkpoint that "
        "was kept and at the end: bright pairs are alike."
    )
    axes = "distance in weights", "distance in functions"
    chart = charts.chart("Distances between members", dots, *axes, legend=len(dots) > 1)
    lines = []
    if max(len(subject.snapshots) for subject in subjects) < FEW_SNAPSHOTS:
        lines = [Missing("For more snapshots:", "stein train CONFIG --set checkpoints.every=200 checkpoints.keep=20")]
    return page.join(page.paragraphs([words]), page.grid([chart]), *matrices, page.missing(lines))


def _gram(snapshot: Snapshot, space: str) -> np.ndarray:
    """exp(-d²/h) between members, with h such that the median pair has 1/2."""
    n, upper = len(snapshot.members), np.square(np.array(getattr(snapshot, space), float))
    middle = float(np.nanmedian(upper)) if np.isfinite(upper).any() else 0.0
    if len(upper) != n * (n - 1) // 2 or not middle > 0:
        return np.ones((n, n))
    return np.exp(-squareform(upper) * (np.log(2) / middle))


# -- how it was made ----------------------------------------------------------------------------------------


def _made(subjects: Sequence[Subject], with_paths: bool) -> Markup:
    parts = []
    for subject in subjects:
        config, place = configs.dump(subject.config), str(subject.folder)
        if not with_paths:
            section = subject.config.data
            for path in (section.file, section.inputs, section.targets, section.test_file, section.folder):
                config = config.replace(path, Path(path).name) if path else config
            place = subject.folder.path.name
        facts = {"directory": place, "state": subject.state, **subject.environment}
        again = f"stein train config.toml --out {shlex.quote(f'{subject.folder.path.name}-again')}"
        words = (
            "This config, saved as config.toml, makes the run again; with equal versions and threads, to the last bit:"
        )
        body = page.join(
            page.paragraphs([words]),
            page.commands([again]),
            page.commands(map(printable, config.splitlines())),
            page.paragraphs(["Where it was made:"]),
            page.commands(printable(f"{name}: {value}") for name, value in facts.items()),
        )
        title = f"{subject.key.name}: {page.shortened(subject.folder.path.name)}"
        parts.append(page.details(title, body, len(subjects) == 1))
    return page.join(*parts)
