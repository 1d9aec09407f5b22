"""`stein reproduce digits` and real images as a user meets them, at budgets of seconds."""

import json
import os
import shutil
from pathlib import Path

import pytest

import runs
from stein.datasets import sources

ROWS = ("de", "h-svgd-l-stochastic")
KEYS = (
    *("method", "stochastic", "seed", "accuracy", "auroc_h", "auroc_md", "h_ratio", "md_ratio", "ece", "nll"),
    "nll_paper",
)
COMMAND = ("reproduce", "digits", "--preset", "smoke", "--methods", *ROWS, "--out")


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Path:
    out = tmp_path_factory.mktemp("table") / "out"
    done = runs.run([*COMMAND, out, "--workers", "1"], cache, **runs.QUICK)
    assert done.returncode == 0, done.stderr
    assert (out / "table.md").read_text() in done.stdout
    return out


def read(out: Path) -> list[dict]:
    return json.loads((out / "table.json").read_text())


@pytest.mark.long
def test_a_table_has_its_numbers_and_figures(table: Path) -> None:
    """Catches a row without a number, members that learned nothing, and unseen digits that were seen."""
    found = read(table)
    assert [(row["method"], row["stochastic"], row["seed"]) for row in found] == [
        ("de", False, 42),
        ("h-svgd-l", True, 42),
    ]
    for row in found:
        assert set(KEYS) <= set(row)
        assert all(isinstance(row[key], float) for key in KEYS[3:])
        assert row["accuracy"] > 0.5
        assert row["test_points"] == 180  # of the digits 0 to 4
    about = json.loads((table / "about.json").read_text())
    assert list(about["configs"]) == list(ROWS)
    assert about["command"] == "stein reproduce digits --preset smoke"
    figures = {"learning", "calibration", "corruption", "corruption-stochastic"}
    assert {path.name for path in table.glob("*.png")} == {f"{name}.png" for name in figures}
    lines = (table / "table.md").read_text().splitlines()
    assert [line.split(" | ")[:2] for line in lines[4:]] == [["| no", "DE"], ["| yes", "h-SVGD-l"]]
    assert f"{found[0]['accuracy']:.3f}" in lines[4]
    assert f"{found[1]['nll_paper']:.3f}" in (table / "table.tex").read_text()


@pytest.mark.long
def test_calibration_and_corruption_are_those_of_the_tables_ensembles(table: Path, cache: Path) -> None:
    """Catches ensembles that are trained again for another view of them, and numbers of another row or blur."""
    out = table.parent / "curves"
    shutil.copytree(table, out / "digits")
    found = read(table)[1]
    for what, numbers in (
        ("calibration", {"calibration_area": 3, "calibration_coverage97": 0}),
        ("corruption", {"blur_2_accuracy": 3, "blur_2_auroc_h": 3}),
    ):
        command = ["reproduce", what, "--tables", "digits", *COMMAND[2:], out, "--workers", "1"]
        done = runs.run(command, cache, STEIN_FAILPOINT="folder.renamed:1", **runs.QUICK)  # dead if it trained
        assert done.returncode == 0, done.stderr
        assert (out / "digits" / f"{what}.md").read_text() in done.stdout
        lines = [line for line in done.stdout.splitlines() if "h-SVGD-l" in line]
        for number, digits in numbers.items():
            assert any(f" {found[number]:.{digits}f} |" in line for line in lines)


@pytest.mark.long
def test_a_cell_of_other_settings_is_not_taken_for_this_one(table: Path, cache: Path) -> None:
    """Catches a half-trained cell that is resumed with its old settings and shown under the new ones' name."""
    out = table.parent / "changed"
    shutil.copytree(table, out)
    cell = out / "cells" / "de-42"
    (cell / "evaluation.json").unlink()
    text = (cell / "config.toml").read_text()
    (cell / "config.toml").write_text(text.replace("learning_rate = 0.0025", "learning_rate = 0.0026"))
    refused = runs.run([*COMMAND, out, "--workers", "1"], cache, **runs.QUICK)
    assert refused.returncode == 2
    assert f"{cell}: was begun with other settings; delete it, or give another --out" in refused.stderr
    # What is finished is shown all the same, and how far the other one has come.
    assert [row["method"] for row in read(out)] == ["h-svgd-l"]
    unfinished = json.loads((out / "about.json").read_text())["unfinished"]
    assert {name: (row["step"], row["of"]) for name, row in unfinished.items()} == {"de-42": (100, 100)}
    assert 0.5 < unfinished["de-42"]["test_accuracy"] < 1


@pytest.mark.long
def test_what_is_finished_stays_and_a_killed_cell_ends_with_the_same_numbers(table: Path, cache: Path) -> None:
    """One cell is taken away and its second training is killed. Catches a cell that is trained twice, one that is
    judged half trained, and a resumed one that ends elsewhere."""
    out = table.parent / "again"
    shutil.copytree(table, out)
    shutil.rmtree(out / "cells" / "h-svgd-l-stochastic-42")
    kept = {path: path.stat().st_mtime_ns for path in (out / "cells").rglob("*") if path.is_file()}
    killed = runs.run([*COMMAND, out, "--workers", "1"], cache, STEIN_FAILPOINT="folder.renamed:3", **runs.QUICK)
    assert killed.returncode == -9
    cell = out / "cells" / "h-svgd-l-stochastic-42"
    assert max(path.name for path in (cell / "checkpoints").glob("step-*")) == "step-00000075"
    assert not (cell / "evaluation.json").exists()
    resumed = runs.run([*COMMAND, out, "--workers", "1"], cache, **runs.QUICK)
    assert resumed.returncode == 0, resumed.stderr
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    assert [row | {"seconds": 0} for row in read(out)] == [row | {"seconds": 0} for row in read(table)]


def test_a_row_that_is_not_there_is_named(tmp_path: Path, cache: Path) -> None:
    refused = runs.run(["reproduce", "digits", "--methods", "h-svgd-x", "--out", tmp_path / "out"], cache)
    assert (refused.returncode, refused.stdout, refused.stderr.count("\n")) == (2, "", 1)
    assert "error: --methods = 'h-svgd-x': not in this table; it has de, w-svgd, " in refused.stderr
    assert not (tmp_path / "out").exists()


def missing(*names: str) -> list[str]:
    """The test files of these data sets that are nowhere on this machine."""
    files = [file for name in names for file in sources.DATASETS[name].files]
    return [file.path for file in files if sources.find(file, None) is None]


@pytest.mark.long
@pytest.mark.skipif("STEIN_DATA" not in os.environ, reason="STEIN_DATA is not set: there are no real images")
def test_fashion_against_digits(tmp_path: Path, cache: Path) -> None:
    """Two classes of FashionMNIST, all of MNIST's test images. Catches another set than the one that was asked for, and
    images of another size that are looked at all the same."""
    if missing("fashion-mnist", "mnist"):
        pytest.skip(f"not on this machine: {', '.join(missing('fashion-mnist', 'mnist'))}")
    text = '[data]\nname = "fashion-mnist"\nclasses = [1, 8]\n[method]\nname = "de"\nparticles = 2\n'
    text += "[model]\nhidden = [4]\n[optimiser]\nlearning_rate = 0.05\n[tracking]\ntensorboard = false\n"
    text += "[train]\nsteps = 60\nbatch_size = 32\nlog_every = 20\n[checkpoints]\nevery = 60\n[evaluation]\nevery = 0\n"
    run = tmp_path / "run"
    trained = runs.run(["train", runs.write_config(tmp_path, text), "--out", run, "--quiet"], cache, **runs.QUICK)
    assert trained.returncode == 0, trained.stderr
    done = runs.run(["evaluate", run, "--ood", "mnist"], cache, **runs.QUICK)
    assert done.returncode == 0, done.stderr
    found, last = (json.loads((run / name).read_text()) for name in ("evaluation.json", "metrics.json"))
    assert found["accuracy"] == pytest.approx(last["test_accuracy"])
    assert found["accuracy"] > 0.9  # trousers and bags
    assert found["test_points"] == 2000
    assert list(json.loads((run / "curves.json").read_text())["calibration"]) == ["mnist"]
    assert 0 < found["auroc_h"] < 1
    if missing("cifar10"):
        pytest.skip("CIFAR-10 is not on this machine: images of another size are not tried")
    refused = runs.run(["evaluate", run, "--ood", "cifar10"], cache, **runs.QUICK)
    assert (refused.returncode, refused.stdout, refused.stderr.count("\n")) == (2, "", 1)
    assert "cifar10: rows of shape (3072,); the run was trained on (784,)" in refused.stderr
