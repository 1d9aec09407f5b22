"""A local page that follows runs: their progress, their curves while they train, and their reports. Read-only.

The server listens to this machine only, answers GET requests only, and serves nothing by path: a run is found by its
name among those that were listed, and only the files that every run has are read.
"""

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from stein.report import page
from stein.runs import pages, reading, status
from stein.runs.folder import RunFolder

HOSTS = ("127.0.0.1", "localhost")
"""Other names are refused, so that no page of another site can read through a name that leads here."""
CURVES = ("log_likelihood", "test_nll", "validation_nll", "test_accuracy", "test_rmse", "force_ratio", "effective_rank")
MOST_POINTS = 300


class Followed:
    """The runs in some places. What has not changed on disk is not read again."""

    def __init__(self, places: Sequence[Path]):
        self._places = places
        self._known: dict[Path, tuple[Any, dict[str, Any]]] = {}

    def runs(self) -> dict[str, RunFolder]:
        """The runs by name: the path from their place, as `stein status` finds them."""
        found: dict[str, RunFolder] = {}
        for place in self._places:
            with contextlib.suppress(OSError):
                inside = sorted(path for path in place.iterdir() if (path / "config.toml").is_file())
                here = [place] if (place / "config.toml").is_file() else inside
                found |= {str(path): RunFolder(path) for path in here}
        return found

    def survey(self) -> list[dict[str, Any]]:
        return [self._look(name, folder) for name, folder in self.runs().items()]

    def _look(self, name: str, folder: RunFolder) -> dict[str, Any]:
        now = (folder.state, *map(_stamp, (folder.config, folder.log, folder.progress, folder.numbers, folder.failure)))
        then, known = self._known.get(folder.path, (None, {}))
        if then == now and folder.state != "running":  # of a running one the time left changes by itself
            return known
        try:
            found = status.look(folder)
        except (ValueError, OSError) as error:
            found = {"run": name, "state": "unreadable", "reason": str(error), "method": "", "step": 0, "steps": 0}
        found["name"] = page.shortened(folder.path.name)
        self._known[folder.path] = (now, found)
        return found


def _stamp(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except OSError:
        return (0, 0)
    return found.st_mtime_ns, found.st_size


def application(places: Sequence[Path]) -> Starlette:
    """The server, as a Starlette application."""
    followed = Followed(places)

    def chosen(request: Request) -> RunFolder | None:
        return followed.runs().get(request.query_params.get("run", ""))

    def front(request: Request) -> Response:
        return Response(page.live("stein watch", "watch"), headers=HEADERS, media_type="text/html")

    def playground(request: Request) -> Response:
        return Response(page.live("Playground", "playground"), headers=HEADERS, media_type="text/html")

    def survey(request: Request) -> Response:
        return JSONResponse(followed.survey())

    def curves(request: Request) -> Response:
        folder = chosen(request)
        if folder is None:
            return PlainTextResponse("no such run", 404)
        rows = reading.log(folder)
        rows = rows[:: -(-len(rows) // MOST_POINTS) or 1] + rows[-1:]
        found = {}
        for name in CURVES:
            pairs = [(row["step"], row[name]) for row in rows if name in row and "step" in row]
            if pairs:
                found[name] = pairs
        return JSONResponse(found)

    def report(request: Request) -> Response:
        folder = chosen(request)
        if folder is None:
            return PlainTextResponse("no such run", 404)
        try:
            made = pages.report([folder.path], f"stein watch: {folder}")
        except (ValueError, OSError) as error:
            return PlainTextResponse(str(error), 409)
        return Response(made, media_type="text/html", headers=HEADERS)

    routes = [
        Route("/", front),
        Route("/playground", playground),
        Route("/runs", survey),
        Route("/curves", curves),
        Route("/report", report),
    ]
    return Starlette(routes=routes, middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=list(HOSTS))])


HEADERS = {"X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY", "Cache-Control": "no-store"}
"""What a page may run and load is in the page itself."""


def serve(places: Sequence[Path], port: int) -> None:
    """Serve until interrupted, on this machine only."""
    import uvicorn

    uvicorn.run(application(places), host=HOSTS[0], port=port, log_level="warning")
