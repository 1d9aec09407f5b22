"""Where many ensembles are trained: processes of this machine, jobs of Slurm, tasks of Ray. Imports no jax.

A cell is one ensemble of a table or a search, in files that its work continues from. An engine runs cells somewhere;
the loop around it is the same for all of them (:func:`make_all`): if a worker dies, its cell is given to another one,
which resumes from the last checkpoint. Machines share nothing but the directory of the results.
"""

import contextlib
import logging
import multiprocessing
import os
import re
import shutil
import signal
import sys
import threading
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

from stein.runs.signals import StoppedError

Cell = TypeVar("Cell")

LOSSES = 5
"""Workers that one cell may lose before it counts as failed: perhaps it is the cell that kills them."""


@runtime_checkable
class Task(Protocol):
    """One attempt at a cell. ``result`` returns the error of the work, and raises if the worker was lost."""

    def done(self) -> bool: ...
    def result(self) -> Exception | None: ...


@runtime_checkable
class Engine(Protocol):
    """Runs attempts somewhere: at most ``room`` at a time, looked at every ``pause`` seconds."""

    room: int
    pause: float

    def submit(self, attempt: "Attempt", cells: Sequence[Any]) -> Sequence[Task]: ...


class Launcher(NamedTuple):
    """How a command trains its cells: on which engine, and which share of them."""

    engine: Callable[[], AbstractContextManager[Engine]]
    here: bool = False  # one after the other in this process, each with its own progress bar
    shard: tuple[int, int] = (1, 1)

    def share(self, cells: Sequence[Cell]) -> Sequence[Cell]:
        """Every k-th of all cells, finished or not, so that shards never overlap."""
        number, shards = self.shard
        return cells[number - 1 :: shards]


def make_all(
    launcher: Launcher, work: Callable[[Cell], None], cells: Sequence[Cell], watch: Callable[[], None]
) -> None:
    """Call ``work`` on every cell. If one fails, the others still finish; then its error is raised.

    Args:
        watch: called every second, to show progress.
    """
    if not cells:  # an engine may take seconds to start
        return
    waiting, running = deque(range(len(cells))), dict[int, Task]()
    lost, errors, shown = Counter[int](), list[Exception](), 0.0
    attempt = Attempt(work, Path.cwd())
    with launcher.engine() as engine:
        while waiting or running:
            numbers = [waiting.popleft() for _ in range(min(len(waiting), engine.room - len(running)))]
            if numbers:
                running |= zip(numbers, engine.submit(attempt, [cells[n] for n in numbers]), strict=True)
            time.sleep(engine.pause)
            for number in [number for number, task in running.items() if task.done()]:
                error = _error(running.pop(number))
                lost[number] += isinstance(error, WorkerLostError)
                if isinstance(error, WorkerLostError) and lost[number] < LOSSES:
                    waiting.append(number)
                elif error:
                    errors.append(error)
            if time.monotonic() - shown > 1:
                watch()
                shown = time.monotonic()
    watch()
    for error in errors:
        raise error


class WorkerLostError(RuntimeError):
    """A worker died, or was told to stop, before its cell was finished."""


def _error(task: Task) -> Exception | None:
    try:
        error = task.result()
    except Exception as reason:  # of the engine: the work's own errors are returned
        return WorkerLostError(f"a worker died {LOSSES} times in the same place; the last time: {reason!r}")
    if isinstance(error, StoppedError):  # the worker got a signal, as where a cluster takes a machine back
        return WorkerLostError(f"a worker was stopped {LOSSES} times; the last time: {error}")
    return error


@dataclass
class Attempt:
    """The work on a cell as a worker runs it, whichever engine started the worker."""

    work: Callable[[Any], None]
    directory: Path  # relative paths start here, on every machine

    def __call__(self, cell: Any) -> Exception | None:
        """Returns the error of the work, so that anything that an engine raises is about the worker."""
        from stein.runs.environment import use_compilation_cache  # imports jax, which the command itself may not need

        os.environ["NPROC"] = "1"  # read by XLA when it makes its thread pool
        os.chdir(self.directory)
        use_compilation_cache()
        try:
            self.work(cell)
        except Exception as error:
            error.add_note(traceback.format_exc())
            return error
        return None

    def checkpoint(self, cell: Any) -> Any:
        """What Slurm runs again after a time limit or a preemption (submitit calls this): the cell's files go on."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, cell)


# -- processes of this machine --------------------------------------------------------------------------------------


def local(workers: int, shard: tuple[int, int] = (1, 1)) -> Launcher:
    """Processes with one thread each; a single worker is this process itself, with all its threads."""
    return Launcher(partial(_processes, workers), here=workers == 1, shard=shard)


@contextlib.contextmanager
def _processes(workers: int) -> Iterator[Engine]:
    engine = _Processes(workers)
    try:
        yield engine
    finally:  # after Ctrl-C, too: workers save before they end
        for pool in engine.last:
            pool.shutdown(cancel_futures=True)


class _Processes:
    """Pools of one process: a worker that dies breaks its own pool only."""

    pause = 0.05

    def __init__(self, workers: int):
        self.room = workers
        self.last: dict[ProcessPoolExecutor, Future[Exception | None]] = {}

    def submit(self, attempt: Attempt, cells: Sequence[Any]) -> list[Future[Exception | None]]:
        return [self._submit(attempt, cell) for cell in cells]

    def _submit(self, attempt: Attempt, cell: Any) -> Future[Exception | None]:
        ended = [pool for pool, last in self.last.items() if last.done()]
        for pool in ended:
            if isinstance(self.last[pool].exception(), BrokenProcessPool):
                del self.last[pool]
        pool = next((pool for pool in ended if pool in self.last), None) or ProcessPoolExecutor(
            1, multiprocessing.get_context("spawn"), _follow_parent
        )
        self.last[pool] = pool.submit(_for_parent, attempt, cell)
        return self.last[pool]


def _for_parent(attempt: Attempt, cell: Any) -> Exception | None:
    """Without its parent a worker that has saved would wait for its next cell for ever."""
    try:
        return attempt(cell)
    finally:
        parent = multiprocessing.parent_process()
        if parent is not None and not parent.is_alive():
            os._exit(128 + signal.SIGTERM)


def _follow_parent() -> None:
    threading.Thread(target=_stop_with_parent, daemon=True).start()


def _stop_with_parent() -> None:
    """Workers stop when their parent is killed: each saves a checkpoint and exits, as on SIGTERM."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)


# -- Slurm ----------------------------------------------------------------------------------------------------------


def slurm(options: Sequence[str], folder: Path, workers: int, shard: tuple[int, int] = (1, 1)) -> Launcher:
    """Jobs of Slurm through submitit, one per cell, in arrays.

    Args:
        options: of sbatch, as KEY=VALUE; ``cluster=local`` runs the jobs on this machine, ``workers`` at a time.
        folder: of the results; the scripts, logs and pickles of the jobs are in its directory ``slurm``.
    """
    pairs = [re.fullmatch(r"(\w+)=(.+)", option) for option in options]
    for option, pair in zip(options, pairs, strict=True):
        if not pair:
            raise ValueError(f"--slurm {option}: must be KEY=VALUE, an option of sbatch such as partition=long")
    given: dict[str, Any] = {pair[1]: int(pair[2]) if pair[2].isdigit() else pair[2] for pair in pairs if pair}
    cluster = given.pop("cluster", "slurm")
    if cluster not in ("slurm", "local"):
        raise ValueError(f"--slurm cluster={cluster}: must be slurm or local")
    if cluster == "slurm" and not shutil.which("srun"):
        raise ValueError("--slurm: no srun here; run this where jobs are submitted, or try --slurm cluster=local")
    _need("submitit", "--slurm")
    return Launcher(partial(_jobs, cluster, given, folder / "slurm", workers), shard=shard)


@contextlib.contextmanager
def _jobs(cluster: str, given: dict[str, Any], folder: Path, workers: int) -> Iterator[Engine]:
    import submitit

    executor = submitit.AutoExecutor(folder, cluster=cluster, slurm_max_num_timeout=1000)  # each resumes the last
    try:
        executor.update_parameters(name="stein", timeout_min=24 * 60, cpus_per_task=1)
        executor.update_parameters(**{f"slurm_{key}": value for key, value in given.items()})
    except NameError as error:
        raise ValueError(f"--slurm: {error}") from None
    engine = _Jobs(executor, workers if cluster == "local" else sys.maxsize)
    try:
        yield engine
    finally:
        for job in engine.jobs:
            if not job.done():
                job.cancel(check=False)


class _Jobs:
    pause = 2.0  # asks the file system about every job

    def __init__(self, executor: Any, room: int):
        self.executor, self.room = executor, room
        self.jobs: list[Any] = []

    def submit(self, attempt: Attempt, cells: Sequence[Any]) -> list[Any]:
        jobs = self.executor.map_array(attempt, cells)
        self.jobs += jobs
        return jobs


# -- Ray ------------------------------------------------------------------------------------------------------------


def ray(address: str, workers: int, shard: tuple[int, int] = (1, 1)) -> Launcher:
    """Tasks of a Ray cluster, one CPU each, and one GPU where there are any.

    Args:
        address: of a cluster, as ``ray.init`` takes it; ``local`` starts one on this machine, with ``workers`` CPUs.
    """
    _need("ray", "--ray")
    return Launcher(partial(_tasks, address, workers), shard=shard)


@contextlib.contextmanager
def _tasks(address: str, workers: int) -> Iterator[Engine]:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # says nothing to anybody
    import ray

    where: dict[str, Any] = {"num_cpus": workers, "include_dashboard": False} if address == "local" else {}
    try:
        ray.init("local" if address == "local" else address, logging_level=logging.ERROR, **where)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise ValueError(f"--ray {address}: no cluster there ({error}); `ray start --head` starts one") from None
    try:
        yield _Tasks(ray)
    finally:
        ray.shutdown()


class _Tasks:
    room = sys.maxsize  # Ray has a queue of its own
    pause = 0.2

    def __init__(self, ray: Any):
        # Ray's own retries would not count as ours, nor know a worker that was told to stop.
        gpus = 1 if ray.cluster_resources().get("GPU") else 0
        self.remote = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=0)(_called)

    def submit(self, attempt: Attempt, cells: Sequence[Any]) -> list[Future[Exception | None]]:
        return [self.remote.remote(attempt, cell).future() for cell in cells]


def _called(attempt: Attempt, cell: Any) -> Exception | None:
    return attempt(cell)


def _need(package: str, option: str) -> None:
    """Raise now, not after seconds of imports, if a package is missing."""
    from importlib.util import find_spec

    if find_spec(package) is None:
        raise ImportError(f"{option} needs {package}: pip install '.[cluster]' in the checkout")


def shard_of(text: str | None) -> tuple[int, int]:
    """Number and count of a shard, from ``2/8``: the second of eight."""
    found = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text or "1/1")
    number, count = (int(part) for part in found.groups()) if found else (0, 0)
    if not 1 <= number <= count:
        raise ValueError(f"--shard {text}: must be I/K with I from 1 to K, such as 2/8 for the second of eight")
    return number, count
