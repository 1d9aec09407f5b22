"""From a CSV to predictions: `stein fit`, its summary, and `stein predict`, as a user gives the commands."""

import contextlib
import csv
import io
import json
import re
import shutil
import signal
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest

import stein
from stein import cli, predict
from stein.data import blocks
from stein.runs import configs, dataset, summary
from stein.runs.comparison import Score

SMALL = ["--quiet", "--no-cache", "--particles", "3", "--set", "model.hidden=[8]", "train.precision=float64"]


class Said(NamedTuple):
    code: int
    out: str
    err: str


def said(*arguments: object) -> Said:
    out, err = io.StringIO(), io.StringIO()
    before = jax.config.jax_enable_x64
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = cli.main([str(argument) for argument in arguments])
    jax.config.update("jax_enable_x64", before)
    return Said(code, out.getvalue(), err.getvalue())


def houses(rows: int, seed: int = 0) -> pd.DataFrame:
    """Text, a boolean, dates and gaps; the price follows them with a noise of 5,000."""
    random = np.random.default_rng(seed)
    area = random.uniform(30, 200, rows)
    city = random.choice(["Bern", "Oslo", "Rome"], rows)
    garden = random.random(rows) < 0.4
    sold = np.datetime64("2019-01-01") + random.integers(0, 700, rows)
    level = np.array([{"Bern": 0, "Oslo": 50, "Rome": 100}[name] for name in city])
    price = 1e3 * (3 * area + level + 20 * garden + random.normal(0, 5, rows)).round(2)
    area[random.random(rows) < 0.1] = np.nan
    columns = {"id": [f"H{i}" for i in range(rows)], "area": area.round(2), "city": city, "garden": garden}
    return pd.DataFrame(columns | {"sold": sold.astype(str), "price": price})


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Said]:
    folder = tmp_path_factory.mktemp("houses")
    houses(300).to_csv(folder / "houses.csv", index=False)
    options = ["--target", "price", "--impute", "--id-column", "id", "--method", "w-svgd", "--steps", 400]
    return folder, said("fit", folder / "houses.csv", *options, "--out", folder / "run", *SMALL)


def read(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text().splitlines()))


def test_a_fit_ends_in_a_summary(fitted: tuple[Path, Said]) -> None:
    """Catches a comparison on other rows, standardised numbers, and a model that has not learned the table."""
    folder, (code, out, err) = fitted
    assert (code, err) == (0, "")
    assert "regression on 'price': 243 + 27 + 30 rows (training, validation, test), 11 inputs from 4 columns" in out
    text = (folder / "run" / "summary.md").read_text()
    assert text in out
    assert "243 rows for training, 27 for calibration, 30 for this test; 4 columns, 11 inputs." in text
    errors = {name: number(text, name) for name in ("this ensemble, w-svgd, 3 members", "always the mean")}
    metrics = json.loads((folder / "run" / "metrics.json").read_text())
    assert errors["this ensemble, w-svgd, 3 members"] == pytest.approx(metrics["test_rmse"], rel=1e-3)
    assert errors["always the mean"] == pytest.approx(metrics["baseline_rmse"], rel=1e-3)
    assert "The ensemble is better than predicting the mean" in text
    for name in ("deep ensemble, 3 members trained apart", "gradient boosting (scikit-learn)"):
        assert 5e3 < number(text, name) < errors["always the mean"]
    assert len(re.findall(r"^\| id H\d+ ", text, re.M)) == 5


def number(text: str, name: str) -> float:
    found = re.search(rf"^\| {re.escape(name)} +\| ([\d.,]+)", text, re.M)
    assert found is not None, name
    return float(found[1].replace(",", ""))


def test_the_run_is_an_ordinary_run(fitted: tuple[Path, Said], tmp_path: Path) -> None:
    """`status` and `evaluate` work on it, and its config has nothing left to resolve."""
    run = fitted[0] / "run"
    assert "finished" in said("status", run).out
    shutil.copytree(run, tmp_path / "run")
    assert said("evaluate", tmp_path / "run", "--no-cache").code == 0
    found = json.loads((tmp_path / "run" / "evaluation.json").read_text())
    metrics = json.loads((run / "metrics.json").read_text())
    assert found["rmse"] == pytest.approx(metrics["test_rmse"], rel=1e-9)
    assert found["nll"] == pytest.approx(metrics["test_nll"], rel=1e-9)  # both of the calibrated prediction
    config = configs.load_run(run / "config.toml")
    assert (config.likelihood.name, config.likelihood.modulation) == ("heteroscedastic", 0.3)
    assert "auto" not in {config.train.batch_size, config.prior.scale, config.optimiser.schedule}
    assert config.data.validation_fraction == pytest.approx(0.1)


def test_conformal_intervals_and_unusual_rows_come_from_the_validation_rows(fitted: tuple[Path, Said]) -> None:
    """Against NumPy on the same rows. Catches scores of training or test rows, and a threshold in other units."""
    run = stein.load(fitted[0] / "run")
    loaded = dataset.load(configs.load_run(fitted[0] / "run" / "config.toml"))
    prediction = run.predict_prepared(loaded.validation.x)
    scores = np.abs(loaded.raw_targets(loaded.validation.y) - prediction.mean) / prediction.std
    np.testing.assert_allclose(run.calibration.conformal.scores, np.sort(scores, axis=0), rtol=1e-9)
    assert run.calibration.rows == 27
    epistemic = prediction.epistemic[:, 0] / loaded.units.scale
    assert run.calibration.unusual == pytest.approx(epistemic.max(), rel=1e-9)  # 99 % of 27 rows is all of them
    written = json.loads((fitted[0] / "run" / "calibration.json").read_text())
    assert written["unusual"] == run.calibration.unusual


NEW = """sold,note,area,garden,id
2019-05-05,x,50,true,A
2035-01-01,x,50,true,B
2019-05-05,x,,true,C
2019-05-05,x,5000,false,D
2019-05-05,x,1e300,true,E
"""


def test_new_rows_are_predicted_and_unusual_ones_are_named(fitted: tuple[Path, Said], tmp_path: Path) -> None:
    """Columns in another order, one too many, one missing; the data of training are not there."""
    shutil.copytree(fitted[0] / "run", tmp_path / "run")
    (tmp_path / "new.csv").write_text(NEW)
    code, out, err = said("predict", tmp_path / "run", tmp_path / "new.csv", "--out", tmp_path / "p.csv", "--no-cache")
    assert (code, out) == (0, f"{tmp_path}/p.csv: 5 predictions of 'price'\n")
    assert err.splitlines() == [
        f"warning: {tmp_path}/new.csv: no column 'city': filled with the median or the most frequent level of "
        "training; every row says so in its notes",
        f"warning: {tmp_path}/new.csv: column 'note' was not there in training: ignored",
    ]
    rows = read(tmp_path / "p.csv")
    numbers = ["mean", "std", "epistemic", "aleatoric", "low_90", "high_90"]
    assert list(rows[0]) == ["id", *numbers, "unusual", "notes"]
    assert [row["id"] for row in rows] == ["A", "B", "C", "D", "E"]
    assert [row["notes"].replace("there is no column city", "-") for row in rows][:3] == [
        "-",
        "-; sold 2035-01-01 is above 2020-11-30",
        "area is missing; -",
    ]
    assert "area 5000 is above 19" in rows[3]["notes"]
    assert "area 1e+300 is above 19" in rows[4]["notes"]
    assert [row["unusual"] for row in rows if row["id"] in "ADE"] == ["false", "true", "true"]
    assert np.isfinite([float(rows[4][name]) for name in numbers]).all()
    run = stein.load(tmp_path / "run")
    table = pd.DataFrame(
        {"area": [50.0], "city": [run.recipe.columns[1].fill], "garden": [True], "sold": ["2019-05-05"]}
    )
    prediction = run.predict(table)
    assert float(rows[0]["mean"]) == prediction.mean[0, 0]
    low, high = run.calibration.conformal.interval(prediction, 0.9)
    assert (float(rows[0]["low_90"]), float(rows[0]["high_90"])) == (low[0, 0], high[0, 0])
    assert run.notes(table.assign(city="Lima")) == ["city 'Lima' is new"]
    with pytest.raises(ValueError, match="x has two columns called 'area'"):
        run.predict(pd.concat([table, table[["area"]]], axis=1))


def test_numbers_do_not_depend_on_where_blocks_end(
    fitted: tuple[Path, Said], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the byte: all rows at once, one alone, and blocks of other sizes. Catches a last block of another shape."""
    table = houses(30, seed=1).drop(columns="price")
    outputs = []
    for name, part in (("all", table), ("first", table[:1]), ("late", table[17:])):
        part.to_csv(tmp_path / f"{name}.csv", index=False)
        said("predict", fitted[0] / "run", tmp_path / f"{name}.csv", "--out", tmp_path / f"{name}-p.csv", "--no-cache")
        outputs.append((tmp_path / f"{name}-p.csv").read_text().splitlines())
    every, first, late = outputs
    assert len(every) == 31
    assert every[:2] == first
    assert every[18:] == late[1:]
    monkeypatch.setattr(blocks, "ROWS", 7)
    said("predict", fitted[0] / "run", tmp_path / "all.csv", "--out", tmp_path / "small.csv", "--no-cache")
    assert (tmp_path / "small.csv").read_text().splitlines() == every


def test_parquet_and_arrow_are_read_as_the_same_table(fitted: tuple[Path, Said], tmp_path: Path) -> None:
    """With types of their own: dates, categories, booleans with gaps. Catches days counted from another origin."""
    table = houses(30, seed=1).drop(columns="price")
    table.to_csv(tmp_path / "new.csv", index=False)
    typed = table.assign(sold=pd.to_datetime(table["sold"]), city=table["city"].astype("category"))
    arrow = pa.Table.from_pandas(typed)
    pa.parquet.write_table(arrow, tmp_path / "new.parquet", row_group_size=11)
    with pa.ipc.new_file(str(tmp_path / "new.arrow"), arrow.schema) as file:
        file.write_table(arrow, max_chunksize=13)
    pa.feather.write_feather(arrow, str(tmp_path / "new.feather"))
    texts = []
    for suffix in ("csv", "parquet", "arrow", "feather"):
        out = tmp_path / f"{suffix}-p.csv"
        code, _, err = said("predict", fitted[0] / "run", tmp_path / f"new.{suffix}", "--out", out, "--no-cache")
        assert (code, err) == (0, "")
        texts.append(out.read_text())
    assert len(set(texts)) == 1
    run = stein.load(fitted[0] / "run")
    for given in (table, typed, arrow):
        np.testing.assert_array_equal(run.predict(given).means, run.predict(table).means)


def test_classes_have_probabilities_and_sets(tmp_path: Path) -> None:
    """Catches a temperature that is found and not used, or by some of the commands only."""
    houses(300).to_csv(tmp_path / "t.csv", index=False)
    options = ["--target", "city", "--impute", "--id-column", "id", "--method", "de", "--steps", 200, "--coverage", 0.8]
    code, out, err = said("fit", tmp_path / "t.csv", *options, "--out", tmp_path / "run", *SMALL, "prior.scale=2")
    assert (code, err) == (0, "")
    assert "classification on 'city': 3 classes" in out
    assert "The 80% sets of classes hold the right one in" in out
    assert "always the most frequent class" in out
    assert "deep ensemble" not in out  # it is one
    said("predict", tmp_path / "run", tmp_path / "t.csv", "--out", tmp_path / "p.csv", "--no-cache")
    rows = read(tmp_path / "p.csv")
    probabilities = ["p(Bern)", "p(Oslo)", "p(Rome)"]
    assert list(rows[0]) == ["id", "city", *probabilities, "set_80", "entropy", "epistemic", "unusual", "notes"]
    for row in rows:
        assert sum(float(row[name]) for name in probabilities) == pytest.approx(1)
        assert row["city"] in row["set_80"].split(" | ")
    houses(2).assign(area=[1e9, 100]).to_csv(tmp_path / "far.csv", index=False)
    said("predict", tmp_path / "run", tmp_path / "far.csv", "--out", tmp_path / "far-p.csv", "--no-cache")
    assert read(tmp_path / "far-p.csv")[0]["unusual"] == "true"  # however sure the members are
    run = stein.load(tmp_path / "run")
    prediction = run.predict_prepared(run.inputs(run.read(tmp_path / "t.csv")))
    assert run.calibration.temperature == prediction.temperature != 1.0
    found = np.array([[float(row[name]) for name in (*probabilities, "entropy", "epistemic")] for row in rows])
    columns = (prediction.probabilities, prediction.entropy, prediction.mutual_information)
    np.testing.assert_allclose(found, np.column_stack(columns), rtol=1e-9)
    sets = run.calibration.conformal.sets(prediction, 0.8)
    assert [row["set_80"] for row in rows] == [" | ".join(np.array(run.labels)[inside]) for inside in sets]
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert said("evaluate", tmp_path / "run", "--no-cache").code == 0
    evaluation = json.loads((tmp_path / "run" / "evaluation.json").read_text())
    assert evaluation["nll"] == pytest.approx(metrics["test_nll"], rel=1e-9)
    assert f"| {metrics['test_nll']:.4g} " in (tmp_path / "run" / "summary.md").read_text()


# -- parts --------------------------------------------------------------------------------------------------


def test_time_and_groups_split_as_they_say(tmp_path: Path) -> None:
    """Catches a test part that is not later, and a group that is trained and tested on."""
    table = houses(200).drop(columns="area")
    table["street"] = [f"s{i % 23}" for i in range(200)]
    table.to_csv(tmp_path / "t.csv", index=False)
    text = '[data]\nfile = "t.csv"\ntarget = "price"\nvalidation_fraction = 0.2\nid_columns = ["id"]\n'
    for key, column in (("time_column", "sold"), ("group_column", "street")):
        (tmp_path / "c.toml").write_text(f'{text}{key} = "{column}"\n')
        loaded = dataset.load(configs.load(tmp_path / "c.toml"))
        assert len(loaded.train.x) + len(loaded.validation.x) + len(loaded.test.x) == 200
        names = [name.removeprefix("id ") for name in loaded.test_rows.names]
        held_out = table["id"].isin(names)
        if key == "time_column":
            assert table["sold"][held_out].min() > table["sold"][~held_out].max()
            assert "sold" in loaded.recipe.kinds
        else:
            assert not set(table["street"][held_out]) & set(table["street"][~held_out])
            assert "street" not in loaded.recipe.kinds


def test_levels_and_medians_are_those_of_the_training_rows(tmp_path: Path) -> None:
    """Catches a recipe that has seen the test rows."""
    rows = [f"{i},{'ab'[i % 2]},{i / 7:.3f},train" for i in range(30)] + ["1000,c,5.5,test", "2000,c,6.5,test"]
    (tmp_path / "t.csv").write_text("\n".join(["x,k,y,part", *rows]) + "\n")
    (tmp_path / "c.toml").write_text('[data]\nfile = "t.csv"\ntarget = "y"\nsplit_column = "part"\n')
    loaded = dataset.load(configs.load(tmp_path / "c.toml"))
    x, k = loaded.recipe.columns
    assert (x.high, x.fill, k.levels) == (29, 14.5, ("a", "b"))
    assert loaded.test_rows.notes == ("x 1000 is above 29; k 'c' is new", "x 2000 is above 29; k 'c' is new")
    np.testing.assert_array_equal(loaded.standardiser.undo(loaded.test.x.astype(float))[:, 1:].round(6), 0)


# -- interrupted --------------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_stopped_fit_gets_its_summary_when_it_is_resumed(
    fitted: tuple[Path, Said], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped in the deep ensemble, after its own steps. Catches a run that is finished without a summary, and a deep
    ensemble that is compared without a calibration."""
    from stein.runs import comparison

    own, compared = comparison.deep_ensemble, []

    def stopped(config, loaded, y, requests, show, calibrated):  # type: ignore[no-untyped-def]
        def predicted(made, state):  # type: ignore[no-untyped-def]
            before = made.likelihood.predictive(predict.in_chunks(made.model, state, loaded.test.x))
            compared.extend([before.sigmas * loaded.units.scale, calibrated(made, state)])
            return compared[1]

        requests.append(signal.SIGINT)
        found = own(config, loaded, y, requests, show, predicted)
        assert found.nll == compared[1].scores(y)["nll"]
        return found

    monkeypatch.setattr(comparison, "deep_ensemble", stopped)
    options = ["--target", "price", "--impute", "--id-column", "id", "--method", "w-svgd", "--steps", 400]
    run, prior = tmp_path / "run", configs.load_run(fitted[0] / "run" / "config.toml").prior.scale
    code, _, err = said("fit", fitted[0] / "houses.csv", *options, "--out", run, *SMALL, f"prior.scale={prior}")
    assert code == 130
    assert not np.isclose(compared[1].sigmas, compared[0], rtol=1e-3).any()
    assert f"stopped after training, before the summary; `stein resume {run}` goes on" in err
    assert not (run / "metrics.json").exists()
    monkeypatch.setattr(comparison, "deep_ensemble", own)
    assert said("resume", run, "--quiet", "--no-cache").code == 0
    for name in ("summary.md", "calibration.json"):
        assert (run / name).read_bytes() == (fitted[0] / "run" / name).read_bytes()


# -- sentences ----------------------------------------------------------------------------------------------


def test_sentences_follow_the_numbers() -> None:
    """The same errors, clearly larger ones, and clearly smaller ones. Catches a sentence that is always said."""
    random = np.random.default_rng(0)
    errors = random.random(100)
    own, same, worse = (
        Score("own", errors, 1.0),
        Score("always the mean", errors, 1.0),
        Score("gradient boosting (x)", 4 * errors, 1.0),
    )
    assert (
        summary._against(own, same)
        == "The ensemble is no better than predicting the mean, as far as 100 test rows can tell."
    )
    assert summary._against(own, worse) == "The ensemble is better than gradient boosting (its error is 50% lower)."
    assert summary._against(worse, Score("deep ensemble, 3 members", errors, 1.0)) == (
        "The ensemble is worse than the deep ensemble (its error is 100% higher)."
    )
    missing = Score(
        "gradient boosting (x)", np.empty(0), np.nan, "needs scikit-learn: pip install '.[sklearn]' in the checkout"
    )
    assert "is not compared: needs scikit-learn" in summary._against(own, missing)
    rare = Score("always the mean", errors + 1e3 * (np.arange(100) == 5) + 0.5, 1.0)  # one large square hides nothing
    assert summary._against(own, rare).startswith("The ensemble is better than predicting the mean")
    split = Score("gradient boosting (x)", np.where(np.arange(100) == 5, 1e4, 0.5 * errors), 1.0)
    assert summary._against(own, split).startswith("No difference")  # smaller errors, but a larger overall one
    assert summary._verdict([0.5, -1.9]).endswith("they hold what they promise.")
    assert "too narrow" in summary._verdict([-3.0, 1.0])
    assert "too wide" in summary._verdict([1.0, 2.5])
    assert [summary._number(value) for value in (46650.3, 1234567.0, 12.3456, 0.5, 0, 1.5e-9, 9999.7)] == [
        *("46,650", "1,235,000", "12.35", "0.5", "0", "1.5e-09", "10,000"),
    ]
