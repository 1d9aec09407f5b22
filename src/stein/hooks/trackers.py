"""Hooks that report the metrics of a step: to a terminal, TensorBoard, MLflow, Weights & Biases."""

import contextlib
import socket
import struct
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from stein.hooks.records import is_finite
from stein.storage import durable
from stein.train import Hook, Moment


@contextlib.contextmanager
def progress(show: bool = True, start: int = 0) -> Iterator[Hook]:
    """A bar with speed, time left, loss and the state of the ensemble; plain lines if stderr is not a terminal.

    Args:
        start: the first step, if the run is resumed.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    bar = Progress(*columns, console=console, auto_refresh=False, disable=not (show and console.is_terminal))
    task = bar.add_task("compiling", total=None, completed=start)
    clock, shown = Stopwatch(start), time.monotonic()
    pause = 0.1 if console.is_terminal else 10.0

    def hook(moment: Moment) -> None:
        nonlocal shown
        speed = clock.speed(moment.step)
        if not show or (time.monotonic() - shown < pause and moment.step < moment.last_step):
            return
        shown = time.monotonic()
        text = f"{speed:.0f} step/s  {_headline(moment.metrics)}"
        bar.update(task, completed=moment.step, total=moment.last_step, description=text, refresh=True)
        if not console.is_terminal:
            with contextlib.suppress(OSError):  # the reader closed the pipe
                print(f"step {moment.step}/{moment.last_step}  {text}", file=sys.stderr, flush=True)

    with bar:
        bar.refresh()
        yield hook


class Stopwatch:
    """Steps per second over the last chunks; the first, which compiles, counts only until there are others."""

    def __init__(self, start: int):
        self._marks = [(start, time.monotonic())]
        self._first = True

    def speed(self, step: int) -> float:
        self._marks.append((step, time.monotonic()))
        if len(self._marks) > (2 if self._first else 20):
            del self._marks[0]
            self._first = False
        (before, began), (after, ended) = self._marks[0], self._marks[-1]
        return (after - before) / max(ended - began, 1e-9)


@contextlib.contextmanager
def tensorboard(folder: Path | str, start: int = 0, warn: Callable[[str], None] = warnings.warn) -> Iterator[Hook]:
    """Writes every metric as a TensorBoard scalar, in the groups of :func:`tag`; a full disk ends it, with a warning.

    Args:
        start: the steps already done; TensorBoard drops what an earlier attempt wrote after them.
    """
    from tensorboardX.proto.event_pb2 import Event, SessionLog
    from tensorboardX.proto.summary_pb2 import Summary

    Path(folder).mkdir(parents=True, exist_ok=True)
    # Not tensorboardX's writers: one loses events, and its errors, in a thread; the other waits for the disk.
    path = Path(folder) / f"events.out.tfevents.{time.time():.0f}.{socket.gethostname()}.{time.time_ns()}"

    def write(step: int, **content: Any) -> None:
        durable.append(path, _record(Event(wall_time=time.time(), step=step, **content).SerializeToString()))

    write(0, file_version="brain.Event:2")
    write(start + 1, session_log=SessionLog(status=SessionLog.START))
    broken = False

    def hook(moment: Moment) -> None:
        nonlocal broken
        if broken:
            return
        found = _scalars(moment.metrics)
        values = [Summary.Value(tag=tag(name), simple_value=value) for name, value in found.items()]
        try:
            write(moment.step, summary=Summary(value=values))
        except OSError as error:
            broken = True
            warn(f"no more TensorBoard events from step {moment.step} on ({error.strerror})")

    yield hook


def _record(data: bytes) -> bytes:
    """``data`` in TFRecord's frame: its length and checksums."""
    from tensorboardX.record_writer import masked_crc32c

    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", masked_crc32c(length)) + data + struct.pack("<I", masked_crc32c(data))


GROUPS = {
    "train": ("log_likelihood", "log_prior"),
    "members": ("alive", "effective_rank", "stein_discrepancy"),
    "kernel": ("bandwidth_", "row_sum_", "similarity_", "force_ratio"),
}


def tag(name: str) -> str:
    """A metric's name in TensorBoard, where the part before the slash is a group: ``test_nll`` is ``test/nll``.

    A name with a slash is unchanged; one without a known group goes to ``other``.

    >>> tag("test_nll"), tag("bandwidth_weights"), tag("mine"), tag("mine/loss")
    ('test/nll', 'kernel/bandwidth_weights', 'other/mine', 'mine/loss')
    """
    if "/" in name:
        return name
    for part in ("test", "validation"):
        if name.startswith(f"{part}_"):
            return f"{part}/{name.removeprefix(f'{part}_')}"
    return next((f"{group}/{name}" for group, starts in GROUPS.items() if name.startswith(starts)), f"other/{name}")


@contextlib.contextmanager
def mlflow(uri: str, name: str, parameters: Mapping[str, Any] | None = None) -> Iterator[Hook]:
    """Sends every metric to an MLflow tracking server or directory; an existing run of this ``name`` is continued.

    Needs the extra ``mlflow``.
    """
    try:
        from mlflow.entities import Metric, Param
        from mlflow.tracking import MlflowClient
    except ImportError as error:
        raise ImportError("tracking with MLflow needs: pip install '.[mlflow]' in the checkout") from error
    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name("stein")
    identity = experiment.experiment_id if experiment else client.create_experiment("stein")
    found = client.search_runs([identity], f"attributes.run_name = '{name}'", max_results=1)
    run = (found[0] if found else client.create_run(identity, run_name=name)).info.run_id
    if parameters and not found:
        client.log_batch(run, params=[Param(key, str(value)[:500]) for key, value in parameters.items()])

    def hook(moment: Moment) -> None:
        now = int(time.time() * 1000)
        values = _scalars(moment.metrics).items()
        client.log_batch(run, metrics=[Metric(key, value, now, moment.step) for key, value in values])

    try:
        yield hook
    except BaseException:
        client.set_terminated(run, "FAILED")
        raise
    client.set_terminated(run, "FINISHED")


@contextlib.contextmanager
def wandb(project: str, name: str, parameters: Mapping[str, Any] | None = None) -> Iterator[Hook]:
    """Sends every metric to Weights & Biases; an existing run of this ``name`` is continued.

    ``WANDB_MODE=offline`` writes files only.

    Needs the extra ``wandb``.
    """
    try:
        import wandb as client
    except ImportError as error:
        raise ImportError("tracking with Weights & Biases needs: pip install '.[wandb]' in the checkout") from error
    with client.init(project=project, id=name, name=name, resume="allow", config=dict(parameters or {})) as run:
        yield lambda moment: run.log(_scalars(moment.metrics), step=moment.step)


def _scalars(metrics: Mapping[str, Any]) -> dict[str, float]:
    return {
        name: float(value) for name, value in metrics.items() if isinstance(value, (int, float)) and is_finite(value)
    }


def _headline(metrics: Mapping[str, Any]) -> str:
    """The headline numbers: loss, members alive, bandwidth, repulsion over drive."""
    parts = [f"loss {-metrics['log_likelihood']:.3g}", f"alive {metrics['alive']}"]
    labels = {
        "bandwidth_weights": "h_w",
        "bandwidth_functions": "h_f",
        "force_ratio": "push/pull",
        "test_nll": "test nll",
    }
    parts += [f"{label} {metrics[name]:.3g}" for name, label in labels.items() if name in metrics]
    return "  ".join(parts)
