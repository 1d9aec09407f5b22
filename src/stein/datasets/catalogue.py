"""The output of `stein data`: which data sets exist, where they are, and whether they are correct."""

import importlib.util
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from stein.datasets import fetch, sources
from stein.datasets.sources import Dataset, File


def chosen(names: Sequence[str]) -> list[Dataset]:
    """The data sets with these names; all if no names are given."""
    return [sources.dataset(name) for name in names] or list(sources.DATASETS.values())


def found(dataset: Dataset, data_dir: Path | None) -> dict[File, Path]:
    """The files of a data set that are on this machine."""
    places = {file: sources.find(file, data_dir) for file in (*dataset.files, *dataset.instead)}
    return {file: path for file, path in places.items() if path is not None}


def state(dataset: Dataset, data_dir: Path | None) -> str:
    """Where a data set is, in words."""
    if not dataset.files:
        return (
            "in scikit-learn"
            if importlib.util.find_spec("sklearn")
            else "not here: pip install '.[sklearn]' in the checkout"
        )
    here = found(dataset, data_dir)
    if not here:
        return "not here"
    complete = sum(file in here for file in dataset.files)
    only = "" if complete == len(dataset.files) else f"{complete} of {len(dataset.files)} files "
    only += "and a partial copy " if complete < len(dataset.files) and len(here) > complete else ""
    return f"{only}in {os.path.commonpath([path.parent for path in here.values()])}"


def get(names: Sequence[str], data_dir: Path | None, offline: bool, progress: fetch.Progress) -> Iterator[str]:
    """Download missing files; yields one line per complete data set."""
    if not names:
        raise ValueError(f"name what to fetch: all, or some of {', '.join(sources.DATASETS)}")
    if data_dir is not None and not offline:
        data_dir.mkdir(parents=True, exist_ok=True)
    for dataset in chosen([] if "all" in names else names):
        fetch.obtain(dataset.files, data_dir, offline, progress)
        yield f"{dataset.name}: {state(dataset, data_dir)}; licence: {dataset.licence}"


def verify(names: Sequence[str], data_dir: Path | None) -> Iterator[str]:
    """Yields one line per correct data set; raises ValueError at the end if any was wrong or none was found."""
    complaints, verified = [], 0
    for dataset in chosen(names):
        here = found(dataset, data_dir)
        if names and dataset.files and not here:
            complaints.append(f"{dataset.name}: not here; `stein data fetch {dataset.name}` gets it")
        wrong = [complaint for file, path in here.items() if (complaint := _complaint(file, path))]
        complaints += wrong
        verified += len(here)
        if here and not wrong:
            yield f"{dataset.name}: right, {state(dataset, data_dir)}"
    if complaints:
        raise ValueError(complaints[0] + (f" (and {len(complaints) - 1} more)" if complaints[1:] else ""))
    if not verified:
        raise ValueError("no data set is here; `stein data list` says which there are, `stein data fetch` gets them")


def _complaint(file: File, path: Path) -> str:
    try:
        sources.check(sources.read(path, file), file, str(path))
    except ValueError as error:
        return str(error)
    return ""
