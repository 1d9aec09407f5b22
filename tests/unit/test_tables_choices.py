"""What is chosen is chosen by points that nobody reports."""

from pathlib import Path

import pytest

from stein.runs import configs, search, training, trials
from stein.runs.build import assemble
from stein.runs.folder import RunFolder
from stein.storage import documents

GRID = "[search.keys]\noptimiser.learning_rate = [0.1, 0.01]\n"


@pytest.mark.parametrize(
    ("text", "metric"),
    [
        ("checkpoints.best = true", "validation_nll"),
        ("data.validation_fraction = 0.2", "validation_nll"),
        ("", "test_nll"),
    ],
)
def test_early_stopping_and_the_best_checkpoint_go_by_validation(text, metric, tmp_path):
    """Catches them go by the test rows. Without choices there is no such part, and nothing goes by the other."""
    chosen = configs.parse(f'data.name = "regression-1d"\n{text}')
    run = training._Training(chosen, RunFolder(tmp_path), assemble(chosen), [], False, print, print)
    assert run._metric == metric


def test_a_search_chooses_by_validation_and_gives_the_rows_back(tmp_path: Path):
    """The trial with the worse test number wins by its validation number. Catches a choice by test rows, test numbers
    in the table of trials, and a best.toml that trains on fewer rows."""
    (tmp_path / "spec.toml").write_text('[base.data]\nname = "regression-1d"\n[search]\nmetric = "test_rmse"\n' + GRID)
    plan = search.load(tmp_path / "spec.toml")
    assert plan.metric == "validation_rmse"
    assert {trial.config.validation_fraction for trial in plan.trials} == {0.1}
    for trial, validation, test in zip(plan.trials, (2.0, 1.0), (1.0, 2.0), strict=True):
        place = trial.place(tmp_path)
        place.mkdir(parents=True)
        documents.write_json(place / "metrics.json", {"steps": 5, "validation_rmse": validation, "test_rmse": test})
    best = trials.write(tmp_path, plan, "stein sweep spec.toml")
    assert (best["trial"], best["metrics"]) == ("001", {"validation_rmse": 1.0})
    assert configs.load(tmp_path / "best.toml").data.validation_fraction == "auto"


def test_a_search_without_validation_points_is_refused(tmp_path: Path):
    (tmp_path / "spec.toml").write_text(
        '[base.data]\nname = "regression-1d"\nvalidation_fraction = 0\n[search]\n' + GRID
    )
    with pytest.raises(configs.ConfigError, match=r"data\.validation_fraction: is 0; must be above 0"):
        search.load(tmp_path / "spec.toml")
