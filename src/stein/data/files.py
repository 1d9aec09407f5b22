"""A user's own arrays: .npz, pairs of .npy, CSV and Parquet. Nothing in a file is ever executed."""

import csv
import difflib
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

Place = Callable[..., str]  # an index into an array -> where people find it in the file


class Arrays(NamedTuple):
    """Inputs ``x``, a row for each point, in floating point; targets ``y``, floating point or integer.

    ``labels`` are the names of the classes 0, 1, ... where the targets were text, and empty otherwise.
    """

    x: np.ndarray
    y: np.ndarray
    labels: tuple[str, ...] = ()


class Standardiser(NamedTuple):
    """``(x - mean) / scale`` for each input alone; a constant input is only shifted."""

    mean: np.ndarray
    scale: np.ndarray

    def __call__(self, x: np.ndarray) -> np.ndarray:
        return ((x - self.mean) / self.scale).astype(x.dtype)

    def undo(self, x: np.ndarray) -> np.ndarray:
        """The inputs as they were in the file, to rounding."""
        return (x * self.scale + self.mean).astype(x.dtype)


def load_arrays(path: Path | str, target: str = "") -> Arrays:
    """The data in one file.

    ``.npz`` holds arrays x and y. ``.csv`` (with a header) and ``.parquet`` have a column called ``target``; all others
    are inputs and must be numbers. Integer targets stay integers: class numbers, unless the likelihood says otherwise.
    Text becomes class numbers in alphabetical order.

    Raises:
        ValueError: one line with the file and the place in it, for whatever is no finite number and should be.
    """
    path = Path(path)
    if path.suffix.lower() == ".npz":
        return _npz(path)
    if path.suffix.lower() == ".csv":
        return _csv(path, target)
    if path.suffix.lower() == ".parquet":
        return _parquet(path, target)
    raise ValueError(f"{path}: must end in .npz, .csv or .parquet")


def load_pair(inputs: Path | str, targets: Path | str) -> Arrays:
    """The data in two ``.npy`` files; :func:`load_arrays` says what may be in them."""
    x, y = _numpy(Path(inputs)), _numpy(Path(targets))
    for path, loaded in ((inputs, x), (targets, y)):
        if not isinstance(loaded, np.ndarray):
            raise ValueError(f"{path}: is an archive; must be a single .npy array")
    return _checked(x, y, f"{inputs}: x", f"{targets}: y")


def load_inputs(path: Path | str) -> np.ndarray:
    """Inputs without targets, a row for each point: a ``.npy`` array, or x (or the only array) of an ``.npz``."""
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
    """Training and test points: a random ``fraction`` of the rows is held out, at least one unless it is 0.

    Both parts keep the order of the data.
    """
    if not 0 <= fraction < 1:
        raise ValueError(f"fraction = {fraction}: must be at least 0 and below 1")
    held_out = max(1, round(fraction * len(x))) if fraction else 0
    if held_out >= len(x):
        raise ValueError(f"fraction = {fraction}: of {len(x)} rows nothing is left to train on")
    test = np.zeros(len(x), bool)
    test[np.random.default_rng(seed).permutation(len(x))[:held_out]] = True
    return Arrays(x[~test], y[~test]), Arrays(x[test], y[test])


def standardiser(x: np.ndarray) -> Standardiser:
    """What brings every input of ``x`` to mean 0 and standard deviation 1; fit it to the training points only."""
    mean, scale = x.mean(axis=0, dtype=np.float64), x.std(axis=0, dtype=np.float64)
    return Standardiser(mean, np.where(scale > 0, scale, 1.0))


# -- formats ------------------------------------------------------------------------------------------------


def _npz(path: Path) -> Arrays:
    arrays = _numpy(path)
    if isinstance(arrays, np.ndarray):
        raise ValueError(f"{path}: is a single array; must be an .npz archive with arrays x and y")
    for name in ("x", "y"):
        if name not in arrays:
            raise ValueError(f"{path}: no array {name!r}; it has {', '.join(arrays) or 'none'}")
    return _checked(arrays["x"], arrays["y"], f"{path}: x", f"{path}: y")


def _numpy(path: Path) -> Any:
    """An array, or the arrays of an archive by name."""
    # A damaged file raises whatever zipfile, zlib and NumPy know; NumPy would then leave it open.
    with _readable(path, Exception), path.open("rb") as file:
        loaded = np.load(file, allow_pickle=False)
        return loaded if isinstance(loaded, np.ndarray) else dict(loaded)


def _csv(path: Path, target: str) -> Arrays:
    lines: list[int] = []  # where each row ends: quoted cells may span lines
    targets: list[str] = []
    inputs = array("d")
    with (
        _readable(path, OSError, csv.Error, UnicodeError),
        path.open(encoding="utf-8-sig", newline="") as file,
    ):
        _check_separator(file.readline(), target, path)
        file.seek(0)
        reader = csv.reader(file, strict=True)
        names = [name.strip() for name in next(reader, [])]
        _check_header(names, target, path)
        target_column = _find(target, names, path)
        input_names = [name for name in names if name != target]
        for row in filter(None, reader):  # blank lines are no rows
            if len(row) != len(names):
                raise ValueError(f"{path}: line {reader.line_num}: {len(row)} values; the header has {len(names)}")
            targets.append(row.pop(target_column).strip())
            lines.append(reader.line_num)
            for name, cell in zip(input_names, row, strict=True):
                try:
                    inputs.append(float(cell))
                except ValueError:
                    raise ValueError(
                        f"{path}: line {lines[-1]}, column {name!r}: {cell[:60]!r}: must be a number"
                    ) from None

    def place(row: int, column: int | None = None) -> str:
        return f"{path}: line {lines[row]}, column {(target if column is None else input_names[column])!r}"

    if not lines:
        raise ValueError(f"{path}: has a header and no rows")
    x = np.frombuffer(inputs, np.float64).reshape(len(lines), len(input_names))
    return Arrays(_inputs(x, place), *_targets(_typed(targets, place), place))


def _parquet(path: Path, target: str) -> Arrays:
    try:
        import pyarrow.parquet
    except ImportError:
        raise ImportError(f"{path}: Parquet needs pyarrow: pip install 'stein[parquet]'") from None
    with _readable(path, Exception):  # likewise whatever Arrow knows
        table = pyarrow.parquet.read_table(path)
        columns = [column.to_numpy() for column in table.columns]  # a missing number becomes NaN, and is refused
    target_column = _find(target, table.column_names, path)
    y = columns.pop(target_column)
    input_names = [name for name in table.column_names if name != target]

    def place(row: int, column: int | None = None) -> str:
        return f"{path}: row {row + 1}, column {(target if column is None else input_names[column])!r}"

    if not len(y):
        raise ValueError(f"{path}: has columns and no rows")
    for name, values in zip(input_names, columns, strict=True):
        if values.dtype.kind not in "fiub":
            raise ValueError(f"{path}: column {name!r} has type {table.schema.field(name).type}: must be numbers")
    if y.dtype.kind == "O":
        for row in (row for row, value in enumerate(y) if not isinstance(value, str)):
            raise ValueError(f"{place(row)}: {y[row]!r:.60}: must be a number or text")
        y = y.astype(str)
    return Arrays(_inputs(np.column_stack(columns).astype(np.float64), place), *_targets(y, place))


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
    """Refuse columns that are not separated by commas: such tables often write 1.500 or 1,5 for other numbers."""
    for separator, name in ((";", "';'"), ("\t", "tabs"), ("|", "'|'")):
        cells = [cell.strip().strip('"').strip() for cell in line.split(separator)]
        numbers = all(_is_number(cell.replace(",", ".")) for cell in cells)
        if len(cells) > 1 and (target in cells or "," not in line or numbers):
            raise ValueError(
                f"{path}: is separated by {name}; save it with commas between the columns and points in the numbers"
            )


def _check_header(names: list[str], target: str, path: Path) -> None:
    """Refuse a first line of data, which would be lost as a header. Column numbers are one: pandas writes them."""
    numbers = [_is_number(name) for name in names]
    numbered = names == [str(i) for i in range(len(names))]
    if names and not numbered and (all(numbers) or (any(numbers) and target not in names)):
        raise ValueError(f"{path}: has no header; add a first line with the column names, {target!r} among them")


def _find(target: str, names: list[str], path: Path) -> int:
    """The position of the target column, in a header that makes sense."""
    if not names:
        raise ValueError(f"{path}: is empty; must have a header with the names of the columns")
    if "" in names:
        raise ValueError(f"{path}: column {names.index('') + 1} has no name; a row number is no input: drop it")
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise ValueError(f"{path}: two columns are called {twice[0]!r}")
    if target not in names:
        near = difflib.get_close_matches(target, names, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(names[:20])}"
        raise ValueError(f"{path}: no column {target!r}; {hint}")
    if len(names) == 1:
        raise ValueError(f"{path}: {target!r} is the only column; nothing is left for the inputs")
    return names.index(target)


def _checked(x: np.ndarray, y: np.ndarray, in_x: str, in_y: str) -> Arrays:
    """Arrays as they were in a file; ``in_x`` and ``in_y`` are what complaints call them."""
    for values, name in ((x, in_x), (y, in_y)):
        _check_rows(values, name)
    if len(x) != len(y):
        raise ValueError(f"{in_x} has {len(x)} rows, {in_y} has {len(y)}: must be equal")
    return Arrays(_checked_inputs(x, in_x), *_targets(y, lambda *index: f"{in_y}[{', '.join(map(str, index))}]"))


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


def _targets(y: np.ndarray, place: Place) -> tuple[np.ndarray, tuple[str, ...]]:
    """Targets, and the names of the classes if they are text."""
    if y.dtype.kind == "f":
        return _finite(y, place), ()
    if y.dtype.kind not in "iubU":
        raise ValueError(f"{place(0)}: the targets have type {y.dtype}: must be numbers or text")
    y = y[:, 0] if y.shape[1:] == (1,) else y
    if y.dtype.kind == "U":
        names, y = np.unique(y, return_inverse=True)
        return y.astype(np.int64), tuple(map(str, names))
    return y.astype(np.int64), ()


def _typed(cells: list[str], place: Place) -> np.ndarray:
    """A column of integers, of numbers or of text, whichever fits first; half numbers, half text is a mistake."""
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
