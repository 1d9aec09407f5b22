"""Columns by name, shares of classes, and columns without spread."""

import numpy as np
import pytest
import scipy.stats

from stein import data
from stein.data import files
from stein.runs import record


def write(path, text):
    path.write_text(text)
    return path


def test_columns_are_found_by_name(tmp_path):
    """Catches inputs in the order of the other file, and a target among them."""
    path = write(tmp_path / "a.csv", "b,y,a\n1,5,2\n3,6,4\n")
    table = files.read_table(path, "y", like=("a", "b"))
    assert (table.x.tolist(), table.y.tolist(), table.inputs) == ([[2, 1], [4, 3]], [5, 6], ("a", "b"))
    bare = write(tmp_path / "b.csv", "b,a\n1,2\n")
    assert files.read_table(bare, "y", like=("a", "b"), labelled=False).x.tolist() == [[2, 1]]
    for text, words in (
        ("a,y\n1,2\n", "no column 'b'"),
        ("a,b,c,y\n1,2,3,4\n", "column 'c': is not an input of the run; drop it"),
        ("a,b\n1,2\n", "no column 'y'"),
    ):
        with pytest.raises(ValueError, match=words):
            files.read_table(write(tmp_path / "c.csv", text), "y", like=("a", "b"))


def test_the_split_column_is_no_input(tmp_path):
    path = write(tmp_path / "a.csv", "a,part,y\n1,train,5\n3,test,6\n")
    table = files.read_table(path, "y", "part")
    assert (table.inputs, table.parts.tolist()) == (("a",), ["train", "test"])
    with pytest.raises(ValueError, match="no column 'parts'; did you mean 'part'"):
        files.read_table(path, "y", "parts")


def test_a_blank_line_is_no_row_unless_it_could_be_a_value(tmp_path):
    """Catches predictions that are fewer than the rows."""
    path = write(tmp_path / "a.csv", "a\n1\n\n3\n")
    with pytest.raises(ValueError, match='line 3 is blank; write "" for a missing value, or drop it'):
        files.read_table(path, "y", like=("a",), labelled=False)
    for text in ("a\n1\n3\n\n", "a,y\n1,5\n\n3,6\n"):
        assert len(files.read_table(write(path, text), "y", like=("a",), labelled=False).x) == 2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a;b;y\n1;2;3\n", "separated by ';'; save it with commas"),
        ("a\tb\ty\n1\t2\t3\n", "separated by tabs; save it with commas"),
        ("1,2,3\n4,5,6\n", "has no header; add a first line with the column names"),
    ],
)
def test_a_csv_that_is_none_says_so(text, words, tmp_path):
    with pytest.raises(ValueError, match=words):
        data.load_arrays(write(tmp_path / "a.csv", text), "y")


@pytest.mark.parametrize("fraction", [0.1, 0.25, 0.5])
def test_every_class_gives_its_share(fraction):
    """Off by less than one row for each class, the total exact. Catches a split that ignores the classes."""
    classes = np.repeat([0, 1, 2, 3], [100, 50, 11, 7])
    np.random.default_rng(1).shuffle(classes)
    mask = data.held_out(len(classes), fraction, 42, classes)
    assert mask.sum() == round(fraction * len(classes))
    shares = np.bincount(classes[mask], minlength=4) - fraction * np.bincount(classes)
    assert np.abs(shares).max() < 1
    assert (mask == data.held_out(len(classes), fraction, 42, classes)).all()
    assert (mask != data.held_out(len(classes), fraction, 43, classes)).any()


def test_a_class_with_one_row_stays_in_training():
    """For every seed. Catches a class that is only in the held-out part."""
    classes = np.array([0] * 20 + [1] * 20 + [2])
    assert not any(data.held_out(41, 0.4, seed, classes)[40] for seed in range(50))


def test_without_classes_the_split_is_the_old_one():
    """Old runs are evaluated on the rows that they held out. Catches another stream of random numbers."""
    rows = np.arange(20)[:, None]
    expected = np.sort(np.random.default_rng(3).permutation(20)[:5])
    assert data.split(rows, rows, 0.25, 3)[1].x[:, 0].tolist() == expected.tolist()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rounding_is_no_spread(dtype):
    """0.1 ninety times, and 0.3 computed in two ways: only shifted, so that 0.2 stays a number of their size. Catches a
    scale of 2.8e-17 and an input of 1e15."""
    tenths = np.full(90, 0.1, dtype)
    thirds = np.where(np.arange(90) % 2, dtype(0.1) + dtype(0.2), dtype(0.3))
    x = np.stack([tenths, thirds, np.full(90, 1e12, dtype)], axis=1)
    scale = data.standardiser(x)
    assert scale.scale.tolist() == [1, 1, 1]
    assert np.abs(scale(np.full((1, 3), 0.2, dtype))[0, :2]).max() < 0.2


def test_a_small_spread_is_one():
    """Seconds since 1970 within a minute, and numbers of size 1e-30. Catches a threshold that is not relative, or too
    wide."""
    random = np.random.default_rng(0)
    x = np.stack([1.7e9 + random.uniform(0, 60, 1000), 1e-30 * random.normal(size=1000)], axis=1)
    found = data.standardiser(x)(x)
    assert np.abs(found.std(axis=0) - 1).max() < 1e-6  # 1.7e9 has digits of 2.4e-7, of a spread of 17
    assert np.abs(found.mean(axis=0)).max() < 1e-6


def skewed(rows=400):
    random = np.random.default_rng(2)
    columns = [np.exp(random.normal(size=rows)), -(random.exponential(size=rows) ** 2), random.normal(size=rows)]
    return np.stack([*columns, (columns[0] > 3).astype(float), np.full(rows, 7.0)], axis=1)


def test_skewed_inputs_are_bent():
    """Against SciPy's transformation, with its own likelihood at the chosen powers. Catches a power of the wrong side,
    a Jacobian with the wrong sign, and columns of two values or one that are bent."""
    x = skewed()
    found = data.standardiser(x, unskew=True)
    z = (x - x.mean(axis=0)) / np.where(x.std(axis=0) > 0, x.std(axis=0), 1)
    power = found.unskewing.power
    assert power[3] == power[4] == 1
    assert power[0] < 0.5 < power[2] < 1.5 < power[1]
    for i in range(3):
        bent = scipy.stats.yeojohnson(z[:, i], power[i])
        np.testing.assert_allclose(found(x)[:, i], (bent - bent.mean()) / bent.std(), atol=1e-9)
        others = np.clip(power[i] + np.array([-0.05, 0.05]), 0, 2)
        here = scipy.stats.yeojohnson_llf(power[i], z[:, i])
        assert all(scipy.stats.yeojohnson_llf(other, z[:, i]) <= here + 0.01 for other in others)
    np.testing.assert_allclose(found.undo(found(x)), x, rtol=1e-9, atol=1e-9)


def test_bending_does_not_depend_on_units_and_keeps_far_values_far():
    """Catches a power of the raw numbers, and one below 0, under which all far values would be alike."""
    x = skewed()
    scale, shift = np.array([1e6, 1e-3, 5.0, 2.0, 1.0]), np.array([-4.0, 1e3, 0.0, 1.0, 2.0])
    found, same = data.standardiser(x, unskew=True), data.standardiser(x * scale + shift, unskew=True)
    np.testing.assert_allclose(same(x * scale + shift), found(x), atol=1e-6)
    for far in (1e3, 1e6):
        beyond = found(x.mean(axis=0) + far * x.std(axis=0))
        assert (beyond[:3] > 0.9 * np.log(far)).all()


def test_a_weight_of_two_is_two_rows_also_for_skewed_inputs():
    x = skewed(90)
    weights = np.where(np.arange(90) % 3, 1.0, 2.0)
    weighted = data.standardiser(x, weights, unskew=True)
    repeated = data.standardiser(np.concatenate([x, x[::3]]), unskew=True)
    np.testing.assert_allclose(weighted(x), repeated(x), atol=1e-6)


def test_a_damaged_standardiser_is_rejected():
    """Catches lists of another length, which NumPy would broadcast."""
    scale = data.standardiser(skewed(), unskew=True)
    written = record.scales(scale)
    np.testing.assert_array_equal(record.standardiser(written)(skewed()), scale(skewed()))
    for broken in ({"mean": [0.0]}, {"unskewing": written["unskewing"] | {"power": [1.0]}}):
        with pytest.raises(ValueError, match="standardiser: its lists have different lengths"):
            record.standardiser(written | broken)
