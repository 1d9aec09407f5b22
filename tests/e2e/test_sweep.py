"""`stein sweep` as a user runs it: three trials, of which one dies and one is killed."""

import json
from pathlib import Path

import pytest

import runs
from stein.runs import configs
from stein.runs.folder import RunFolder

SPEC = (
    runs.SEARCH.format(steps=40, evaluated=0, saved=10)
    + "[search.keys]\noptimiser.learning_rate = [1e30, 0.05, 1e-4]\n"
)


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Path:
    """The file of a search that was killed in its third trial, at step 20, and begun again."""
    folder = tmp_path_factory.mktemp("search")
    (folder / "spec.toml").write_text(SPEC)
    out, command = folder / "out", ["sweep", folder / "spec.toml", "--out", folder / "out", "--workers", "1"]
    killed = runs.run(command, cache, STEIN_FAILPOINT="folder.renamed:6", **runs.QUICK)
    assert (killed.returncode, killed.stdout) == (-9, "")
    before = written(out)
    resumed = runs.run(command, cache, **runs.QUICK)
    assert resumed.returncode == 0, resumed.stderr
    assert "best: trial 001" in resumed.stdout
    assert (out / "sweep.md").read_text() in resumed.stdout
    (folder / "before.json").write_text(json.dumps(before))
    return folder / "spec.toml"


def written(out: Path) -> dict[str, int]:
    """When the files of the trials were last written."""
    files = (path for path in out.glob("trials/**/*") if path.is_file() and path.name != ".lock")
    return {str(path.relative_to(out / "trials")): path.stat().st_mtime_ns for path in files}


@pytest.mark.long
def test_a_search_chooses_on_training_images_and_lists_what_died(spec: Path) -> None:
    """Catches a trial that ends the search when it dies, and test images that are looked at: there are 73 of these two
    classes, and a tenth of the training images is 29."""
    out = spec.parent / "out"
    died, best, slow = json.loads((out / "sweep.json").read_text())
    assert (died["status"], died["settings"]) == ("failed", {"optimiser.learning_rate": 1e30})
    assert "are not finite (0 of 2 alive)" in died["reason"]
    assert (best["status"], best["settings"]) == ("finished", {"optimiser.learning_rate": 0.05})
    assert min(trial["seconds"] for trial in (died, best, slow)) > 0
    assert best["metrics"]["test_nll"] < slow["metrics"]["test_nll"]
    right = 29 * slow["metrics"]["test_accuracy"]
    assert 0 < right < 29
    assert right == pytest.approx(round(right), abs=1e-5)
    config = configs.load(out / "best.toml")
    assert (config.optimiser.learning_rate, config.data.validate) == (0.05, False)
    assert (out / "sweep.png").stat().st_size > 10_000


@pytest.mark.long
def test_what_has_ended_is_not_trained_again_and_what_was_killed_goes_on(spec: Path) -> None:
    """Catches a trial that is finished or failed and trained again, and a killed one that starts anew."""
    before, after = json.loads((spec.parent / "before.json").read_text()), written(spec.parent / "out")
    ended = [name for name in before if name.startswith(("000", "001"))]
    assert {"000/failed.json", "001/metrics.json"} <= set(ended)
    assert {name: after[name] for name in ended} == {name: before[name] for name in ended}
    checkpoint = "002/checkpoints/step-00000020/manifest.json"
    assert "002/metrics.json" not in before
    assert after[checkpoint] == before[checkpoint]
    steps = [row["step"] for row in RunFolder(spec.parent / "out" / "trials" / "002").rows()]
    assert steps == [10, 20, 30, 40]


@pytest.mark.long
@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        (("0.05", "0.06"), ["--out", "{out}"], "001/config.toml: is not trial 001 of this search"),
        (("0.05", '"slow"'), [], "optimiser.learning_rate (from search.keys): got 'slow'; must be a number above 0"),
        (("", ""), ["--workers", "0"], "error: --workers = 0: must be at least 1"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    change: tuple[str, str], options: list[str], message: str, spec: Path, tmp_path: Path, cache: Path
) -> None:
    """Catches trials of another search taken over, and a trial that is refused after others have run."""
    (tmp_path / "other.toml").write_text(SPEC.replace(*change))
    given = [option.format(out=spec.parent / "out") for option in options] or ["--out", tmp_path / "new"]
    refused = runs.run(["sweep", tmp_path / "other.toml", *given], cache)
    assert (refused.returncode, refused.stdout, refused.stderr.count("\n")) == (2, "", 1), refused.stderr
    assert message in refused.stderr
    assert not (tmp_path / "new").exists()
