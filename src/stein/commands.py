"""The commands, each a function whose signature is its options and whose docstring is its help.

Nothing heavy is imported until a command runs: `stein --help` answers at once.
"""

import contextlib
import importlib.util
import json as json_module
import os
import pathlib
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

import tyro
from tyro.conf import Positional

from stein import terminal

Overrides = Annotated[
    tuple[tuple[str, ...], ...],
    tyro.conf.UseAppendAction,
    tyro.conf.arg(name="set", metavar="SECTION.KEY=VALUE ..."),
]
Threads = Annotated[int | None, tyro.conf.arg(metavar="N")]


def methods(json: bool = False) -> None:
    """List every method: what it does, what it costs, whether it targets the posterior.

    Args:
        json: print a JSON list instead of a table.
    """
    from stein.rules import ALIASES, LEGEND, METHODS

    if json:
        fields = ("name", "summary", "cost", "stochastic", "posterior")
        listed = [{field: getattr(method, field) for field in fields} for method in METHODS.values()]
        for entry in listed:
            entry["aliases"] = [alias for alias, name in ALIASES.items() if name == entry["name"]]
        print(json_module.dumps(listed, indent=2))
        return

    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    table.add_column("method", no_wrap=True, style="bold")
    for column in ("what it does", "cost", "noise", "posterior"):
        table.add_column(column, overflow="fold")
    for method in METHODS.values():
        table.add_row(method.name, method.summary, method.cost, method.stochastic, method.posterior)
    terminal.show(table)
    terminal.show("\n" + " ".join(LEGEND.split()))
    terminal.show("Short names: " + ", ".join(f"{alias} is {name}" for alias, name in ALIASES.items()))


def doctor() -> None:
    """Check the installation: versions, devices, and whether JAX computes right sums here."""
    with terminal.status("Importing JAX"):
        from stein import doctor as checkup
    with terminal.status("Computing sums with known answers"):
        # Before `facts`, which opens the devices: an accelerator may not be shared with the child process.
        checks = checkup.examine()
        facts = checkup.facts()

    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    for name, value in facts.items():
        table.add_row(name, value)
    for check in checks:
        mark = "[green]ok[/]" if check.passed else "[red]FAILED[/]"
        table.add_row(check.name, f"{mark}  {check.detail}")
    terminal.show(table)
    failed = sum(not check.passed for check in checks)
    if failed:
        raise RuntimeError(
            f"{failed} of {len(checks)} checks failed: JAX is not to be trusted here; fix: {checkup.FIX}"
        )


def demo(out: pathlib.Path = pathlib.Path("demo"), steps: int = 6000) -> None:
    """Train five kinds of ensembles on a curve with a gap in its data, beside the posterior, and draw them.

    Takes about a minute. The posterior comes with the package: `stein reproduce hmc` makes it again.

    Args:
        out: directory for the report, the figure, the animation and the numbers.
        steps: training steps for each method.
    """
    with terminal.status("Importing JAX"):
        from stein.experiments import demo as experiment
        from stein.experiments.run import use_compilation_cache
    use_compilation_cache()
    out.mkdir(parents=True, exist_ok=True)
    with terminal.bars() as bars:
        result = experiment.run(steps=steps, begin=bars)
    with terminal.status("Drawing"):
        experiment.write(result, out)

    from rich.table import Table

    header, rows = experiment.table(result)
    table = Table(title="spread of the members over that of the posterior, and distances from it", box=None,
                  header_style="bold", title_justify="left")  # fmt: skip
    for i, column in enumerate(header):
        table.add_column(column, justify="right" if i else "left")
    for row in rows:
        table.add_row(*row)
    terminal.show(table)
    print(f"report: {out / 'report.html'}, figure: {out / 'regression.png'}")
    print("look at the gap between the two clouds of points, where nothing was seen: HMC is the right answer")


Preset = Literal["smoke", "laptop", "paper", "corrected"]
TABLES = ("table1", "table2", "digits")


def reproduce(
    what: Positional[Literal["fig1", "fig-stochastic", "ablation", "hmc", "table1", "table2", "digits"]],
    *,
    preset: Annotated[Preset | None, tyro.conf.arg(metavar="PRESET")] = None,
    tasks: tuple[Literal["regression", "classification"], ...] = ("regression", "classification"),
    methods: Annotated[tuple[str, ...], tyro.conf.arg(metavar="ROW ...")] = (),
    seeds: Annotated[tuple[int, ...], tyro.conf.arg(metavar="SEED ...")] = (),
    out: Annotated[pathlib.Path | None, tyro.conf.arg(metavar="DIR")] = None,
    workers: Annotated[int | None, tyro.conf.arg(metavar="N")] = None,
) -> None:
    """Make the paper's figures and tables again, or the posterior that the toy figures are compared with.

    What is finished is kept, and what is half done is resumed: the same command goes on after an interruption.

    Args:
        what: fig1 (deterministic) and fig-stochastic: every method on the toy tasks; ablation: fw-SVGD with one setting
            changed at a time; hmc: the long chains of the reference; table1: FashionMNIST against MNIST; table2:
            CIFAR-10 against SVHN; digits: the rows of the tables on scikit-learn's digits. Tables come with their
            learning, calibration and corruption curves.
        preset: smoke (minutes), laptop (tables only: two cores, an hour or two), paper (the paper's settings),
            corrected (the right noise; for fig1 what we recommend). Unless given paper, but laptop for table1 and 2.
        tasks: of the toy figures, one of the two, or both.
        methods: only these rows: "fw-SVGD, exact" in toy figures, h-svgd-l or h-svgd-l-stochastic in tables.
        seeds: other training seeds than 38 to 42.
        out: directory of the results; results/fig1, results/table1-laptop and the like unless given.
        workers: processes that train at the same time, of one thread each; one for each CPU unless given.
    """
    workers = _number_of(workers)
    preset = preset or ("laptop" if what in ("table1", "table2") else "paper")
    folder = out or pathlib.Path(f"results/{what}" + ("" if preset == "paper" else f"-{preset}"))
    if what in TABLES:
        _reproduce_table(what, preset, methods, seeds, folder, workers)
    elif preset == "laptop":
        raise ValueError(f"--preset laptop: is for tables; {what} has smoke, paper and corrected")
    elif what == "hmc":
        _reproduce_hmc(tasks, preset == "smoke", out or pathlib.Path("results/hmc"))
    else:
        _reproduce_figure(what, preset, tasks, methods, seeds, folder, workers)


def _number_of(workers: int | None) -> int:
    if workers is not None and workers < 1:
        raise ValueError(f"--workers = {workers}: must be at least 1")
    return workers or os.cpu_count() or 1


def _reproduce_figure(
    what: str,
    preset: str,
    tasks: Sequence[str],
    labels: Sequence[str],
    seeds: Sequence[int],
    folder: pathlib.Path,
    workers: int,
) -> None:
    with terminal.status("Importing JAX"):
        from stein.experiments import figures
        from stein.experiments.run import use_compilation_cache
    use_compilation_cache()
    cells = figures.missing_cells(what, preset, folder, tasks, labels, seeds)
    with terminal.bars() as bars:
        figures.run_cells(folder, cells, min(workers, max(len(cells), 1)), bars)
    with terminal.status("Comparing with the posterior"):
        figures.write(what, preset, folder, seeds)
    print((folder / "table.md").read_text())
    print(f"in {folder}: table.md, table.json (every seed) and the figure")


def _reproduce_table(
    what: str, preset: Preset, rows: Sequence[str], seeds: Sequence[int], folder: pathlib.Path, workers: int
) -> None:
    from stein.experiments import protocols

    protocols.rows(what, rows)  # before JAX: a name that is not there is said at once
    with terminal.status("Importing JAX"):
        from stein.experiments import tables
        from stein.experiments.run import use_compilation_cache
    use_compilation_cache()
    with terminal.bars() as bars:
        tables.make(folder, tables.cells(what, preset, rows, seeds), workers, bars)
    with terminal.status("Drawing"):
        tables.write(folder, tables.cells(what, preset, (), seeds), f"stein reproduce {what} --preset {preset}")
    print((folder / "table.md").read_text())
    print(f"in {folder}: table.md, table.tex, table.json (every seed), about.json and the figures")


def _reproduce_hmc(tasks: Sequence[str], smoke: bool, folder: pathlib.Path) -> None:
    if importlib.util.find_spec("arviz") is None:  # now, not after the chains have run
        raise ImportError("the diagnostics of the chains need ArviZ: pip install 'stein[arviz]'")
    os.environ["JAX_ENABLE_X64"] = "1"
    with terminal.status("Importing JAX"):
        from stein.experiments import reference, toys
    length = reference.Length(2, 500, 50, 10, 2, 6) if smoke else reference.Length()
    for name in tasks:
        task, place = toys.TASKS[name](), folder / name
        place.mkdir(parents=True, exist_ok=True)
        reference.sample(task, place, length, say=lambda words: print(words, file=sys.stderr), show=True)
        about = reference.publish(task, reference.load(task, place, length), folder, length)
        rhat, ess = (about["diagnostics"][key] for key in ("rhat", "ess_bulk"))
        print(f"{name}: {about['kept']} draws, R-hat at most {max(rhat):.3f}, bulk ESS at least {min(ess):.0f}")
        print(f"draws: {folder / f'{name}.npz'}, about them: {folder / f'{name}.json'}")


def train(
    config: Positional[pathlib.Path],
    *,
    method: Annotated[str | None, tyro.conf.arg(metavar="METHOD")] = None,
    stochastic: bool = False,
    overrides: Overrides = (),
    out: Annotated[pathlib.Path | None, tyro.conf.arg(metavar="DIR")] = None,
    threads: Threads = None,
    cache: bool = True,
    quiet: bool = False,
) -> None:
    """Train an ensemble as a config file says, into a directory that can be resumed.

    Ctrl-C ends the run at the next pause with a checkpoint; a second one ends it at once.

    Args:
        config: a TOML file; `stein config init` writes one with every key explained.
        method: instead of method.name of the config; `stein methods` lists them.
        stochastic: add the noise that makes the method a sampler.
        overrides: other keys, as train.steps=2000 data.file=houses.csv.
        out: directory of the run; runs/CONFIG-METHOD unless given.
        threads: CPU threads; all there are unless given. The same number gives the same bytes.
        cache: keep compiled programs in the user's cache directory, so that the next run starts faster.
        quiet: no progress bar.
    """
    from stein.experiments import config as configs

    pairs = [pair for group in overrides for pair in group]
    chosen = configs.load(config, pairs, method, stochastic or None)
    folder = out or _free_name(pathlib.Path("runs") / _run_name(config.stem, chosen))
    _train_in(folder, True, lambda run, *how: run.start(chosen, folder, *how), threads, cache, quiet)


def resume(
    folder: Positional[pathlib.Path], *, threads: Threads = None, cache: bool = True, quiet: bool = False
) -> None:
    """Go on with a run that was stopped or killed, from its last good checkpoint.

    Args:
        folder: the directory of the run.
        threads: CPU threads; as many as the run had before unless given.
        cache: keep compiled programs in the user's cache directory.
        quiet: no progress bar.
    """
    from stein.experiments import folder as folders

    folders.check_is_run(folder)
    if folders.is_finished(folder):
        print(f"{folder} is finished: there is nothing to resume; its numbers are in {folder / 'metrics.json'}")
        return
    before = threads or folders.threads(folder)
    _train_in(folder, False, lambda run, *how: run.resume(folder, *how), before, cache, quiet)


def evaluate(
    folder: Positional[pathlib.Path],
    *,
    ood: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME|FILE ...")] = (),
    corruption: bool = False,
    data_dir: Annotated[pathlib.Path | None, tyro.conf.arg(metavar="DIR")] = None,
    threads: Threads = None,
    cache: bool = True,
) -> None:
    """Put numbers on a finished run: how good, how well calibrated, and does it notice what it has never seen.

    Writes evaluation.json, curves.json and figures/ into the run; docs/evaluation.md defines every number.

    Args:
        folder: the directory of the run.
        ood: points of other kinds: .npy or .npz files with inputs like the run's own; for images also mnist, svhn and
            the like, or other-classes, those that data.classes leaves out.
        corruption: also blur the test images, at six intensities.
        data_dir: where these are looked for first.
        threads: CPU threads; all there are unless given.
        cache: keep compiled programs in the user's cache directory.
    """
    from stein.experiments import folder as folders

    folders.check_is_run(folder)
    if not folders.is_finished(folder):
        raise ValueError(f"{folder}: not finished; `stein resume {folder}` goes on with it")
    _use_threads(threads)
    with folders.claimed(folder, new=False):
        with terminal.status("Importing JAX"):
            from stein.experiments import evaluation, run
        if cache:
            run.use_compilation_cache()
        with terminal.status("Predicting and drawing"):
            numbers = evaluation.run(folder, ood, corruption, data_dir)
    terminal.show(evaluation.table(numbers))
    print(f"in {folder}: evaluation.json (every number), curves.json, figures/")


def sweep(
    spec: Positional[pathlib.Path],
    *,
    out: Annotated[pathlib.Path | None, tyro.conf.arg(metavar="DIR")] = None,
    workers: Annotated[int | None, tyro.conf.arg(metavar="N")] = None,
) -> None:
    """Search for the best settings of a run: a grid or random draws, judged on held-out points, never on test images.

    What is finished is kept, and what is half done is resumed: the same command goes on after an interruption.

    Args:
        spec: a TOML file with [base] and [search]; docs/runs.md and examples/sweep-digits.toml explain it.
        out: directory of the search; results/SPEC unless given.
        workers: processes that train at the same time, of one thread each; one for each CPU unless given.
    """
    from stein.experiments import folder as folders
    from stein.experiments import search

    workers, plan, folder = _number_of(workers), search.load(spec), out or pathlib.Path("results") / spec.stem
    search.check_folder(plan, folder)
    folder.mkdir(parents=True, exist_ok=True)
    with folders.claimed(folder, new=False):
        with terminal.status("Importing JAX"):
            from stein.experiments import sweep as trials
            from stein.experiments.run import use_compilation_cache
        use_compilation_cache()
        with terminal.bars() as bars:
            trials.make(folder, plan.trials, workers, bars)
        with terminal.status("Drawing"):
            best = trials.write(folder, plan, f"stein sweep {spec}")
    print((folder / "sweep.md").read_text())
    print(f"best: trial {best['trial']}; its config is {folder / 'best.toml'}, the figure {folder / 'sweep.png'}")


def status(folders: Positional[tuple[pathlib.Path, ...]], *, json: bool = False) -> None:
    """Show how far runs are: method, step, speed, time left, members alive, last metrics.

    Args:
        folders: directories of runs, or directories that hold some (as runs/).
        json: print a JSON list instead of a table.
    """
    from stein.experiments import status as states

    found = states.survey(folders)
    if json:
        print(json_module.dumps(found, indent=2))
    else:
        terminal.show(states.table(found))


def config(action: Positional[Literal["init"]], path: Positional[pathlib.Path] = pathlib.Path("stein.toml")) -> None:
    """Write a config file with every key, its default and its meaning.

    Args:
        action: init.
        path: the file; one that is there is never overwritten.
    """
    from stein.experiments import config as configs

    with open(path, "x", encoding="utf-8") as file:
        file.write(configs.template())
    print(f"wrote {path}; edit it, then: stein train {path}")


def _train_in(
    folder: pathlib.Path, new: bool, work: Callable[..., None], threads: int | None, cache: bool, quiet: bool
) -> None:
    """Train or go on, with the run locked and signals heard from the first moment, and say how it ended."""
    from stein.experiments import folder as folders
    from stein.experiments import signals

    _use_threads(threads)

    def warn(message: str) -> None:
        with contextlib.suppress(OSError):  # nobody listens: no reason to stop training
            print(f"warning: {message}", file=sys.stderr)

    with folders.claimed(folder, new), signals.requests() as requests:
        with terminal.status("Importing JAX"):
            from stein.experiments import run
        if cache:
            run.use_compilation_cache()
        work(run, requests, not quiet, warn)
    numbers = json_module.loads((folder / "metrics.json").read_bytes())
    shown = {name: value for name, value in numbers.items() if name.startswith("test_")}
    results = "  ".join(f"{name} {value:.4g}" for name, value in shown.items())
    print(
        f"{folder}: {numbers['steps']} steps of {numbers['method']} done, {numbers['alive']} members alive  {results}"
    )
    print(f"the ensemble is in {folder / 'ensemble.safetensors'}, about it: {folder / 'card.md'}")


def _use_threads(threads: int | None) -> None:
    if threads is not None:
        if threads < 1:
            raise ValueError(f"--threads = {threads}: must be at least 1")
        os.environ["NPROC"] = str(threads)  # read by XLA when it makes its thread pool


def _run_name(stem: str, config: Any) -> str:
    return f"{stem}-{config.method.name}" + ("-stochastic" if config.method.stochastic else "")


def _free_name(path: pathlib.Path) -> pathlib.Path:
    """The path itself, or with the first number that makes it new."""
    names = (path if i == 1 else path.with_name(f"{path.name}-{i}") for i in range(1, 10**6))
    return next(name for name in names if not name.exists())


def data(
    action: Positional[Literal["list", "fetch", "verify"]],
    names: Positional[Annotated[tuple[str, ...], tyro.conf.arg(metavar="[NAME ...]")]] = (),
    *,
    data_dir: Annotated[pathlib.Path | None, tyro.conf.arg(metavar="DIR")] = None,
    offline: bool = False,
) -> None:
    """List the data sets, download what is missing of them, or verify what is here.

    They are looked for in --data-dir, in STEIN_DATA, in Debian's package of FashionMNIST and in the user's cache.

    Args:
        action: list, fetch or verify.
        names: data sets as `stein data list` shows them; all of them where none is named, but fetch wants to hear it.
        data_dir: a directory with torchvision's folder names; fetch downloads to it instead of the user's cache.
        offline: open no socket: what is not here is an error.
    """
    from stein.data import catalogue

    if action == "fetch":
        with terminal.bars() as bars:
            lines = list(catalogue.get(names, data_dir, offline, bars))
        print("\n".join(lines))
    elif action == "verify":
        for line in catalogue.verify(names, data_dir):
            print(line, flush=True)
    else:
        from rich.table import Table

        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
        table.add_column("data set", no_wrap=True, style="bold")
        for column in ("what it is", "where"):
            table.add_column(column, overflow="fold")
        for dataset in catalogue.chosen(names):
            table.add_row(dataset.name, dataset.about, catalogue.state(dataset, data_dir))
        terminal.show(table)


COMMANDS: dict[str, Callable[..., None]] = {
    "methods": methods,
    "doctor": doctor,
    "demo": demo,
    "reproduce": reproduce,
    "config": config,
    "data": data,
    "train": train,
    "resume": resume,
    "evaluate": evaluate,
    "sweep": sweep,
    "status": status,
}
