"""A finished run over HTTP: ``/predict``, ``/health``, ``/openapi.json`` and ``/docs``, which needs no other server."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any, NamedTuple

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from stein import __version__
from stein.runs.exported import Exported
from stein.serve import openapi
from stein.serve.rows import Asked, Predictor
from stein.serve.together import BusyError, Together

Say = Callable[[str], None]
AT_ONCE = 1000  # rows that are predicted together
WAITING = 20_000  # rows that may wait
CONNECTIONS = 1000
GRACE = 0.5  # seconds after the last connection is accepted, in which requests that are on their way arrive
TO_THE_END = 60.0  # seconds after that, in which answers are finished
KEPT = 75  # seconds for idle connections: a proxy that reuses one which was just closed loses its request


class Limits(NamedTuple):
    """What a request may ask for: bytes of its body, rows, and seconds until its body has arrived."""

    most_bytes: int = 1_000_000
    most_rows: int = 1000
    seconds: float = 10.0


class _Body(msgspec.Struct, forbid_unknown_fields=True):
    rows: list[Any]


class Application:
    """The ASGI application of a run, for any ASGI server; :func:`run` is the one of `stein serve`.

    Args:
        coverage: of the intervals or sets. Default: that of the run.
        warn: called with one line if the intervals cannot be conformal.
    """

    def __init__(self, finished: Exported, coverage: float | None = None, limits: Limits = Limits(), warn: Say = print):
        self.stopping = False
        self._limits = limits
        self._predictor = Predictor(finished, coverage, warn)
        self._document = openapi.document(self._predictor, limits.most_bytes, limits.most_rows)
        self._page = openapi.page(self._document)
        routes = [
            Route("/predict", self._predict, methods=["POST"]),
            Route("/health", self._health),
            Route("/openapi.json", self._schema),
            Route("/docs", self._docs),
        ]
        handlers: Any = {HTTPException: _refused, Exception: _failed}
        self._app = Starlette(routes=routes, exception_handlers=handlers, lifespan=self._alive)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def last(message: Message) -> None:
            if self.stopping and message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), (b"connection", b"close")]
            await send(message)

        await self._app(scope, receive, last)

    @contextlib.asynccontextmanager
    async def _alive(self, _: Starlette) -> AsyncIterator[None]:
        self._together: Together[Asked, list[dict[str, Any]]] = Together(self._predictor.predict, AT_ONCE, WAITING)
        answering = asyncio.create_task(self._together.answer())
        yield
        answering.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await answering

    async def _predict(self, request: Request) -> Response:
        if request.headers.get("content-type", "").split(";")[0].strip().lower() != "application/json":
            raise HTTPException(415, "content-type: must be application/json")
        try:
            rows = msgspec.json.decode(await self._body(request), type=_Body).rows
        except msgspec.ValidationError as error:
            raise HTTPException(422, f"{error}; /docs describes the body") from None
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            raise HTTPException(400, f"the body is not JSON: {error}") from None
        if not 0 < len(rows) <= self._limits.most_rows:
            raise HTTPException(422, f"rows: {len(rows)} rows; must be from 1 to {self._limits.most_rows}")
        try:
            asked = self._predictor.read(rows)
            found = await self._together.ask(asked, len(asked.x))
        except ValueError as error:
            raise HTTPException(422, str(error)) from None
        except BusyError as error:
            raise HTTPException(503, str(error), {"retry-after": "1"}) from None
        return _json({"predictions": found, "warnings": [_short(warning) for warning in asked.warnings]})

    async def _body(self, request: Request) -> bytes:
        """The body of a request, unless it is too large or takes too long to arrive."""
        most = self._limits.most_bytes
        declared = request.headers.get("content-length", "")
        too_large = HTTPException(413, f"the body is larger than {most} bytes")
        if declared.isdecimal() and int(declared) > most:
            raise too_large
        body = bytearray()
        try:
            async with asyncio.timeout(self._limits.seconds):
                async for part in request.stream():
                    body += part
                    if len(body) > most:
                        raise too_large
        except TimeoutError:
            raise HTTPException(408, f"the body did not arrive within {self._limits.seconds:g} seconds") from None
        except ClientDisconnect:
            raise HTTPException(400, "the body ended early") from None  # nobody reads it
        return bytes(body)

    async def _health(self, _: Request) -> Response:
        finished = self._predictor.finished
        about = {
            "status": "stopping" if self.stopping else "ok",
            "target": finished.target,
            "coverage": self._predictor.coverage,
            "version": __version__,
        }
        return _json(about, 503 if self.stopping else 200)

    async def _schema(self, _: Request) -> Response:
        return _json(self._document)

    async def _docs(self, _: Request) -> Response:
        return HTMLResponse(self._page, headers={"content-security-policy": openapi.POLICY})


def _json(content: Any, status: int = 200, headers: Any = None) -> Response:
    return Response(msgspec.json.encode(content), status, headers, "application/json")


def _short(message: str) -> str:
    """A message that quotes a request may be as long as the request."""
    return message if len(message) <= 500 else f"{message[:500]}..."


async def _refused(_: Request, error: HTTPException) -> Response:
    return _json({"error": _short(error.detail)}, error.status_code, error.headers)


async def _failed(_: Request, error: Exception) -> Response:
    return _json({"error": f"{type(error).__name__}: the server's log says more"}, 500)


# -- the process --------------------------------------------------------------------------------------------


class _Server(uvicorn.Server):
    """uvicorn, which tells where it listens, and at the end first answers whoever has connected."""

    def __init__(self, config: uvicorn.Config, application: Application, say: Say):
        super().__init__(config)
        self._application, self._say = application, say

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for bound in sockets or ():
            host, port, *_ = bound.getsockname()
            self._say(f"listening on http://{f'[{host}]' if ':' in host else host}:{port}; /docs explains")

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._application.stopping = True
        listening = [bound.dup() for bound in sockets or ()]
        for server in self.servers:
            server.close()
        for bound in listening:
            await self._accept_the_last(bound)
        await asyncio.sleep(GRACE)
        await super().shutdown(sockets)

    async def _accept_the_last(self, bound: socket.socket) -> None:
        """Those who have connected but are not accepted yet: closing the socket would cut them off."""
        loop = asyncio.get_running_loop()
        protocol: Any = self.config.http_protocol_class
        with contextlib.closing(bound), contextlib.suppress(BlockingIOError):
            while True:
                connection, _ = bound.accept()
                await loop.connect_accepted_socket(
                    lambda: protocol(self.config, self.server_state, self.lifespan.state), connection
                )


def bind(host: str, port: int) -> socket.socket:
    """A socket that listens."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family, backlog=2048)
    except OSError as error:
        words = str(error.strerror).partition(" (")[0]  # Python adds the address
        raise ValueError(f"--host {host} --port {port}: {words}; give another one") from None


def run(application: Application, bound: socket.socket, say: Say) -> None:
    """Serve until SIGTERM or SIGINT; every request that has arrived by then is answered.

    Args:
        say: called with one line when the server listens.
    """
    config = uvicorn.Config(
        application,
        log_level="error",  # bytes that are no HTTP are answered, and no reason to fill a log
        access_log=False,
        server_header=False,
        lifespan="on",
        ws="none",
        limit_concurrency=CONNECTIONS,
        timeout_keep_alive=KEPT,
        timeout_graceful_shutdown=int(TO_THE_END),
    )
    _Server(config, application, say).run([bound])
