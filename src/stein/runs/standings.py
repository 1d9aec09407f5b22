"""Runs beside each other, for reports: their numbers with standard errors, which is best, and all that in words."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from stein.report.numbers import Standing, best, over_seeds, written
from stein.report.page import Cell, Head, Key, Line
from stein.runs.reading import Subject


class Column(NamedTuple):
    """A number of a table: its head, what it means, how it is written, and which way is better."""

    head: str
    meaning: str
    better: Literal["high", "low", ""] = ""


COLUMNS = {
    "accuracy": Column("accuracy", "share of test points whose most probable class is right", "high"),
    "rmse": Column("RMSE", "root mean square error on test points, in the units of the target", "low"),
    "nll": Column("NLL", "negative log-likelihood: scores the prediction with its uncertainty", "low"),
    "crps": Column("CRPS", "continuous ranked probability score, in the units of the target", "low"),
    "brier": Column("Brier", "squared error of the predicted probabilities", "low"),
    "ece": Column("ECE", "expected calibration error: how far confidence is from accuracy", "low"),
    "coverage_90": Column("90 % intervals hold", "share of test targets inside the 90 % intervals; 0.9 is right"),
    "auroc_h": Column("AUROC, entropy", "how well entropy tells other points from test points; 0.5 is a guess", "high"),
    "auroc_md": Column("AUROC, disagreement", "the same for the disagreement of the members", "high"),
    "auroc_spread": Column(
        "AUROC, spread", "how well the spread of the members tells other rows from test rows", "high"
    ),
    "member_disagreement": Column(
        "members differ", "share of test points on which two members choose different classes"
    ),
    "spread": Column("spread", "mean standard deviation of the members' means, in the units of the target"),
}


class Group(NamedTuple):
    """The runs that differ in their seeds only."""

    key: Key
    runs: list[Subject]
    standings: dict[str, Standing]


def groups(subjects: Sequence[Subject]) -> list[Group]:
    together: dict[Key, list[Subject]] = {}
    for subject in subjects:
        together.setdefault(subject.key, []).append(subject)
    return [Group(key, runs, _standings(runs)) for key, runs in together.items()]


def _standings(runs: Sequence[Subject]) -> dict[str, Standing]:
    found = {}
    for name in COLUMNS:
        values = [run.scores[name] for run in runs if name in run.scores]
        if not values:
            continue
        found[name] = over_seeds(values)
        views = next(run.views for run in runs if name in run.scores)
        if len(values) == 1 and views is not None:
            found[name] = Standing(values[0], views.errors.get(name))
    return found


def table(found: Sequence[Group], comparable: bool) -> tuple[list[Head], list[Line]]:
    """Header and lines; the best of a column is marked if it is one beyond its error."""
    names = [name for name in COLUMNS if any(name in group.standings for group in found)]
    winners = {
        name: best({g.key.key: g.standings[name] for g in found if name in g.standings}, COLUMNS[name].better)
        for name in names
        if comparable
    }
    seeds = any(len(group.runs) > 1 for group in found)
    header = [Head("method"), *(Head(COLUMNS[name].head, COLUMNS[name].meaning) for name in names)]
    header += [Head("members"), Head("steps"), *([Head("seeds")] if seeds else [])]
    lines = []
    for group in found:
        cells = [Cell(group.key.name)]
        for name in names:
            standing = group.standings.get(name)
            if standing is None:
                cells.append(Cell("–"))
            else:
                is_best = winners.get(name) == group.key.key
                cells.append(Cell(written(standing.mean, standing.error), standing.mean, is_best))
        alive, steps = [run.alive for run in group.runs if run.alive is not None], [run.steps for run in group.runs]
        planned = group.runs[0].config.method.particles
        few = min(alive, default=planned)
        cells.append(Cell(f"{few} of {planned}" if few < planned else str(planned), few))
        cells.append(Cell(f"{max(steps):,}", max(steps)))
        cells += [Cell(str(len(group.runs)), len(group.runs))] if seeds else []
        lines.append(Line(cells, group.key.key, group.key.look))
    return header, lines


# -- in words -----------------------------------------------------------------------------------------------


def sentences(subjects: Sequence[Subject], comparable: bool) -> list[str]:
    """What the numbers say, in a few sentences; what is not finished comes first."""
    said = [_state(subject) for subject in subjects if subject.state != "finished"][:5]
    if len(subjects) == 1:
        return [*said, *_one(subjects[0])]
    found = groups(subjects)
    if not comparable:
        return [
            *said,
            "These runs were trained on different data: their numbers are beside each other, but not comparable.",
        ]
    for name in ("nll", "accuracy", "rmse", "auroc_h", "auroc_spread"):
        standings = {g.key.key: g.standings[name] for g in found if name in g.standings}
        if len(standings) > 1:
            said.append(_first(name, standings, {g.key.key: g.key.name for g in found}))
    return [*said, *_dead(subjects)]


def _state(subject: Subject) -> str:
    name, done = subject.folder.path.name, f"step {subject.steps:,} of {subject.config.train.steps:,}"
    if subject.state == "failed":
        return f"{name} failed at {done}: {subject.reason}"
    return f"{name} is {subject.state}: {done}; its numbers are those so far."


def _first(name: str, standings: Mapping[str, Standing], names: Mapping[str, str]) -> str:
    better, head = COLUMNS[name].better, COLUMNS[name].head
    first, second = sorted(standings, key=lambda key: standings[key].mean, reverse=better == "high")[:2]
    one, other = standings[first], standings[second]
    if one.mean == other.mean:
        return f"{names[first]} and {names[second]} have the same {head}, {written(one.mean, one.error)}."
    numbers = f"{written(one.mean, one.error)}; the next, {names[second]}, has {written(other.mean, other.error)}"
    start = f"{names[first]} has the {'highest' if better == 'high' else 'lowest'} {head}: {numbers}"
    if one.error is None or other.error is None:
        return f"{start}. One seed without an error: this may be chance."
    error = math.hypot(one.error, other.error)
    how = "more than" if abs(one.mean - other.mean) > error else "not more than"
    return (
        f"{start}. The difference is {how} its standard error ({abs(one.mean - other.mean):.2g} against {error:.2g})."
    )


def _one(subject: Subject) -> list[str]:
    scores = subject.scores
    if not scores:
        return ["There are no numbers on held-out points yet."]
    return [
        *_how_good(subject, scores),
        *_how_calibrated(subject, scores),
        *_beside(subject),
        *_elsewhere(subject, scores),
        *_dead([subject]),
    ]


def _how_good(subject: Subject, scores: Mapping[str, float]) -> list[str]:
    who = f"{subject.method}, {subject.config.method.particles} networks, {subject.steps:,} steps"
    points = f" on {int(scores['test_points']):,} held-out points" if "test_points" in scores else " on held-out points"
    errors = {} if subject.views is None else subject.views.errors
    if "accuracy" in scores:
        base = scores.get("baseline_accuracy")
        beside = "" if base is None else f"; always saying the most frequent class is right in {base:.1%}"
        return [f"The ensemble ({who}) is right in {scores['accuracy']:.1%} of the cases{points}{beside}."]
    if "rmse" not in scores:
        return []
    base, rmse = scores.get("baseline_rmse"), scores["rmse"]
    beside = ""
    if base:
        change = 1 - rmse / base
        word = "lower" if change >= 0 else "higher"
        beside = f": {abs(change):.0%} {word} than the {written(base)} of always predicting the mean"
    return [f"The typical error (RMSE) of the ensemble ({who}){points} is {written(rmse, errors.get('rmse'))}{beside}."]


def _how_calibrated(subject: Subject, scores: Mapping[str, float]) -> list[str]:
    if "coverage_90" in scores:
        found, points = scores["coverage_90"], scores.get("test_points", 0)
        if not points:
            return []
        error = (0.9 * 0.1 / points) ** 0.5  # of a share
        off = (found - 0.9) / error
        verdict = "as it should be" if abs(off) <= 2 else "they are too narrow" if off < 0 else "they are too wide"
        return [f"Its 90 % intervals contain the truth in {found:.0%} of the cases (± {error:.0%}): {verdict}."]
    bins = subject.curves.reliability if subject.curves is not None else None
    if "ece" not in scores or bins is None or not sum(bins.points):
        return []
    sure = sum(n * c for n, c in zip(bins.points, bins.confidence, strict=True) if c is not None) / sum(bins.points)
    gap, points = sure - scores["accuracy"], sum(bins.points)
    error = (scores["accuracy"] * (1 - scores["accuracy"]) / points) ** 0.5
    verdict = "about as sure as it is right" if abs(gap) <= 2 * error else "too sure" if gap > 0 else "not sure enough"
    return [
        f"Its mean confidence is {sure:.1%}, {abs(gap):.1%} {'above' if gap > 0 else 'below'} its accuracy "
        f"(± {error:.1%}): {verdict}. The expected calibration error is {scores['ece']:.3f}."
    ]


def _elsewhere(subject: Subject, scores: Mapping[str, float]) -> list[str]:
    by = "auroc_h" if "auroc_h" in scores else "auroc_spread"
    if by in scores:
        words = "entropy" if by == "auroc_h" else "the spread of the members"
        sets = list(subject.views.roc) if subject.views is not None else []
        other = f"points of {sets[0]}" if sets else "points of another kind"
        return [
            f"It notices {other}: of one such point and one test point, {words} is higher at the other kind in "
            f"{scores[by]:.0%} of the cases (50 % would be a guess)."
        ]
    rank = next((row["effective_rank"] for row in reversed(subject.log) if "effective_rank" in row), None)
    members = subject.config.method.particles
    if rank is None:
        return []
    return [f"Its {members} members are as different as {rank:.1f} independent functions (effective rank)."]


def _beside(subject: Subject) -> list[str]:
    """Other models on the same rows."""
    found = subject.comparison
    others = [score for score in found.scores[1:] if score.error is not None] if found is not None else []
    if found is None or not others:
        return []
    numbers = [f"{score.name.partition(',')[0]} {written(score.error or 0.0)}" for score in others]
    return [f"On the same rows, other models have ({found.measure}): {'; '.join(numbers)}."]


def _dead(subjects: Sequence[Subject]) -> list[str]:
    found = []
    for subject in subjects:
        members, name = subject.config.method.particles, subject.folder.path.name
        if subject.alive is not None and subject.alive < members:
            lost = members - subject.alive
            found.append(f"{lost} of the {members} members of {name} died in training and do not count.")
    return found


def are_comparable(subjects: Sequence[Subject]) -> bool:
    """Whether the runs have learned from the same data, as far as their records tell."""

    def identity(subject: Subject) -> Any:
        section, kind = subject.config.data, subject.data.get("kind")
        table = subject.data.get("file")
        digest = table.get("digest") if isinstance(table, dict) else subject.data.get("stream")
        return str(digest or section.name or section.file or section.inputs), str(kind)

    return len({identity(subject) for subject in subjects}) == 1
