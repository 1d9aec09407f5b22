"""Commands for one run: config, train, resume, evaluate, status."""

import contextlib
import json as json_module
import os
import pathlib
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro
from tyro.conf import Positional

from stein.cli import terminal
from stein.cli.places import Coordinator, Devices, Number, Places, watched

if TYPE_CHECKING:
    from stein.runs.folder import RunFolder

Overrides = Annotated[
    tuple[tuple[str, ...], ...],
    tyro.conf.UseAppendAction,
    tyro.conf.arg(name="set", metavar="SECTION.KEY=VALUE ..."),
]
Threads = Annotated[int | None, tyro.conf.arg(metavar="N", help_behavior_hint="")]


def train(
    config: Positional[pathlib.Path],
    *,
    method: Annotated[str | None, tyro.conf.arg(metavar="METHOD", help_behavior_hint="")] = None,
    stochastic: bool = False,
    overrides: Overrides = (),
    out: Annotated[pathlib.Path | None, tyro.conf.arg(metavar="DIR", help_behavior_hint="")] = None,
    dry_run: bool = False,
    threads: Threads = None,
    devices: Devices = None,
    coordinator: Coordinator = None,
    num_processes: Number = None,
    process_id: Number = None,
    cache: bool = True,
    quiet: bool = False,
) -> None:
    """Train an ensemble from a config file, in a directory from which it can be resumed.

    Ctrl-C stops the run at the next pause and saves a checkpoint; a second Ctrl-C stops it at once.

    Args:
        config: a TOML file; `stein config init` writes one with every key explained.
        method: replaces method.name of the config; `stein methods` lists them.
        stochastic: add the noise that makes the method a sampler.
        overrides: other keys: train.steps=2000 data.file=houses.csv; paths are relative to the current directory.
        out: directory of the run. Default: runs/CONFIG-METHOD.
        dry_run: only compile it and time a few steps: predicts time and memory, and writes nothing.
        threads: CPU threads. Default: all. The same number gives bit-identical results.
        devices: spread the members over so many devices of this process, simulated ones on a CPU. Default: one device;
            with several processes, all.
        coordinator: address of process 0, for a run of several processes: start the command in each of them, with the
            same directory. Default: as Slurm, Open MPI or Kubernetes tell.
        num_processes: how many processes there are.
        process_id: the number of this one, from 0 on. Process 0 alone writes logs and results.
        cache: keep compiled programs in the user's cache directory, so that the next run starts faster.
        quiet: no progress bar.
    """
    from stein.runs import configs
    from stein.runs.folder import RunFolder

    pairs = [pair for group in overrides for pair in group]
    chosen = configs.load(config, pairs, method, stochastic or None)
    places = Places(devices, coordinator, num_processes, process_id)
    places.check()
    if dry_run:
        if places != Places():
            raise ValueError("--dry-run: times one device of one process; leave out the options of devices, processes")
        forecast(chosen, threads, cache)
        return
    if places.several and out is None:
        raise ValueError("--out: several processes need a directory that all of them see")
    run = RunFolder(out or free_name(pathlib.Path("runs") / _run_name(config.stem, chosen)))

    def work(training: Any, *how: Any) -> None:
        training.start(chosen, run, *how)

    train_in(run, True, work, threads, cache, quiet, places)


def resume(
    folder: Positional[pathlib.Path],
    *,
    steps: Annotated[int | None, tyro.conf.arg(metavar="N", help_behavior_hint="")] = None,
    allow_changed_data: bool = False,
    threads: Threads = None,
    devices: Devices = None,
    coordinator: Coordinator = None,
    num_processes: Number = None,
    process_id: Number = None,
    cache: bool = True,
    quiet: bool = False,
) -> None:
    """Continue a run that was stopped, killed or failed, from its last good checkpoint; or a finished one.

    Args:
        folder: the directory of the run.
        steps: new total of training steps, more than are done; also for a finished run. From here on, a decaying
            learning rate follows the schedule of the new total.
        allow_changed_data: continue, with a warning, if the data have changed since the run began.
        threads: CPU threads. Default: the number that the run used before.
        devices: spread the members over so many devices. Default: the number that the run used before. Another number
            gives the same to rounding.
        coordinator: address of process 0, for a run of several processes: start the command in each of them, with the
            same directory. Default: as Slurm, Open MPI or Kubernetes tell.
        num_processes: how many processes there are.
        process_id: the number of this one, from 0 on. Process 0 alone writes logs and results.
        cache: keep compiled programs in the user's cache directory.
        quiet: no progress bar.
    """
    from stein.runs.folder import RunFolder

    run = RunFolder(folder)
    run.check_is_run()
    places = Places(devices, coordinator, num_processes, process_id)
    places.check()
    if not places.several:
        places = places._replace(devices=devices or run.devices)
    if steps is not None:
        from stein.runs import more_steps

        more_steps.check(run, steps)
    elif run.is_finished:
        print(
            f"{run} is finished: there is nothing to resume; its numbers are in {run.numbers}; "
            "--steps N goes on to N steps"
        )
        return

    def work(training: Any, requests: list[int], show: bool, warn: Any, say: Any, mesh: Any) -> None:
        training.resume(run, requests, show, warn, say, allow_changed_data, steps, mesh)

    train_in(run, False, work, threads or run.threads, cache, quiet, places)


def evaluate(
    folder: Positional[pathlib.Path],
    *,
    ood: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME|FILE ...", help_behavior_hint="")] = (),
    corruption: bool = False,
    data: Annotated[pathlib.Path | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="")] = None,
    allow_changed_data: bool = False,
    data_dir: Annotated[pathlib.Path | None, tyro.conf.arg(metavar="DIR", help_behavior_hint="")] = None,
    threads: Threads = None,
    cache: bool = True,
) -> None:
    """Evaluate a finished run: scores, calibration and out-of-distribution detection.

    Writes evaluation.json, curves.json and figures/ into the run; docs/evaluation.md defines every number.

    Args:
        folder: the directory of the run.
        ood: out-of-distribution points: .csv, .parquet, .npy or .npz files with inputs like the run's own; for images
            also mnist, svhn and so on, or other-classes: those that data.classes leaves out.
        corruption: also evaluate on blurred test images, at six intensities.
        data: a labelled file with the run's columns, to evaluate on instead of its test points.
        allow_changed_data: continue, with a warning, if the data have changed since training.
        data_dir: directory that is searched first for the files of --ood.
        threads: CPU threads. Default: all.
        cache: keep compiled programs in the user's cache directory.
    """
    from stein.runs.folder import RunFolder

    run = RunFolder(folder)
    run.check_is_finished()
    use_threads(threads)
    with run.claimed(new=False), run.ended():
        with terminal.status("Importing JAX"):
            from stein.runs import assess
            from stein.runs.environment import use_compilation_cache
        if cache:
            use_compilation_cache()
        with terminal.status("Predicting and drawing"):
            numbers = assess.run(run, ood, corruption, data_dir, data, allow_changed_data, warn)
    terminal.show(assess.table(numbers))
    print(f"in {folder}: evaluation.json (every number), curves.json, figures/")
    _warn_if_useless(numbers)


def status(folders: Positional[tuple[pathlib.Path, ...]], *, json: bool = False) -> None:
    """Show the progress of runs: method, step, speed, time left, members alive, last metrics.

    Args:
        folders: run directories, or directories that contain some (such as runs/).
        json: print a JSON list instead of a table.
    """
    from stein.runs.status import survey, table

    if not folders:
        raise ValueError("no run is named; `stein status runs` shows all that are in runs/")
    runs = survey(folders)
    if json:
        print(json_module.dumps(runs, indent=2))
    else:
        from rich.console import Console

        terminal.show(table(runs, Console().width))
        print("".join(f"{run['run']}: {run['reason']}\n" for run in runs if run["reason"]), end="")


def config(action: Positional[Literal["init"]], path: Positional[pathlib.Path] = pathlib.Path("stein.toml")) -> None:
    """Write a config file with every key, its default and its meaning.

    Args:
        action: init.
        path: the file. An existing file is never overwritten.
    """
    from stein.runs.template import template

    with open(path, "x", encoding="utf-8") as file:
        file.write(template())
    print(f"wrote {path}; edit it, then: stein train {path}")


def forecast(config: Any, threads: int | None, cache: bool) -> None:
    """Print what a run would cost."""
    use_threads(threads)
    with terminal.status("Compiling, and timing a few steps"):
        from stein.runs import forecast
        from stein.runs.environment import use_compilation_cache

        if cache:
            use_compilation_cache()
        found = forecast.of(config)
    print(f"{found}\nnothing was written; leave --dry-run out to train")


def train_in(
    run: "RunFolder",
    new: bool,
    work: Callable[..., None],
    threads: int | None,
    cache: bool,
    quiet: bool,
    places: Places = Places(),
) -> None:
    """Train or resume with the run locked and signals handled from the start, and print the outcome.

    Args:
        work: called with the module ``training``, the signals received, whether to draw a progress bar, where warnings
            and remarks go, and the devices of the run.
    """
    from stein.runs import signals

    use_threads(threads)
    places.prepare()
    with contextlib.ExitStack() as stack:
        if places.several:
            stack.enter_context(watched(run))
        else:  # before jax is imported: a locked run is rejected at once
            stack.enter_context(run.claimed(new))
            stack.enter_context(run.ended())
        requests = stack.enter_context(signals.requests())
        with terminal.status("Importing JAX"):
            from stein import processes
            from stein.runs import training
            from stein.runs.environment import use_compilation_cache
        if cache:
            use_compilation_cache()
        mesh = places.connect()
        if not processes.is_first():
            work(training, requests, False, _ignore, _ignore, mesh)
            return
        if places.several:
            stack.enter_context(run.claimed(new))
            stack.enter_context(run.ended())
        work(training, requests, not quiet, warn, _say, mesh)
    numbers = json_module.loads(run.numbers.read_bytes())
    shown = {name: value for name, value in numbers.items() if name.startswith("test_")}
    results = "  ".join(f"{name} {value:.4g}" for name, value in shown.items())
    print(f"{run}: {numbers['steps']} steps of {numbers['method']} done, {numbers['alive']} members alive  {results}")
    print(f"the ensemble is in {run.ensemble}, about it: {run.card}")
    if run.summary.exists():
        print(f"\n{run.summary.read_text(encoding='utf-8')}\nThis text is in {run.summary}.")
        print(f"Next: stein predict {run} FILE")
    _warn_if_useless({name.removeprefix("test_"): value for name, value in numbers.items()})


def _ignore(message: str) -> None:
    """The first process says it."""


def _say(message: str) -> None:
    with contextlib.suppress(OSError):  # a closed pipe is no reason to stop training
        print(message, flush=True)


def warn(message: str) -> None:
    with contextlib.suppress(OSError):
        print(f"warning: {message}", file=sys.stderr)


def _warn_if_useless(numbers: dict[str, Any]) -> None:
    """Warn if a constant prediction would have been better."""
    rmse, mean = numbers.get("rmse"), numbers.get("baseline_rmse")
    if mean is not None and (rmse is None or rmse > mean):
        warn(f"worse than predicting the mean: rmse {_number(rmse)}, the mean of the training targets has {mean:.4g}")
    accuracy, usual = numbers.get("accuracy"), numbers.get("baseline_accuracy")
    if usual is not None and (accuracy is None or accuracy < usual):
        warn(f"worse than the most frequent class: accuracy {_number(accuracy)}, always saying it has {usual:.4g}")


def _number(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.4g}"


def use_threads(threads: int | None) -> None:
    if threads is not None:
        if threads < 1:
            raise ValueError(f"--threads = {threads}: must be at least 1")
        os.environ["NPROC"] = str(threads)  # read by XLA when it makes its thread pool


def _run_name(stem: str, config: Any) -> str:
    return f"{stem}-{config.method.name}" + ("-stochastic" if config.method.stochastic else "")


def free_name(path: pathlib.Path) -> pathlib.Path:
    """The path itself, or with the first suffix -2, -3, ... that is not taken."""
    names = (path if i == 1 else path.with_name(f"{path.name}-{i}") for i in range(1, 10**6))
    return next(name for name in names if not name.exists())
