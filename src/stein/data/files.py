"""Users' data files: .npz, pairs of .npy, CSV and Parquet. Nothing in a file is ever executed."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stein.data.arrays import Arrays, Table
from stein.data.blocks import SUFFIXES
from stein.data.columns import Roles, read_numbers
from stein.data.values import as_inputs, as_targets, check_rows, readable


def load_arrays(path: Path | str, target: str = "") -> Arrays:
    """The data in one file.

    ``.npz`` holds arrays x and y. ``.csv`` (with a header) and ``.parquet`` have a column called ``target``; all others
    are inputs and must be numbers. Integer targets stay integers: class numbers, or numbers for a regression.
    Text becomes class numbers in alphabetical order.

    Raises:
        ValueError: for a value that should be a finite number and is not; one line with the file and position.
    """
    return _arrays(read_table(path, target))


def read_table(
    path: Path | str, target: str = "", split_column: str = "", like: Sequence[str] = (), labelled: bool = True
) -> Table:
    """One file, as for :func:`load_arrays`, with its column names.

    Args:
        split_column: a column with the part of each row (not an input).
        like: names of the inputs: exactly these columns must exist, in any order; they are returned in this order.
        labelled: whether the target column is required; with ``like``, the split column is always optional.
    """
    path = Path(path)
    if path.suffix.lower() == ".npz":
        return _npz(path, labelled)
    if path.suffix.lower() in SUFFIXES:
        return read_numbers(path, Roles(target, split_column, labelled=labelled), like)
    raise ValueError(f"{path}: must end in .npz, {', '.join(SUFFIXES)}")


def load_pair(inputs: Path | str, targets: Path | str) -> Arrays:
    """The data in two ``.npy`` files; see :func:`load_arrays` for their contents."""
    return _arrays(read_pair(inputs, targets))


def read_pair(inputs: Path | str, targets: Path | str) -> Table:
    """Two ``.npy`` files, with the default column names of :class:`Table`."""
    x, y = _numpy(Path(inputs)), _numpy(Path(targets))
    for path, loaded in ((inputs, x), (targets, y)):
        if not isinstance(loaded, np.ndarray):
            raise ValueError(f"{path}: is an archive; must be a single .npy array")
    return _checked(x, y, f"{inputs}: x", f"{targets}: y")


def _arrays(table: Table) -> Arrays:
    """Text becomes class numbers in alphabetical order."""
    if table.y.dtype.kind != "U":
        return Arrays(table.x, table.y)
    names, y = np.unique(table.y, return_inverse=True)
    return Arrays(table.x, y.astype(np.int64), tuple(map(str, names)))


def load_inputs(path: Path | str) -> np.ndarray:
    """Inputs without targets, one row per point: a ``.npy`` array, or x (or the only array) of an ``.npz``."""
    path = Path(path)
    if path.suffix.lower() not in (".npy", ".npz"):
        raise ValueError(f"{path}: must end in .npy or .npz")
    found = _numpy(path)
    if isinstance(found, np.ndarray):
        return _checked_inputs(found, f"{path}: x")
    name = "x" if "x" in found or len(found) != 1 else next(iter(found))
    if name not in found:
        raise ValueError(f"{path}: no array 'x'; it has {', '.join(found) or 'none'}")
    return _checked_inputs(found[name], f"{path}: {name}")


def _npz(path: Path, labelled: bool) -> Table:
    arrays = _numpy(path)
    if isinstance(arrays, np.ndarray):
        raise ValueError(f"{path}: is a single array; must be an .npz archive with arrays x and y")
    for name in ("x", "y") if labelled else ("x",):
        if name not in arrays:
            raise ValueError(f"{path}: no array {name!r}; it has {', '.join(arrays) or 'none'}")
    return _checked(arrays["x"], arrays.get("y"), f"{path}: x", f"{path}: y")


def _numpy(path: Path) -> Any:
    """An array, or the arrays of an archive by name."""
    # A damaged file may raise any error of zipfile, zlib or NumPy; NumPy would then leave it open.
    with readable(path, Exception), path.open("rb") as file:
        loaded = np.load(file, allow_pickle=False)
        return loaded if isinstance(loaded, np.ndarray) else dict(loaded)


def _checked(x: np.ndarray, y: np.ndarray | None, in_x: str, in_y: str) -> Table:
    """Arrays as they were in a file; ``in_x`` and ``in_y`` are their names in error messages."""
    check_rows(x, in_x)
    if y is not None:
        check_rows(y, in_y)
        if len(x) != len(y):
            raise ValueError(f"{in_x} has {len(x)} rows, {in_y} has {len(y)}: must be equal")
        y = as_targets(y, lambda *index: f"{in_y}[{', '.join(map(str, index))}]")
    x = _checked_inputs(x, in_x)
    y = np.empty((len(x), 0)) if y is None else y
    return Table(x, y, tuple(f"x{i}" for i in range(x.shape[1])) if x.ndim == 2 else (), "y")


def _checked_inputs(x: np.ndarray, name: str) -> np.ndarray:
    check_rows(x, name)
    if x.dtype.kind not in "fiub":
        raise ValueError(f"{name} has type {x.dtype}: must be numbers")
    x = x[:, None] if x.ndim == 1 else x
    return as_inputs(x, lambda *index: f"{name}[{', '.join(map(str, index))}]")
