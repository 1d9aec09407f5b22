"""The README's example runs as it stands, and shows what it says."""

import csv
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "README.md"
PROGRAM = [sys.executable, "-W", "error", "-m", "stein.cli"]
DOCS = README.parent / "docs"
RESEARCH = """
spread = prediction.epistemic[:, 0]
assert spread[0] > 5 * max(spread[2], spread[5]), spread  # 0 is far from the data, 2 and 5 are in its midst
"""
# 111 new rows: the share inside has a standard error of 0.03; four of these.
ESTIMATOR = """
inside = ((low < y_new) & (y_new < high)).mean()
assert 0.78 < inside < 1, inside
assert model.score(X_new, y_new) > 0.2 and unusual.mean() < 0.5
"""


def only_example(page: Path) -> str:
    (example,) = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    assert len([line for line in example.splitlines() if line.strip()]) <= 15
    return example


@pytest.mark.parametrize(
    ("page", "claim"),
    [
        pytest.param(README, ESTIMATOR, id="estimator"),
        pytest.param(DOCS / "research.md", RESEARCH, id="research", marks=pytest.mark.long),
    ],
)
def test_the_example_is_short_and_its_comment_is_true(page, claim):
    command = [sys.executable, "-W", "error", "-c", only_example(page) + claim]
    subprocess.run(command, check=True, env=os.environ | {"XLA_FLAGS": ""})  # compiled well: it trains for long


@pytest.mark.long
def test_two_commands_from_a_table_to_predictions(tmp_path):
    """As they stand, in a directory with nothing but the examples. The castle and the house in Lima are noticed."""
    shutil.copytree(README.parent / "examples", tmp_path / "examples")
    commands = re.findall(r"^(stein (?:fit|predict) .*?)  ", README.read_text(), re.MULTILINE)
    for command in commands:
        run = subprocess.run([*PROGRAM, *command.split()[1:]], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert len(commands) == 2
    assert "12 predictions of 'price'" in run.stdout
    rows = list(csv.DictReader((tmp_path / "predictions.csv").read_text().splitlines()))
    assert "area" in rows[10]["notes"]
    assert "Lima" in rows[11]["notes"]
    assert rows[10]["unusual"] == "true"
    assert sum(row["unusual"] == "true" for row in rows) < 5


def test_the_readme_is_one_screen_and_names_its_commands():
    text = README.read_text()
    assert len(text.splitlines()) < 85
    assert "make demo" in text
    assert "make test" in text
