"""What a search writes down, from trials whose numbers are made by hand."""

import json
from pathlib import Path

import pytest

from stein.report import plots
from stein.runs import configs, search, trials
from stein.storage import documents

NAMES = {"digits": "digits", "toy": "classification-2d"}


def searched(folder: Path, metric: str, numbers: list[float | None], data: str = "digits") -> search.Plan:
    """A search that is over: a trial for each number of a metric, none where it failed."""
    rates = [10.0**-i for i in range(1, len(numbers) + 1)]
    spec = folder / "spec.toml"
    spec.write_text(
        f'[base.data]\nname = "{NAMES[data]}"\n[search]\nmetric = "{metric}"\n'
        f"[search.keys]\noptimiser.learning_rate = {rates}\n"
    )
    plan = search.load(spec)
    for trial, number in zip(plan.trials, numbers, strict=True):
        place = trial.place(folder)
        place.mkdir(parents=True)
        documents.write_json(place / "seconds.json", {"seconds": 1.23})
        if number is None:
            documents.write_json(place / "failed.json", {"reason": "step 3: particles 0, 1 are not finite"})
        else:
            documents.write_json(
                place / "metrics.json", {"steps": 5, "alive": 2, plan.metric: number, "test_other": 0.5}
            )
    return plan


@pytest.mark.parametrize(
    ("metric", "order"), [("test_nll", ["002", "000", "003"]), ("test_accuracy", ["003", "000", "002"])]
)
def test_the_best_trial_is_the_best(metric, order, tmp_path):
    """The failed one is last, with its reason. Catches a sign that is wrong for one of the metrics, a best.toml of
    another trial or one that still holds training images back, and a failed trial that counts as 0."""
    plan = searched(tmp_path, metric, [0.5, None, 0.25, 0.75])
    best = trials.write(tmp_path, plan, "stein sweep spec.toml")
    assert best["trial"] == order[0]
    lines = (tmp_path / "sweep.md").read_text().splitlines()
    assert [line.split(" | ")[0] for line in lines[5:]] == [f"| {name}" for name in [*order, "001"]]
    assert lines[3] == f"| trial | optimiser.learning_rate | {metric} | test_other | seconds |"
    assert lines[-1] == "| 001 | 0.01 | failed | failed | 1 |"
    assert "4 trials, 1 failed" in lines[0]
    chosen = configs.load(tmp_path / "best.toml")
    assert chosen.optimiser.learning_rate == best["settings"]["optimiser.learning_rate"]
    assert not chosen.data.validate
    written = json.loads((tmp_path / "sweep.json").read_text())
    assert [row["status"] for row in written] == ["finished", "failed", "finished", "finished"]
    assert written[0]["metrics"] == {metric: 0.5, "test_other": 0.5}
    assert written[0]["settings"] == {"optimiser.learning_rate": 0.1}
    assert (written[0]["seconds"], written[1]["reason"]) == (1.2, "step 3: particles 0, 1 are not finite")


def test_equals_go_by_their_number(tmp_path):
    assert trials.write(tmp_path, searched(tmp_path, "test_nll", [0.5, 0.25, 0.25]), "")["trial"] == "001"


@pytest.mark.parametrize(
    ("data", "words"), [("digits", "no trial has read the test images"), ("toy", "the test points had no part in it")]
)
def test_the_table_says_what_its_numbers_are_of(data, words, tmp_path):
    """Catches held-out points that the choice has used sold as a test."""
    trials.write(tmp_path, searched(tmp_path, "test_nll", [0.5, 0.25], data), "")
    assert words in (tmp_path / "sweep.md").read_text().splitlines()[1]


@pytest.mark.parametrize("numbers", [[None, None], []])
def test_a_search_without_a_number_fails_and_still_lists_its_trials(numbers, tmp_path):
    """All failed, or a metric that this likelihood does not have. Catches a best.toml from nowhere."""
    plan = searched(tmp_path, "test_rmse", numbers or [0.5, 0.25])
    if not numbers:
        for trial in plan.trials:
            documents.write_json(trial.place(tmp_path) / "metrics.json", {"test_accuracy": 1.0})
    with pytest.raises(RuntimeError, match="no trial has a finite test_rmse"):
        trials.write(tmp_path, plan, "")
    assert len(json.loads((tmp_path / "sweep.json").read_text())) == 2
    assert not (tmp_path / "best.toml").exists()


def test_the_figure_has_a_panel_a_key_and_shows_every_trial():
    """Log axes where values span decades. Catches a failed trial drawn as a number, and names out of their places."""
    keys = ("optimiser.learning_rate", "method.particles", "annealing.name", "method.bandwidth")
    rows = [(1e-4, 5, "none", 0.5), (1e-2, 10, "linear", "median"), (1e-3, 5, "none", "median")]
    settings = [dict(zip(keys, row, strict=True)) for row in rows]
    figure = plots.search(settings, [0.5, None, 0.25], "test_nll", best=2)
    panels = [axis for axis in figure.axes if axis.get_visible()]
    assert [axis.get_xlabel() for axis in panels] == list(keys)
    assert [axis.get_xscale() for axis in panels] == ["log", "linear", "linear", "linear"]
    drawn = [{line.get_label(): line.get_xydata().tolist() for line in axis.get_lines()} for axis in panels]
    assert drawn[0]["trial"] == [[1e-4, 0.5], [1e-3, 0.25]]
    assert drawn[0]["best"] == [[1e-3, 0.25]]
    assert drawn[0]["failed"][0][0] == 1e-2
    assert drawn[0]["best of a value"] == drawn[0]["trial"]
    assert drawn[1]["best of a value"] == [[5, 0.25]]
    assert [x for x, _ in drawn[2]["trial"]] == [0, 0]
    assert "best of a value" not in drawn[2]
    assert [label.get_text() for label in panels[3].get_xticklabels()] == ["0.5", "median"]
    assert panels[0].get_yscale() == "linear"
    assert plots.search(settings, [0.5, None, 0.01], "test_nll", best=2).axes[0].get_yscale() == "log"


def test_the_line_follows_the_highest_where_that_is_the_best():
    """Catches the worst trial of each value joined for accuracies."""
    settings = [{"train.steps": steps} for steps in (10, 10, 20, 20)]
    axis = plots.search(settings, [0.5, 0.75, 0.8, 0.9], "test_accuracy", best=3).axes[0]
    (line,) = (line for line in axis.get_lines() if line.get_label() == "best of a value")
    assert line.get_ydata() == pytest.approx([0.75, 0.9])
