"""Commands for a table and no config: fit, predict."""

import pathlib
import time
from collections.abc import Callable
from typing import Annotated, Any, Literal

import tyro
from tyro.conf import Positional

from stein.cli import terminal
from stein.cli.runs import Overrides, Threads, forecast, free_name, train_in, use_threads, warn

Name = Annotated[str, tyro.conf.arg(metavar="NAME", help_behavior_hint="")]
Names = Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME ...", help_behavior_hint="")]
Number = Annotated[int | None, tyro.conf.arg(metavar="N", help_behavior_hint="")]


def fit(
    file: Annotated[Positional[pathlib.Path], tyro.conf.arg(metavar="FILE")],
    *,
    target: Annotated[str, tyro.conf.arg(metavar="NAME")],
    out: Annotated[pathlib.Path | None, tyro.conf.arg(metavar="DIR", help_behavior_hint="")] = None,
    task: Literal["auto", "regression", "classes"] = "auto",
    impute: bool = False,
    id_column: Names = (),
    text_column: Names = (),
    split_column: Name = "",
    time_column: Name = "",
    group_column: Name = "",
    test_file: Annotated[pathlib.Path | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="")] = None,
    method: Annotated[str, tyro.conf.arg(metavar="METHOD")] = "auto",
    steps: Number = None,
    particles: Number = None,
    coverage: float = 0.9,
    seed: int = 0,
    overrides: Overrides = (),
    dry_run: bool = False,
    threads: Threads = None,
    cache: bool = True,
    quiet: bool = False,
) -> None:
    """Learn to predict one column of a table from the others, with uncertainty.

    Example: stein fit houses.csv --target price, then: stein predict runs/houses new.csv

    Columns may hold numbers, true and false, dates (2024-12-31, with or without a time) and text (at most 50 different
    values). Some rows are held out for calibration and for a test; the test ends in a summary in plain words: how good,
    how calibrated, which rows are least certain. The result is a run: `stein status`, `resume` and `evaluate` work on
    it. docs/tables.md explains every step.

    Args:
        file: .csv (commas, with a header), .parquet, .arrow or .feather.
        target: the column to predict.
        out: directory of the run. Default: runs/FILE.
        task: what the target is: numbers or classes. Default: by its values; doubtful ones are rejected.
        impute: fill missing values with medians and most frequent levels, and add inputs that mark them.
        id_column: columns that name the rows: no inputs, but copied to predictions.
        text_column: columns that are text, also if they look like numbers, such as postal codes.
        split_column: column with train, validation or test.
        time_column: column of dates or numbers: the latest rows are the test, those before them the validation part.
        group_column: column of groups: no group is in two parts.
        test_file: a file of test rows with the same columns.
        method: how members interact; `stein methods` lists them. Default: see docs/tables.md.
        steps: training steps. Default: by the number of rows.
        particles: members of the ensemble.
        coverage: probability of the intervals, or of the sets of classes.
        seed: of the split, the initial weights and the batches.
        overrides: any key of a config: optimiser.learning_rate=0.01; `stein train --help` lists them.
        dry_run: only compile it and time a few steps: predicts time and memory, and writes nothing. The trials of
            priors before the training come on top.
        threads: CPU threads. Default: all. The same number gives bit-identical results.
        cache: keep compiled programs in the user's cache directory, so that the next run starts faster.
        quiet: no progress bar.
    """
    from stein.runs import fitting
    from stein.runs.folder import RunFolder

    data = {
        "target": target,
        "impute": impute,
        "id_columns": list(id_column),
        "text_columns": list(text_column),
        "split_column": split_column,
        "time_column": time_column,
        "group_column": group_column,
        "test_file": str(test_file) if test_file else "",
    }
    chosen = {
        "evaluation.coverage": coverage,
        "train.steps": steps,
        "method.particles": particles,
        "train.seed": seed,
        "data.seed": seed,
    }
    with terminal.status(f"Reading {file}"):
        pairs = [pair for group in overrides for pair in group]
        config, loaded = fitting.config(file, data, method, task, chosen, pairs)
    if dry_run:
        forecast(config, threads, cache)
        return
    run = RunFolder(out or free_name(pathlib.Path("runs") / file.stem))
    if loaded.recipe is not None and not quiet:
        print(f"{file}:")
        for column in loaded.recipe.columns[:30]:
            print(f"  {column.name}: {column.described}{', with gaps' if column.gaps else ''}")

    def work(training: Any, requests: list[int], show: bool, warn: Any, say: Any, mesh: Any) -> None:
        from stein.runs import choosing

        training.start(choosing.with_prior(config, requests, show, say), run, requests, show, warn, say)

    train_in(run, True, work, threads, cache, quiet)


def predict(
    folder: Annotated[Positional[pathlib.Path], tyro.conf.arg(metavar="RUN")],
    file: Annotated[Positional[pathlib.Path], tyro.conf.arg(metavar="FILE")],
    *,
    out: Annotated[pathlib.Path, tyro.conf.arg(metavar="FILE")] = pathlib.Path("predictions.csv"),
    coverage: Annotated[float | None, tyro.conf.arg(metavar="P", help_behavior_hint="")] = None,
    threads: Threads = None,
    cache: bool = True,
) -> None:
    """Predict new rows with a finished run; the data that it was trained on are not needed.

    Example: stein predict runs/houses new.csv --out predictions.csv

    Writes one row per row of the file, with its id columns first. Regression: mean, std, its epistemic and aleatoric
    parts, and an interval. Classification: the most probable class, the probability of each, a set of classes, entropy
    and its epistemic part. Epistemic is what more data could reduce. After `stein fit`, intervals and sets are
    conformal, and `unusual` marks rows that are unlike the training data. `notes` names missing values, new texts and
    numbers outside the range of training. A file larger than memory is no problem.

    Args:
        folder: the directory of the run.
        file: .csv, .parquet, .arrow or .feather with the run's input columns, in any order; or .npy or .npz with inputs
            like its own.
        out: the CSV file to write. An existing file is replaced when the new one is complete.
        coverage: probability of the interval, or of the set of classes. Default: that of the run, usually 0.9.
        threads: CPU threads. Default: all.
        cache: keep compiled programs in the user's cache directory.
    """
    from stein.runs.folder import RunFolder

    run = RunFolder(folder)
    run.check_is_finished()
    if coverage is not None and not 0 < coverage < 1:
        raise ValueError(f"--coverage = {coverage}: must be between 0 and 1")
    if out.suffix.lower() != ".csv":
        raise ValueError(f"--out {out}: must end in .csv")
    if not out.parent.is_dir():
        raise ValueError(f"--out {out}: {out.parent} is no directory; create it first")
    if not file.is_file():
        raise ValueError(f"{file}: no such file")
    if out.exists() and out.samefile(file):
        raise ValueError(f"--out {out}: is the file to read; give another name")
    use_threads(threads)
    with terminal.status("Importing JAX"):
        from stein.runs.environment import use_compilation_cache
        from stein.runs.exported import Exported
        from stein.runs.streaming import write_predictions
    if cache:
        use_compilation_cache()
    finished = Exported(run)
    coverage = finished.config.evaluation.coverage if coverage is None else coverage
    with terminal.bars() as begin:
        rows = write_predictions(
            finished, file, out, coverage, warn, _after_two_seconds(begin, f"Predicting {file.name}")
        )
    print(f"{out}: {rows} predictions of {finished.target!r}")


def _after_two_seconds(begin: Callable[[str, int], Callable[[int], None]], words: str) -> Callable[[float], None]:
    """A function of the share done that shows progress, but not of work that is done in two seconds."""
    start, tick = time.monotonic(), None

    def progress(done: float) -> None:
        nonlocal tick
        if tick is None and time.monotonic() - start > 2:
            tick = begin(words, 100)
        if tick is not None:
            tick(round(100 * done))

    return progress
