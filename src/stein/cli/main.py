"""The command line: arguments in, one command run, an exit code and at most one line of error out."""

import contextlib
import difflib
import functools
import io
import os
import re
import select
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import tyro

from stein.cli import terminal
from stein.cli.deploy import export, serve
from stein.cli.machine import data, doctor, methods
from stein.cli.reports import report, watch
from stein.cli.runs import config, evaluate, resume, status, train
from stein.cli.studies import demo, reproduce, sweep
from stein.cli.tables import fit, predict

# A command is a function: its signature is its options, its docstring is its help.
COMMANDS: dict[str, Callable[..., None]] = {
    "fit": fit,
    "predict": predict,
    "export": export,
    "serve": serve,
    "methods": methods,
    "doctor": doctor,
    "demo": demo,
    "reproduce": reproduce,
    "config": config,
    "data": data,
    "train": train,
    "resume": resume,
    "evaluate": evaluate,
    "report": report,
    "sweep": sweep,
    "status": status,
    "watch": watch,
}

DESCRIPTION = """Stein variational neural-network ensembles: members that talk to each other.
`stein --version` prints the version; `--debug` with a command shows tracebacks."""

# A path or value from the user that does not exist or is not allowed: bad input, unlike a full disk.
_BAD_INPUT = (
    ValueError,
    FileExistsError,
    FileNotFoundError,
    IsADirectoryError,
    NotADirectoryError,
    PermissionError,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 done, 1 failed, 2 bad input, 130 interrupted."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in arguments
    for name in ("stdout", "stderr"):  # None if started with `>&-`; the replacement stays open until exit
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # an ASCII terminal loses a Greek letter, not the command
    # XLA mistakes its own tuning flags for processor features, and logs errors when it finds them in its cache.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    code = _guarded([argument for argument in arguments if argument != "--debug"], debug)
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader closed the pipe (`stein methods | head -1`): not a failure, but Python would complain at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code


def _guarded(arguments: list[str], debug: bool) -> int:
    """Run, and turn every exception into one line on stderr and an exit code."""
    try:
        _parse(arguments)()
    except (Exception, KeyboardInterrupt) as error:
        if isinstance(error, BrokenPipeError) and _reader_left():
            return 0
        if debug:
            traceback.print_exc()
        if isinstance(error, KeyboardInterrupt):
            message, code = "interrupted", 130
        else:
            usual = 2 if isinstance(error, _BAD_INPUT) else 1
            message, code = " ".join(str(error).split()), getattr(error, "exit_code", usual)
        if not isinstance(error, (ValueError, OSError, RuntimeError, ImportError, KeyboardInterrupt)):
            message = f"{type(error).__name__}: {message}; --debug shows where"
        print(f"error: {message}", file=sys.stderr)
        return code
    return 0


def _reader_left() -> bool:
    """Whether the broken pipe is our own stdout, and not a tracker's or a worker's."""
    try:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
    except (OSError, ValueError):  # no descriptor, so no reader
        return False
    return bool(poll.poll(0))


def _parse(arguments: list[str]) -> Callable[[], Any]:
    """The command that the arguments name, ready to be called; raises ValueError for invalid arguments."""
    if arguments == ["--version"]:
        from stein import __version__

        return functools.partial(print, f"stein {__version__}")
    if arguments and arguments[0] not in COMMANDS and not arguments[0].startswith("-"):
        close = difflib.get_close_matches(arguments[0], COMMANDS, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"choose from {', '.join(COMMANDS)}"
        raise ValueError(f"unknown command {arguments[0]!r}; {hint}")

    # Captured, so that a usage error is one line like every other error and colours follow NO_COLOR.
    out, err = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            return tyro.extras.subcommand_cli_from_dict(
                {name: _deferred(command) for name, command in COMMANDS.items()},
                prog="stein",
                description=DESCRIPTION,
                args=arguments or ["--help"],
            )
    except SystemExit as stop:
        if stop.code:
            raise ValueError(_unboxed(err.getvalue())) from None
        return functools.partial(_help, arguments, out.getvalue())


def _help(arguments: list[str], text: str) -> None:
    print(re.sub(r"^(usage: stein \[-h\]) \{\S*\}", r"\1 COMMAND ...", text), end="")  # the commands are listed below
    if arguments[:1] == ["train"]:
        from stein.runs.template import describe

        terminal.show(describe())


def _deferred(command: Callable[..., None]) -> Callable[..., Callable[[], None]]:
    """The same signature, but a call only binds the arguments: parsing must finish before work begins."""

    @functools.wraps(command)
    def bind(**keywords: Any) -> Callable[[], None]:
        return functools.partial(command, **keywords)

    return bind


def _unboxed(text: str) -> str:
    """The sentences of an error as tyro draws it: a title and paragraphs between ruled lines."""
    _title, *paragraphs = re.split(r"-{4,}", " ".join(text.split()))
    return "; ".join(paragraph.strip(" .") for paragraph in paragraphs)
