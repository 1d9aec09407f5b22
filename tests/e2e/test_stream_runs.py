"""Runs that stream their training data: `stein train` to `stein evaluate`, in this process.

Runs are in float64, as the tests are, so that a run does not change the precision of others.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import safetensors

import runs
from stein.runs import configs

ROWS, TEST = 1000, 50
CONFIG = """
[data]
stream = true
head_rows = 200
test_rows = 50
{data}
[method]
name = "de"
particles = 2
[model]
hidden = [4]
[train]
steps = 40
batch_size = 16
log_every = 10
precision = "float64"
[checkpoints]
every = 20
best = {best}
[evaluation]
every = 10
[tracking]
diagnostics = {best}
tensorboard = false
"""
PAIR = 'inputs = "x.npy"\ntargets = "y.npy"'


def write_pair(folder: Path) -> None:
    random = np.random.default_rng(0)
    x = random.normal(5.0, 3.0, (ROWS, 3)).astype(np.float32)
    np.save(folder / "x.npy", x)
    np.save(folder / "y.npy", 100 * x[:, 0] + random.normal(size=ROWS))


def write_classes(folder: Path, **changed: object) -> None:
    random = np.random.default_rng(0)
    x = random.normal(size=ROWS)
    columns = {"id": [f"r{i}" for i in range(ROWS)], "a": x, "b": x > 1, "kind": np.where(x > 0, "warm", "cold")}
    pyarrow.parquet.write_table(pyarrow.table(columns | changed), folder / "t.parquet", row_group_size=100)


TABLE = 'file = "t.parquet"\ntarget = "kind"\nid_columns = ["id"]\nshuffle_rows = 300'


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pair")
    write_pair(folder)
    (folder / "c.toml").write_text(CONFIG.format(data=PAIR, best="true"))
    said = runs.here("train", folder / "c.toml", "--out", folder / "run", "--quiet")
    assert said.code == 0, said.err
    return folder


def copy(finished: Path, folder: Path) -> Path:
    """The run as a kill leaves it after the first checkpoint; its config has the path of the same data."""
    run = Path(shutil.copytree(finished / "run", folder / "run"))
    shutil.rmtree(run / "checkpoints" / "step-00000040")
    for name in ("ensemble.safetensors", "metrics.json", "card.md"):
        (run / name).unlink()
    return run


def test_a_run_knows_the_whole_stream(finished: Path) -> None:
    """Catches a likelihood that counts the first rows only, scales of other rows, and parts that overlap."""
    with safetensors.safe_open(finished / "run" / "ensemble.safetensors", "np") as opened:
        about = json.loads(opened.metadata()["stein"])
    facts = json.loads((finished / "run" / "data.json").read_text())
    trained = ROWS - 2 * TEST
    assert facts["split"] == {"train": trained, "validation": TEST, "test": TEST}
    assert about["rows"] == trained
    head = np.load(finished / "x.npy")[:200].astype(float)
    np.testing.assert_allclose(facts["standardiser"]["mean"], head.mean(axis=0), rtol=1e-6)
    assert [file["name"] for file in facts["stream"]["files"]] == ["x.npy", "y.npy"]
    assert f"{trained} training points" in (finished / "run" / "card.md").read_text()
    numbers = json.loads((finished / "run" / "metrics.json").read_text())
    assert {"test_rmse", "validation_nll", "baseline_rmse"} <= set(numbers)


def test_a_resumed_run_ends_with_the_same_bytes(finished: Path, tmp_path: Path) -> None:
    """Catches a stream that begins anew, or goes on at another batch, when a run is resumed."""
    run = copy(finished, tmp_path)
    said = runs.here("resume", run, "--quiet")
    assert said.code == 0, said.err
    assert runs.result(run) == runs.result(finished / "run")


def test_a_changed_stream_is_refused(tmp_path: Path, finished: Path) -> None:
    """Catches files that changed after training began and pass for the old ones."""
    run, x = copy(finished, tmp_path), finished / "x.npy"
    before = x.read_bytes()
    try:
        x.write_bytes(before[:-1] + bytes([before[-1] ^ 1]))
        said = runs.here("resume", run, "--quiet")
        assert (said.code, len(said.err)) == (2, 1)
        assert "the first or last bytes of x.npy changed; `--allow-changed-data` goes on all the same" in said.err[0]
        said = runs.here("resume", run, "--quiet", "--allow-changed-data")
        assert said.code == 0
        assert any("x.npy changed" in line for line in said.err)
    finally:
        x.write_bytes(before)
    said = runs.here("resume", copy(finished, tmp_path / "again"), "--quiet")
    assert said.code == 0, said.err


@pytest.mark.long
def test_parquet_with_classes_from_training_to_prediction(tmp_path: Path) -> None:
    """Catches labels, booleans or columns of a stream that are not those of its predictions."""
    write_classes(tmp_path)
    (tmp_path / "c.toml").write_text(CONFIG.format(data=TABLE, best="false"))
    said = runs.here("train", tmp_path / "c.toml", "--out", tmp_path / "run", "--set", "train.steps=400",
                 "--set", "optimiser.learning_rate=0.02")  # fmt: skip
    assert said.code == 0, said.err
    assert "950 + 50 rows (a stream" in " ".join(said.out + said.err)
    (tmp_path / "new.csv").write_text("a,b\n3.0,true\n-3.0,false\n")
    said = runs.here("predict", tmp_path / "run", tmp_path / "new.csv", "--out", tmp_path / "p.csv")
    assert said.code == 0, said.err
    lines = (tmp_path / "p.csv").read_text().splitlines()
    assert [("warm" in line, "cold" in line) for line in lines[1:]] == [(True, False), (False, True)]
    said = runs.here("evaluate", tmp_path / "run")
    assert said.code == 0, said.err
    said = runs.here("train", tmp_path / "c.toml", "--dry-run", "--out", tmp_path / "other")
    assert said.code == 0, said.err


@pytest.mark.long
@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"kind": ["warm", "cold"] * 400 + ["new"] * 100 + ["warm", "cold"] * 50}, "must include a row of each class"),
        ({"a": np.where(np.arange(ROWS) == 700, np.nan, 1.0 * np.arange(ROWS))}, "row 701, column 'a': nan"),
    ],
    ids=["class", "gap"],
)  # fmt: skip
def test_a_bad_row_deep_in_the_stream_ends_the_run_in_one_line(
    tmp_path: Path, changed: dict[str, object], complaint: str
) -> None:
    """Catches an unknown class or a gap beyond the first rows that is trained on."""
    write_classes(tmp_path, **changed)
    (tmp_path / "c.toml").write_text(CONFIG.format(data=TABLE, best="false"))
    said = runs.here("train", tmp_path / "c.toml", "--out", tmp_path / "run", "--quiet", "--set", "train.steps=100")
    assert said.code == 2
    assert complaint in said.err[-1]


@pytest.mark.parametrize(
    ("keys", "complaint"),
    [
        ('data.file = "t.csv"\ndata.target = "y"', "data.stream: must be false: only .npy pairs"),
        (f"data.test_fraction = 0.2\n{PAIR}", "data.test_fraction: must be left out"),
        (f"data.validation_fraction = 0.2\n{PAIR}", "data.validation_fraction: must be left out"),
        (f"data.shuffle_rows = 10\n{PAIR}", "data.shuffle_rows: must be left out"),
        (f"train.batch_size = 0\n{PAIR}", "train.batch_size: got 0; must be at least 1"),
        (f'method.measurement = "independent"\n{PAIR}', "method.measurement: got 'independent'; must be batch"),
        (f"evaluation.summary = true\n{PAIR}", "evaluation.summary: compares"),
        (f"checkpoints.best = true\ndata.test_rows = 0\n{PAIR}", "data.test_rows: got 0; must be at least 1"),
        ('data.file = "t.parquet"\ndata.target = "y"\ndata.impute = true', "data.impute: must be left out"),
    ],
)
def test_keys_that_a_stream_cannot_follow_are_rejected(keys: str, complaint: str) -> None:
    """Catches a key that is ignored without a word."""
    dotted = keys.replace("\ninputs", "\ndata.inputs").replace("\ntargets", "\ndata.targets")
    with pytest.raises(configs.ConfigError, match=complaint):
        configs.parse(f"data.stream = true\n{dotted}")
    with pytest.raises(configs.ConfigError, match=r"data.head_rows: is for streams"):
        configs.parse('data.name = "regression-1d"\ndata.head_rows = 5')
