"""Commands that take a finished run out of the library: export, serve."""

import pathlib
from typing import TYPE_CHECKING, Annotated, Literal

import tyro
from tyro.conf import Positional

from stein.cli import terminal
from stein.cli.runs import Threads, free_name, use_threads, warn

if TYPE_CHECKING:
    from stein.runs.exported import Exported

RunPath = Annotated[Positional[pathlib.Path], tyro.conf.arg(metavar="RUN")]
Coverage = Annotated[float | None, tyro.conf.arg(metavar="P", help_behavior_hint="")]


def export(
    folder: RunPath,
    *,
    format: Literal["stablehlo", "mlflow"] = "stablehlo",  # noqa: A002
    out: Annotated[pathlib.Path | None, tyro.conf.arg(metavar="DIR", help_behavior_hint="")] = None,
    coverage: Coverage = None,
) -> None:
    """Write a finished run as one program that needs no stein; docs/deploy.md shows how to load it.

    Example: stein export runs/houses --format stablehlo

    The program answers as `stein predict` does: preprocessing, all members, units and calibration are inside. It needs
    jax, numpy and flatbuffers; a short loader in Python lies beside it, and a small JSON says how texts and dates
    become numbers.

    Args:
        folder: the directory of the run.
        format: stablehlo: a directory with the program and its loader; mlflow: an MLflow model that contains them.
        out: the directory to write, which must not exist. Default: the name of the run and of the format.
        coverage: probability of the interval, or of the set of classes. Default: that of the run, usually 0.9.
    """
    coverage = _checked(folder, coverage)
    if out is not None and out.exists():
        raise ValueError(f"--out {out}: exists already; give another path")
    where = out or free_name(pathlib.Path(f"{folder.resolve().name}-{format}"))
    with terminal.status("Exporting"):
        from stein.serve import mlflow_model, program

        finished = _loaded(folder)
        coverage = finished.config.evaluation.coverage if coverage is None else coverage
        write = {"stablehlo": program.export, "mlflow": mlflow_model.export}[format]
        write(finished, where, coverage, warn)
    size = sum(file.stat().st_size for file in where.rglob("*") if file.is_file())
    print(f"{where}: a program that predicts {finished.target!r} without stein, {size / 1e6:.2f} MB")


def serve(
    folder: RunPath,
    *,
    host: Annotated[str, tyro.conf.arg(metavar="NAME")] = "127.0.0.1",
    port: Annotated[int, tyro.conf.arg(metavar="N")] = 8000,
    coverage: Coverage = None,
    most_rows: Annotated[int, tyro.conf.arg(metavar="N")] = 1000,
    most_bytes: Annotated[int, tyro.conf.arg(metavar="N")] = 1_000_000,
    threads: Threads = None,
    cache: bool = True,
) -> None:
    """Answer requests over HTTP with a finished run, as `stein predict` does.

    Example: stein serve runs/houses

    POST /predict with {"rows": [{"area": 55.5, "city": "Bern"}]}; /docs describes the columns. There is no encryption
    and no password: other machines should reach it through a proxy that has them. SIGTERM (`kill`) and Ctrl-C stop it
    after every request that has arrived is answered.

    Args:
        folder: the directory of the run.
        host: the address to listen at. 127.0.0.1 is for this machine only, 0.0.0.0 for all that can reach it.
        port: the port; 0 takes a free one.
        coverage: probability of the interval, or of the set of classes. Default: that of the run, usually 0.9.
        most_rows: rows in a request.
        most_bytes: bytes in the body of a request.
        threads: CPU threads. Default: all.
        cache: keep compiled programs in the user's cache directory.
    """
    coverage = _checked(folder, coverage)
    for name, value in (("--most-rows", most_rows), ("--most-bytes", most_bytes)):
        if value < 1:
            raise ValueError(f"{name} = {value}: must be at least 1")
    if not 0 <= port < 2**16:
        raise ValueError(f"--port = {port}: must be from 0 to 65535")
    use_threads(threads)
    with terminal.status("Loading"):
        try:
            from stein.serve import server
        except ImportError as error:
            if (error.name or "").split(".")[0] not in ("starlette", "uvicorn"):
                raise
            raise ImportError("a server needs Starlette and uvicorn: pip install '.[serve]' in the checkout") from None
        from stein.runs.environment import use_compilation_cache

        if cache:
            use_compilation_cache()
        bound = server.bind(host, port)
        application = server.Application(
            _loaded(folder), coverage, server.Limits(most_bytes=most_bytes, most_rows=most_rows), warn
        )
    server.run(application, bound, lambda line: print(line, flush=True))


def _checked(folder: pathlib.Path, coverage: float | None) -> float | None:
    from stein.runs.folder import RunFolder

    RunFolder(folder).check_is_finished()
    if coverage is not None and not 0 < coverage < 1:
        raise ValueError(f"--coverage = {coverage}: must be between 0 and 1")
    return coverage


def _loaded(folder: pathlib.Path) -> "Exported":
    from stein.runs.exported import Exported
    from stein.runs.folder import RunFolder

    return Exported(RunFolder(folder))
