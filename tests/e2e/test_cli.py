"""The command line as a user meets it: a process with arguments, two streams and an exit code."""

import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from runs import STEIN, stein
from stein import cli
from stein.datasets import sources
from stein.rules import ALIASES, METHODS


def only_line(text: str) -> str:
    assert text.count("\n") == 1, text
    return text.strip()


def test_help_is_quick_and_names_every_command() -> None:
    # Processor time: what the user waits for on an idle machine, whatever else the test machine is doing.
    seconds = []
    for _ in range(3):
        before = os.times()
        run = stein("--help")
        after = os.times()
        seconds.append(after.children_user + after.children_system - before.children_user - before.children_system)
        assert run.returncode == 0
    assert min(seconds) < 0.5
    assert all(command in run.stdout for command in cli.COMMANDS)
    assert max(map(len, run.stdout.splitlines())) <= 80


@pytest.mark.parametrize("arguments", [["--help"], ["methods", "--help"], ["--version"], ["mehtods"], ["data", "list"]])
def test_parsing_does_not_import_jax(arguments: list[str]) -> None:
    script = f"import sys, stein.cli; stein.cli.main({arguments!r}); sys.exit(40 + ('jax' in sys.modules))"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert run.returncode == 40, run.stderr


def test_version() -> None:
    run = stein("--version")
    assert (run.returncode, run.stdout, run.stderr) == (0, "stein 0.1.0\n", "")


def test_methods_fit_80_columns_and_lose_no_word() -> None:
    run = stein("methods", NO_COLOR="1")
    assert (run.returncode, run.stderr) == (0, "")
    lines = run.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert "\x1b" not in run.stdout
    names = {line.split()[0] for line in lines if line[:1].strip()}
    assert names >= METHODS.keys()
    assert all(f"{alias} is {name}" in run.stdout for alias, name in ALIASES.items())
    # Words may be broken over lines but never cut off.
    letters = sorted("".join(run.stdout.split()))
    for method in METHODS.values():
        cells = (method.name, method.summary, method.cost, method.stochastic, method.posterior)
        for character in "".join("".join(cells).split()):
            letters.remove(character)


def test_methods_as_json() -> None:
    run = stein("methods", "--json")
    listed = {entry["name"]: entry for entry in json.loads(run.stdout)}
    assert run.returncode == 0
    assert list(listed) == list(METHODS)
    for name, method in METHODS.items():
        for field in ("summary", "cost", "posterior", "stochastic"):
            assert listed[name][field] == getattr(method, field)
        assert all(ALIASES[alias] == name for alias in listed[name]["aliases"])


def test_doctor_passes_here() -> None:
    run = stein("doctor")
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.count(" ok ") == 6  # five canaries and the versions
    assert "FAILED" not in run.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["mehtods"], "error: unknown command 'mehtods'; did you mean 'methods'?"),
        (["xyz"], "error: unknown command 'xyz'; choose from fit, predict, export, serve, methods"),
        (["methods", "--jsn"], "error: Unrecognized options: --jsn; Perhaps you meant: --json"),
        (["methods", "extra"], "error: Unrecognized options: extra"),
        (["--nonsense"], "error: Unrecognized options: --nonsense"),
        (["demo", "--out"], "error: Missing value for argument '--out'"),
    ],
)
def test_bad_usage_is_one_line_and_exit_2(arguments: list[str], message: str) -> None:
    run = stein(*arguments)
    assert (run.returncode, run.stdout) == (2, "")
    assert only_line(run.stderr).startswith(message)


@pytest.fixture
def nowhere(tmp_path: Path) -> dict[str, str]:
    """An environment in which no data set is found."""
    return {"STEIN_DATA": "", "XDG_CACHE_HOME": str(tmp_path / "cache"), "COLUMNS": "80"}


def test_data_list_names_every_data_set(nowhere: dict[str, str]) -> None:
    """Catches a data set missing from the table, one called here that is not, and lines too long for a terminal."""
    run = stein("data", "list", **nowhere)
    assert (run.returncode, run.stderr) == (0, "")
    assert {line.split()[0] for line in run.stdout.splitlines()[1:] if line[:1].strip()} == sources.DATASETS.keys()
    assert run.stdout.count("not here") >= len(sources.DATASETS) - 1  # digits are here with scikit-learn
    assert max(map(len, run.stdout.splitlines())) <= 80


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fetch"], "name what to fetch: all, or some of fashion-mnist, mnist"),
        (["fetch", "mnits"], "mnits: no such data set; did you mean 'mnist'?"),
        (["fetch", "mnist", "--offline"], "MNIST/raw/train-images-idx3-ubyte.gz: not on this machine; give --data-dir"),
        (["verify"], "no data set is here; "),
        (["verify", "mnist"], "mnist: not here; `stein data fetch mnist` gets it"),
        (["verify", "--data-dir", "/nowhere"], "--data-dir = /nowhere: no such directory"),
        (["erase"], "invalid choice 'erase' for argument"),
    ],
)
def test_bad_data_commands(arguments: list[str], message: str, nowhere: dict[str, str], tmp_path: Path) -> None:
    """Catches a traceback, another exit code, and anything written to the cache."""
    run = stein("data", *arguments, **nowhere)
    assert (run.returncode, run.stdout) == (2, "")
    assert message in only_line(run.stderr)
    assert not list(tmp_path.rglob("*"))


BROKEN = {  # named: bytes in a test's id, with the time that gzip writes into them, differ from worker to worker
    "empty": (b"", "is empty"),
    "web page": (b"<html>404</html>", "is a web page instead of data"),
    "header": (b"\x1f\x8b\x08", "is truncated or damaged"),
    "cut short": (gzip.compress(b"content", mtime=0)[:-3], "is truncated or damaged"),
    "other content": (gzip.compress(b"content", mtime=0), "is not the file it should be"),
    "bomb": (gzip.compress(bytes(10**6), mtime=0), "has more than the 10008 bytes"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_verify_names_the_broken_file(name: str, nowhere: dict[str, str], tmp_path: Path) -> None:
    """Catches exit 0 for a broken file, or a complaint that does not say which one it is."""
    content, message = BROKEN[name]
    path = tmp_path / "MNIST" / "raw" / "t10k-labels-idx1-ubyte.gz"
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    run = stein("data", "verify", "--data-dir", str(tmp_path), **nowhere)
    assert (run.returncode, run.stdout) == (2, "")
    assert only_line(run.stderr).startswith(f"error: {path}: {message}")


@pytest.mark.skipif(not os.environ.get("STEIN_DATA"), reason="needs the real data sets in STEIN_DATA")
def test_verify_real_data() -> None:
    """Catches a wrong digest in the table of sources."""
    run = stein("data", "verify")
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.count(": right, ") == 8


def test_debug_shows_the_traceback_and_keeps_the_exit_code() -> None:
    run = stein("--debug", "xyz")
    assert run.returncode == 2
    assert run.stderr.startswith("Traceback")
    assert run.stderr.splitlines()[-1].startswith("error: unknown command 'xyz'")


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (ValueError("size = 0:\n  must be positive"), 2, "error: size = 0: must be positive"),
        (FileNotFoundError(2, "No such file", "x.csv"), 2, "error: [Errno 2] No such file: 'x.csv'"),
        (OSError(28, "No space left on device"), 1, "error: [Errno 28] No space left on device"),
        (RuntimeError("1 of 4 particles alive"), 1, "error: 1 of 4 particles alive"),
        (KeyError("w"), 1, "error: KeyError: 'w'; --debug shows where"),
        (KeyboardInterrupt(), 130, "error: interrupted"),
    ],
)
def test_every_exception_has_its_exit_code(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    code: int,
    line: str,
) -> None:
    def failing() -> None:
        raise error

    monkeypatch.setitem(cli.COMMANDS, "methods", failing)
    assert cli.main(["methods"]) == code
    assert only_line(capsys.readouterr().err) == line


def test_ctrl_c_during_work_exits_130() -> None:
    script = """if True:
        import signal, sys, time, stein.cli
        signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where tests run in the background
        def work():
            print("ready", flush=True)
            time.sleep(60)
        stein.cli.COMMANDS["doctor"] = work
        sys.exit(stein.cli.main(["doctor"]))
    """
    with subprocess.Popen([sys.executable, "-c", script], stdout=-1, stderr=-1, text=True) as process:
        assert process.stdout
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=50)
    assert (process.returncode, err) == (130, "error: interrupted\n")


@pytest.mark.parametrize("arguments", [["--help"], ["methods"], ["methods", "--json"]])
def test_a_reader_who_leaves_is_no_failure(arguments: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    run = subprocess.run([STEIN, *arguments], stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60)
    os.close(writer)
    assert (run.returncode, run.stderr) == (0, "")


def test_closed_stdout_and_ascii_terminal() -> None:
    closed = subprocess.run(["sh", "-c", f"'{STEIN}' methods >&-"], capture_output=True, text=True)
    assert (closed.returncode, closed.stderr) == (0, "")
    ascii_only = stein("methods", PYTHONIOENCODING="ascii")
    assert (ascii_only.returncode, ascii_only.stderr) == (0, "")


def test_without_the_papers_studies_a_working_product_is_left(tmp_path: Path) -> None:
    """Catches a room of the product that needs `stein.paper`; the commands that do say so in one line."""
    package = tmp_path / "stein"
    shutil.copytree(Path(cli.__file__).parents[1], package, ignore=shutil.ignore_patterns("paper", "__pycache__"))
    modules = sorted(
        ".".join(path.relative_to(tmp_path).with_suffix("").parts).removesuffix(".__init__")
        for path in package.rglob("*.py")
    )
    script = "import importlib, stein, sys; [importlib.import_module(m) for m in sys.argv[1:]]; print(stein.__file__)"
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", script, *modules], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"{package / '__init__.py'}\n"), done.stderr
    for command in (["demo"], ["reproduce", "fig1"], ["reproduce", "table1"]):
        refused = subprocess.run(
            [sys.executable, "-c", "import sys, stein.cli; sys.exit(stein.cli.main(sys.argv[1:]))", *command],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        assert (refused.returncode, refused.stdout) == (1, "")
        assert refused.stderr == "error: the paper's studies (stein.paper) are not installed here\n"
