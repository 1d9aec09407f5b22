"""A JAX that computes wrong sums is refused wherever it would be used, with the command that replaces it."""

import ast
import importlib.metadata
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import stein
from stein import versions
from stein.cli import doctor

SOURCE = Path(stein.__file__).parent
FAKE = """
import importlib.metadata, sys
real = importlib.metadata.version
importlib.metadata.version = lambda name: "0.10.2" if name == "jaxlib" else real(name)
"""


@pytest.mark.parametrize("package", ["jax", "jaxlib"])
@pytest.mark.parametrize(
    "version", ["0.9.4", "0.10.0", "0.10.1", "0.10.2", "0.10.3", "0.10.20", "0.11.0", "0.11.7", "0.12.0", "1.0.0"]
)
def test_what_the_package_requires_is_what_is_let_in(monkeypatch, package, version):
    """Against the requirement in pyproject.toml. Catches the two part."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    (required,) = [r for r in map(Requirement, project["dependencies"]) if r.name == package]
    monkeypatch.setattr(importlib.metadata, "version", lambda name: version if name == package else "0.10.1")
    if version in required.specifier:
        versions.require()
        return
    with pytest.raises(ImportError) as refusal:
        versions.require()
    assert str(refusal.value).startswith(f"{package} {version} ")
    assert str(refusal.value).endswith(versions.FIX)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("version", ["0.10.3.dev20260501", "0.10.3+cuda12", "0.12"])
def test_versions_of_other_kinds_are_read(monkeypatch, version):
    monkeypatch.setattr(importlib.metadata, "version", lambda name: version)
    assert versions.trouble() is None


def test_a_missing_package_is_told(monkeypatch):
    def absent(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", absent)
    assert versions.trouble() == f"jax is not installed; fix: {versions.FIX}"


def test_the_doctor_tells_it_too(monkeypatch):
    """Also where the canaries happen to pass. Catches a doctor who lets through what training refuses."""
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.11.1")
    lines = "".join(f'["{canary.__name__}", true, "fine"]\n' for canary in doctor.CANARIES)
    monkeypatch.setattr(doctor.subprocess, "run", lambda c, **_: subprocess.CompletedProcess(c, 0, lines, ""))
    *canaries, last = doctor.examine()
    assert all(check.passed for check in canaries)
    assert last == ("versions", False, f"jax 0.11.1 computes wrong sums on CPU; fix: {versions.FIX}")


def test_training_and_the_library_refuse_what_the_doctor_refuses(tmp_path):
    """In a process of their own. Catches a check that only `stein doctor` makes."""
    script = (
        FAKE
        + """
import contextlib, io
from pathlib import Path
from stein import cli
Path("config.toml").write_text('data.name = "regression-1d"')
with contextlib.redirect_stderr(io.StringIO()) as said:
    code = cli.main(["train", "config.toml"])
assert code == 1, code
assert said.getvalue().count("error: jaxlib 0.10.2 computes wrong sums on CPU; fix: pip install") == 1, said.getvalue()
assert said.getvalue().count("\\n") == 1
import stein
for name in ("train", "build", "likelihoods", "schedules"):
    try:
        getattr(stein, name)
    except ImportError as error:
        assert str(error).startswith("jaxlib 0.10.2"), error
    else:
        raise AssertionError(name)
assert cli.main(["--help"]) == cli.main(["methods"]) == 0  # no jax in these
"""
    )
    subprocess.run([sys.executable, "-c", script], check=True, cwd=tmp_path, stdout=subprocess.DEVNULL)


def test_whatever_imports_jax_asks_first():
    """By the source: every module that imports jax calls `versions.require()`, or imports one of ours that does.
    Catches a new module on the lowest row without it."""
    trees = {path: ast.parse(path.read_text()) for path in SOURCE.rglob("*.py")}
    names = {".".join(path.relative_to(SOURCE.parent).with_suffix("").parts): path for path in trees}
    names |= {name.removesuffix(".__init__"): path for name, path in names.items()}

    def imported(path):
        for node in trees[path].body:
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                yield node.module
                yield from (f"{node.module}.{alias.name}" for alias in node.names)

    uses = {path: set(imported(path)) for path in trees}
    asking = {path for path in trees if "\nversions.require()\n" in path.read_text()}
    while more := {path for path in trees if {names.get(name) for name in uses[path]} & asking} - asking:
        asking |= more
    users = {path for path in trees if {"jax", "jax.numpy"} & uses[path]}
    assert len(users) > 30
    silent = {str(path.relative_to(SOURCE)) for path in users - asking}
    # These read files or say what is installed, and compute nothing; the loader is copied to where stein is not.
    quiet = {"cli/doctor.py", "runs/environment.py", "serve/loader.py", "storage/checkpoint.py", "storage/untrusted.py"}
    assert silent == quiet
