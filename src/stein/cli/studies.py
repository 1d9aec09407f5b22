"""Commands that train many ensembles: demo, reproduce, sweep."""

import contextlib
import importlib.util
import os
import pathlib
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Literal, get_args

import tyro
from tyro.conf import Positional

from stein.cli import terminal

if TYPE_CHECKING:
    from stein.runs.launchers import Launcher

# Where the ensembles of a command are trained.
Workers = Annotated[int | None, tyro.conf.arg(metavar="N", help_behavior_hint="")]
Shard = Annotated[str | None, tyro.conf.arg(metavar="I/K", help_behavior_hint="")]
Slurm = Annotated[tuple[str, ...] | None, tyro.conf.arg(metavar="[KEY=VALUE ...]", help_behavior_hint="")]
Ray = Annotated[str | None, tyro.conf.arg(metavar="ADDRESS|local", help_behavior_hint="")]


@contextlib.contextmanager
def _studies() -> Iterator[None]:
    """Import the paper's studies inside this context; without them the error is one line."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("stein.paper"):
            raise ImportError("the paper's studies (stein.paper) are not installed here") from None
        raise


def demo(
    out: pathlib.Path = pathlib.Path("demo"),
    steps: Annotated[int | None, tyro.conf.arg(metavar="N", help_behavior_hint="")] = None,
    seed: int = 42,
) -> None:
    """Train four kinds of ensembles on 1-D data with a gap, and plot them beside the posterior.

    Takes about a minute on two cores. The posterior comes with the package; `stein reproduce hmc` recomputes it.

    Args:
        out: directory for the report, the figure, the animation and the numbers.
        steps: training steps per method. Default: 10,000, for which the recommendation holds.
        seed: seed of the initial networks and the batches.
    """
    if steps is not None and steps < 1:
        raise ValueError(f"--steps = {steps}: must be at least 1")
    with terminal.status("Importing JAX"):
        with _studies():
            from stein.paper.demo import BEFORE_NEXT, COLUMNS, NEXT, STEPS, run, sentences, table, write
        from stein.runs.environment import use_compilation_cache
    use_compilation_cache()
    out.mkdir(parents=True, exist_ok=True)
    with terminal.bars() as bars:
        result = run(steps=steps or STEPS, seed=seed, begin=bars)
    with terminal.status("Drawing"):
        write(result, out)

    from rich.table import Table

    header, rows = table(result)
    drawn = Table(box=None, header_style="bold", pad_edge=False)
    for i, column in enumerate(header):
        drawn.add_column(column, justify="right" if i else "left", no_wrap=not i)
    for row in rows:
        drawn.add_row(*row)
    terminal.show(drawn)
    print()
    for words, meaning in COLUMNS.values():
        print(f"{words}: {meaning}")
    print()
    for sentence in sentences(result.numbers, result.floor):
        print(f"- {sentence}")
    print(f"\nreport: {out / 'report.html'}, figure: {out / 'regression.png'}")
    print(f"\n{BEFORE_NEXT}:")
    for command in NEXT:
        print(f"  {command}")


Preset = Literal["smoke", "laptop", "paper", "corrected"]
Table = Literal["table1", "table2", "digits"]
Study = Literal["fig1", "fig-stochastic", "ablation", "hmc", "table1", "table2", "digits", "calibration", "corruption",
                "uci"]  # fmt: skip


def reproduce(
    what: Positional[Study],
    *,
    preset: Annotated[Preset | None, tyro.conf.arg(metavar="PRESET", help_behavior_hint="")] = None,
    tasks: tuple[Literal["regression", "classification"], ...] = ("regression", "classification"),
    tables: tuple[Table, ...] = ("table1", "table2"),
    methods: Annotated[tuple[str, ...], tyro.conf.arg(metavar="ROW ...", help_behavior_hint="")] = (),
    seeds: Annotated[tuple[int, ...], tyro.conf.arg(metavar="SEED ...", help_behavior_hint="")] = (),
    out: Annotated[pathlib.Path | None, tyro.conf.arg(metavar="DIR", help_behavior_hint="")] = None,
    workers: Workers = None,
    shard: Shard = None,
    slurm: Slurm = None,
    ray: Ray = None,
) -> None:
    """Reproduce the paper's figures and tables, or the posterior that the toy figures are compared with.

    Finished work is kept and unfinished runs are resumed: after an interruption, run the same command again.

    Args:
        what: fig1 (deterministic) and fig-stochastic: every method on the toy tasks; ablation: fw-SVGD with one setting
            changed at a time; hmc: the long reference chains; table1: FashionMNIST against MNIST; table2:
            CIFAR-10 against SVHN; digits: the same rows on scikit-learn's digits; calibration and corruption:
            the curves of the tables' ensembles, which are trained if necessary; uci: the default estimator and others
            on the twenty standard splits of four UCI tables, beside scikit-learn's models.
        preset: smoke (minutes), laptop (tables only: two cores, an hour or two), paper (the paper's settings),
            corrected (the correct noise; for fig1 our recommended settings). Default: laptop for
            table1 and table2, otherwise paper.
        tasks: tasks of the toy figures.
        tables: tables whose ensembles calibration and corruption use.
        methods: only these rows, such as "fw-SVGD, exact" in toy figures, h-svgd-l or h-svgd-l-stochastic in tables.
        seeds: training seeds. Default: those of the preset, 38 to 42 for paper.
        out: directory of the results. Default: results/fig1, results/table1-laptop and so on. calibration and
            corruption write to the directories of their tables: OUT/table1 and so on.
        workers: parallel training processes, with one thread each. Default: one per CPU.
        shard: train only every K-th ensemble, beginning with the I-th: for arrays of jobs, on any scheduler.
        slurm: train each ensemble in a job of Slurm, with these options of sbatch. cluster=local: on this machine.
        ray: train on this Ray cluster. local: on one that is started here.
    """
    curves = what in ("calibration", "corruption")
    preset = preset or ("laptop" if curves or what in ("table1", "table2") else "paper")

    def folder(what: str) -> pathlib.Path:
        return pathlib.Path(f"results/{what}" + ("" if preset == "paper" else f"-{preset}"))

    def launcher(folder: pathlib.Path) -> "Launcher":
        return _launcher(folder, workers, shard, slurm, ray)

    if curves:
        for table in tables:
            path = out / table if out else folder(table)
            _reproduce_table(table, preset, methods, seeds, path, launcher(path), shown=what)
    elif what == "uci":
        path = out or pathlib.Path("results/uci")
        _reproduce_uci(methods, path, launcher(path))
    elif what in get_args(Table):
        path = out or folder(what)
        _reproduce_table(what, preset, methods, seeds, path, launcher(path))
    elif preset == "laptop":
        raise ValueError(f"--preset laptop: is for tables; {what} has smoke, paper and corrected")
    elif what == "hmc" and (shard or ray or slurm is not None):
        raise ValueError("--shard, --slurm and --ray: are for figures and tables; the chains of hmc run here")
    elif what == "hmc":
        _reproduce_hmc(tasks, preset == "smoke", out or pathlib.Path("results/hmc"))
    else:
        path = out or folder(what)
        _reproduce_figure(what, preset, tasks, methods, seeds, path, launcher(path))


def _launcher(
    folder: pathlib.Path, workers: int | None, shard: str | None, slurm: Sequence[str] | None, ray: str | None
) -> "Launcher":
    """How the ensembles in a folder are trained, by the options of a command."""
    from stein.runs import launchers

    if workers is not None and workers < 1:
        raise ValueError(f"--workers = {workers}: must be at least 1")
    if slurm is not None and ray is not None:
        raise ValueError("--slurm and --ray: choose one of them")
    affinity = getattr(os, "sched_getaffinity", None)  # what a scheduler left to us; absent on macOS
    workers, part = workers or (len(affinity(0)) if affinity else os.cpu_count() or 1), launchers.shard_of(shard)
    if slurm is not None:
        return launchers.slurm(slurm, folder, workers, part)
    return launchers.local(workers, part) if ray is None else launchers.ray(ray, workers, part)


def _writing(folder: pathlib.Path, launcher: "Launcher") -> contextlib.AbstractContextManager[None]:
    """Shards write the summary of all in turn, so that the last one has everything."""
    from stein.storage import locks

    return contextlib.nullcontext() if launcher.shard == (1, 1) else locks.locked(folder, seconds=300)


def _reproduce_figure(
    what: str,
    preset: str,
    tasks: Sequence[str],
    labels: Sequence[str],
    seeds: Sequence[int],
    folder: pathlib.Path,
    launcher: "Launcher",
) -> None:
    with terminal.status("Importing JAX"):
        with _studies():
            from stein.paper import toy_figures
        from stein.runs.environment import use_compilation_cache
    use_compilation_cache()
    cells = toy_figures.cells(what, preset, tasks, labels, seeds)
    with terminal.bars() as bars:
        toy_figures.run_cells(folder, cells, launcher, bars)
    with _writing(folder, launcher), terminal.status("Comparing with the posterior"):
        drawn = toy_figures.write(what, preset, folder, seeds)
    print((folder / "table.md").read_text())
    print(f"in {folder}: table.md, table.json (every seed)" + (" and the figure" if drawn else ""))


def _reproduce_table(
    what: str,
    preset: Preset,
    rows: Sequence[str],
    seeds: Sequence[int],
    folder: pathlib.Path,
    launcher: "Launcher",
    shown: str = "table",
) -> None:
    with _studies():
        from stein.paper import protocols

    protocols.rows(what, preset, rows)  # before importing JAX: an unknown name fails at once
    with terminal.status("Importing JAX"):
        from stein.paper import image_tables
        from stein.runs.environment import use_compilation_cache
    use_compilation_cache()
    try:
        with terminal.bars() as bars:
            image_tables.make(folder, image_tables.cells(what, preset, rows, seeds), launcher, bars)
    finally:  # also if the command was stopped
        with _writing(folder, launcher), terminal.status("Drawing"):
            left_out = image_tables.write(
                folder, image_tables.cells(what, preset, (), seeds), f"stein reproduce {what} --preset {preset}"
            )
        if left_out:
            why = "the settings of their rows are others now; --out gives the new runs a table of their own"
            print(f"warning: no longer in {folder}/table.json: {', '.join(left_out)}; {why}", file=sys.stderr)
    if not (folder / f"{shown}.md").exists():  # an early shard without a cell of its own
        print(f"nothing to show yet in {folder}")
        return
    print((folder / f"{shown}.md").read_text())
    print(f"in {folder}: {shown}.md, table.json (every seed), about.json and the figures")


def _reproduce_uci(rows: Sequence[str], folder: pathlib.Path, launcher: "Launcher") -> None:
    with terminal.status("Importing JAX"):
        with _studies():
            from stein.paper import uci
        uci.check(rows)
        import stein.sklearn  # noqa: F401 - says how to install what is missing
    try:
        with terminal.bars() as bars:
            uci.make(folder, rows, launcher, bars)
    finally:  # also if the command was stopped
        with _writing(folder, launcher):
            uci.write(folder, "stein reproduce uci")
    print((folder / "table.md").read_text())
    print(f"in {folder}: table.md, table.json (every split), figure.png")


def _reproduce_hmc(tasks: Sequence[str], smoke: bool, folder: pathlib.Path) -> None:
    if importlib.util.find_spec("arviz") is None:  # check now, not after the chains have run
        raise ImportError("the diagnostics of the chains need ArviZ: pip install '.[arviz]' in the checkout")
    os.environ["JAX_ENABLE_X64"] = "1"
    with terminal.status("Importing JAX"), _studies():
        from stein.paper import reference, toys
    length = reference.Length(2, 500, 50, 10, 2, 6) if smoke else reference.Length()
    for name in tasks:
        task, place = toys.TASKS[name](), folder / name
        place.mkdir(parents=True, exist_ok=True)
        reference.sample(task, place, length, say=lambda words: print(words, file=sys.stderr), show=True)
        about = reference.publish(task, reference.load(task, place, length), folder, length)
        rhat, ess = (about["diagnostics"][key] for key in ("rhat", "ess_bulk"))
        print(f"{name}: {about['kept']} draws, R-hat at most {max(rhat):.3f}, bulk ESS at least {min(ess):.0f}")
        print(f"draws: {folder / f'{name}.npz'}, about them: {folder / f'{name}.json'}")


def sweep(
    spec: Positional[pathlib.Path],
    *,
    out: Annotated[pathlib.Path | None, tyro.conf.arg(metavar="DIR", help_behavior_hint="")] = None,
    workers: Workers = None,
    shard: Shard = None,
    slurm: Slurm = None,
    ray: Ray = None,
) -> None:
    """Search for the best settings of a run: grid, random or adaptive, judged on held-out points, never on test images.

    Finished work is kept and unfinished runs are resumed: after an interruption, run the same command again.

    Args:
        spec: a TOML file with [base] and [search]; docs/runs.md and examples/sweep-digits.toml explain it.
        out: directory of the search. Default: results/SPEC.
        workers: parallel training processes, with one thread each. Default: one per CPU.
        shard: train only every K-th ensemble, beginning with the I-th: for arrays of jobs, on any scheduler.
        slurm: train each ensemble in a job of Slurm, with these options of sbatch. cluster=local: on this machine.
        ray: train on this Ray cluster. local: on one that is started here.
    """
    from stein.runs import search
    from stein.storage import locks

    folder = out or pathlib.Path("results") / spec.stem
    launcher, plan = _launcher(folder, workers, shard, slurm, ray), search.load(spec)
    if plan.is_adaptive and importlib.util.find_spec("optuna") is None:
        raise ImportError("search.kind = \"tpe\" needs Optuna: pip install '.[cluster]' in the checkout")
    search.check_folder(plan, folder)
    folder.mkdir(parents=True, exist_ok=True)
    alone = launcher.shard == (1, 1)
    with locks.locked(folder) if alone else contextlib.nullcontext():
        with terminal.status("Importing JAX"):
            from stein.runs import trials
            from stein.runs.environment import use_compilation_cache
        use_compilation_cache()
        with terminal.bars() as bars:
            trials.make(folder, plan, launcher, bars)
        with _writing(folder, launcher), terminal.status("Drawing"):
            made = trials.finished(folder, plan)
            best = trials.write(folder, made, f"stein sweep {spec}") if made else None
    if best is None:
        print(f"shard {shard} is done; the last shard to end writes the summary, or `stein sweep {spec}`")
        return
    print((folder / "sweep.md").read_text())
    print(f"best: trial {best['trial']}; its config is {folder / 'best.toml'}, the figure {folder / 'sweep.png'}")
