"""R13, R15, R16: full disks, odd environments, and the same bytes in all of them."""

import json
import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

import runs

SHORT = ["--set", "train.steps=300"]


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return runs.write_config(tmp_path_factory.mktemp("config"))


@pytest.fixture(scope="module")
def usual(config: Path, tmp_path_factory: pytest.TempPathFactory, cache: Path) -> dict[str, str]:
    """The result that no environment may change."""
    run = tmp_path_factory.mktemp("usual") / "run"
    assert runs.run(["train", config, *SHORT, "--out", run], cache).returncode == 0
    return runs.result(run)


ENVIRONMENTS = {
    "no home, another language, time zone and hash seed": (
        "env -u HOME -u XDG_CACHE_HOME LANG=C LC_ALL=C TZ=Asia/Kolkata PYTHONHASHSEED=7 {} </dev/null"
    ),
    "closed standard streams": "{} <&- >&- 2>/dev/null",
    "a reader who leaves": "{} 2>&1 | head -c 1 >/dev/null",
    "twenty columns": "env COLUMNS=20 {}",
    "a clock that goes back": "env PYTHONPATH={backwards} {}",
    "a terminal": "script -qec {quoted} /dev/null",
}


@pytest.mark.long
@pytest.mark.parametrize("name", [
    pytest.param(name, marks=() if name.startswith("no home") else pytest.mark.long)
    for name in ENVIRONMENTS
])  # fmt: skip
def test_the_environment_does_not_change_a_byte(
    name: str, config: Path, usual: dict[str, str], tmp_path: Path, cache: Path
) -> None:
    """Catches a result that depends on the hash seed, the clock, the progress bar, or on somebody watching."""
    if name == "a terminal" and not shutil.which("script"):
        pytest.skip("needs the command `script`")
    run = tmp_path / "ünïcode and spaces"
    command = shlex.join(map(str, [runs.STEIN, "train", config, *SHORT, "--out", run]))
    (tmp_path / "sitecustomize.py").write_text(
        "import itertools, time\nback = itertools.count(int(time.time()), -60)\ntime.time = lambda: float(next(back))\n"
    )
    shell = ENVIRONMENTS[name].format(command, quoted=shlex.quote(command), backwards=shlex.quote(str(tmp_path)))
    subprocess.run(["sh", "-c", shell], env=runs.environment(cache), timeout=120, check=False, capture_output=True)
    assert runs.result(run) == usual
    if name == "a terminal":
        return
    again = runs.run(["resume", run], cache)
    assert (again.returncode, "is finished" in again.stdout) == (0, True)


@pytest.mark.long
def test_trackers_do_not_change_a_byte(config: Path, usual: dict[str, str], tmp_path: Path, cache: Path) -> None:
    """R16 with everything off. Catches a hook that draws random numbers or touches the state."""
    run = tmp_path / "run"
    quiet = ["--quiet", "--no-cache"]
    off = ["tracking.tensorboard=false"]
    assert runs.run(["train", config, *SHORT, *off, "--out", run, *quiet], cache).returncode == 0
    mine, theirs = runs.result(run), dict(usual)
    mine.pop("ensemble.safetensors"), theirs.pop("ensemble.safetensors")  # holds the config, which differs
    assert mine == theirs


@pytest.mark.parametrize(("out", "message"), [
    ("/proc/nowhere", "/proc/nowhere: no run can be written here (No such file or directory); give another --out"),
    ("{file}/run", "file is a file; give another --out"),
    ("{taken}", "already holds a run; `stein resume "),
])  # fmt: skip
def test_a_directory_that_cannot_be_used(out: str, message: str, config: Path, tmp_path: Path, cache: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "config.toml").write_text("")
    place = out.format(file=tmp_path / "file", taken=tmp_path / "taken")
    refused = runs.run(["train", config, "--out", place], cache)
    assert (refused.returncode, refused.stdout, refused.stderr.count("\n")) == (2, "", 1)
    assert message in refused.stderr


def test_bad_data_leaves_no_run_behind(config: Path, tmp_path: Path, cache: Path) -> None:
    refused = runs.run(["train", config, "--set", "train.batch_size=5000", "--out", tmp_path / "run"], cache)
    assert refused.returncode == 2
    assert refused.stderr == (
        "error: train.batch_size = 5000: the training data has 73 rows; 0 uses all in every step\n"
    )
    assert not (tmp_path / "run").exists()


@pytest.mark.long
@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")
def test_a_full_disk_ends_the_run_and_harms_nothing(config: Path, tmp_path: Path, cache: Path) -> None:
    """R13. Catches a checkpoint deleted to make room, a torn one left visible, a torn line in the log, or silence."""
    disk = tmp_path / "disk"
    disk.mkdir()
    endless = ["--set", "train.steps=100000", "--quiet"]
    train = shlex.join(map(str, [runs.STEIN, "train", config, *endless, "--out", disk / "run"]))
    resume = shlex.join(map(str, [runs.STEIN, "resume", disk / "run", "--quiet"]))
    script = f"""
        mount -t tmpfs -o size=512k tmpfs {shlex.quote(str(disk))} || exit 99
        {train}; echo "code $?"
        find {shlex.quote(str(disk))} -name '.tmp-*'
        cp -r {shlex.quote(str(disk))}/run {shlex.quote(str(tmp_path))}/copy
        mount -o remount,size=8m {shlex.quote(str(disk))}
        STEIN_FAILPOINT=folder.renamed:3 {resume}; echo "code $?"
    """
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script], env=runs.environment(cache), capture_output=True, text=True, timeout=120
    )
    if done.returncode == 99 or "Operation not permitted" in done.stderr:
        pytest.skip("this machine does not let root mount a small disk")
    said = [line for line in done.stdout.splitlines() if not line.startswith("regression on ")]
    assert said == ["code 1", "code 137"], done.stderr  # no temporary directory; with room it goes on
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    kept = max(path.name for path in (tmp_path / "copy" / "checkpoints").glob("step-*")).removeprefix("step-")
    assert (
        f"{disk / 'run'}: the disk does not take more (No space left on device); step {int(kept)} is saved" in errors[0]
    )
    assert errors[0].endswith(f"make room, then `stein resume {disk / 'run'}`")
    assert f"error: {json.loads((tmp_path / 'copy' / 'failed.json').read_text())['reason']}" == errors[0]
    warned = [line for line in done.stderr.splitlines() if line.startswith("warning: ")]
    kinds = [line for line in warned if "No space left on device" in line]
    assert len(kinds) == len({" ".join(line.split()[1:3]) for line in kinds}), warned  # one for each kind of trouble
    assert sum("checkpoint of step" in line for line in kinds) == 1
    lines = (tmp_path / "copy" / "metrics.jsonl").read_text().splitlines()
    assert all(json.loads(line)["step"] == 50 * (i + 1) for i, line in enumerate(lines))
    assert len(list((tmp_path / "copy" / "checkpoints").glob("step-*"))) >= 2
