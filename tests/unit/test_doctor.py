"""The canaries sing here and fall silent on every planted wrong answer; `stein doctor` then names the fix."""

import json
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import pytest

from stein import cli
from stein.cli import doctor
from stein.runs import environment

CANARIES = pytest.mark.parametrize("canary", doctor.CANARIES, ids=lambda canary: canary.__name__)
SHORT_CANARIES = [canary for canary in doctor.CANARIES if canary is not doctor.repeated_sum]  # that has its own test


def one_value_wrong(function: Callable[..., Any]) -> Callable[..., Any]:
    """A compiler that spoils the last value of every result, as jaxlib 0.10.2 does."""

    def run(*arguments: Any) -> jax.Array:
        right = jax.jit(function)(*arguments)
        return right.ravel().at[-1].add(1).reshape(right.shape)

    return run


@pytest.mark.parametrize("canary", SHORT_CANARIES, ids=lambda canary: canary.__name__)
def test_canary_fails_when_one_value_is_wrong(canary: Callable[..., doctor.Check]) -> None:
    check = canary(one_value_wrong)
    assert not check.passed
    assert any(character.isdigit() for character in check.detail)


def test_a_race_is_noticed() -> None:
    calls = iter(range(200))

    def wrong_once(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda column: function(column) + (1 if next(calls) == 150 else 0)

    assert doctor.repeated_sum(wrong_once) == ("repeated sum", False, "1 of 200 sums wrong")


@pytest.mark.parametrize(
    ("end", "detail"),
    [
        (-11, "the process ended with code -11"),
        (1, "the process ended with code 1: ImportError: no jaxlib"),
        (None, "no answer in 5 s"),
    ],
)
def test_crash_and_hang_fail_one_canary_and_the_rest_still_run(
    monkeypatch: pytest.MonkeyPatch, end: int | None, detail: str
) -> None:
    starts = []

    def child(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        start = int(command[-1])
        starts.append(start)
        last = len(doctor.CANARIES) if start else 2
        lines = "".join(json.dumps([c.__name__, True, "fine"]) + "\n" for c in doctor.CANARIES[start:last])
        if start:
            return subprocess.CompletedProcess(command, 0, lines, "")
        if end is None:
            raise subprocess.TimeoutExpired(command, 5, output=lines.encode())
        return subprocess.CompletedProcess(command, end, lines, "Traceback\nImportError: no jaxlib\n")

    monkeypatch.setattr(doctor.subprocess, "run", child)
    checks = doctor.examine(patience=5.0)
    assert [check.passed for check in checks] == [True, True, False, True, True, True]  # the last: versions
    assert checks[2] == ("repeated sum", False, detail)
    assert starts == [0, 3]


def test_command_exits_1_and_names_the_fix(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    spoiled = [doctor.Check(canary.__name__, False, "off by one") for canary in doctor.CANARIES]
    monkeypatch.setattr(doctor, "examine", lambda: spoiled)
    assert cli.main(["doctor"]) == 1
    out, err = capsys.readouterr()
    assert out.count("FAILED") == len(spoiled)
    assert err.startswith("error: 5 of 5 checks failed")
    assert doctor.FIX in err
    assert err.count("\n") == 1


def test_fix_is_what_the_package_requires() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    required = [r for r in project["dependencies"] if r.startswith(("jax>", "jaxlib>"))]
    assert doctor.FIX.split("pip install ")[1] == " ".join(f"'{r}'" for r in required)


def test_facts_are_complete() -> None:
    facts = environment.facts()
    assert {"python", "stein", "jax", "jaxlib", "numpy", "equinox", "optax", "flax"} <= facts.keys()
    assert {"platform", "devices", "CPU threads", "x64"} <= facts.keys()
    assert facts["jax"] == jax.__version__
    assert facts["devices"].startswith(f"{jax.device_count()} x ")
    assert facts["x64"] == "on"
