"""The engine as a new user meets it: config, train, status, resume, and what is said when something is wrong."""

import json
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
from huggingface_hub import ModelCard

import runs

SMALL = ["--set", "train.steps=200", "model.hidden=[8]", "method.particles=4", "checkpoints.every=100", "--quiet"]


def test_from_a_written_config_to_a_finished_run(tmp_path: Path, cache: Path) -> None:
    config = tmp_path / "mine.toml"
    written = runs.run(["config", "init", config], cache)
    assert (written.returncode, written.stdout) == (0, f"wrote {config}; edit it, then: stein train {config}\n")
    refused = runs.run(["config", "init", config], cache)
    assert (refused.returncode, "File exists" in refused.stderr) == (2, True)

    run = tmp_path / "run"
    trained = runs.run(["train", config, *SMALL, "--out", run, "--threads", "1"], cache)
    assert trained.returncode == 0, trained.stderr
    assert f"{run}: 200 steps of h-svgd done, 4 members alive  test_nll " in trained.stdout
    assert json.loads((run / "env.json").read_text())["CPU threads"] == "1"
    assert "effective_rank" in json.loads((run / "metrics.json").read_text())
    card = (run / "card.md").read_text()
    for word in (
        "An ensemble of 4 networks",
        "h-svgd-l: weights drive, outputs repel",
        "regression-1d",
        "test_nll",
        "Limits",
    ):
        assert word in card
    head = ModelCard(card).data  # what a model hub reads
    assert (head.library_name, head.pipeline_tag) == ("stein", "tabular-regression")
    metrics = json.loads((run / "metrics.json").read_text())
    assert {result.metric_type: result.metric_value for result in head.eval_results} == {
        name.removeprefix("test_"): value for name, value in metrics.items() if name.startswith("test_")
    }
    assert {result.dataset_name for result in head.eval_results} == {"regression-1d"}
    status = runs.run(["status", run], cache)
    assert re.search(r"finished +h-svgd +200/200 .* 4/4 ", status.stdout), status.stdout
    listed = json.loads(runs.run(["status", tmp_path, "--json"], cache).stdout)
    assert [entry["run"] for entry in listed] == [str(run)]


@pytest.mark.long
def test_far_spread_is_logged_with_every_evaluation(tmp_path: Path, cache: Path) -> None:
    """Catches a key without effect, a number at other steps than the evaluations', and one for classes."""
    run, wanted = tmp_path / "run", ["evaluation.every=100", "tracking.far_spread=true", "tracking.diagnostics=false"]
    config = runs.write_config(tmp_path)
    small = [SMALL[-1], *SMALL[:-1], *wanted]  # the list of --set goes on
    done = runs.run(["train", config, *small, "--out", run], cache, **runs.QUICK)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if "far_spread" in row] == [100, 200]
    assert all(0.1 < row["far_spread"] < 10 for row in rows if "far_spread" in row)
    refused = runs.run(["train", config, *small, "data.name=digits", "--out", tmp_path / "classes"], cache)
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "error: tracking.far_spread = true: is for regression" in refused.stderr
    assert not (tmp_path / "classes").exists()


@pytest.mark.long
def test_without_out_runs_get_names_of_their_own(tmp_path: Path, cache: Path) -> None:
    runs.write_config(tmp_path)
    command = [runs.STEIN, "train", "config.toml", "--method", "de", "--set", "train.steps=100", "--quiet"]
    for _ in range(2):
        done = subprocess.run(command, cwd=tmp_path, env=runs.environment(cache), capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["config-de", "config-de-2"]


@pytest.mark.long
def test_a_users_own_csv_of_classes(tmp_path: Path, cache: Path) -> None:
    """Names of classes, columns of very different size, and a column name that is nearly right."""
    random = np.random.default_rng(0)
    kinds = random.integers(0, 3, 90)
    rows = [f"{k + random.normal(0, 0.1):.3f},{1000 * random.normal():.1f},{'abc'[k]}" for k in kinds]
    (tmp_path / "own.csv").write_text("size,weight,kind\n" + "\n".join(rows) + "\n")
    text = '[data]\nfile = "own.csv"\ntarget = "kind"\nstandardise = true\ntest_fraction = 0.2\n'
    config = runs.write_config(tmp_path, text)
    run = tmp_path / "run"
    better = ["--set", "train.steps=500", "model.hidden=[16]", "optimiser.learning_rate=0.02"]
    trained = runs.run(["train", config, *better, "tracking.diagnostics=false", "--out", run, "--quiet"], cache)
    assert trained.returncode == 0, trained.stderr
    numbers = json.loads((run / "metrics.json").read_text())
    assert numbers["test_accuracy"] > 0.8
    assert "effective_rank" not in numbers
    wrong = runs.run(["train", config, "--set", "data.target=kid", "--out", tmp_path / "other"], cache)
    assert wrong.returncode == 2
    assert "'kind'" in wrong.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "{dir}/missing.toml"], "error: {dir}/missing.toml: "),
        (["train", "{config}", "--set", "train.stepps=5"], "did you mean 'steps'?"),
        (
            ["train", "{config}", "--set", "train.steps=many"],
            "train.steps (from --set): got 'many'; must be a whole number",
        ),
        (["train", "{config}", "--method", "h-svdg"], "did you mean 'h-svgd'?"),
        (["train", "{config}", "--method", "f-svgd", "--stochastic"], "error: "),
        (["train", "{config}", "--threads", "0"], "error: --threads = 0: must be at least 1"),
        (["resume", "{dir}/nothing"], "error: {dir}/nothing: no such directory"),
        (["resume", "{dir}"], "error: {dir}: not a run"),
        (["status", "{dir}/nothing"], "error: {dir}/nothing: no such directory"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(arguments: list[str], message: str, tmp_path: Path, cache: Path) -> None:
    config = runs.write_config(tmp_path / "configs", "[data]\nname = 'regression-1d'\n")
    words = {"dir": str(tmp_path), "config": str(config)}
    refused = runs.run([argument.format(**words) for argument in arguments], cache)
    assert (refused.returncode, refused.stdout, refused.stderr.count("\n")) == (2, "", 1), refused.stderr
    assert message.format(**words) in refused.stderr


def test_members_that_all_die_end_the_run_with_step_and_names(tmp_path: Path, cache: Path) -> None:
    """A5 through the command line: exit 1, which members and when; `stein status` still knows the run."""
    config = runs.write_config(tmp_path)
    run = tmp_path / "run"
    wild = ["--method", "de", "--set", "optimiser.name=sgd", "optimiser.learning_rate=1e30"]
    died = runs.run(["train", config, *wild, "--out", run, "--quiet"], cache)
    assert (died.returncode, died.stderr.count("\n")) == (1, 1)
    assert re.match(r"error: step \d+: particles 0, 1, 2, 3 are not finite \(0 of 4 alive\)", died.stderr)
    (seen,) = json.loads(runs.run(["status", run, "--json"], cache).stdout)
    assert (seen["state"], f"error: {seen['reason']}\n") == ("failed", died.stderr)


@pytest.mark.long
def test_a_newer_or_damaged_checkpoint_is_named(tmp_path: Path, cache: Path) -> None:
    """R5 through the command line: damage falls back with a warning; with nothing to fall back to it is exit 2."""
    config = runs.write_config(tmp_path)
    run = tmp_path / "run"
    killed = runs.run(["train", config, "--out", run, "--quiet"], cache, STEIN_FAILPOINT="folder.renamed:2")
    assert killed.returncode == -9
    _, last = sorted((run / "checkpoints").glob("step-*"))
    file = last / "particles.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    fell_back = runs.run(["resume", run, "--quiet"], cache, STEIN_FAILPOINT="folder.renamed:1")
    assert f"warning: {file} is damaged (its SHA-256 is not the one in the manifest); falling back" in fell_back.stderr
    for path in (run / "checkpoints").glob("step-*"):
        (path / "opt.safetensors").write_bytes(b"")
    refused = runs.run(["resume", run, "--quiet"], cache)
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "opt.safetensors: damaged" in refused.stderr


@pytest.mark.long
def test_a_log_that_was_shortened_is_told_and_goes_on(tmp_path: Path, cache: Path) -> None:
    """Catches a log that is filled up with zeros to the length that the checkpoint remembers."""
    config = runs.write_config(tmp_path)
    run = tmp_path / "run"
    short = ["--set", "train.steps=400"]
    runs.run(["train", config, *short, "--out", run, "--quiet"], cache, STEIN_FAILPOINT="folder.renamed:2")
    log = run / "metrics.jsonl"
    lines = log.read_text().splitlines(keepends=True)
    log.write_text("".join(lines[:2]) + lines[2][:10])
    resumed = runs.run(["resume", run, "--quiet"], cache)
    assert resumed.returncode == 0
    assert f"warning: {log}: lines are missing at its end" in resumed.stderr
    steps = [json.loads(line)["step"] for line in log.read_text().splitlines()]
    assert steps == [50, 100, *range(250, 401, 50)]


@pytest.mark.long
def test_another_processor_of_the_same_name_is_told(tmp_path: Path, cache: Path) -> None:
    """Catches AVX2 and AVX-512 under one name, and suspicion of a run that is older than the fact."""
    config, run = runs.write_config(tmp_path), tmp_path / "run"
    runs.run(["train", config, "--set", "train.steps=50", "--out", run, "--quiet"], cache, **runs.QUICK)
    facts = json.loads((run / "env.json").read_text())
    older = {name: value for name, value in facts.items() if name != "instructions"}
    for before, steps in (({**facts, "instructions": "sse"}, 100), (older, 150)):
        (run / "env.json").write_text(json.dumps(before))
        resumed = runs.run(["resume", run, "--steps", steps, "--quiet"], cache, **runs.QUICK)
        assert resumed.returncode == 0, resumed.stderr
        assert ("instructions was sse and is" in resumed.stderr) == ("instructions" in before)
