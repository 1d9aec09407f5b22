"""What a user's file may contain: finite numbers, integers and text; anything else is a one-line error."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

Place = Callable[..., str]  # an index into an array -> its position in the file, for messages


@contextmanager
def readable(path: Path, *errors: type[Exception]) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise ValueError(f"{path}: no such file") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path}: is not UTF-8 text; save it as UTF-8") from None
    except errors as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"{path}: cannot be read: {reason}") from None


def check_rows(values: np.ndarray, name: str) -> None:
    if not values.ndim or not values.size:
        raise ValueError(f"{name} has shape {values.shape}: must have a row for each point")


def as_inputs(x: np.ndarray, place: Place) -> np.ndarray:
    return finite(x.astype(np.result_type(x.dtype, np.float32)), place)


def as_targets(y: np.ndarray, place: Place) -> np.ndarray:
    """Finite floats, integers or text; one label per row in one dimension."""
    if y.dtype.kind == "f":
        return finite(y, place)
    if y.dtype.kind not in "iubU":
        raise ValueError(f"{place(0)}: the targets have type {y.dtype}: must be numbers or text")
    y = y[:, 0] if y.shape[1:] == (1,) else y
    return y if y.dtype.kind == "U" else y.astype(np.int64)


def typed(cells: list[str], place: Place) -> np.ndarray:
    """A column of integers, floats or text, whichever fits first; a mix of numbers and text is an error."""
    for kind in (int, float):
        try:
            return numbers(cells, kind)
        except (ValueError, OverflowError):
            continue
    numeric = [is_number(cell) for cell in cells]
    if any(numeric) or "" in cells:
        row = cells.index("") if "" in cells else numeric.index(False)
        raise ValueError(f"{place(row)}: {cells[row][:60]!r}: must be a number, or all of the column text")
    return np.array(cells)


def is_number(cell: str) -> bool:
    try:
        numbers([cell])
    except ValueError:
        return False
    return True


def numbers(cells: Sequence[str], kind: type = float) -> np.ndarray:
    """All cells as numbers; ``ValueError`` if one is none. Python takes the code 10_2 for 102."""
    if "_" in "".join(cells):
        raise ValueError("_ is for codes and names")
    return np.fromiter(map(kind, cells), np.dtype(kind), len(cells))


def finite(values: np.ndarray, place: Place) -> np.ndarray:
    for index in np.argwhere(~np.isfinite(values))[:1].tolist():
        raise ValueError(f"{place(*index)}: {values[tuple(index)]}: must be finite; fill it in or drop the row")
    return values
