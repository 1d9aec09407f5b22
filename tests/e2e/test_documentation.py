"""Every block of every page: Python runs, commands parse, keys exist; the examples are the code of their pages."""

import ast
import json
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import msgspec
import pytest

import documents
import runs
from documents import ROOT, TUTORIAL, blocks, name
from stein.cli.main import COMMANDS, _parse
from stein.runs import schema

RUNNING = {name(page): page for page in documents.PAGES if documents.runs(page)}
OTHERS = {name(page): page for page in documents.PAGES if any(block.language != "python" for block in blocks(page))}
SCRIPTS = {path.name: path for path in sorted((ROOT / "examples").glob("*.py"))}


def run_all(folder: Path, cache: Path, size: str) -> dict[str, str]:
    results = folder / "results.json"
    (folder / "work").mkdir()
    quick = runs.QUICK if size == "small" else {}
    environment = runs.environment(cache, **quick, PYTHONPATH=str(ROOT / "tests"))
    command = [sys.executable, "-W", "error", "-m", "documents", str(results), size]
    subprocess.run(command, check=True, cwd=folder / "work", env=environment)
    return json.loads(results.read_text())


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> dict[str, str]:
    """All pages in one process, in single precision as users have it, with warnings as errors: page -> traceback."""
    return run_all(tmp_path_factory.mktemp("pages"), cache, "small")


@pytest.mark.long
@pytest.mark.parametrize("page", RUNNING)
def test_the_code_of_a_page_runs(page, outcomes):
    """As it stands, one block after the other, with fewer steps."""
    assert outcomes[page] == ""


@pytest.mark.long
def test_all_pages_at_their_full_size(tmp_path, cache):
    assert {page: error for page, error in run_all(tmp_path, cache, "full").items() if error} == {}


@pytest.mark.parametrize("page", OTHERS)
def test_commands_and_configs_of_a_page_are_real(page):
    """Commands parse, make's targets and pip's extras exist, files are there, and configs have known keys.

    Catches an option that was renamed, in the documentation only."""
    for block in blocks(OTHERS[page]):
        if block.language == "toml":
            check_config(tomllib.loads(block.text))
        elif block.language in ("", "sh"):
            for command in block.commands:
                check_command(command)
        else:
            assert block.language in ("python", "text"), f"{page}: nothing checks {block.language!r}"


def check_command(command: str) -> None:
    command = re.sub(r"^([A-Z_]+=\S+ )+", "", command)
    program, *arguments = shlex.split(command) or [""]
    if program == "stein":
        assert callable(_parse(arguments))
    elif program == "make":
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert next(word for word in arguments if "=" not in word) in targets, command
    elif program == "pip":
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        named = re.findall(r"\[(.*?)\]", command)
        assert set(",".join(named).split(",")) <= {*extras, ""}, command
    elif program == "python":
        assert (ROOT / arguments[0]).exists(), command
    else:
        assert program in ("^C", "curl", "tensorboard"), f"nothing checks {command!r}"


def check_config(config: dict) -> None:
    known = {field.name: field.type for field in msgspec.structs.fields(schema.Config)}
    for section, keys in config.items():
        if section == "search":
            continue  # tests/unit/test_search.py
        assert set(keys) <= {field.name for field in msgspec.structs.fields(known[section])}, section


def test_commands_in_sentences_exist():
    """`stein something` in a sentence, on any page."""
    for page in documents.PAGES:
        text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
        for command in re.findall(r"`stein ([a-z]+)[ `]", text):
            assert command in COMMANDS, f"{name(page)}: stein {command}"


def test_every_page_links_to_something_that_exists():
    """Sphinx checks this too, but not for the README, and not in `make test`."""
    for page in documents.PAGES:
        for link in re.findall(r"\]\(([^)#: ]+)(?:#[^)]*)?\)", page.read_text()):
            home = ROOT / "docs" if link.startswith("/") else page.parent
            assert (home / link.lstrip("/")).exists(), f"{name(page)}: {link}"


@pytest.mark.parametrize("script", SCRIPTS)
def test_an_example_is_short_and_begins_with_what_it_does(script):
    text = SCRIPTS[script].read_text()
    assert len(text.splitlines()) <= 60
    assert ast.get_docstring(ast.parse(text))


@pytest.mark.parametrize("page", [page.stem for page in sorted(TUTORIAL.glob("*.md")) if f"{page.stem}.py" in SCRIPTS])
def test_the_example_of_a_tutorial_is_the_code_of_its_page(page):
    """Line by line, so that whoever changes one changes the other; the page is run above."""
    script = SCRIPTS[f"{page}.py"].read_text()
    first = ast.parse(script).body[0].end_lineno
    code = [line for line in script.splitlines()[first:] if line.strip()]
    shown = "\n".join(block.text for block in documents.python(TUTORIAL / f"{page}.md"))
    assert code == [line for line in shown.splitlines() if line.strip()]
