"""What a newcomer does wrong in the first hour gets one line that says what it is and what to do."""

import errno
import json
import os
from pathlib import Path

import jax
import numpy as np
import optax
import pytest
from rich.console import Console

from stein import cli, data, hooks, likelihoods, models, priors, targets, train
from stein.ensembles import build
from stein.runs import configs, signals, sizes, status, template
from stein.runs.folder import RunFolder
from stein.storage import checkpoint, documents
from stein.train import Moment

# -- tables -------------------------------------------------------------------------------------------------

NO_HEADER = "has no header; add a first line with the column names, 'y' among them"
SEPARATED = "save it with commas between the columns and points in the numbers"
TABLES = {
    "no header": ("1,2,3\n4,5,6\n", NO_HEADER),
    "no header, two equal numbers": ("1,1,3\n4,5,6\n", NO_HEADER),
    "no header, classes by name": ("5.1,3.5,Iris-setosa\n4.9,3.0,Iris-setosa\n", NO_HEADER),
    "semicolons": ("a;y\n1.5;2.5\n", f"is separated by ';'; {SEPARATED}"),
    "semicolons and decimal commas": ("a;b;y\n1,5;2,5;3\n", f"is separated by ';'; {SEPARATED}"),
    "semicolons, decimal commas, no header": ("1,5;2,5\n3,5;4,5\n", f"is separated by ';'; {SEPARATED}"),
    "semicolons, quoted": ('"a";"y"\n1;2\n', f"is separated by ';'; {SEPARATED}"),
    "semicolons, a name with a comma": ('"size, in m";y\n1;2\n', f"is separated by ';'; {SEPARATED}"),
    "semicolons, another target": ("a;b\n1;2\n", f"is separated by ';'; {SEPARATED}"),
    "tabs": ("a\ty\n1\t2\n", f"is separated by tabs; {SEPARATED}"),
}


@pytest.mark.parametrize("name", TABLES)
def test_a_table_that_is_not_comma_separated_with_a_header(name, tmp_path):
    """Catches a first row lost as a header, a comma read in the wrong place, a column called missing that is there."""
    text, complaint = TABLES[name]
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(ValueError, match=r"t\.csv") as caught:
        data.load_arrays(tmp_path / "t.csv", "y")
    assert str(caught.value) == f"{tmp_path / 't.csv'}: {complaint}"


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("0,1,2\n4,5,6.5\n", "2"),  # as pandas writes an array
        ("1990,1991,y\n4,5,6.5\n", "y"),
        ('"a;b",1;2,y\n4,5,6.5\n', "y"),
        ('"a|b",c,"y"\n4,5,6.5\n', "y"),
    ],
)
def test_odd_names_of_columns_are_names(text, target, tmp_path):
    (tmp_path / "t.csv").write_text(text)
    found = data.load_arrays(tmp_path / "t.csv", target)
    assert (found.x.tolist(), found.y.tolist()) == ([[4, 5]], [6.5])


def test_pandas_column_numbers_without_the_target_are_no_missing_header(tmp_path):
    (tmp_path / "t.csv").write_text("0,1\n4,5\n")
    with pytest.raises(ValueError, match="no column 'y'; it has 0, 1"):
        data.load_arrays(tmp_path / "t.csv", "y")


# -- paths --------------------------------------------------------------------------------------------------


def test_paths_of_the_command_line_start_here_and_those_of_the_file_there(tmp_path, monkeypatch):
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "run.toml").write_text('data.inputs = "x.npy"\ndata.targets = "y.npy"')
    monkeypatch.chdir(tmp_path)
    path = Path("configs/run.toml")
    loaded = configs.load(path, ["data.targets=mine/y.npy"])
    here = os.path.realpath(tmp_path)
    assert (loaded.data.inputs, loaded.data.targets) == (f"{here}/configs/x.npy", f"{here}/mine/y.npy")
    assert configs.load(path, ["data.targets=/y.npy"]).data.targets == "/y.npy"


def test_out_that_is_no_directory_says_so(tmp_path, capsys):
    """Catches a bare errno, a traceback, or a file overwritten."""
    (tmp_path / "run.toml").write_text('data.name = "regression-1d"')
    (tmp_path / "file").write_text("mine")
    for out, complaint in {
        tmp_path / "file": f"{tmp_path}/file: is a file; give another --out",
        tmp_path / "file" / "run": f"{tmp_path}/file/run: {tmp_path}/file is a file; give another --out",
        tmp_path / "file" / "a" / "b": f"{tmp_path}/file/a/b: {tmp_path}/file is a file; give another --out",
        Path("/proc/nowhere"): (
            "/proc/nowhere: no run can be written here (No such file or directory); give another --out"
        ),
    }.items():
        assert cli.main(["train", str(tmp_path / "run.toml"), "--out", str(out)]) == 2
        assert capsys.readouterr().err == f"error: {complaint}\n"
    assert (tmp_path / "file").read_text() == "mine"


# -- sizes --------------------------------------------------------------------------------------------------


def test_inputs_that_overflow_are_named_before_training(tmp_path, capsys):
    """They killed every member at the first step, with the advice to lower the learning rate."""
    rows = [f"{i},{1e30 if i == 7 else i},{i}.5" for i in range(20)]
    (tmp_path / "t.csv").write_text("a,b,y\n" + "\n".join(rows) + "\n")
    text = '[data]\nfile = "t.csv"\ntarget = "y"\ntest_fraction = 0\nstandardise = false\n'
    (tmp_path / "run.toml").write_text(text)
    from stein.runs.build import assemble

    with pytest.raises(ValueError, match="overflows") as caught:
        assemble(configs.load(tmp_path / "run.toml"))
    assert str(caught.value) == (
        "input 2 of 2 is as large as 1e+30 (row 8): its fourth power overflows in float32; "
        "set data.standardise = true, or scale or drop the column"
    )
    sizes.check(np.ones((2, 1)), np.ones(2))
    with pytest.raises(ValueError, match=r"a target is as large as 1e\+20 \(row 2\): its square overflows in float32"):
        sizes.check(np.ones((2, 1), np.float32), np.array([1.0, -1e20], np.float32))


def test_large_inputs_and_targets_make_a_warning():
    x, y = np.ones((3, 2)), np.ones(3)
    assert list(sizes.warnings(x, y)) == []
    assert list(sizes.warnings(x, np.array([0, 1, 10**9]))) == []  # classes by number
    x[1, 1], y[2] = -2e6, 3e6
    assert list(sizes.warnings(x, y)) == [
        "input 2 of 2 is as large as 2e+06 (row 2): networks learn from numbers of about 1; "
        "set data.standardise = true",
        "a target is as large as 3e+06 (row 3): networks learn numbers of about 1; scale the targets",
    ]


@pytest.mark.parametrize(
    ("size", "advice"), [(1e200, "scale the inputs and targets"), (1.0, "lower the learning rate")]
)
def test_members_that_die_at_once_blame_the_numbers(size, advice):
    x, y = data.regression_1d()
    x, y = np.asarray(x, float) * size, np.asarray(y, float)
    target = targets.posterior(models.mlp([1, 4, 1]), likelihoods.gaussian(), priors.normal(), len(x))
    algorithm = build("de", target, learning_rate=1e3 if size == 1 else 1e-3, optimiser=optax.sgd)
    start = algorithm.init(jax.random.key(0), 3)
    start = start._replace(particles=jax.tree.map(lambda leaf: leaf.astype(float), start.particles))
    with pytest.raises(train.ParticlesDiedError, match=advice) as caught:
        train.run(algorithm, start, data.Batches(x, y), 50, chunk=50)
    assert ("already at the first step" in str(caught.value)) == (size > 1)


def test_the_step_of_a_death_is_that_step_also_when_all_stop():
    """Under ``on_nan="stop"`` the counter stands still; the step was counted back from it, to below zero."""
    x, y = data.regression_1d()
    target = targets.posterior(models.mlp([1, 4, 1]), likelihoods.gaussian(), priors.normal(), len(x))
    told = []
    for on_nan in ("freeze", "stop"):
        algorithm = build("de", target, learning_rate=10.0, optimiser=optax.sgd, on_nan=on_nan)
        with pytest.raises(train.ParticlesDiedError) as caught:
            train.run(algorithm, algorithm.init(jax.random.key(0), 3), data.Batches(x, y), 50, chunk=50, min_alive=1.0)
        told.append(str(caught.value).split(":")[0])
    assert told[0] == told[1]
    assert int(told[0].removeprefix("step ")) > 0


# -- full disks ---------------------------------------------------------------------------------------------


def moment(step, metrics=None):
    return Moment(None, None, step, 10**6, metrics or {})


def full(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_is_told_once_by_the_log(tmp_path, monkeypatch):
    """Catches the same warning at every chunk; a second trouble after room was made is told again."""
    told = []
    log = hooks.Log(tmp_path / "log", told.append)
    log(moment(1))
    for first in (2, 30):
        with monkeypatch.context() as patched:
            patched.setattr(hooks.records.durable, "append", full)
            for step in range(first, first + 20):
                log(moment(step))
        assert told.pop() == (f"step {first} not logged (No space left on device); trying again at every step logged")
        assert told == []
        log(moment(first + 20))
    rows = [json.loads(line)["step"] for line in (tmp_path / "log").read_text().splitlines()]
    assert rows == [1, *range(2, 23), *range(30, 51)]


def test_an_error_ends_the_run_with_its_reason_on_record(tmp_path, monkeypatch):
    (tmp_path / "config.toml").write_text("")
    mark = tmp_path / "failed.json"

    def end(error):
        with RunFolder(tmp_path).ended():
            raise error

    with pytest.raises(RuntimeError, match="2 of 4 alive"):
        end(RuntimeError("step 3:\n 2 of 4 alive"))
    assert json.loads(mark.read_text()) == {"reason": "step 3: 2 of 4 alive"}
    with pytest.raises(signals.StoppedError):
        end(signals.StoppedError("stopped", 2))
    assert not mark.exists()
    (tmp_path / "checkpoints" / "step-00000300").mkdir(parents=True)
    with pytest.raises(RuntimeError) as caught:
        end(OSError(errno.ENOSPC, "No space left on device"))
    assert str(caught.value) == (
        f"{tmp_path}: the disk does not take more (No space left on device); step 300 is saved; "
        f"make room, then `stein resume {tmp_path}`"
    )
    assert json.loads(mark.read_text()) == {"reason": str(caught.value)}
    with RunFolder(tmp_path).ended():
        pass
    assert not mark.exists()
    (tmp_path / "progress.json").write_text("{}")
    real = documents.write_json

    def write(path, value):  # room for one small file
        if (tmp_path / "progress.json").exists():
            full()
        real(path, value)

    monkeypatch.setattr(documents, "write_json", write)
    with pytest.raises(RuntimeError, match="the disk does not take more"):
        end(OSError(errno.ENOSPC, "No space left on device"))
    assert mark.exists()
    with pytest.raises(ConnectionRefusedError):  # a tracker, not the disk
        end(ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"))


def test_nothing_is_better_than_nan(tmp_path):
    """Catches a NaN kept as the best checkpoint, or counted by early stopping, though the log does not have it."""
    x, y = data.regression_1d()
    target = targets.posterior(models.mlp([1, 4, 1]), likelihoods.gaussian(0.5), priors.normal(), len(x))
    algorithm = build("de", target)
    values = dict(zip(range(2, 12, 2), [float("nan"), 1.0, float("nan"), 0.5, 2.0], strict=True))

    def score(moment):
        return {"test_nll": values[moment.step]}

    saver = hooks.Checkpoints(tmp_path, every=2, keep=1, best="test_nll")
    called = [score, saver, hooks.early_stopping(2)]
    state, _ = train.run(algorithm, algorithm.init(jax.random.key(0), 2), data.Batches(x, y), 10, chunk=2, hooks=called)
    assert int(state.step) == 10
    assert [path.name for path in checkpoint.steps(tmp_path)] == ["step-00000010", "step-00000008"]


def test_a_pipe_that_breaks_elsewhere_is_no_success(monkeypatch, capsys):
    """A tracker's or a worker's pipe broke: the command failed, and exit 0 would hide it."""

    def failing():
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    monkeypatch.setitem(cli.COMMANDS, "methods", failing)
    assert cli.main(["methods"]) == 1
    assert "Broken pipe" in capsys.readouterr().err


def test_an_old_config_keeps_its_fingerprint():
    """Of version 0.1.0, all keys written out. Catches a default changed (`schema.FORMER` wants the old one): the
    checkpoints of runs that were begun before would be refused."""
    text = (Path(__file__).parents[1] / "reliability" / "golden" / "config-0.1.0.toml").read_text()
    expected = "8a80dfa365edce4eda5be38746948b7994d2ba4e9e136d6a5e2fc42a8e6e182b"
    assert configs.fingerprint(configs.parse(text)) == expected


# -- status -------------------------------------------------------------------------------------------------


def make_run(place, steps=1000, method="h-svgd", **files):
    place.mkdir(parents=True)
    (place / "config.toml").write_text(
        f'[data]\nname = "regression-1d"\n[method]\nname = "{method}"\n[train]\nsteps = {steps}\n'
    )
    row = {"step": 500, "log_likelihood": -1.2345, "alive": 20, "test_nll": 0.987}
    (place / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    for name, content in files.items():
        (place / f"{name}.json").write_text(json.dumps(content))


def drawn(found, width):
    console = Console(width=width, highlight=False)
    with console.capture() as captured:
        console.print(status.table(found, width))
    return [line.rstrip() for line in captured.get().splitlines()]


def test_status_tells_failed_from_stopped_and_finished(tmp_path, capsys):
    make_run(tmp_path / "done", metrics={"steps": 1000})
    make_run(tmp_path / "dead", failed={"reason": "step 3: particles 0, 1 are not finite; lower the learning rate"})
    make_run(tmp_path / "ended", failed={"reason": "an earlier attempt"}, metrics={"steps": 1000})
    make_run(tmp_path / "halted")
    found = {Path(run["run"]).name: run for run in status.survey([tmp_path])}
    states = {name: (run["state"], run["reason"]) for name, run in found.items()}
    reason = "step 3: particles 0, 1 are not finite; lower the learning rate"
    assert states == {
        "done": ("finished", ""),
        "dead": ("failed", reason),
        "ended": ("finished", ""),
        "halted": ("interrupted", ""),
    }
    assert cli.main(["status", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"{tmp_path}/dead: {reason}"


@pytest.mark.parametrize("width", [80, 120])
def test_status_keeps_a_run_on_one_line(width, tmp_path):
    """Catches names, states or methods that are broken over two lines, and names cut so that runs look alike."""
    base = tmp_path / "a-rather-long-folder-name-of-a-project" / "runs"
    names = ["houses-fw-svgd-l-stochastic-2", "houses-fw-svgd-l-stochastic-3", "de"]
    for name in names:
        make_run(base / name, method="fw-svgd-l", failed={"reason": "dead"})
    found = [run | {"method": "fw-svgd-l stochastic"} for run in status.survey([base])]
    lines = drawn(found, width)
    assert len(lines) == 4
    assert max(map(len, lines)) <= width
    for name, line in zip(sorted(names), lines[1:], strict=True):
        assert f"/{name} " in line
        assert " failed  fw-svgd-l stochastic " in line
        assert " 500/1000" in line
    assert ("test nll" in lines[0]) == (width == 120)


def test_status_with_room_shows_everything_and_brackets_are_letters(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_run(Path("runs/[red]mine"))
    lines = drawn(status.survey([Path("runs")]), 80)
    assert lines[0].split() == ["run", "state", "method", "step", "alive", "loss", "test", "nll"]
    assert lines[1].split() == ["runs/[red]mine", "interrupted", "h-svgd", "500/1000", "20/20", "1.23", "0.987"]


def test_status_of_nothing_says_how(capsys):
    assert cli.main(["status"]) == 2
    assert capsys.readouterr().err == "error: no run is named; `stein status runs` shows all that are in runs/\n"


# -- TensorBoard --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "tag"),
    [
        ("log_likelihood", "train/log_likelihood"),
        ("log_prior", "train/log_prior"),
        ("test_nll", "test/nll"),
        ("validation_rmse", "validation/rmse"),
        ("bandwidth_weights", "kernel/bandwidth_weights"),
        ("row_sum_functions", "kernel/row_sum_functions"),
        ("similarity_functions", "kernel/similarity_functions"),
        ("force_ratio", "kernel/force_ratio"),
        ("alive", "members/alive"),
        ("effective_rank", "members/effective_rank"),
        ("stein_discrepancy", "members/stein_discrepancy"),
        ("mine", "other/mine"),
        ("mine/loss", "mine/loss"),
    ],
)
def test_tags_are_grouped(name, tag):
    assert hooks.tag(name) == tag


def test_every_number_of_a_run_has_a_group(tmp_path):
    """Catches a metric that is new and has no group, by what TensorBoard itself reads."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    x, y = data.regression_1d()
    target = targets.posterior(models.mlp([1, 4, 1]), likelihoods.gaussian(0.5), priors.normal(), len(x))
    algorithm, batches = build("h-svgd", target), data.Batches(x, y)
    with hooks.tensorboard(tmp_path) as board:
        called = [hooks.diagnostics(algorithm, batches, lambda words: None), board]
        train.run(algorithm, algorithm.init(jax.random.key(0), 3), batches, 2, chunk=2, hooks=called)
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert {tag.split("/")[0] for tag in events.Tags()["scalars"]} == {"train", "kernel", "members"}


def test_data_of_the_command_line_replace_those_of_the_file(tmp_path):
    """What `stein demo` ends with: a written config, and a table of one's own. Catches "data.name is given too"."""
    path = tmp_path / "stein.toml"
    path.write_text(template.template())
    found = configs.load(path, ["data.file=houses.csv", "data.target=price"]).data
    assert (found.name, Path(found.file).name, found.target) == ("", "houses.csv", "price")
    with pytest.raises(configs.ConfigError, match=r"data\.file.* data\.name is given too"):
        configs.load(path, ["data.file=houses.csv", "data.target=price", "data.name=uci-yacht"])


def test_no_advice_installs_another_package():
    """Catches "pip install stein": on the package index the name belongs to somebody else."""
    root = Path(__file__).parents[2]
    files = [*root.glob("src/**/*.py"), *root.glob("docs/**/*.md"), root / "README.md"]
    advice = "pip install 'stein", "pip install stein["
    assert [str(file) for file in files if any(words in file.read_text() for words in advice)] == []
