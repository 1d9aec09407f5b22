"""The harness of `make bench`: rows, their merge into results.json, and the page. No peer, and no time asserted."""

import importlib
import json
import re
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def bench(monkeypatch):
    """The harness and the page writer, which are scripts and not a package."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    names = ("harness", "table")
    yield [importlib.import_module(name) for name in names]
    for name in names:
        del sys.modules[name]


def test_a_pair_is_measured_in_turns(bench):
    harness, _ = bench
    done = []

    def side(name, seconds):
        return lambda: done.append(name) or seconds

    found = harness.paired("P1 ours / theirs", "small", side("a", 1.0), side("b", 4.0), 0.3, 4, unit="seconds per step")
    assert done == ["a", "b"] + ["a", "b", "b", "a"] * 2  # the first of each is not counted
    assert (found["ratio"], found["quartiles"], found["pairs"], found["holds"]) == (0.25, [0.25, 0.25], 4, True)
    assert (found["ms_per_step"], found["peer_ms_per_step"]) == (1000, 4000)
    fields = {"row", "size", "seconds", "peer_seconds", "ratio", "quartiles", "pairs", "limit", "limit_kind", "holds"}
    assert fields <= set(found)


@pytest.mark.parametrize(("limit", "holds"), [(0.5, True), (0.49, False), (None, None)])
def test_a_limit_is_at_most(bench, limit, holds):
    assert bench[0].row("P1", "", 1.0, 2.0, limit)["holds"] is holds


def test_clocked_is_per_step(bench):
    one, ten = (bench[0].clocked(lambda: sum(range(10**5)), steps) for steps in (1, 10**9))
    assert 0 < ten() < one()


def test_merge_replaces_a_measurement_and_keeps_the_others(bench, tmp_path):
    harness, _ = bench
    path, known = tmp_path / "results.json", ["P1", "P2", "P10"]

    def rows(*names):
        return [harness.row(name, "", 1.0, 1.0, 1.0) for name in names]

    def names():
        return [row["row"] for row in harness.load(path)]

    assert harness.load(path) == []
    harness.save(path, harness.merge([], rows("P10 a", "P1 old name", "P3 no more"), [*known, "P3"]))
    harness.save(path, harness.merge(harness.load(path), rows("P2 b", "P1 new name"), known))
    assert names() == ["P1 new name", "P2 b", "P10 a"]  # P10 is not P1; what is measured no more is gone
    assert set(json.loads(path.read_text())) == {"command", "rows"}


def test_the_page_says_where_a_peer_is_faster(bench):
    harness, table = bench
    rows = [
        harness.row("P1 step", "M", 0.08, 0.06, 1.0, "seconds per step", peer="torch", compile_seconds=2.0, curve=[]),
        harness.row("P5 step", "M", 0.1, 1.5, 1 / 15, "seconds per step", peer="other", checked="same direction"),
        harness.row("P6 memory", "M", 9e8, 1e8, 8.0, "bytes", note="why"),
        harness.row("P10 growth", "M", 0.2, 0.1, None, curve=[{"n": 5, "ms": 1.25}]),
    ]
    machines = [{"CPU": "new"}, {"CPU": "old"}, {"CPU": "new"}, {"CPU": "old"}]
    page = table.page([row | {"machine": machine} for row, machine in zip(rows, machines, strict=True)])
    assert "- CPU new: P1, P6\n- CPU old: P5, P10\n" in page
    assert "| P1 step | 80 ms a step | 60 ms a step | 1.33 |  | 1 | **fails** |" in page
    assert "| P6 memory | 900 MB | 100 MB | 9 |  | 8 | **fails** |" in page
    assert re.findall(r"^- (.*) takes", page, re.MULTILINE) == ["P1 step: torch"]
    assert "| 5 | 1.25 |" in page
    assert "P5 step: M; against other; checked: same direction." in page


def test_the_committed_page_is_that_of_the_committed_numbers(bench):
    _, table = bench
    stored = json.loads((BENCHMARKS / "results.json").read_text())
    assert (BENCHMARKS / "results.md").read_text() == table.page(stored["rows"])
