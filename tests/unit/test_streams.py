"""Streams: batches from files, as a pure function of the seed and the step."""

import re
import threading
from pathlib import Path

import grain
import jax
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from scipy import stats

from stein import data, likelihoods, models, priors, targets, train
from stein.data import streams
from stein.ensembles import build

ROWS = 103


def pair(folder: Path, rows: int = ROWS, **arrays: np.ndarray) -> data.MemoryMapped:
    """Row i has the input i and the target 2i."""
    x = np.arange(float(rows), dtype=np.float32)[:, None]
    for name, values in ({"x": x, "y": 2 * x} | arrays).items():
        np.save(folder / f"{name}.npy", values)
    return data.MemoryMapped(folder / "x.npy", folder / "y.npy")


def parquet(folder: Path, group: int = 10, name: str = "t.parquet", **columns: object) -> Path:
    i = np.arange(ROWS)
    table = pyarrow.table({"x": i.astype(np.float32), "id": i, "y": 2.0 * i, "even": i % 2 == 0} | columns)
    pyarrow.parquet.write_table(table, folder / name, row_group_size=group)
    return folder / name


def order_of(stream: data.Stream, steps: int) -> np.ndarray:
    return np.concatenate([stream.batch_at(step)[0][:, 0] for step in range(steps)])


# -- order ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 3, 7, 64, 65, 1000])
def test_shuffled_is_a_permutation_that_any_part_knows(n: int) -> None:
    """Catches a row that is drawn twice or never, and an order that depends on what else is asked for."""
    whole = streams.shuffled(np.arange(n), n, 3, 1)
    np.testing.assert_array_equal(np.sort(whole), np.arange(n))
    np.testing.assert_array_equal(streams.shuffled(np.arange(n)[n // 2 :], n, 3, 1), whole[n // 2 :])


KEYS = 1000


@pytest.mark.parametrize("n", [5, 40])
def test_every_place_may_hold_every_row(n: int) -> None:
    """Catches a weak permutation: of many keys, how often a row is at a place, and which follows which, must be as
    uniform as of independent draws (chi squared, with a probability of 1e-9 by chance)."""
    drawn = np.stack([streams.shuffled(np.arange(n), n, key, 0) for key in range(KEYS)])
    for counts in (
        np.stack([np.bincount(column, minlength=n) for column in drawn.T]),
        np.bincount((drawn[:, 1] - drawn[:, 0]) % n, minlength=n)[None, 1:],
    ):
        cells = counts.shape[1]
        squared = ((counts - KEYS / cells) ** 2 / (KEYS / cells)).sum(axis=1)
        assert (squared < stats.chi2(cells - 1).isf(1e-9)).all()


@pytest.mark.parametrize("kind", ["npy", "parquet"])
def test_each_epoch_has_every_row_once_in_another_order(tmp_path: Path, kind: str) -> None:
    """Catches rows that are lost where groups, windows, epochs or the used rows end."""
    source = pair(tmp_path) if kind == "npy" else data.ParquetRows(parquet(tmp_path), "y", ["id"], shuffle_rows=25)
    stream = data.Stream(source, size=9, seed=5, rows=100)
    found = order_of(stream, 100).reshape(9, 100)
    np.testing.assert_array_equal(np.sort(found, axis=1), np.tile(np.arange(100.0), (9, 1)))
    assert len({tuple(epoch) for epoch in found.tolist()}) == 9
    assert not np.array_equal(found[0], order_of(data.Stream(source, size=9, seed=6, rows=100), 12)[:100])
    x, y = stream.batch_at(3)
    np.testing.assert_array_equal(y.ravel(), 2 * x[:, 0])


def test_several_batches_are_those_of_each_step(tmp_path: Path) -> None:
    """Catches a block of batches that is not what a resumed run reads one by one."""
    stream = data.Stream(data.ParquetRows(parquet(tmp_path), "y", shuffle_rows=25), size=7)
    x, y = stream.batches_at(11, 30)
    for i in range(30):
        for together, alone in zip((x, y), stream.batch_at(11 + i), strict=True):
            np.testing.assert_array_equal(together[i], alone)


def test_groups_are_shuffled_together(tmp_path: Path) -> None:
    """Catches windows that are one row group only: a batch of a sorted file would then be of one kind."""
    path = parquet(tmp_path)
    groups = [
        len(np.unique(data.Stream(data.ParquetRows(path, "y", shuffle_rows=rows), size=20).batch_at(0)[0][:, 0] // 10))
        for rows in (10, 1000)
    ]
    assert groups[0] <= 3
    assert groups[1] > 5


def test_processes_read_parts_of_the_same_batch(tmp_path: Path) -> None:
    """Catches hosts that train on the same rows, or on others than one host would."""
    source = pair(tmp_path)
    whole = data.Stream(source, size=12).batch_at(20)
    parts = [data.Stream(source, size=12, shard=(i, 3)).batch_at(20) for i in range(3)]
    for one, several in zip(whole, zip(*parts, strict=True), strict=True):
        np.testing.assert_array_equal(one, np.concatenate(several))


def test_a_parquet_file_is_read_group_by_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches a group that is decoded for every batch anew, and groups that are kept for ever."""
    source = data.ParquetRows(parquet(tmp_path), "y", shuffle_rows=25)
    read, most = [], 0
    monkeypatch.setattr(source, "_file", Counting(source._file, read))
    stream = data.Stream(source, size=5)
    for step in range(20):
        stream.batch_at(step)
        most = max(most, sum(len(y) for _, y in source._kept.values()))
    assert sorted(read) == list(range(11))
    assert most <= 2 * (25 + 10) < ROWS


class Counting:
    def __init__(self, file: object, read: list[int]):
        self._file, self._read = file, read

    def read_row_group(self, number: int, **options: object) -> object:
        self._read.append(number)
        return self._file.read_row_group(number, **options)  # type: ignore[attr-defined]


# -- identity ---------------------------------------------------------------------------------------------------------


def test_a_file_is_known_by_its_name_its_size_and_its_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches another file of the same size that passes for the same, and files that are read as a whole."""
    monkeypatch.setattr(streams, "END", 1000)
    path = tmp_path / "a"
    found = []
    for changed in (None, 0, 5000, 9999):
        content = bytearray(10_000)
        if changed is not None:
            content[changed] = 1
        path.write_bytes(content)
        found.append(streams.file_identity(path))
    assert found[0] == found[2]  # the middle is not read
    assert len({identity["ends"] for identity in found}) == 3
    path.write_bytes(bytes(9_999))
    assert streams.file_identity(path) not in found
    path.write_bytes(b"short")
    assert streams.file_identity(path)["bytes"] == 5


# -- the loop ---------------------------------------------------------------------------------------------------------


def algorithm(rows: int = ROWS):
    model = models.mlp([1, 4, 1])
    return build("w-svgd", targets.posterior(model, likelihoods.gaussian(1.0), priors.normal(), rows))


def test_a_stream_trains_as_a_function_does_and_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches batches that are skipped, doubled or exchanged where blocks and chunks end, or after a resume."""
    stream = data.Stream(pair(tmp_path), size=8, prepare=lambda x, y: (x / 100, y / 200))
    train_it = algorithm()
    state = train.begin(train_it, jax.random.key(0), 3)
    expected, _ = train.run(train_it, state, stream.batch_at, 23, chunk=10)
    monkeypatch.setattr(train, "MOST_BYTES", 4 * 8 * 8)  # blocks of four steps
    whole, info = train.run(train_it, state, stream, 23, chunk=10, history=23)
    assert info.alive.shape == (23, 3)
    half, _ = train.run(train_it, state, stream, 10, chunk=10)
    resumed, _ = train.run(train_it, half, stream, 13, chunk=10)
    for a, b, c in zip(*(jax.tree.leaves(s.particles) for s in (whole, expected, resumed)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)
        np.testing.assert_array_equal(a, c)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("stein-stream")]


class Failing:
    """Batch 7 cannot be read."""

    def __init__(self, stream: data.Stream):
        self._stream, self.asked = stream, 0

    def batch_at(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        self.asked = max(self.asked, step)
        if step == 7:
            raise ValueError("row 17 is not finite")
        return self._stream.batch_at(step)


def test_an_error_of_the_thread_comes_at_its_step(tmp_path: Path) -> None:
    """Catches an error that is lost in the thread, steps before it that are lost, and reading far ahead."""
    failing, seen = Failing(data.Stream(pair(tmp_path), size=8)), []
    train_it = algorithm()
    state = train.begin(train_it, jax.random.key(0), 3)
    with pytest.raises(ValueError, match="row 17"):
        train.run(train_it, state, failing, 20, chunk=2, hooks=[lambda moment: seen.append(moment.step)])
    assert seen == [2, 4, 6]
    other = Failing(data.Stream(pair(tmp_path), size=8))
    train.run(train_it, state, other, 20, chunk=1, hooks=[lambda moment: moment.step == 3])
    assert other.asked <= 4


# -- Grain ------------------------------------------------------------------------------------------------------------


def grain_batches(seed: int = 3, size: int = 4) -> data.GrainBatches:
    rows = [(np.full(1, i / 10, np.float32), np.full(1, i / 5, np.float32)) for i in range(10)]
    return data.GrainBatches(grain.MapDataset.source(rows).shuffle(seed=seed).repeat().batch(size), "rows", "1")


def test_grain_gives_the_same_batch_at_a_step_whatever_was_read_before() -> None:
    """Catches an adapter that keeps a position of its own: a resumed run would see other batches."""
    first, again = grain_batches(), grain_batches()
    read = [first.batch_at(step) for step in range(9)]
    np.testing.assert_array_equal(again.batch_at(8), read[8])
    epoch = np.concatenate([x[:, 0] for x, _ in read])[:10]
    np.testing.assert_array_equal(np.sort(epoch), np.arange(10, dtype=np.float32) / 10)
    assert first.identity == {"name": "rows", "version": "1"}


@pytest.mark.long
def test_grain_trains_and_goes_on() -> None:
    """Catches elements that the loop does not take, and a resumed run that differs."""
    train_it = algorithm(10)
    state = train.begin(train_it, jax.random.key(0), 3)
    whole, _ = train.run(train_it, state, grain_batches(), 6, chunk=3)
    half, _ = train.run(train_it, state, grain_batches(), 3)
    resumed, _ = train.run(train_it, half, grain_batches(), 3)
    jax.tree.map(np.testing.assert_array_equal, whole.particles, resumed.particles)


# -- bad input --------------------------------------------------------------------------------------------------------


X = np.arange(float(ROWS))
GAP = np.where(X == 41, np.nan, X)
NAMES = [str(i) for i in range(ROWS)]


def archive(folder: Path) -> Path:
    np.savez(folder / "archive.npz", x=X)
    return (folder / "archive.npz").rename(folder / "archive.npy")


def table(folder: Path, **columns: object) -> data.ParquetRows:
    return data.ParquetRows(parquet(folder, **columns), "y")


BAD = {
    "no such file": lambda f: data.MemoryMapped(f / "none.npy", f / "none.npy"),
    "must be a single .npy array": lambda f: data.MemoryMapped(archive(f), f / "archive.npy"),
    "must be equal": lambda f: pair(f, y=X[:5]),
    "must be numbers": lambda f: pair(f, x=np.array(NAMES)),
    "x.npy: x[41, 0]: nan: must be finite": lambda f: pair(f, x=GAP).take(np.arange(30, 50)),
    "y.npy: y[41]: nan: must be finite": lambda f: pair(f, y=GAP).take(np.arange(30, 50)),
    "row 42, column 'x': nan": lambda f: table(f, x=GAP).take(np.array([45])),
    "row 42, column 'y': nan": lambda f: table(f, y=GAP).take(np.array([45])),
    "row 2, column 'even': nan": lambda f: table(f, even=[True, None] + [False] * (ROWS - 2)).take(np.array([0])),
    "row 3, column 'y': has no value": lambda f: table(f, y=["a", "b", None, *NAMES[3:]]).take(np.array([0])),
    "column 'id' has type string": lambda f: table(f, id=NAMES),
    "did you mean 'y'": lambda f: data.ParquetRows(parquet(f), "yy"),
    "must end in .parquet": lambda f: data.ParquetRows(f / "t.csv", "y"),
    "size = 104": lambda f: data.Stream(pair(f), size=104),
    "shard = (0, 3)": lambda f: data.Stream(pair(f), size=10, shard=(0, 3)),
    "must be a grain.MapDataset": lambda f: data.GrainBatches(grain.MapDataset.range(3).to_iter_dataset(), "a", "1"),
    "must be a pair (x, y)": lambda f: data.GrainBatches(grain.MapDataset.range(3), "a", "1").batch_at(0),
}


@pytest.mark.parametrize("message", BAD)
def test_bad_input_is_one_line(tmp_path: Path, message: str) -> None:
    """Catches numbers that are not finite on their way into a batch, and errors that do not say where."""
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        BAD[message](tmp_path)
    assert "\n" not in str(error.value)


def test_batches_of_different_sizes_are_rejected() -> None:
    """Catches a smaller last batch that ends a run with an error of NumPy."""
    rows = [(np.zeros(1, np.float32), np.zeros(1, np.float32))] * 5
    batches = data.GrainBatches(grain.MapDataset.source(rows).batch(4), "rows", "1")
    train_it = algorithm(5)
    with pytest.raises(ValueError, match="leave out a smaller last batch"):
        train.run(train_it, train.begin(train_it, jax.random.key(0), 2), batches, 3)
