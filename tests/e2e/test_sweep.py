"""`stein sweep` as a user runs it: two trials, of which one dies."""

import json
import shutil
from pathlib import Path

import pytest

import runs
from stein.experiments import config as configs

SPEC = """
[base.data]
name = "digits"
classes = [0, 1]
[base.method]
name = "de"
particles = 2
[base.model]
hidden = [4]
[base.train]
steps = 40
batch_size = 16
log_every = 10
[base.evaluation]
every = 0
[base.checkpoints]
every = 10
[base.tracking]
tensorboard = false
[search.keys]
optimiser.learning_rate = [1e30, 0.05]
"""
QUICK = {"NPROC": "1", "XLA_FLAGS": "--xla_backend_optimization_level=0"}


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Path:
    """The file of a search that has been carried out beside it."""
    folder = tmp_path_factory.mktemp("search")
    (folder / "spec.toml").write_text(SPEC)
    done = runs.run(["sweep", folder / "spec.toml", "--out", folder / "out", "--workers", "1"], cache, **QUICK)
    assert done.returncode == 0, done.stderr
    assert "best: trial 001" in done.stdout
    assert (folder / "out" / "sweep.md").read_text() in done.stdout
    return folder / "spec.toml"


def listed(out: Path) -> list[dict]:
    return json.loads((out / "sweep.json").read_text())


def trained(out: Path) -> dict[str, int]:
    """When the files of the trials were last written."""
    return {str(path): path.stat().st_mtime_ns for path in out.glob("trials/*/*") if path.name != ".lock"}


def test_a_search_chooses_on_training_images_and_lists_what_died(spec: Path) -> None:
    """Sees a trial that ends the search when it dies, and test images that are looked at: there are 73 of these two
    classes, and a tenth of the training images is 29."""
    out = spec.parent / "out"
    died, lived = listed(out)
    assert (died["status"], died["settings"]) == ("failed", {"optimiser.learning_rate": 1e30})
    assert "are not finite (0 of 2 alive)" in died["reason"]
    assert (lived["status"], lived["settings"]) == ("finished", {"optimiser.learning_rate": 0.05})
    assert min(died["seconds"], lived["seconds"]) > 0
    right = 29 * lived["metrics"]["test_accuracy"]
    assert right == pytest.approx(round(right), abs=1e-5)
    best = configs.load(out / "best.toml")
    assert (best.optimiser.learning_rate, best.data.validate) == (0.05, False)
    assert (out / "sweep.png").stat().st_size > 10_000


def test_what_has_ended_is_not_trained_again_and_what_was_killed_goes_on(spec: Path, cache: Path) -> None:
    """One trial is taken away and its second training is killed. Sees one that starts anew, that ends elsewhere, and
    others, the failed one among them, that are trained a second time."""
    out = spec.parent / "again"
    shutil.copytree(spec.parent / "out", out)
    shutil.rmtree(out / "trials" / "001")
    before = trained(out)
    command = ["sweep", spec, "--out", out, "--workers", "1"]
    killed = runs.run(command, cache, STEIN_FAILPOINT="folder.renamed:2", **QUICK)
    assert killed.returncode == -9
    assert [path.name for path in sorted((out / "trials" / "001" / "checkpoints").glob("step-*"))] == [
        "step-00000010",
        "step-00000020",
    ]
    manifest = out / "trials" / "001" / "checkpoints" / "step-00000020" / "manifest.json"
    first = manifest.stat().st_mtime_ns
    resumed = runs.run(command, cache, **QUICK)
    assert resumed.returncode == 0, resumed.stderr
    assert manifest.stat().st_mtime_ns == first
    assert trained(out).items() >= before.items()
    whole = listed(spec.parent / "out")
    assert [row | {"seconds": 0} for row in listed(out)] == [row | {"seconds": 0} for row in whole]


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
    """Sees trials of another search taken over, and a trial that is refused after others have run."""
    (tmp_path / "other.toml").write_text(SPEC.replace(*change))
    given = [option.format(out=spec.parent / "out") for option in options] or ["--out", tmp_path / "new"]
    refused = runs.run(["sweep", tmp_path / "other.toml", *given], cache)
    assert (refused.returncode, refused.stdout, refused.stderr.count("\n")) == (2, "", 1), refused.stderr
    assert message in refused.stderr
    assert not (tmp_path / "new").exists()
