"""The rows of a table in a file, block by block in constant memory: CSV, Parquet and Arrow."""

import csv
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from stein.data.cells import Cells
from stein.data.values import is_number, readable

ROWS = 4000
"""Rows per block."""
SUFFIXES = (".csv", ".parquet", ".arrow", ".feather")
_DISGUISES = {
    b"\x1f\x8b": "a gzip archive; unpack it first",
    b"PK\3\4": "a zip archive or an Excel file; save it as CSV",
    b"PAR1": "a Parquet file; call it .parquet",
}


class Block(NamedTuple):
    """Some rows: the cells of each column, as text or as arrays of the file's own types.

    ``where`` is the position of a row in the file, for messages; ``done`` the share of the file that has been read.
    """

    rows: int
    cells: Mapping[str, Cells | np.ndarray]
    where: Callable[[int], str]
    done: float


class Source(NamedTuple):
    """An opened table: the names of its columns, and how to read some of them.

    ``types`` are the names of the columns' types, empty for CSV, which has none.
    """

    path: Path
    names: list[str]
    blocks: Callable[[Sequence[str]], Iterator[Block]]
    types: dict[str, str]


def source(path: Path, expected: Sequence[str]) -> Source:
    """Open a table and check its header; some of the ``expected`` columns should be there."""
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise ValueError(f"{path}: must end in {', '.join(SUFFIXES)}")
    found = _csv(path, expected) if suffix == ".csv" else _arrow(path)
    _check_header(found.names, expected, path)
    return found


# -- CSV ----------------------------------------------------------------------------------------------------


def _csv(path: Path, expected: Sequence[str]) -> Source:
    with _opened(path) as file, readable(path, csv.Error):
        _check_separator(file.readline(), expected, path)
        file.seek(0)
        names = [name.strip() for name in next(csv.reader(file, strict=True), [])]
    return Source(path, names, lambda wanted: _csv_blocks(path, names, wanted), {})


def _csv_blocks(path: Path, names: list[str], wanted: Sequence[str]) -> Iterator[Block]:
    place = {name: i for i, name in enumerate(names)}
    size, blank = max(1, path.stat().st_size), 0
    with _opened(path) as file:
        reader = csv.reader(file, strict=True)
        next(reader, None)
        while True:
            rows: list[list[str]] = []
            lines: list[int] = []  # the last line of each row: quoted cells may span lines
            with readable(path, csv.Error):
                for row in reader:
                    if not row:
                        blank = reader.line_num
                        continue
                    if blank and len(names) == 1:
                        raise ValueError(f'{path}: line {blank} is blank; write "" for a missing value, or drop it')
                    if len(row) != len(names):
                        raise ValueError(
                            f"{path}: line {reader.line_num}: {len(row)} values; the header has {len(names)}"
                        )
                    rows.append(row)
                    lines.append(reader.line_num)
                    if len(rows) == ROWS:
                        break
            if not rows:
                return
            cells = list(zip(*rows, strict=True))
            done = file.buffer.tell() / size
            yield Block(len(rows), {name: cells[place[name]] for name in wanted}, _lines(lines), done)


def _lines(lines: list[int]) -> Callable[[int], str]:
    return lambda row: f"line {lines[row]}"


def _opened(path: Path) -> Any:
    with readable(path, OSError):
        with path.open("rb") as raw:
            start = raw.read(4)
        for magic, what in _DISGUISES.items():
            if start.startswith(magic):
                raise ValueError(f"{path}: is {what}")
        return path.open(encoding="utf-8-sig", newline="")


def _check_separator(line: str, expected: Sequence[str], path: Path) -> None:
    """Reject web pages, and other separators than commas: such tables often use 1.500 or 1,5 with another meaning."""
    if line.lstrip().lower().startswith(("<!doctype", "<html", "<?xml")):
        raise ValueError(f"{path}: is a web page, not a table; download the file itself")
    for separator, name in ((";", "';'"), ("\t", "tabs"), ("|", "'|'")):
        cells = [cell.strip().strip('"').strip() for cell in line.split(separator)]
        numbers = all(is_number(cell.replace(",", ".")) for cell in cells)
        if len(cells) > 1 and (set(expected) & set(cells) or "," not in line or numbers):
            raise ValueError(
                f"{path}: is separated by {name}; save it with commas between the columns and points in the numbers"
            )


# -- Parquet and Arrow --------------------------------------------------------------------------------------


def arrow_file(path: Path) -> Any:
    """A Parquet or Arrow file as pyarrow opens it; nothing but its description is read."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise ImportError(f"{path}: Parquet and Arrow need pyarrow: pip install '.[parquet]' in the checkout") from None
    with readable(path, Exception):  # Arrow may raise any error
        if path.suffix.lower() == ".parquet":
            return pyarrow.parquet.ParquetFile(path)
        return pyarrow.ipc.open_file(pyarrow.memory_map(str(path)))


def _arrow(path: Path) -> Source:
    opened, parquet = arrow_file(path), path.suffix.lower() == ".parquet"
    import pyarrow  # is there, since the file is open

    schema = opened.schema_arrow if parquet else opened.schema
    types = {field.name: str(field.type) for field in schema}

    def batches(wanted: Sequence[str]) -> Iterator[Any]:
        if parquet:
            yield from opened.iter_batches(batch_size=ROWS, columns=list(wanted))
            return
        for number in range(opened.num_record_batches):
            batch = opened.get_batch(number).select(list(wanted))
            yield from (batch.slice(start, ROWS) for start in range(0, batch.num_rows, ROWS))

    def blocks(wanted: Sequence[str]) -> Iterator[Block]:
        for name in wanted:
            if pyarrow.types.is_nested(schema.field(name).type):
                raise ValueError(f"{path}: column {name!r} has type {types[name]}; must be numbers, text or dates")
        with readable(path, Exception):
            total = opened.metadata.num_rows if parquet else sum(
                opened.get_batch(i).num_rows for i in range(opened.num_record_batches)
            )  # fmt: skip
        before, remaining = 0, batches(wanted)
        while True:
            with readable(path, Exception):
                batch = next(remaining, None)
                if batch is None:
                    return
                cells = {name: column_values(batch.column(i)) for i, name in enumerate(wanted)}
            where = _numbered(before)
            before += batch.num_rows
            if batch.num_rows:
                yield Block(batch.num_rows, cells, where, before / total)

    return Source(path, list(schema.names), blocks, types)


def _numbered(before: int) -> Callable[[int], str]:
    return lambda row: f"row {before + row + 1}"


def column_values(column: Any) -> np.ndarray:
    """A column of Arrow as NumPy has it."""
    decoded = column.dictionary_decode() if hasattr(column, "dictionary_decode") else column
    return decoded.to_numpy(zero_copy_only=False)


# -- both ---------------------------------------------------------------------------------------------------


def _check_header(names: list[str], expected: Sequence[str], path: Path) -> None:
    """Reject an invalid header, such as a first line of data, which would be lost.

    Column numbers are valid, because pandas writes them, and so is a line with the ``expected`` names.
    """
    if not names:
        raise ValueError(f"{path}: is empty; must have a header with the names of the columns")
    numbers = [is_number(name) for name in names]
    numbered = names == [str(i) for i in range(len(names))]
    if not numbered and (all(numbers) or (any(numbers) and not set(expected) <= set(names))):
        raise ValueError(f"{path}: has no header; add a first line with the column names, {expected[0]!r} among them")
    if "" in names:
        raise ValueError(f"{path}: column {names.index('') + 1} has no name; a row number is no input: drop it")
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise ValueError(f"{path}: two columns are called {twice[0]!r}")
