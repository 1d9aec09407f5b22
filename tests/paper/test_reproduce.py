"""`stein demo` and `stein reproduce` as a user runs them, at a size that takes seconds."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

import runs
from runs import stein
from stein.paper import demo, reference, toys


def test_demo_writes_a_report_that_needs_nothing_else(tmp_path: Path, cache: Path) -> None:
    run = runs.run(["demo", "--steps", "4", "--out", tmp_path / "new"], cache, **runs.QUICK)
    assert run.returncode == 0, run.stderr
    made = tmp_path / "new"
    assert {path.name for path in made.iterdir()} == {
        *("numbers.json", "regression.png", "regression.svg", "report.html", "training.gif")
    }
    page = (made / "report.html").read_text()
    assert re.findall(r'(?:src|href)="(?!data:|#)', page) == []
    numbers = json.loads((made / "numbers.json").read_text())
    assert list(numbers) == ["DE", "w-SVGD", "h-SVGD", "fw-SVGD", "30 draws of the posterior"]
    for label, row in numbers.items():
        assert f"<bdi>{label}</bdi></th>" in page
        assert f"{row['E_std']:.2f}" in run.stdout
    for label in ("DE", "w-SVGD", "fw-SVGD", "h-SVGD"):  # progress of each, though stderr is no terminal
        assert f"{label} 100%" in run.stderr
    floor = numbers.pop("30 draws of the posterior")
    for sentence in demo.sentences(numbers, floor):
        assert f"- {sentence}" in run.stdout
    assert run.stdout.rstrip().endswith("stein predict runs/houses new_houses.csv")
    assert (made / "training.gif").read_bytes()[:6] == b"GIF89a"


@pytest.mark.long
def test_reproduce_keeps_what_is_finished(tmp_path: Path) -> None:
    """Catches a cell that is run twice, a seed that does nothing, and a table without its floor."""
    out = str(tmp_path / "fig1")
    command = ("reproduce", "fig1", "--preset", "smoke", "--methods", "DE", "--out", out)
    run = stein(*command)
    assert run.returncode == 0, run.stderr
    assert "2 ensembles" in run.stderr
    cells = sorted((tmp_path / "fig1" / "cells").rglob("*.npz"))
    assert [f"{path.parent.name}/{path.name}" for path in cells] == ["classification/de-42.npz", "regression/de-42.npz"]
    before = [path.stat().st_mtime_ns for path in cells]

    again = stein(*command, "--seeds", "42", "43")
    assert "2 ensembles" in again.stderr
    assert [path.stat().st_mtime_ns for path in cells] == before
    table = json.loads((tmp_path / "fig1" / "table.json").read_text())
    regression = table["tasks"]["regression"]["rows"]
    assert list(regression) == ["DE", "HMC, 50 draws"]
    first, second = (regression["DE"]["seeds"][seed]["W1"] for seed in ("42", "43"))
    assert first != second
    mean, error = regression["DE"]["mean ± error"]["W1"]
    assert (mean, error) == pytest.approx((np.mean([first, second]), abs(first - second) / 2))
    assert f"| {mean:.2f} ± {error:.2f} |" in (tmp_path / "fig1" / "table.md").read_text()
    assert (tmp_path / "fig1" / "figure.png").stat().st_size > 10_000


@pytest.mark.long
def test_hmc_says_how_far_it_can_be_trusted(tmp_path: Path) -> None:
    run = stein("reproduce", "hmc", "--preset", "smoke", "--tasks", "regression", "--out", str(tmp_path))
    assert run.returncode == 0, run.stderr
    assert "R-hat at most" in run.stdout
    about = json.loads((tmp_path / "regression.json").read_text())
    assert len(about["diagnostics"]["rhat"]) == 141
    assert (tmp_path / "regression.npz").stat().st_size < 1e6


@pytest.mark.long
def test_the_chains_go_on_where_they_were(tmp_path: Path) -> None:
    """Two draws and then two more are the four of a whole run. Catches a key, a tuning or a position that is lost."""
    task, length = toys.regression(), reference.Length(2, 100, 20, 4, 2, 3)
    for place, draws in (("parts", 2), ("parts", 4), ("whole", 4)):
        (tmp_path / place).mkdir(exist_ok=True)
        reference.sample(task, tmp_path / place, length._replace(draws=draws), say=lambda words: None, show=False)
    parts, whole = (reference.load(task, tmp_path / place, length) for place in ("parts", "whole"))
    np.testing.assert_array_equal(parts.said, whole.said)
    assert parts.said.shape == (2, 4, 141, 1)
    assert np.abs(np.diff(parts.said, axis=1)).max() > 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("reproduce", "fig1", "--methods", "dee"), "error: --methods = 'dee'"),
        (("reproduce", "fig1", "--workers", "0"), "error: --workers = 0: must be at least 1"),
        (("reproduce", "fig2"), "fig-stochastic"),
        (("reproduce", "hmc", "--shard", "1/2"), "error: --shard, --slurm and --ray: are for figures and tables"),
    ],
)
def test_bad_input_is_one_line(arguments: tuple[str, ...], words: str) -> None:
    run = stein(*arguments)
    assert run.returncode == 2
    assert words in run.stderr
    assert len(run.stderr.splitlines()) == 1
