"""Data from files: what is read is what was written, and what is wrong is named with its place."""

import io
import sys
import zipfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from stein import data

X = np.array([[1.5, 2.0], [3.0, -4.0], [5.0, 6.25]])
LABELS = np.array([2, 0, 1])
TABLE = "a, b ,y\n1.5,2,2\n3,-4e0,0\n\n5,6.25,1\n"


def npz(path, **arrays):
    np.savez(path, **arrays)
    return path


def csv(folder, text, encoding="utf-8"):
    (folder / "t.csv").write_bytes(text.encode(encoding))
    return folder / "t.csv"


def parquet(folder, **columns):
    pa.parquet.write_table(pa.table(columns), folder / "t.parquet")
    return folder / "t.parquet"


def pair(folder, x, y):
    np.save(folder / "x.npy", x)
    np.save(folder / "y.npy", y)
    return data.load_pair(folder / "x.npy", folder / "y.npy")


# -- good files ---------------------------------------------------------------------------------------------


def test_all_formats_hold_the_same(tmp_path):
    loaded = [
        data.load_arrays(npz(tmp_path / "a.npz", x=X, y=LABELS)),
        data.load_arrays(csv(tmp_path, TABLE), "y"),
        data.load_arrays(csv(tmp_path, TABLE, "utf-8-sig"), "y"),
        data.load_arrays(parquet(tmp_path, a=X[:, 0], y=LABELS, b=X[:, 1]), "y"),
        pair(tmp_path, X, LABELS),
        pair(tmp_path, X, LABELS[:, None]),
    ]
    for x, y, labels in loaded:
        np.testing.assert_array_equal(x, X)
        np.testing.assert_array_equal(y, LABELS)
        assert (x.dtype, y.dtype, labels) == (np.float64, np.int64, ())


@pytest.mark.parametrize(
    ("given", "kept"),
    [("float32", "float32"), ("float64", "float64"), ("uint8", "float32"), ("int64", "float64"), ("bool", "float32")],
)
def test_inputs_become_floating_point(tmp_path, given, kept):
    images = np.ones((3, 4, 4, 1), given)
    loaded = pair(tmp_path, images, LABELS)
    assert loaded.x.shape == (3, 4, 4, 1)
    assert loaded.x.dtype == kept


def test_one_input_becomes_a_column(tmp_path):
    assert pair(tmp_path, np.ones(3), np.ones(3)).x.shape == (3, 1)


@pytest.mark.parametrize("cells", [("0.5", "1", "2"), ("1e3", "1", "2"), ("99999999999999999999", "1", "2")])
def test_one_number_that_is_no_integer_makes_the_targets_real(tmp_path, cells):
    table = "".join(f"{i},{cell}\n" for i, cell in enumerate(cells))
    loaded = data.load_arrays(csv(tmp_path, "a,y\n" + table), "y")
    np.testing.assert_array_equal(loaded.y, [float(cell) for cell in cells])
    assert loaded.y.dtype == np.float64


def test_text_becomes_sorted_classes(tmp_path):
    kinds = ["owl", "cat", "owl"]
    for loaded in (
        data.load_arrays(csv(tmp_path, "kind,a\nowl,1\ncat,2\n owl,3\n"), "kind"),
        data.load_arrays(parquet(tmp_path, a=[1, 2, 3], kind=kinds), "kind"),
        data.load_arrays(parquet(tmp_path, a=[1, 2, 3], kind=pa.array(kinds).dictionary_encode()), "kind"),
        pair(tmp_path, [[1], [2], [3]], np.array(kinds)),
    ):
        np.testing.assert_array_equal(loaded.x, [[1], [2], [3]])
        np.testing.assert_array_equal(loaded.y, [1, 0, 1])
        assert loaded.y.dtype == np.int64
        assert loaded.labels == ("cat", "owl")


# -- bad files ----------------------------------------------------------------------------------------------


def spoiled(array, index, value):
    array = np.array(array, float)
    array[index] = value
    return array


def raw(path, content):
    path.write_bytes(content)
    return path


def saved(array):
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def archive(path, **members):
    with zipfile.ZipFile(path, "w") as file:
        for name, content in members.items():
            file.writestr(f"{name}.npy", content)
    return path


CSV = {
    "t.csv: is empty; must have a header": "",
    "t.csv: has a header and no rows": "a,y\n",
    "t.csv: no column 'y'; it has a, b": "a,b\n1,2\n",
    "t.csv: no column 'y'; did you mean 'yy'?": "a,yy\n1,2\n",
    "t.csv: 'y' is the only column": "y\n1\n",
    "t.csv: column 1 has no name": ",a,y\n0,1,2\n",
    "t.csv: two columns are called 'a'": "a,a,y\n1,2,3\n",
    "t.csv: line 3: 2 values; the header has 3": "a,b,y\n1,2,3\n1,2\n",
    "t.csv: line 2: 4 values; the header has 3": "a,b,y\n1,2,3,4\n",
    "t.csv: line 3, column 'b': 'red': must be a number": "a,y,b\n1,2,3\n1,2,red\n",
    "t.csv: line 2, column 'a': '': must be a number": "a,y\n,2\n",
    "t.csv: line 4, column 'a': nan: must be finite": "a,y\n1,2\n\nNaN,3\n",
    "t.csv: line 2, column 'b': -inf: must be finite": "y,a,b\n1,2,-inf\n",
    "t.csv: line 2, column 'a': inf: must be finite": "a,y\n1e999,2\n",
    "t.csv: line 3, column 'y': nan: must be finite": "a,y\n1,1\n1,nan\n",
    "t.csv: line 3, column 'y': '': must be a number, or all of the column text": "a,y\n1,2\n3,\n",
    "t.csv: line 3, column 'y': '': must be": "a,y\n1,cat\n3,\n",
    "t.csv: line 3, column 'y': '1,5': must be a number, or all": 'a,y\n1,1.5\n1,"1,5"\n',
    "t.csv: cannot be read: unexpected end of data": 'a,y\n1,"2\n',
    "t.csv: is not UTF-8 text; save it as UTF-8": "a,y\n1,\udce4\n",
    "t.csv: cannot be read: field larger than field limit": "a,y\n1," + 200_000 * "x",
    "t.csv: is a web page, not a table; download the file itself": "<html>\n",
}


@pytest.mark.parametrize("complaint", CSV)
def test_bad_csv(tmp_path, complaint):
    (tmp_path / "t.csv").write_bytes(CSV[complaint].encode(errors="surrogateescape"))
    refused(complaint, lambda: data.load_arrays(tmp_path / "t.csv", "y"))


PARQUET = {
    "t.parquet: has columns and no rows": {"a": pa.array([], pa.float64()), "y": pa.array([], pa.int64())},
    "t.parquet: no column 'y'; did you mean 'yy'?": {"a": [1], "yy": [1]},
    "t.parquet: column 'a' has type string: must be numbers": {"a": ["x"], "y": [1]},
    "t.parquet: column 'a' has type list": {"a": [[1.0]], "y": [1]},
    "t.parquet: row 2, column 'a': nan: must be finite": {"b": [1, 2], "a": [1, None], "y": [1, 2]},
    "t.parquet: row 1, column 'a': inf: must be finite": {"a": [np.inf], "y": [1]},
    "t.parquet: row 2, column 'y': nan: must be finite": {"a": [1, 2], "y": [1.0, None]},
    "t.parquet: row 2, column 'y': None: must be a number or text": {"a": [1, 2], "y": ["x", None]},
    "t.parquet: row 1, column 'y': the targets have type datetime64": {
        "a": [1],
        "y": np.array(["2020-01-01"], "M8[s]"),
    },
}


@pytest.mark.parametrize("complaint", PARQUET)
def test_bad_parquet(tmp_path, complaint):
    path = parquet(tmp_path, **PARQUET[complaint])
    refused(complaint, lambda: data.load_arrays(path, "y"))


ARRAYS = {
    "a.npz: no array 'y'; it has x, labels": lambda d: data.load_arrays(npz(d / "a.npz", x=X, labels=LABELS)),
    "a.npz: no array 'x'; it has none": lambda d: data.load_arrays(npz(d / "a.npz")),
    "a.npz: is a single array; must be": lambda d: data.load_arrays(raw(d / "a.npz", saved(X))),
    "a.npz: cannot be read: No data left in file": lambda d: data.load_arrays(raw(d / "a.npz", b"")),
    "a.npz: cannot be read: ": lambda d: data.load_arrays(raw(d / "a.npz", b"<html>not found</html>")),
    "a.npz: cannot be read: This file contains pickled": lambda d: data.load_arrays(
        raw(d / "a.npz", b"\x80\x04}\x94.")
    ),
    "a.npz: cannot be read: File is not a zip file": lambda d: data.load_arrays(
        raw(d / "a.npz", b"PK\3\4 and no more")
    ),
    "a.npz: cannot be read: Object arrays cannot be loaded": lambda d: data.load_arrays(
        npz(d / "a.npz", x=np.array([{}, 1], object), y=LABELS)
    ),
    "a.npz: x has shape (0, 2): must have a row": lambda d: data.load_arrays(npz(d / "a.npz", x=X[:0], y=LABELS[:0])),
    "a.npz: x has shape (3, 0): must have a row": lambda d: data.load_arrays(npz(d / "a.npz", x=X[:, :0], y=LABELS)),
    "a.npz: y has shape (): must have a row": lambda d: data.load_arrays(npz(d / "a.npz", x=X, y=1.0)),
    "a.npz: x has 3 rows, ": lambda d: data.load_arrays(npz(d / "a.npz", x=X, y=LABELS[:2])),
    "a.npz: x has type <U1: must be numbers": lambda d: data.load_arrays(npz(d / "a.npz", x=["a"], y=[1])),
    "a.npz: x has type complex128: must be": lambda d: data.load_arrays(npz(d / "a.npz", x=X + 1j, y=LABELS)),
    "a.npz: x[1, 0]: nan: must be finite": lambda d: data.load_arrays(
        npz(d / "a.npz", x=spoiled(X, (1, 0), np.nan), y=LABELS)
    ),
    "a.npz: y[2]: -inf: must be finite": lambda d: data.load_arrays(
        npz(d / "a.npz", x=X, y=spoiled(LABELS, 2, -np.inf))
    ),
    "a.npz: y[0]: the targets have type complex128": lambda d: data.load_arrays(npz(d / "a.npz", x=X, y=LABELS + 1j)),
    "a.npz: cannot be read: EOF: reading array data": lambda d: data.load_arrays(
        archive(d / "a.npz", x=saved(X)[:-8], y=saved(LABELS))
    ),
    "x.npy: cannot be read: Object arrays cannot be loaded": lambda d: pair(d, np.array([{}] * 3, object), LABELS),
    "y.npy: y[0]: nan": lambda d: pair(d, X, [np.nan, 1, 2]),
    "x.npy: x has 3 rows, ": lambda d: pair(d, X, [1, 2]),
    "missing.npy: no such file": lambda d: data.load_pair(d / "missing.npy", d / "y.npy"),
    "x.npy: is an archive; must be a single": lambda d: data.load_pair(
        npz(d / "x.npz", x=X).rename(d / "x.npy"), raw(d / "y.npy", saved(LABELS))
    ),
    "missing.npz: no such file": lambda d: data.load_arrays(d / "missing.npz"),
    "missing.csv: no such file": lambda d: data.load_arrays(d / "missing.csv", "y"),
    "missing.parquet: no such file": lambda d: data.load_arrays(d / "missing.parquet", "y"),
    "bad.parquet: cannot be read: ": lambda d: data.load_arrays(raw(d / "bad.parquet", b"PAR1 no"), "y"),
    "a.txt: must end in .npz, .csv, .parquet, .arrow, .feather": lambda d: data.load_arrays(d / "a.txt"),
    "fraction = 1: must be at least 0 and below 1": lambda d: data.split(X, LABELS, 1, 0),
    "fraction = 0.5: of 1 rows nothing is left": lambda d: data.split(X[:1], LABELS[:1], 0.5, 0),
}


@pytest.mark.parametrize("complaint", ARRAYS)
def test_bad_arrays(tmp_path, complaint):
    refused(complaint, lambda: ARRAYS[complaint](tmp_path))


def refused(complaint, action):
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the message is checked below
        action()
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)


def test_no_parquet_without_pyarrow(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(ImportError, match=r"pip install '\.\[parquet\]'"):
        data.load_arrays(tmp_path / "t.parquet", "y")


# -- splitting and scaling ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("fraction", "held_out"), [(0, 0), (0.001, 1), (0.1, 2), (0.25, 5), (0.95, 19)])
def test_split(fraction, held_out):
    x, y = np.arange(20.0)[:, None], np.arange(20)
    train, test = data.split(x, y, fraction, seed=3)
    assert len(test.x) == held_out
    assert sorted([*train.y, *test.y]) == list(range(20))
    for part in (train, test):
        np.testing.assert_array_equal(part.x[:, 0], part.y)
        assert list(part.y) == sorted(part.y)


def test_split_depends_on_the_seed_alone():
    x = np.arange(100)
    first, again, other = (data.split(x, x, 0.2, seed)[1].y.tolist() for seed in (1, 1, 2))
    assert first == again != other


def test_standardiser():
    x = np.array([[1.0, 5.0], [3.0, 5.0]], np.float32)
    scale = data.standardiser(x)
    np.testing.assert_array_equal(scale(x), [[-1, 0], [1, 0]])
    np.testing.assert_array_equal(scale(np.array([[4.0, 6.0]])), [[2, 1]])
    assert scale(x).dtype == np.float32
