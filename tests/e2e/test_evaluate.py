"""`stein evaluate` as a user meets it: a finished run in, numbers, curves and figures out."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

import runs
from stein import data
from stein.runs import assess, schema

CONFIG = """
[data]
file = "stripes.npz"
test_fraction = 0.25
standardise = true
[method]
name = "de"
particles = 3
[model]
hidden = [8]
[train]
steps = 150
[optimiser]
learning_rate = 0.01
[tracking]
diagnostics = false
tensorboard = false
"""


def stripes(rows: int = 200) -> tuple[np.ndarray, np.ndarray]:
    """Images of 6 x 6 pixels, flat: horizontal stripes, or vertical ones; on a bright ground, with noise."""
    random = np.random.default_rng(0)
    y = random.integers(0, 2, rows)
    images = np.stack(np.indices((6, 6)) % 2)[y] + random.normal(0, 0.3, (rows, 6, 6))
    return (100 + 20 * images).reshape(rows, 36).astype(np.float32), y


def read(path: Path) -> dict:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(path.read_text(), parse_constant=refuse)


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Path:
    folder = tmp_path_factory.mktemp("classifier")
    x, y = stripes()
    np.savez(folder / "stripes.npz", x=x, y=y)
    np.save(folder / "same.npy", x[data.held_out(len(x), 0.25, 42, y)])
    np.savez(folder / "noise.npz", np.random.default_rng(1).normal(100, 20, (80, 36)))
    np.save(folder / "images.npy", np.zeros((5, 6, 6, 1), np.uint8))
    trained = runs.run(
        ["train", runs.write_config(folder, CONFIG), "--out", folder / "run", "--quiet", "--threads", "1"],
        cache,
        **runs.QUICK,
    )
    assert trained.returncode == 0, trained.stderr
    return folder / "run"


@pytest.mark.long
def test_a_classifier_with_other_points_and_blur(classifier: Path, cache: Path) -> None:
    """The held-out numbers are those of training; the test points in a file of their own are like themselves. Catches
    the wrong part of the data, other points that are not standardised, a blur of standardised pixels, and a JSON of
    NaN."""
    folder = classifier.parent
    given = [folder / "noise.npz", "same.npy"]
    done = runs.run(["evaluate", classifier, "--ood", *given, "--corruption", "--data-dir", folder], cache)
    assert done.returncode == 0, done.stderr
    assert "auroc_md" in done.stdout
    found, trained = read(classifier / "evaluation.json"), read(classifier / "metrics.json")
    for name in ("accuracy", "nll", "nll_members"):
        assert found[name] == pytest.approx(trained[f"test_{name}"], rel=1e-4)
    assert (found["test_points"], found["members"]) == (50, 3)
    assert found["same_auroc_h"] == found["same_auroc_md"] == 0.5
    assert found["same_h_ratio"] == found["same_md_ratio"] == 1
    assert found["auroc_h"] == found["noise_auroc_h"] > 0.6
    assert found["blur_0.1_accuracy"] == found["accuracy"] > 0.9
    assert found["blur_0.1_ece"] == pytest.approx(found["ece"], abs=1e-4)
    assert found["blur_3_auroc_h"] > 0.6
    curves = read(classifier / "curves.json")
    assert list(curves["calibration"]) == ["noise", "same"]
    assert [row["sigma"] for row in curves["corruption"]] == [0.1, 0.5, 1.0, 1.5, 2.0, 3.0]
    names = ("reliability", "calibration", "entropies", "corruption")
    drawn = {path.name for path in (classifier / "figures").iterdir()}
    assert drawn == {f"{name}.{kind}" for name in names for kind in ("png", "svg")}
    views, rows = read(classifier / "views.json"), read(classifier / "rows.json")
    assert list(views["roc"]) == ["noise", "same"]
    assert views["errors"]["accuracy"] == pytest.approx(
        (found["accuracy"] * (1 - found["accuracy"]) / 49) ** 0.5, rel=1e-3
    )
    assert [snapshot["step"] for snapshot in views["snapshots"]] == [0, 150]
    assert views["images"] is True
    assert [len(rows[side]) for side in ("least", "most")] == [6, 6]
    assert sum(rows["least"][0]["votes"].values()) == 3
    assert rows["least"][0]["score"] >= rows["most"][0]["score"]
    assert all(len(row["near"]) == 3 and row["image"] for row in rows["least"])

    again = runs.run(["evaluate", classifier], cache)  # leaves nothing behind of what was asked before
    assert again.returncode == 0, again.stderr
    assert "auroc_h" not in read(classifier / "evaluation.json")
    assert not (classifier / "figures" / "corruption.png").exists()


@pytest.mark.long
def test_a_regression(tmp_path: Path, cache: Path) -> None:
    """With a learned sigma. Catches log sigma among the means, and targets that broadcast to a square."""
    config = runs.write_config(tmp_path)
    small = ["--set", "train.steps=200", "likelihood.sigma=learned", "evaluation.every=200", "--quiet"]
    run = tmp_path / "run"
    trained = runs.run(["train", config, "--method", "de", *small, "--out", run], cache, **runs.QUICK)
    assert trained.returncode == 0, trained.stderr
    done = runs.run(["evaluate", run], cache)
    assert done.returncode == 0, done.stderr
    found, last = read(run / "evaluation.json"), read(run / "metrics.json")
    for name in ("rmse", "nll", "nll_members"):
        assert found[name] == pytest.approx(last[f"test_{name}"], rel=1e-4)
    assert 0 < found["crps"] < 2 * found["rmse"]
    assert 0 <= found["coverage_50"] <= found["coverage_90"] <= found["coverage_95"] <= 1
    assert {path.name for path in (run / "figures").iterdir()} == {"intervals.png", "intervals.svg"}
    views, rows = read(run / "views.json"), read(run / "rows.json")
    assert views["snapshots"][0]["step"] == 0
    assert len(views["snapshots"][-1]["drawn"]) == found["members"]
    assert len(rows["predicted"]["true"]) == found["test_points"]
    inside = [
        low <= y <= high for low, y, high in zip(*(rows["predicted"][k] for k in ("low", "true", "high")), strict=True)
    ]
    assert np.mean(inside) == pytest.approx(found["coverage_90"])
    refused = runs.run(["evaluate", run, "--corruption"], cache)
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert f"error: --corruption: is for classifiers; {run} is a regression" in refused.stderr


@pytest.mark.long
def test_the_dead_have_nothing_to_say(classifier: Path, tmp_path: Path, cache: Path) -> None:
    """A member that ended as NaN. Catches it in the mean, and in the count."""
    run = tmp_path / "run"
    shutil.copytree(classifier, run)
    file = run / "ensemble.safetensors"
    with safetensors.safe_open(file, "numpy") as saved:
        about = json.loads(saved.metadata()["stein"])
        del about["sha256"]  # files of stein 0.1 have none
        arrays = {name: saved.get_tensor(name) for name in saved.keys()}  # noqa: SIM118
    for array in arrays.values():
        array[1] = np.nan
    safetensors.numpy.save_file(arrays, file, {"stein": json.dumps(about | {"alive": [0, 2]})})
    done = runs.run(["evaluate", run], cache)
    assert done.returncode == 0, done.stderr
    found = read(run / "evaluation.json")
    assert found["members"] == 2
    assert found["accuracy"] > 0.8


def test_points_of_another_shape_are_exit_2(classifier: Path, cache: Path) -> None:
    """Catches images that are silently made flat."""
    images = classifier.parent / "images.npy"
    refused = runs.run(["evaluate", classifier, "--ood", images], cache)
    assert (refused.returncode, refused.stdout, refused.stderr.count("\n")) == (2, "", 1)
    assert f"error: {images}: images of shape (6, 6, 1); the run was trained on (36,)" in refused.stderr


def test_data_that_changed_and_runs_that_are_not_finished(classifier: Path, tmp_path: Path, cache: Path) -> None:
    """Exit 2 with one line. Catches an ensemble judged on data that it may have been trained on, and a standardiser
    that is not the one of training."""
    other = tmp_path / "other"
    shutil.copytree(classifier, other)
    x, y = stripes()
    np.savez(tmp_path / "changed.npz", x=x + 1, y=y)
    config = (other / "config.toml").read_text()
    (other / "config.toml").write_text(
        config.replace(str(classifier.parent / "stripes.npz"), str(tmp_path / "changed.npz"))
    )
    changed = runs.run(["evaluate", other], cache)
    assert (changed.returncode, changed.stderr.count("\n")) == (2, 1), changed.stderr
    assert "its data changed after training began" in changed.stderr
    (other / "metrics.json").unlink()
    for folder, words in ((other, "not finished; `stein resume"), (tmp_path, "not a run")):
        refused = runs.run(["evaluate", folder], cache)
        assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
        assert words in refused.stderr


POINTS = schema.Data(name="classification-2d")


@pytest.mark.parametrize(
    ("content", "given", "message"),
    [
        (
            None,
            "mnits",
            "--ood mnits: neither a .csv, .parquet, .arrow, .feather, .npy or .npz file nor one of far-from-the-ring",
        ),
        (None, "missing.npy", "missing.npy: no such file"),
        (b"no array", "bad.npy", "bad.npy: cannot be read"),
        (np.zeros((4, 3)), "three.npy", r"three.npy: rows of shape \(3,\); the run was trained on \(2,\)"),
        (np.array([[1.0, np.nan]]), "nan.npy", "nan.npy: x.0, 1.: nan: must be finite"),
        (np.zeros((0, 2)), "empty.npy", "empty.npy: x has shape"),
        (np.array([["a", "b"]]), "text.npy", "text.npy: x has type <U1: must be numbers"),
        ({"a": np.zeros((4, 2)), "b": np.zeros((4, 2))}, "two.npz", "two.npz: no array 'x'; it has a, b"),
    ],
)
def test_other_points_that_cannot_be_used(content, given, message, tmp_path: Path) -> None:
    """Every complaint names the file. Catches errors of NumPy instead."""
    path = tmp_path / given
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif isinstance(content, dict):
        np.savez(path, **content)
    elif content is not None:
        np.save(path, content)
    with pytest.raises(ValueError, match=message):
        assess.ood_inputs(str(path) if path.suffix else given, POINTS, (2,))


def test_other_points_are_found_by_name_and_by_file(tmp_path: Path) -> None:
    """Catches a name that is not known."""
    assert assess.ood_inputs("far-from-the-ring", POINTS, (2,))[0].shape == (250, 2)
    np.savez(tmp_path / "far.npz", x=np.ones((3, 2)), y=np.ones(3))
    found, _ = assess.ood_inputs(str(tmp_path / "far.npz"), POINTS, (2,))
    assert found.tolist() == [[1, 1]] * 3
