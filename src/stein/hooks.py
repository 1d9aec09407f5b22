"""What happens between two chunks of training: the usual hooks for :func:`stein.train.run`.

A hook is a function of a :class:`~stein.train.Moment`; yours stands beside these::

    with hooks.progress() as bar, hooks.tensorboard("tb") as board:
        train.run(algorithm, state, batches, 10_000, chunk=100, hooks=[
            hooks.diagnostics(algorithm, batches), board, bar, hooks.Checkpoints("checkpoints", every=1000),
        ])

They run on the host in the order given and nothing runs in the background: an error in one of them ends the training
there and then.
"""

import contextlib
import json
import math
import os
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from stein import checkpoint, durable
from stein.data import Batches
from stein.ensembles import Algorithm, State
from stein.metrics import diagnostics as measures
from stein.train import Hook, Moment


def diagnostics(algorithm: Algorithm, batches: Batches | None, warn: Callable[[str], None] = warnings.warn) -> Hook:
    """Adds :func:`stein.ensembles.diagnose` to the metrics, and warns, once for each trouble, when the members have
    collapsed or no longer interact: ten times in a row, or at the end of the run."""
    times: Counter[str] = Counter()

    def hook(moment: Moment) -> None:
        cursor = None if batches is None else batches.cursor(moment.step)
        found = jax.device_get(_examine(algorithm.diagnose, moment.state, batches, cursor))
        found = {name: float(value) for name, value in found.items()}
        moment.metrics.update(found)
        troubles = measures.warnings(found, moment.metrics["alive"])
        for trouble in [*times]:
            if trouble not in troubles and times[trouble] < 10:
                del times[trouble]
        times.update(troubles.keys())
        for trouble, words in troubles.items():
            if times[trouble] == 10 or (times[trouble] < 10 and moment.step == moment.last_step):
                warn(f"step {moment.step}: {words}")

    return hook


@partial(jax.jit, static_argnums=0)
def _examine(diagnose: Callable, state: State, batches: Batches | None, cursor: Any) -> dict[str, jax.Array]:
    """The diagnosis on the batch of the next step; compiled once for an algorithm."""
    if batches is None:
        return diagnose(state, None)
    rows = jax.tree.map(lambda row: row[0], batches.indices(cursor, 1))
    return diagnose(state, batches.take(rows))


def members() -> Hook:
    """Adds each member's log-likelihood and log-prior, means over the chunk, to the metrics; ``None`` for the dead."""

    def hook(moment: Moment) -> None:
        for name in ("log_likelihood", "log_prior"):
            values = np.asarray(getattr(moment.info, name)).mean(axis=0)
            moment.metrics[f"{name}_members"] = [float(value) if math.isfinite(value) else None for value in values]

    return hook


def evaluation(evaluate: Callable[[State], Mapping[str, float]], every: int = 0) -> Hook:
    """Adds ``evaluate(state)`` to the metrics every so many steps (0: not before the end) and at the last step."""

    def hook(moment: Moment) -> None:
        if moment.step == moment.last_step or (every and moment.step % every == 0):
            moment.metrics.update(evaluate(moment.state))

    return hook


def early_stopping(patience: int, metric: str = "test_nll", past: Iterable[Mapping[str, Any]] = ()) -> Hook:
    """Ends the run when ``metric``, the lower the better, has not improved for ``patience`` evaluations.

    Args:
        past: the metrics of the run so far, where it is resumed.
    """
    if patience < 1:
        raise ValueError(f"patience = {patience}: must be at least 1")
    seen = [row[metric] for row in past if metric in row]

    def hook(moment: Moment) -> bool:
        if metric in moment.metrics and _finite(moment.metrics[metric]):  # the log, which `past` is from, has no others
            seen.append(moment.metrics[metric])
        return has_stalled(seen, patience)

    return hook


def has_stalled(values: Sequence[float], patience: int) -> bool:
    """Whether none of the last ``patience`` values is below all before them."""
    return len(values) > patience and min(values[-patience:]) >= min(values[:-patience])


class Log:
    """A line of JSON with the step and its metrics at the end of a file; numbers that are not finite are left out.

    Lines that a full disk refuses are kept for the next time; the first of them makes a warning.
    """

    def __init__(self, path: Path | str, warn: Callable[[str], None] = warnings.warn):
        self.path, self._warn = Path(path), warn
        self._pending, self._waiting = b"", False
        self._size = self.path.stat().st_size if self.path.exists() else 0

    def __call__(self, moment: Moment) -> None:
        row = {"step": moment.step} | {k: v for k, v in moment.metrics.items() if _finite(v)}
        self._pending += (json.dumps(row) + "\n").encode()
        try:
            self.write()
        except OSError as error:
            if not self._waiting:
                self._warn(f"step {moment.step} not logged ({error.strerror}); trying again at every step logged")
            self._waiting = True

    def write(self) -> int:
        """Write what is pending; returns the size of the file."""
        if self._pending:
            try:
                durable.append(self.path, self._pending)
            except OSError:
                os.truncate(self.path, self._size)  # half a line would spoil the next
                raise
            self._size += len(self._pending)
            self._pending, self._waiting = b"", False
        return self._size


class Checkpoints:
    """Saves the state every so many steps and at the last one, and keeps the newest ``keep`` and the best.

    A full disk does not end the run at once: the old checkpoints stay, and it is tried again at the next interval. The
    first failure in a row makes a warning, the third is raised.

    Args:
        best: name of the metric, the lower the better, whose best checkpoint is kept too.
        facts: called before each save; what it returns goes into the manifest.
        past: the metrics of the run so far, where it is resumed.
    """

    def __init__(
        self,
        folder: Path | str,
        every: int,
        keep: int = 2,
        *,
        best: str | None = None,
        facts: Callable[[], Mapping[str, Any]] = dict,
        past: Iterable[Mapping[str, Any]] = (),
        warn: Callable[[str], None] = warnings.warn,
    ):
        for name, value, least in (("every", every, 1), ("keep", keep, 1)):
            if value < least:
                raise ValueError(f"{name} = {value}: must be at least {least}")
        self.folder, self.every, self.keep = Path(folder), every, keep
        self._best, self._facts, self._warn = best, facts, warn
        self._failures = 0
        self._saved: int | None = None
        here = {path.name for path in checkpoint.steps(self.folder)}
        self._scores = {
            row["step"]: row[best]
            for row in past
            if best is not None and best in row and checkpoint.name_of(row["step"]) in here
        }

    def __call__(self, moment: Moment) -> None:
        if moment.step % self.every and moment.step != moment.last_step:
            return
        if self._best in moment.metrics and _finite(moment.metrics[self._best]):  # nothing is better than NaN
            self._scores[moment.step] = moment.metrics[self._best]
        self.save(moment.state)

    def save(self, state: State) -> None:
        """Save now, unless this step has just been saved."""
        if self._saved == int(state.step):
            return
        try:
            good = checkpoint.save(self.folder, state, self._facts())
        except OSError as error:
            self._failures += 1
            if self._failures == 3:
                raise
            if self._failures == 1:
                self._warn(
                    f"checkpoint of step {int(state.step)} not written ({error.strerror}); trying again twice, "
                    f"every {self.every} steps"
                )
            return
        self._failures, self._saved = 0, int(state.step)
        best = min(self._scores, key=lambda step: self._scores[step], default=None)
        kept = None if best is None else self.folder / checkpoint.name_of(best)
        checkpoint.prune(self.folder, self.keep, kept, good)


@contextlib.contextmanager
def progress(show: bool = True, start: int = 0) -> Iterator[Hook]:
    """A bar with speed, time left, loss and the state of the ensemble; plain lines where stderr is no terminal.

    Args:
        start: the step that the run starts from, where it is resumed.
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
            with contextlib.suppress(OSError):  # a reader who left
                print(f"step {moment.step}/{moment.last_step}  {text}", file=sys.stderr, flush=True)

    with bar:
        bar.refresh()
        yield hook


class Stopwatch:
    """Steps a second over the last chunks; the first one, which compiles, counts only until there are others."""

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
    """Every metric as a scalar in an event file that TensorBoard opens, in the groups of :func:`tag`; a full disk ends
    it, with a warning.

    Args:
        start: the step that the run has done; TensorBoard forgets what an earlier attempt wrote after it.
    """
    from tensorboardX.event_file_writer import EventsWriter
    from tensorboardX.proto.event_pb2 import Event, SessionLog
    from tensorboardX.summary import scalar

    Path(folder).mkdir(parents=True, exist_ok=True)
    # Events are written here and now: the usual writer's thread would lose them, and its errors, at the end.
    writer = EventsWriter(str(Path(folder) / "events"), f".{time.time_ns()}")
    writer.write_event(Event(wall_time=time.time(), step=start + 1, session_log=SessionLog(status=SessionLog.START)))

    broken = False

    def hook(moment: Moment) -> None:
        nonlocal broken
        if broken:
            return
        try:
            for name, value in _scalars(moment.metrics).items():
                writer.write_event(Event(wall_time=time.time(), step=moment.step, summary=scalar(tag(name), value)))
            writer.flush()
        except OSError as error:
            broken = True
            warn(f"no more TensorBoard events from step {moment.step} on ({error.strerror})")

    try:
        yield hook
    finally:
        with contextlib.suppress(OSError):  # told before
            writer.close()


GROUPS = {
    "train": ("log_likelihood", "log_prior"),
    "members": ("alive", "effective_rank", "stein_discrepancy"),
    "kernel": ("bandwidth_", "row_sum_", "similarity_", "force_ratio"),
}


def tag(name: str) -> str:
    """A metric's name in TensorBoard, where what stands before the slash is a group: ``test_nll`` is ``test/nll``.

    A name with a slash of its own stays as it is; one that no group knows is in ``other``.

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
    """Every metric to an MLflow tracking server or directory; a run of this ``name`` is taken up again.

    Needs the extra ``stein[mlflow]``.
    """
    try:
        from mlflow.entities import Metric, Param
        from mlflow.tracking import MlflowClient
    except ImportError as error:
        raise ImportError("tracking with MLflow needs: pip install 'stein[mlflow]'") from error
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
    """Every metric to Weights & Biases (``WANDB_MODE=offline`` writes files only); a run of this ``name`` is taken up
    again.

    Needs the extra ``stein[wandb]``.
    """
    try:
        import wandb as client
    except ImportError as error:
        raise ImportError("tracking with Weights & Biases needs: pip install 'stein[wandb]'") from error
    with client.init(project=project, id=name, name=name, resume="allow", config=dict(parameters or {})) as run:
        yield lambda moment: run.log(_scalars(moment.metrics), step=moment.step)


def _finite(value: Any) -> bool:
    return not isinstance(value, float) or math.isfinite(value)


def _scalars(metrics: Mapping[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in metrics.items() if isinstance(value, (int, float)) and _finite(value)}


def _headline(metrics: Mapping[str, Any]) -> str:
    """What a person watches: loss, members alive, bandwidth, repulsion over drive."""
    parts = [f"loss {-metrics['log_likelihood']:.3g}", f"alive {metrics['alive']}"]
    labels = {
        "bandwidth_weights": "h_w",
        "bandwidth_functions": "h_f",
        "force_ratio": "push/pull",
        "test_nll": "test nll",
    }
    parts += [f"{label} {metrics[name]:.3g}" for name, label in labels.items() if name in metrics]
    return "  ".join(parts)
