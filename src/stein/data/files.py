"""Users' data files: .npz, pairs of .npy, CSV and Parquet. Nothing in a file is ever executed."""

import csv
import difflib
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

Place = Callable[..., str]  # an index into an array -> its position in the file, for messages


class Arrays(NamedTuple):
    """Inputs ``x``, one row per point, in floating point; targets ``y``, floating point or integer.

    ``labels`` are the names of the classes 0, 1, ... if the targets were text, otherwise empty.
    """

    x: np.ndarray
    y: np.ndarray
    labels: tuple[str, ...] = ()


class Table(NamedTuple):
    """A file as it was read: inputs in floating point, targets unchanged, and the names of the columns.

    ``y`` is floating point, integer or text, with no columns if the file has no targets. ``parts`` are the texts of the
    split column, or None. Inputs without names are called x0, x1, ...
    """

    x: np.ndarray
    y: np.ndarray
    inputs: tuple[str, ...]
    target: str
    parts: np.ndarray | None = None


class Standardiser(NamedTuple):
    """``(x - mean) / scale`` per column; a constant column is only shifted."""

    mean: np.ndarray
    scale: np.ndarray

    def __call__(self, x: np.ndarray) -> np.ndarray:
        return ((x - self.mean) / self.scale).astype(x.dtype)

    def undo(self, x: np.ndarray) -> np.ndarray:
        """The original inputs, up to rounding."""
        return (x * self.scale + self.mean).astype(x.dtype)


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
    columns = _Columns(path, target, split_column, tuple(like), labelled)
    if path.suffix.lower() == ".npz":
        return _npz(path, labelled)
    if path.suffix.lower() == ".csv":
        return _csv(columns)
    if path.suffix.lower() == ".parquet":
        return _parquet(columns)
    raise ValueError(f"{path}: must end in .npz, .csv or .parquet")


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


def split(x: np.ndarray, y: np.ndarray, fraction: float, seed: int) -> tuple[Arrays, Arrays]:
    """Training and test points: a random ``fraction`` of the rows is held out, at least one if it is above 0.

    Both parts keep the order of the data.
    """
    test = held_out(len(x), fraction, seed)
    return Arrays(x[~test], y[~test]), Arrays(x[test], y[test])


def held_out(rows: int, fraction: float, seed: int | Sequence[int], classes: np.ndarray | None = None) -> np.ndarray:
    """A mask of the held-out rows. With ``classes`` the split is stratified, and each class keeps at least one row."""
    if not 0 <= fraction < 1:
        raise ValueError(f"fraction = {fraction}: must be at least 0 and below 1")
    number = max(1, round(fraction * rows)) if fraction else 0
    if number >= rows:
        raise ValueError(f"fraction = {fraction}: of {rows} rows nothing is left to train on")
    order = np.random.default_rng(seed).permutation(rows)
    mask = np.zeros(rows, bool)
    if classes is None or not number:
        mask[order[:number]] = True
        return mask
    names, which, counts = np.unique(classes, return_inverse=True, return_counts=True)
    shares = np.minimum(number * counts / rows, counts - 1)
    given = np.floor(shares).astype(int)
    for c in np.argsort(given - shares, kind="stable")[: number - given.sum()]:  # the largest remainders first
        given[c] += shares[c] > given[c]
    for c in range(len(names)):
        mask[order[which[order] == c][: given[c]]] = True
    return mask


def standardiser(x: np.ndarray) -> Standardiser:
    """Scales every column of ``x`` to mean 0 and standard deviation 1; fit it to the training points only."""
    x = x if x.dtype.kind == "f" else x.astype(np.float64)
    shifted = x.astype(np.float64) - x[0].astype(np.float64)  # a constant column is exactly 0 in any sum
    mean, scale = shifted.mean(axis=0), shifted.std(axis=0)
    # Equal values that were computed in different ways differ by a few rounding errors: this is no spread.
    rounding = 8 * np.finfo(x.dtype).eps * np.abs(x).max(axis=0).astype(np.float64)
    return Standardiser(mean + x[0], np.where(scale > rounding, scale, 1.0))


# -- formats ------------------------------------------------------------------------------------------------


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
    with _readable(path, Exception), path.open("rb") as file:
        loaded = np.load(file, allow_pickle=False)
        return loaded if isinstance(loaded, np.ndarray) else dict(loaded)


class _Columns(NamedTuple):
    """The roles of a file's columns; see :func:`read_table`."""

    path: Path
    target: str
    split: str
    like: tuple[str, ...]
    labelled: bool

    def find(self, names: list[str]) -> tuple[list[int], int | None, int | None]:
        """The positions of the inputs, the target and the split column in a checked header."""
        _check_header(names, self.like or (self.target,), self.path)
        target = _position(self.target, names, self.path) if self.labelled or self.target in names else None
        split = None
        if self.split and (self.split in names or not self.like):
            split = _position(self.split, names, self.path)
        inputs = [i for i in range(len(names)) if i not in (target, split)]
        if not inputs:
            raise ValueError(f"{self.path}: {self.target!r} is the only column; nothing is left for the inputs")
        if self.like:
            for name in (names[i] for i in inputs):
                if name not in self.like:
                    raise ValueError(f"{self.path}: column {name!r}: is not an input of the run; drop it")
            inputs = [_position(name, names, self.path) for name in self.like]
        return inputs, target, split


def _csv(columns: _Columns) -> Table:
    path = columns.path
    lines: list[int] = []  # last line of each row: quoted cells may span lines
    targets: list[str] = []
    parts: list[str] = []
    values = array("d")
    with (
        _readable(path, OSError, csv.Error, UnicodeError),
        path.open(encoding="utf-8-sig", newline="") as file,
    ):
        _check_separator(file.readline(), columns.target, path)
        file.seek(0)
        reader = csv.reader(file, strict=True)
        names = [name.strip() for name in next(reader, [])]
        inputs, target, split = columns.find(names)
        for row in filter(None, reader):  # skips blank lines
            if len(row) != len(names):
                raise ValueError(f"{path}: line {reader.line_num}: {len(row)} values; the header has {len(names)}")
            lines.append(reader.line_num)
            if target is not None:
                targets.append(row[target].strip())
            if split is not None:
                parts.append(row[split].strip())
            for i in inputs:
                try:
                    values.append(float(row[i]))
                except ValueError:
                    raise ValueError(
                        f"{path}: line {lines[-1]}, column {names[i]!r}: {row[i][:60]!r}: must be a number"
                    ) from None

    def place(row: int, column: int | None = None) -> str:
        return f"{path}: line {lines[row]}, column {(columns.target if column is None else names[inputs[column]])!r}"

    if not lines:
        raise ValueError(f"{path}: has a header and no rows")
    x = _inputs(np.frombuffer(values, np.float64).reshape(len(lines), len(inputs)), place)
    y = np.empty((len(x), 0)) if target is None else _targets(_typed(targets, place), place)
    kinds = None if split is None else np.array(parts)
    return Table(x, y, tuple(names[i] for i in inputs), columns.target, kinds)


def _parquet(columns: _Columns) -> Table:
    path = columns.path
    try:
        import pyarrow.parquet
    except ImportError:
        raise ImportError(f"{path}: Parquet needs pyarrow: pip install 'stein[parquet]'") from None
    with _readable(path, Exception):  # Arrow may raise any error too
        table = pyarrow.parquet.read_table(path)
        found = [column.to_numpy() for column in table.columns]  # a missing number becomes NaN, and is rejected
    names = table.column_names
    inputs, target, split = columns.find(names)

    def place(row: int, column: int | None = None) -> str:
        return f"{path}: row {row + 1}, column {(columns.target if column is None else names[inputs[column]])!r}"

    if not table.num_rows:
        raise ValueError(f"{path}: has columns and no rows")
    for i in inputs:
        if found[i].dtype.kind not in "fiub":
            raise ValueError(f"{path}: column {names[i]!r} has type {table.schema.field(i).type}: must be numbers")
    y = np.empty((table.num_rows, 0)) if target is None else found[target]
    if y.dtype.kind == "O":
        for row in (row for row, value in enumerate(y) if not isinstance(value, str)):
            raise ValueError(f"{place(row)}: {y[row]!r:.60}: must be a number or text")
        y = y.astype(str)
    x = _inputs(np.column_stack([found[i] for i in inputs]).astype(np.float64), place)
    kinds = None if split is None else found[split].astype(str)
    return Table(x, _targets(y, place), tuple(names[i] for i in inputs), columns.target, kinds)


@contextmanager
def _readable(path: Path, *errors: type[Exception]) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise ValueError(f"{path}: no such file") from None
    except errors as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"{path}: cannot be read: {reason}") from None


# -- checks -------------------------------------------------------------------------------------------------


def _check_separator(line: str, target: str, path: Path) -> None:
    """Reject other separators than commas: such tables often use 1.500 or 1,5 with another meaning."""
    for separator, name in ((";", "';'"), ("\t", "tabs"), ("|", "'|'")):
        cells = [cell.strip().strip('"').strip() for cell in line.split(separator)]
        numbers = all(_is_number(cell.replace(",", ".")) for cell in cells)
        if len(cells) > 1 and (target in cells or "," not in line or numbers):
            raise ValueError(
                f"{path}: is separated by {name}; save it with commas between the columns and points in the numbers"
            )


def _check_header(names: list[str], expected: tuple[str, ...], path: Path) -> None:
    """Reject an invalid header, such as a first line of data, which would be lost.

    Column numbers are valid, because pandas writes them, and so is a line with the ``expected`` names.
    """
    if not names:
        raise ValueError(f"{path}: is empty; must have a header with the names of the columns")
    numbers = [_is_number(name) for name in names]
    numbered = names == [str(i) for i in range(len(names))]
    if not numbered and (all(numbers) or (any(numbers) and not set(expected) <= set(names))):
        raise ValueError(f"{path}: has no header; add a first line with the column names, {expected[0]!r} among them")
    if "" in names:
        raise ValueError(f"{path}: column {names.index('') + 1} has no name; a row number is no input: drop it")
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise ValueError(f"{path}: two columns are called {twice[0]!r}")


def _position(name: str, names: list[str], path: Path) -> int:
    if name not in names:
        near = difflib.get_close_matches(name, names, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(names[:20])}"
        raise ValueError(f"{path}: no column {name!r}; {hint}")
    return names.index(name)


def _checked(x: np.ndarray, y: np.ndarray | None, in_x: str, in_y: str) -> Table:
    """Arrays as they were in a file; ``in_x`` and ``in_y`` are their names in error messages."""
    _check_rows(x, in_x)
    if y is not None:
        _check_rows(y, in_y)
        if len(x) != len(y):
            raise ValueError(f"{in_x} has {len(x)} rows, {in_y} has {len(y)}: must be equal")
        y = _targets(y, lambda *index: f"{in_y}[{', '.join(map(str, index))}]")
    x = _checked_inputs(x, in_x)
    y = np.empty((len(x), 0)) if y is None else y
    return Table(x, y, tuple(f"x{i}" for i in range(x.shape[1])) if x.ndim == 2 else (), "y")


def _checked_inputs(x: np.ndarray, name: str) -> np.ndarray:
    _check_rows(x, name)
    if x.dtype.kind not in "fiub":
        raise ValueError(f"{name} has type {x.dtype}: must be numbers")
    x = x[:, None] if x.ndim == 1 else x
    return _inputs(x, lambda *index: f"{name}[{', '.join(map(str, index))}]")


def _check_rows(values: np.ndarray, name: str) -> None:
    if not values.ndim or not values.size:
        raise ValueError(f"{name} has shape {values.shape}: must have a row for each point")


def _inputs(x: np.ndarray, place: Place) -> np.ndarray:
    return _finite(x.astype(np.result_type(x.dtype, np.float32)), place)


def _targets(y: np.ndarray, place: Place) -> np.ndarray:
    """Finite floats, integers or text; one label per row in one dimension."""
    if y.dtype.kind == "f":
        return _finite(y, place)
    if y.dtype.kind not in "iubU":
        raise ValueError(f"{place(0)}: the targets have type {y.dtype}: must be numbers or text")
    y = y[:, 0] if y.shape[1:] == (1,) else y
    return y if y.dtype.kind == "U" else y.astype(np.int64)


def _typed(cells: list[str], place: Place) -> np.ndarray:
    """A column of integers, floats or text, whichever fits first; a mix of numbers and text is an error."""
    for kind in (int, float):
        try:
            return np.array([kind(cell) for cell in cells], np.dtype(kind))
        except (ValueError, OverflowError):
            continue
    numeric = [_is_number(cell) for cell in cells]
    if any(numeric) or "" in cells:
        row = cells.index("") if "" in cells else numeric.index(False)
        raise ValueError(f"{place(row)}: {cells[row][:60]!r}: must be a number, or all of the column text")
    return np.array(cells)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _finite(values: np.ndarray, place: Place) -> np.ndarray:
    for index in np.argwhere(~np.isfinite(values))[:1].tolist():
        raise ValueError(f"{place(*index)}: {values[tuple(index)]}: must be finite; fill it in or drop the row")
    return values
