"""The ready files in examples/cluster, with stand-ins for ssh, srun and the pods: what they would start."""

import itertools
import os
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml

from stein.cli.main import _parse

CLUSTER = Path(__file__).parents[2] / "examples" / "cluster"


def started(command: list, folder: Path, stand_in: str, **extra: str) -> list[list[str]]:
    """The arguments of every call of ``stand_in``, a program that only notes them."""
    notes, program = folder / "notes", folder / stand_in
    program.write_text(f'#!/bin/sh\nprintf "%s\\n" "$*" >> {shlex.quote(str(notes))}\n')
    program.chmod(0o755)
    environment = os.environ | {"PATH": f"{folder}:{os.environ['PATH']}"} | extra
    subprocess.run(command, check=True, cwd=folder, env=environment)
    return sorted(shlex.split(line) for line in notes.read_text().splitlines())


def options(arguments: list[str]) -> dict[str, str]:
    return {name: value for name, value in itertools.pairwise(arguments) if name.startswith("--")}


def test_the_array_of_slurm_has_every_shard_once(tmp_path):
    """Catches tasks counted from 0, and options that `stein sweep` does not have."""
    task = {"SLURM_ARRAY_TASK_ID": "8", "SLURM_ARRAY_TASK_COUNT": "8", "SLURM_CPUS_PER_TASK": "2"}
    script = CLUSTER / "sweep.sbatch"
    ((program, *arguments),) = started(["bash", script, "a.toml", "--out", "o"], tmp_path, "srun", **task)
    assert program == "stein"
    assert callable(_parse(arguments))
    assert options(arguments) == {"--shard": "8/8", "--workers": "2", "--out": "o"}
    assert "#SBATCH --array=1-8\n" in script.read_text()


def test_two_hosts_share_a_search_or_an_ensemble(tmp_path):
    """Catches two hosts with the same share or the same number, and two coordinators."""
    hosts = ["alice", "bob"]
    calls = started([CLUSTER / "two_hosts.sh", "sweep", "spec.toml", "o", *hosts], tmp_path, "ssh")
    assert [call[1] for call in calls] == hosts
    for call, shard in zip(calls, ("1/2", "2/2"), strict=True):
        assert call[2:5] == ["cd", str(tmp_path), "&&"]
        assert callable(_parse(call[6:]))
        assert options(call[6:]) == {"--out": "o", "--shard": shard}
    (tmp_path / "notes").unlink()
    calls = started([CLUSTER / "two_hosts.sh", "train", "run.toml", "o", *hosts], tmp_path, "ssh", PORT="99")
    for call, number in zip(calls, "01", strict=True):
        assert call[5:8] == ["stein", "train", "run.toml"]
        coordinator = {"--coordinator": "alice:99", "--num-processes": "2", "--process-id": number}
        assert options(call) == {"--out": "o", **coordinator}


@pytest.mark.parametrize("index", ["0", "7"])
def test_the_pods_of_a_search_have_every_shard_once(index, tmp_path):
    """Catches shards counted from 0, as Kubernetes counts, and as many pods as there are no shards."""
    _, search = yaml.safe_load_all((CLUSTER / "jobset.yaml").read_text())
    pods = search["spec"]["replicatedJobs"][0]["template"]["spec"]
    container = pods["template"]["spec"]["containers"][0]
    ((*arguments,),) = started(
        [*container["command"], *container["args"]], tmp_path, "stein", JOB_COMPLETION_INDEX=index
    )
    assert callable(_parse(arguments))
    assert options(arguments)["--shard"] == f"{int(index) + 1}/{pods['completions']}"


def test_the_pods_of_an_ensemble_find_their_coordinator(tmp_path):
    """JobSet calls pods NAME-JOB-REPLICA-INDEX.NAME. Catches a name that no pod has, and another number of pods."""
    ensemble, _ = yaml.safe_load_all((CLUSTER / "jobset.yaml").read_text())
    name, job = ensemble["metadata"]["name"], ensemble["spec"]["replicatedJobs"][0]
    container = job["template"]["spec"]["template"]["spec"]["containers"][0]
    (arguments,) = started([*container["command"], *container["args"]], tmp_path, "stein", JOB_COMPLETION_INDEX="1")
    given = options(arguments)
    assert given["--coordinator"].partition(":")[0] == f"{name}-{job['name']}-0-0.{name}"
    assert (given["--num-processes"], given["--process-id"]) == (str(job["template"]["spec"]["completions"]), "1")
