"""Batches of data that do not fit in memory, as a pure function of a seed and the step. No jax here.

A source reads rows by their numbers, a :class:`Stream` says which rows a step needs. A source is identified by what it
declares, such as names, sizes and digests of both ends of its files; files are never hashed as a whole.
"""

import hashlib
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from stein import inputs
from stein.data import blocks
from stein.data.cells import Kind, as_text
from stein.data.columns import position
from stein.data.values import as_inputs, as_targets, check_rows, readable

END = 2**20
"""Bytes at each end of a file that identify it, with its name and size."""
SHUFFLE_ROWS = 2**17
"""Default number of rows that are shuffled together where rows can only be read in groups."""
ROUNDS = 6

Prepare = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]
"""What becomes of the inputs and targets of a batch before it is trained on, such as their standardisation."""


@runtime_checkable
class Source(Protocol):
    """Rows on disk.

    Attributes:
        groups: the numbers of rows that are read together, in the order of the file; one number if rows can be read one
            by one.
        shuffle_rows: the number of rows that are shuffled together, rounded up to whole groups.
        identity: what tells the source from another one; can be written as JSON.
    """

    groups: np.ndarray
    shuffle_rows: int
    identity: dict[str, Any]

    def take(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Inputs, finite and in floating point, and targets of the rows with these numbers."""


class Stream:
    """A shuffled stream over a source without replacement, which continues across epochs.

    Batch t holds positions t*size to (t+1)*size of the infinite sequence "rows of epoch 0, rows of epoch 1, ...". The
    order of an epoch depends on ``seed`` and its number alone and is computed where it is needed: a run that is resumed
    at step t reads the same batches as an uninterrupted one, and nothing before them.

    In every epoch the groups of the source come in another order. Groups that begin within the same ``shuffle_rows``
    positions are shuffled together.

    Args:
        source: the rows, such as :class:`MemoryMapped` or :class:`ParquetRows`.
        size: points per batch.
        seed: of the order.
        rows: use the first rows of the source only. Default: all.
        prepare: what becomes of every batch.
        shard: number of this process and number of processes, such as ``(jax.process_index(), jax.process_count())``.
            Each reads its own part of the same batch; ``size`` is that of all parts together.

    >>> import tempfile, numpy as np
    >>> folder = tempfile.mkdtemp()
    >>> np.save(f"{folder}/x.npy", np.arange(5.0)), np.save(f"{folder}/y.npy", np.arange(5))
    (None, None)
    >>> stream = Stream(MemoryMapped(f"{folder}/x.npy", f"{folder}/y.npy"), size=5)
    >>> x, y = stream.batch_at(7)
    >>> x.shape, sorted(y.tolist())
    ((5, 1), [0, 1, 2, 3, 4])
    """

    def __init__(
        self,
        source: Source,
        size: int,
        seed: int = 0,
        *,
        rows: int | None = None,
        prepare: Prepare = lambda x, y: (x, y),
        shard: tuple[int, int] = (0, 1),
    ):
        inputs.whole(1, size=size)
        inputs.whole(0, seed=seed)
        starts = np.cumsum(source.groups) - source.groups
        total = int(source.groups.sum())
        self.num_data = total if rows is None else rows
        if not 1 <= size <= self.num_data <= total:
            raise ValueError(f"size = {size}, rows = {self.num_data}: must be 1 <= size <= rows <= {total}")
        number, processes = shard
        if not 0 <= number < processes or size % processes:
            raise ValueError(
                f"shard = {shard}, size = {size}: must be the number of the process, from 0, and the number of "
                "processes, which divides the size"
            )
        self.size, self.source, self._seed, self._prepare, self._shard = size, source, seed, prepare, shard
        used = starts < self.num_data
        self._starts = starts[used]
        self._sizes = np.minimum(source.groups[used], self.num_data - self._starts)

    @property
    def identity(self) -> dict[str, Any]:
        """What the source declares itself to be."""
        return self.source.identity

    def batch_at(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """Inputs and targets of one step."""
        x, y = self.batches_at(step, 1)
        return x[0], y[0]

    def batches_at(self, step: int, steps: int) -> tuple[np.ndarray, np.ndarray]:
        """Inputs and targets of several steps, which are the first axis; read together, they take less time."""
        number, processes = self._shard
        own = self.size // processes
        first = (step + np.arange(steps, dtype=np.int64)) * self.size + number * own
        x, y = self._prepare(*self.source.take(self.rows_at((first[:, None] + np.arange(own)).ravel())))
        return x.reshape(steps, own, *x.shape[1:]), y.reshape(steps, own, *y.shape[1:])

    def rows_at(self, positions: np.ndarray) -> np.ndarray:
        """The numbers of the rows at these positions of the infinite sequence."""
        epochs, places = np.divmod(positions, self.num_data)
        rows = np.empty_like(places)
        for epoch in np.unique(epochs).tolist():
            here = epochs == epoch
            rows[here] = self._in_epoch(epoch, places[here])
        return rows

    def _in_epoch(self, epoch: int, places: np.ndarray) -> np.ndarray:
        order = shuffled(np.arange(len(self._sizes)), len(self._sizes), self._seed, epoch)
        ends = np.cumsum(self._sizes[order])
        begins = ends - self._sizes[order]
        first_of_window = np.flatnonzero(np.diff(begins // self.source.shuffle_rows, prepend=-1))
        bounds = np.append(begins[first_of_window], self.num_data)
        window = np.searchsorted(bounds, places, side="right") - 1
        moved = np.empty_like(places)
        for w in np.unique(window).tolist():
            here, low, high = window == w, int(bounds[w]), int(bounds[w + 1])
            moved[here] = low + shuffled(places[here] - low, high - low, self._seed, epoch, w + 1)
        group = np.searchsorted(ends, moved, side="right")
        return self._starts[order][group] + moved - begins[group]


class MemoryMapped:
    """Two ``.npy`` files, which are mapped: the system reads the pages of rows that are needed, and frees them.

    Args:
        inputs, targets: paths; one row per point.
    """

    shuffle_rows = SHUFFLE_ROWS  # of one group, which is always shuffled as a whole

    def __init__(self, inputs: Path | str, targets: Path | str):
        paths = Path(inputs), Path(targets)
        self._names = tuple(f"{path}: {name}" for path, name in zip(paths, "xy", strict=True))
        self._x, self._y = (_mapped(path) for path in paths)
        for values, name in zip((self._x, self._y), self._names, strict=True):
            check_rows(values, name)
        if self._x.dtype.kind not in "fiub":
            raise ValueError(f"{self._names[0]} has type {self._x.dtype}: must be numbers")
        if len(self._x) != len(self._y):
            raise ValueError(
                f"{self._names[0]} has {len(self._x)} rows, {self._names[1]} has {len(self._y)}: must be equal"
            )
        self.groups = np.array([len(self._x)])
        self.identity = {"files": [file_identity(path) for path in paths]}

    def take(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        def place(name: str) -> Callable[..., str]:
            return lambda row, *rest: f"{name}[{', '.join(map(str, (rows[row], *rest)))}]"

        x, y = np.asarray(self._x[rows]), np.asarray(self._y[rows])
        x = as_inputs(x[:, None] if x.ndim == 1 else x, place(self._names[0]))
        return x, as_targets(y, place(self._names[1]))


class ParquetRows:
    """The rows of a Parquet file, read by row groups; the latest are kept.

    All columns but the target and ``ids`` are inputs and must be numbers or booleans, without gaps. At most twice
    ``shuffle_rows`` rows and two row groups are in memory at once. A file with larger row groups, or with sorted rows,
    should be written again: ``pyarrow.parquet.write_table(table, path, row_group_size=10_000)``.

    Args:
        target: name of the target column: numbers, booleans or text.
        ids: columns that are no inputs.
        shuffle_rows: number of rows that are shuffled together.

    Attributes:
        columns: names and kinds of the inputs.
    """

    def __init__(self, path: Path | str, target: str, ids: Sequence[str] = (), shuffle_rows: int = SHUFFLE_ROWS):
        inputs.whole(1, shuffle_rows=shuffle_rows)
        self._path, self._target, self.shuffle_rows = Path(path), target, shuffle_rows
        if self._path.suffix.lower() != ".parquet":
            raise ValueError(f"{path}: must end in .parquet")
        self._file, opened = blocks.arrow_file(self._path), blocks.source(self._path, (target,))
        for name in (target, *ids):
            position(name, opened.names, self._path)
        self.columns: dict[str, Kind] = {
            name: _number_kind(self._path, name, kind)
            for name, kind in opened.types.items()
            if name != target and name not in ids
        }
        if not self.columns:
            raise ValueError(f"{path}: {target!r} is the only column; nothing is left for the inputs")
        about = self._file.metadata
        self.groups = np.array([about.row_group(i).num_rows for i in range(about.num_row_groups)], np.int64)
        if not self.groups.sum():
            raise ValueError(f"{path}: has no rows; must have a row for each point")
        self._starts = np.cumsum(self.groups) - self.groups
        self.identity = {"files": [file_identity(self._path)]}
        self._most = 2 * (shuffle_rows + int(self.groups.max()))
        self._kept: OrderedDict[int, tuple[np.ndarray, np.ndarray]] = OrderedDict()
        self._lock = threading.Lock()  # batches are read ahead in a thread, and diagnosed in another

    def take(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        group = np.searchsorted(self._starts, rows, side="right") - 1
        order = np.argsort(group, kind="stable")
        found = []
        with self._lock:
            for number in np.unique(group).tolist():
                here = rows[group == number] - self._starts[number]
                found.append(tuple(values[here] for values in self._group(number)))
        x, y = (np.concatenate(values) for values in zip(*found, strict=True))
        back = np.argsort(order)
        return x[back], y[back]

    def _group(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        if number in self._kept:
            self._kept.move_to_end(number)
            return self._kept[number]
        while self._kept and sum(len(y) for _, y in self._kept.values()) + self.groups[number] > self._most:
            self._kept.popitem(last=False)
        with readable(self._path, Exception):  # Arrow may raise any error
            table = self._file.read_row_group(number, columns=[*self.columns, self._target], use_threads=False)
            cells = {name: blocks.column_values(table.column(name).combine_chunks()) for name in table.column_names}
        names, y = list(self.columns), cells[self._target]

        def place(row: int, column: int = len(names)) -> str:
            return f"{self._path}: row {self._starts[number] + row + 1}, column {[*names, self._target][column]!r}"

        if y.dtype.kind == "O":
            y = np.array(as_text(y))
            for row in np.flatnonzero(y == "")[:1].tolist():
                raise ValueError(f"{place(row)}: has no value; fill it in or drop the row")
        # Booleans with gaps are objects.
        x = np.column_stack([v if (v := cells[name]).dtype.kind != "O" else v.astype(np.float64) for name in names])
        self._kept[number] = as_inputs(x, place), as_targets(y, place)
        return self._kept[number]


class GrainBatches:
    """Batches from a Grain ``MapDataset``, whose elements can be computed in any order: batch t is its element t.

    Shuffle, repeat and map it as you like, and batch it last; an element must be a pair ``(x, y)``. Grain's order is a
    function of its seed and the index, so that a run continues with the same batches. An ``IterDataset`` or a
    ``DataLoader`` is rejected: what comes next depends on what was read.

    Args:
        dataset: such as ``grain.MapDataset.source(rows).shuffle(seed=0).repeat().batch(64)``.
        name, version: what identifies the data.
    """

    def __init__(self, dataset: Any, name: str, version: str):
        if not (hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")):
            raise ValueError(
                f"dataset is of type {type(dataset).__name__}: must be a grain.MapDataset, whose batches can be read "
                "in any order"
            )
        self._dataset = dataset
        self.identity = {"name": name, "version": version}

    def batch_at(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """Inputs and targets of one step."""
        found = self._dataset[step]
        if not isinstance(found, tuple) or len(found) != 2:
            raise ValueError(
                f"batch {step} is of type {type(found).__name__}: must be a pair (x, y); "
                "dataset.map(lambda row: (row['x'], row['y'])) makes pairs"
            )
        return found


def shuffled(places: np.ndarray, n: int, *key: int) -> np.ndarray:
    """What a pseudo-random permutation of 0, ..., n-1 has at these places, without the memory of all n.

    A Feistel network permutes the pairs of numbers of b bits, where 4^b is the smallest such power of at least n. What
    falls outside of 0, ..., n-1 is permuted again until it is inside, which is a permutation too.

    Reference: Black & Rogaway (2002).
    """
    half = max(1, -(-int(n - 1).bit_length() // 2))
    shift, mask = np.uint64(half), np.uint64(2**half - 1)
    round_keys = np.random.SeedSequence(key).generate_state(ROUNDS, np.uint64)
    found = places.astype(np.uint64)
    outside = np.arange(len(found))
    while len(outside):
        left, right = found[outside] >> shift, found[outside] & mask
        for round_key in round_keys:
            left, right = right, left ^ (_mixed(right + round_key) & mask)
        found[outside] = left << shift | right
        outside = outside[found[outside] >= n]
    return found.astype(np.int64)


def _mixed(z: np.ndarray) -> np.ndarray:
    """Every bit of the result depends on every bit of z (the finaliser of SplitMix64)."""
    z = (z ^ z >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ z >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return z ^ z >> np.uint64(31)


def file_identity(path: Path) -> dict[str, Any]:
    """Name, size, and SHA-256 of both ends of a file."""
    with readable(path, OSError), path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        content = file.read(END)
        file.seek(max(file.tell(), size - END))
        return {"name": path.name, "bytes": size, "ends": hashlib.sha256(content + file.read()).hexdigest()}


def _mapped(path: Path) -> np.ndarray:
    with readable(path, Exception):
        found = np.load(path, mmap_mode="r", allow_pickle=False)
    if not isinstance(found, np.ndarray):
        found.close()
        raise ValueError(f"{path}: is an archive; must be a single .npy array")
    return found


def _number_kind(path: Path, name: str, kind: str) -> Kind:
    if kind == "bool":
        return "boolean"
    if kind.startswith(("int", "uint", "float", "double", "halffloat")):
        return "number"
    raise ValueError(
        f"{path}: column {name!r} has type {kind}: the inputs of a stream must be numbers; write it as numbers, or "
        "leave it out with data.id_columns"
    )
