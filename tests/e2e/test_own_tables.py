"""A user's own table from `stein train` to `stein evaluate`, in this process: what is said, refused and written.

Runs are in float64, as the tests are, so that a run does not change the precision of others.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import safetensors

import runs
from stein.runs import configs
from stein.runs.folder import RunFolder

GOLDEN = Path(__file__).parents[1] / "reliability" / "golden" / "run-0.1"
SMALL = """
[method]
name = "de"
particles = 3
[model]
hidden = [8]
[train]
steps = 300
log_every = 100
precision = "float64"
[optimiser]
learning_rate = 0.02
[evaluation]
every = 100
[checkpoints]
every = 100
best = true
[tracking]
diagnostics = false
tensorboard = false
"""


def houses(rows: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    x = random.uniform([0, 1900], [10, 2000], (rows, 2))
    return x, 3e5 + 2e4 * x[:, 0] + 500 * (x[:, 1] - 1950) + 1e4 * random.normal(size=rows)


def write(path: Path, x: np.ndarray, y: np.ndarray, header: str = "rooms,year,price") -> Path:
    rows = [f"{a},{b},{c}" for (a, b), c in zip(x.tolist(), y.tolist(), strict=True)]
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, runs.Said]:
    folder = tmp_path_factory.mktemp("houses")
    write(folder / "houses.csv", *houses(150))
    (folder / "houses.toml").write_text('[data]\nfile = "houses.csv"\ntarget = "price"\n' + SMALL)
    said = runs.here("train", folder / "houses.toml", "--out", folder / "run", "--quiet", "--no-cache")
    return folder, said


@pytest.fixture
def copy(trained: tuple[Path, runs.Said], tmp_path: Path) -> Path:
    """The run and its data, to be spoiled."""
    shutil.copytree(trained[0], tmp_path / "copy")
    config = tmp_path / "copy" / "run" / "config.toml"
    config.write_text(config.read_text().replace(str(trained[0]), str(tmp_path / "copy")))
    return tmp_path / "copy"


def read(path: Path) -> dict:
    return json.loads(path.read_text())


def test_a_table_with_all_defaults_is_learned(trained: tuple[Path, runs.Said]) -> None:
    """RMSE in the targets' units and well below their spread of 60,000. Catches targets that are not standardised, and
    numbers that are still so."""
    folder, said = trained
    assert said.code == 0, said.err
    assert said.out[0] == "regression on 'price': 121 + 14 + 15 rows (training, validation, test), 2 inputs"
    assert not said.err
    numbers = read(folder / "run" / "metrics.json")
    assert 5e3 < numbers["test_rmse"] < 0.5 * numbers["baseline_rmse"]
    assert 9 < numbers["test_nll"] < 13  # log(1e4) is 9.2, log(6e4) 11
    assert -13 < numbers["log_likelihood"] < -9
    assert all(-13 < value < -9 for value in numbers_of_members(folder))


def numbers_of_members(folder: Path) -> list[float]:
    return RunFolder(folder / "run").last_row()["log_likelihood_members"]


def test_choices_go_by_the_validation_part(trained: tuple[Path, runs.Said]) -> None:
    """Catches the best checkpoint chosen by the rows that `evaluate` reports."""
    rows = RunFolder(trained[0] / "run").rows()
    assert all({"validation_nll", "validation_rmse", "test_nll", "test_rmse"} <= set(row) for row in rows)
    assert rows[-1]["validation_nll"] != rows[-1]["test_nll"]


def test_the_export_says_what_predictions_need(trained: tuple[Path, runs.Said]) -> None:
    with safetensors.safe_open(trained[0] / "run" / "ensemble.safetensors", "numpy") as file:
        about = json.loads(file.metadata()["stein"])
    assert (about["inputs"], about["target"], about["labels"]) == (["rooms", "year"], "price", [])
    assert about["likelihood"] == "gaussian, learned sigma"
    assert about["units"]["mean"][0] > 3e5
    assert len(about["standardiser"]["scale"]) == 2
    record = read(trained[0] / "run" / "data.json")
    assert record["file"]["rows"] == 150
    assert {name: record["split"][name] for name in ("train", "validation", "test")} == {
        "train": 121,
        "validation": 14,
        "test": 15,
    }
    assert record["kind"] == "gaussian"


def test_an_evaluation_is_in_the_units_of_the_targets(copy: Path) -> None:
    """The numbers of training again; on a labelled file; against rows far away. Catches targets that stay scaled,
    columns in another order, and no detection for regression."""
    said = runs.here("evaluate", copy / "run", "--no-cache")
    assert said.code == 0, said.err
    found, last = read(copy / "run" / "evaluation.json"), read(copy / "run" / "metrics.json")
    for name in ("rmse", "nll", "nll_members"):
        assert found[name] == pytest.approx(last[f"test_{name}"], rel=1e-4)
    assert found["baseline_rmse"] == pytest.approx(last["baseline_rmse"])
    assert 1e3 < found["sigma"] < 1e5
    assert 1e3 < found["crps"] < found["rmse"]

    x, y = houses(40, seed=1)
    rows = [f"{price},{year},{rooms}" for (rooms, year), price in zip(x.tolist(), y.tolist(), strict=True)]
    (copy / "new.csv").write_text("\n".join(["price,year,rooms", *rows]) + "\n")
    far = [f"{rooms * 10},{year + 1000}" for rooms, year in x.tolist()]
    (copy / "far.csv").write_text("\n".join(["rooms,year", *far]) + "\n")
    said = runs.here("evaluate", copy / "run", "--data", copy / "new.csv", "--ood", copy / "far.csv", "--no-cache")
    assert said.code == 0, said.err
    found = read(copy / "run" / "evaluation.json")
    assert (found["test_points"], found["data"]) == (40, str(copy / "new.csv"))
    assert found["rmse"] < 0.5 * found["baseline_rmse"]
    assert found["auroc_spread"] > 0.9
    assert found["spread_ratio"] > 2

    (copy / "other.csv").write_text("rooms,age\n1,2\n")
    said = runs.here("evaluate", copy / "run", "--ood", copy / "other.csv", "--no-cache")
    assert (said.code, said.err) == (
        2,
        [f"error: {copy}/other.csv: column 'age': is not an input of the run; drop it"],
    )


X, Y = houses(150)
CHANGES = {
    "the same rows are in another order": (X[::-1], Y[::-1]),
    "it has 1 rows more, appended to the same rows": (np.concatenate([X, X[:1]]), np.append(Y, 1.5)),
    "the values of columns 'rooms', 'year' are exchanged": (X[:, ::-1], Y),
    "target values changed": (X, 1000 * Y),
}


@pytest.mark.parametrize("words", CHANGES)
def test_data_that_changed_are_refused(words: str, copy: Path) -> None:
    """By `evaluate` and by `resume`. Catches training rows in the test part, and exit 0 with a wrong number."""
    write(copy / "houses.csv", *CHANGES[words])
    run = copy / "run"
    line = f"error: {run}: its data changed after training began: {copy}/houses.csv: {words}; `--allow-changed-data`"
    said = runs.here("evaluate", run, "--no-cache")
    assert (said.code, len(said.err)) == (2, 1)
    assert said.err[0].startswith(line)
    (run / "metrics.json").unlink()
    said = runs.here("resume", run, "--quiet", "--no-cache")
    assert (said.code, len(said.err)) == (2, 1)
    assert said.err[0].startswith(line)


def test_changed_data_are_allowed_with_a_warning(copy: Path) -> None:
    """With the scales of training: targets a thousand times as large are far off, and the last line says so."""
    write(copy / "houses.csv", X, 1000 * Y)
    said = runs.here("evaluate", copy / "run", "--allow-changed-data", "--no-cache")
    assert said.code == 0
    assert said.err[0].startswith(f"warning: the data changed after training began: {copy}/houses.csv: target values")
    found = read(copy / "run" / "evaluation.json")
    assert found["rmse"] > 1e8
    assert said.err[-1] == (
        f"warning: worse than predicting the mean: rmse {found['rmse']:.4g}, "
        f"the mean of the training targets has {found['baseline_rmse']:.4g}"
    )


def test_a_result_that_is_worse_than_the_mean_says_so(tmp_path: Path) -> None:
    """In the last line of `train`. Catches exit 0 and nothing said."""
    write(tmp_path / "houses.csv", *houses(60))
    (tmp_path / "run.toml").write_text('[data]\nfile = "houses.csv"\ntarget = "price"\n' + SMALL)
    spoiled = ["train.steps=100", "optimiser.learning_rate=1e-9", "prior.scale=3"]
    train = ["train", tmp_path / "run.toml", "--set", *spoiled, "--out", tmp_path / "run", "--quiet", "--no-cache"]
    said = runs.here(*train)
    assert said.code == 0
    assert said.err[-1].startswith("warning: worse than predicting the mean: rmse ")


def test_doubtful_targets_leave_no_run_behind(tmp_path: Path) -> None:
    write(tmp_path / "houses.csv", X, np.round(Y).astype(int))
    (tmp_path / "run.toml").write_text('[data]\nfile = "houses.csv"\ntarget = "price"\n' + SMALL)
    said = runs.here("train", tmp_path / "run.toml", "--out", tmp_path / "run", "--no-cache")
    assert (said.code, said.out, len(said.err)) == (2, [], 1)
    assert "'price': numbers or classes?" in said.err[0]
    assert "likelihood.name=gaussian" in said.err[0]
    assert not (tmp_path / "run").exists()


# -- runs made by stein 0.1 ---------------------------------------------------------------------------------

OLD = {
    "table": "f063a88b119b0a6668691a6b885d57e52e6774b77c19a04d1377d56515edea3c",
    "toy": "5ff8b817f25d8f613ee0525c1b512fec1b039e5a41be1235d9fb7810498af125",
}


@pytest.mark.parametrize("name", OLD)
def test_old_configs_keep_their_fingerprint(name: str) -> None:
    """Catches a new default or key that makes an old checkpoint another config's."""
    found = configs.load_run(GOLDEN / name / "config.toml")
    assert configs.fingerprint(found) == OLD[name]
    assert (found.data.reading, found.train.batch_size, found.likelihood.sigma) == ("as-before", 0, 1.0)


def test_an_old_run_on_a_table_is_evaluated_as_it_was(tmp_path: Path) -> None:
    """Its split, its three outputs for the classes 1 and 2, its numbers. Catches it judged on rows of another split."""
    shutil.copytree(GOLDEN, tmp_path / "old")
    config = tmp_path / "old" / "table" / "config.toml"
    config.write_text(config.read_text().replace("/tmp/golden/kinds.csv", str(tmp_path / "old" / "kinds.csv")))
    said = runs.here("evaluate", tmp_path / "old" / "table", "--no-cache")
    assert said.code == 0, said.err
    found, last = read(tmp_path / "old" / "table" / "evaluation.json"), read(tmp_path / "old/table/metrics.json")
    for name in ("accuracy", "nll", "nll_members"):
        assert found[name] == pytest.approx(last[f"test_{name}"], rel=1e-4)


def test_an_old_run_goes_on_as_it_was(tmp_path: Path) -> None:
    """From its checkpoint of step 10 to the weights that stein 0.1 found at step 20, to rounding."""
    run = tmp_path / "toy"
    shutil.copytree(GOLDEN / "toy", run)
    for name in ("metrics.json", "ensemble.safetensors"):
        (run / name).unlink()
    shutil.rmtree(run / "checkpoints" / "step-00000020")
    said = runs.here("resume", run, "--quiet", "--no-cache")
    assert said.code == 0, said.err
    old, new = (dict(weights(folder / "ensemble.safetensors")) for folder in (GOLDEN / "toy", run))
    assert old.keys() == new.keys()
    for name, values in old.items():
        np.testing.assert_allclose(new[name], values, rtol=0, atol=1e-5)  # Adam's steps are 1e-3 each
    assert "test_nll" in RunFolder(run).last_row()


def weights(path: Path) -> list[tuple[str, np.ndarray]]:
    with safetensors.safe_open(path, "numpy") as file:
        return [(name, file.get_tensor(name)) for name in file.keys()]  # noqa: SIM118
