"""What does my ensemble say about new data? The last question of every user, without the data of training."""

import csv
import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import stein
from problems import rounding
from stein import cli
from stein.predictions import ClassPrediction, RegressionPrediction

CONFIG = """
[data]
file = "houses.csv"
target = "{target}"
[method]
name = "w-svgd"
particles = 3
[model]
hidden = [5]
[likelihood]
{likelihood}
[train]
steps = 30
[evaluation]
every = 0
[tracking]
diagnostics = false
tensorboard = false
"""
RUNS = {
    "fixed": ("price", "sigma = 1000.0"),
    "learned": ("price", 'sigma = "learned"'),
    "input-dependent": ("price", 'name = "heteroscedastic"'),
    "classes": ("kind", ""),
}


def houses(rows: int = 80) -> str:
    random = np.random.default_rng(0)
    area, year = random.uniform(30, 200, rows), random.integers(1900, 2020, rows)
    kind = np.where(area > 120, "house", np.where(year > 1980, "new flat", "flat"))
    price = 3000 * area + 500 * (year - 1950) + random.normal(0, 5000, rows)
    lines = (f"{a:.2f},{y},{k},{p:.2f}" for a, y, k, p in zip(area, year, kind, price, strict=True))
    return "area,year,kind,price\n" + "\n".join(lines) + "\n"


def inputs(run: "stein.runs.run.Run", folder: Path) -> np.ndarray:
    return run.read(folder / ("new-prices.csv" if run.target == "price" else "new-kinds.csv"))


# In a process of its own, with the runs moved and the table of training deleted.
ELSEWHERE = """
import json, sys
from pathlib import Path
import numpy as np
import stein
from stein import cli

folder, answers = Path(sys.argv[1]), {}
for name in sys.argv[2:]:
    run = stein.load(folder / name)
    new = folder / ("new-prices.csv" if run.target == "price" else "new-kinds.csv")
    prediction = run.predict(run.read(new))
    answers[name] = [np.asarray(values).tobytes().hex() for values in prediction if not isinstance(values, tuple)]
    assert cli.main(["predict", str(folder / name), str(new), "--out", str(folder / f"{name}.csv"), "--no-cache"]) == 0
print(json.dumps(answers))
"""


@pytest.fixture(scope="module")
def moved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, list[str]], dict[str, list[str]]]:
    """Where the runs are now, what the process that trained them predicted, and what another one predicts."""
    there, here = tmp_path_factory.mktemp("there"), tmp_path_factory.mktemp("here")
    # Columns in another order, one that is no input, and no target.
    (here / "new-prices.csv").write_text("year,area\n1987,55.5\n2011,140\n1905,-3\n")
    (here / "new-kinds.csv").write_text("price,year,area\n1,1987,55.5\n2,2011,140\n3,1905,-3\n")
    before = {}
    for name, (target, likelihood) in RUNS.items():
        table = houses() if target == "kind" else without_kinds(houses())
        (there / "houses.csv").write_text(table)
        (there / "config.toml").write_text(CONFIG.format(target=target, likelihood=likelihood))
        assert cli.main(["train", str(there / "config.toml"), "--out", str(there / name), "--quiet", "--no-cache"]) == 0
        run = stein.load(there / name)
        prediction = run.predict(inputs(run, here))
        before[name] = [np.asarray(values).tobytes().hex() for values in prediction if not isinstance(values, tuple)]
        shutil.move(there / name, here / name)
    shutil.rmtree(there)
    done = subprocess.run(
        [sys.executable, "-c", ELSEWHERE, str(here), *RUNS], capture_output=True, text=True, env=os.environ, check=False
    )
    assert done.returncode == 0, done.stderr
    return here, before, json.loads(done.stdout.splitlines()[-1])


def without_kinds(table: str) -> str:
    return "".join(",".join(np.array(line.split(","))[[0, 1, 3]]) + "\n" for line in table.splitlines())


@pytest.mark.parametrize("name", RUNS)
def test_another_process_predicts_the_same_bytes_without_the_data(name: str, moved: tuple) -> None:
    """Catches a width, a class, a scale or a sigma that is learned from the data again, and a lost member."""
    _, before, after = moved
    assert len(before[name]) == 2
    assert after[name] == before[name]


def read(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text().splitlines()))


def test_the_command_line_writes_what_python_predicts(moved: tuple) -> None:
    """Catches columns of another order, numbers of standardised targets, and probabilities of another class."""
    folder = moved[0]
    for name in RUNS:
        run = stein.load(folder / name)
        rows, prediction = read(folder / f"{name}.csv"), run.predict(inputs(run, folder))
        assert len(rows) == 3
        if isinstance(prediction, ClassPrediction):
            assert list(rows[0]) == [
                "kind",
                *("p(flat)", "p(house)", "p(new flat)"),
                *("set_90", "entropy", "epistemic", "notes"),
            ]
            assert [row["kind"] for row in rows] == prediction.named
            np.testing.assert_array_equal(
                [[float(row[f"p({label})"]) for label in run.labels] for row in rows], prediction.probabilities
            )
        else:
            assert isinstance(prediction, RegressionPrediction)
            assert list(rows[0]) == ["mean", "std", "epistemic", "aleatoric", "low_90", "high_90", "notes"]
            np.testing.assert_array_equal([float(row["mean"]) for row in rows], prediction.mean[:, 0])
            low, high = prediction.interval(0.9)
            np.testing.assert_array_equal([float(row["low_90"]) for row in rows], low[:, 0])
            assert (high > low).all()


def test_the_noise_is_the_one_of_the_config(moved: tuple) -> None:
    """Catches a sigma that is not in the units of the targets."""
    folder = moved[0]
    predictions = {name: (run := stein.load(folder / name)).predict(inputs(run, folder)) for name in RUNS}
    np.testing.assert_allclose(predictions["fixed"].sigmas, 1000.0, rtol=rounding(2, "float32"))
    learned = predictions["learned"].sigmas
    assert (learned == learned[:, :1]).all()
    own = predictions["input-dependent"].sigmas
    assert not (own == own[:, :1]).all()


def test_a_table_in_memory_is_taken_by_its_names(moved: tuple) -> None:
    run = stein.load(moved[0] / "learned")
    table = pd.DataFrame({"year": [1987, 2011], "area": [55.5, 140.0], "more": ["a", "b"]})
    np.testing.assert_array_equal(run.predict(table).means, run.predict([[55.5, 1987], [140.0, 2011]]).means)
    with pytest.raises(ValueError, match="x has no column 'year'; the run was trained on area, year"):
        run.predict(table.drop(columns="year"))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["learned", "{here}/none.csv"], "none.csv: no such file"),
        (["learned", "{here}/new-prices.csv", "--out", "x.txt"], "--out x.txt: must end in .csv"),
        (["learned", "{here}/new-prices.csv", "--coverage", "1.5"], "--coverage = 1.5: must be between 0 and 1"),
        (["nothing", "{here}/new-prices.csv"], "nothing: no such directory"),
        # A file with some of the columns is answered with a warning (test_fit.py); with none it is a mistake.
        (
            ["learned", "{here}/short.csv"],
            "has none of the run's columns, 'area', 'year'; it has 'm2', 'age'",
        ),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    arguments: list[str], words: str, moved: tuple, capsys: pytest.CaptureFixture[str]
) -> None:
    here = moved[0]
    (here / "short.csv").write_text("m2,age\n1,2\n")
    run, *rest = (argument.format(here=here) for argument in arguments)
    assert cli.main(["predict", str(here / run), *rest, "--no-cache"]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert words in err


def test_a_damaged_export_is_refused(moved: tuple, tmp_path: Path) -> None:
    """One bit of the weights. Catches predictions from a file that is not what was written."""
    shutil.copytree(moved[0] / "learned", tmp_path / "run")
    file = tmp_path / "run" / "ensemble.safetensors"
    content = bytearray(file.read_bytes())
    content[-3] ^= 1
    file.write_bytes(content)
    with pytest.raises(ValueError, match="its SHA-256 is not the one in its header"):
        stein.load(tmp_path / "run")


def test_loading_leaves_the_precision_of_the_process_alone(moved: tuple) -> None:
    import jax

    assert jax.config.read("jax_enable_x64")  # the tests', where these runs are float32
    run = stein.load(moved[0] / "learned")
    assert {leaf.dtype for leaf in jax.tree.leaves(run.members)} == {np.dtype("float32")}
    run.predict([[1.0, 2.0]])
    assert jax.config.read("jax_enable_x64")


def test_a_labelled_file_is_evaluated_without_the_data_of_training(moved: tuple, capsys: pytest.CaptureFixture) -> None:
    """Against NumPy. Catches an evaluation that reads the deleted table of training, and standardised numbers."""
    here = moved[0]
    (here / "known.csv").write_text(without_kinds(houses(30)))
    assert cli.main(["evaluate", str(here / "learned"), "--data", str(here / "known.csv"), "--no-cache"]) == 0
    numbers = json.loads((here / "learned" / "evaluation.json").read_text())
    run, table = stein.load(here / "learned"), pd.read_csv(here / "known.csv")
    error = run.predict(table).mean[:, 0] - table["price"]
    assert numbers["rmse"] == pytest.approx(np.sqrt(np.mean(error**2)), rel=1e-9)
    usual = pd.read_csv(io.StringIO(houses()))["price"].mean()  # of all rows; training has nine tenths of them
    assert numbers["baseline_rmse"] == pytest.approx(np.sqrt(np.mean((table["price"] - usual) ** 2)), rel=0.05)
    assert cli.main(["evaluate", str(here / "learned"), "--no-cache"]) == 2
    assert "houses.csv: no such file" in capsys.readouterr().err
