"""Commands that show results in a browser: report, watch."""

import pathlib
import shlex
import socket
import webbrowser
from typing import Annotated

import tyro
from tyro.conf import Positional

from stein.cli import terminal


def report(
    folders: Annotated[Positional[tuple[pathlib.Path, ...]], tyro.conf.arg(metavar="RUN ...")],
    *,
    out: Annotated[pathlib.Path, tyro.conf.arg(metavar="FILE")] = pathlib.Path("report.html"),
    open: bool = False,  # noqa: A002 - the option is called so
    rows: bool = True,
) -> None:
    """Write one self-contained page about a run, or about several beside each other.

    Example: stein report runs/houses --open

    The page needs no network, no data and no other file. It reads what `stein train`, `stein fit` and `stein evaluate`
    have written; of what is missing it names the command that makes it. Runs that are still training, or have failed,
    are shown as far as they came.

    Args:
        folders: run directories, directories that contain some (such as runs/), or one result of `stein reproduce`.
        out: the page. An existing file is replaced when the new one is complete.
        open: show it in the browser.
        rows: with --no-rows the page contains no single row or image of the data.
    """
    if not folders:
        raise ValueError(
            "no run is named; `stein report runs/NAME` shows one, `stein report runs` all that are in runs/"
        )
    if out.suffix.lower() != ".html":
        raise ValueError(f"--out {out}: must end in .html")
    if not out.parent.is_dir():
        raise ValueError(f"--out {out}: {out.parent} is no directory; create it first")
    command = " ".join(
        ["stein report", *(shlex.quote(str(folder)) for folder in folders), *([] if rows else ["--no-rows"])]
    )
    with terminal.status("Drawing"):
        from stein.report import studies
        from stein.runs import pages
        from stein.storage import durable

        if len(folders) == 1 and studies.is_study(folders[0]):
            page = studies.page_of(folders[0], command)
        else:
            page = pages.report(folders, command, rows)
        durable.replace(out, page)
    print(f"{out}: {len(page) / 1e6:.1f} MB; open it in a browser")
    if open:
        webbrowser.open(out.resolve().as_uri())


def watch(
    folders: Annotated[Positional[tuple[pathlib.Path, ...]], tyro.conf.arg(metavar="DIR ...")] = (
        pathlib.Path("runs"),
    ),
    *,
    port: int = 8765,
    open: bool = False,  # noqa: A002 - the option is called so
) -> None:
    """Follow runs in the browser: progress, curves while they train, and their reports. Ctrl-C ends it.

    Read-only, and for this machine only: the page is at http://127.0.0.1:PORT.

    Args:
        folders: run directories, or directories that contain some. Default: runs/.
        port: of the page.
        open: show it in the browser.
    """
    for folder in folders:
        if not folder.is_dir():
            raise ValueError(f"{folder}: no such directory; `stein watch DIR` follows the runs in DIR")
    if not 1 <= port <= 65535:
        raise ValueError(f"--port = {port}: must be between 1 and 65535")
    try:
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError:
        raise ImportError("stein watch needs Starlette and uvicorn: pip install '.[watch]' in the checkout") from None
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", port)) == 0:
            raise ValueError(f"--port = {port}: is in use; give another")
    from stein import watch

    address = f"http://127.0.0.1:{port}"
    print(f"following {', '.join(map(str, folders))} at {address}; Ctrl-C ends it", flush=True)
    if open:
        webbrowser.open(address)
    watch.serve(folders, port)
