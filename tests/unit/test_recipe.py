"""Columns to numbers: what each kind becomes, what is said about unusual rows, and how rows are split."""

import dataclasses
import json
from pathlib import Path

import msgspec
import numpy as np
import pytest

from problems import assert_refused
from stein import tables
from stein.data import cells, columns
from stein.data.blocks import ROWS

TABLE = """id,area,city,garden,sold,price
a,10,Rome,true,2020-01-01,1.5
b,20,Oslo,false,2020-07-01,2.5
c,n/a,Rome,TRUE,2021-01-01,3.5
d,40,,False,2020-12-31T12:00,4.5
"""


def frame(folder: Path, text: str = TABLE, **roles: object) -> columns.Frame:
    (folder / "t.csv").write_text(text)
    return columns.read(folder / "t.csv", columns.Roles("price", ids=("id",), **roles))  # type: ignore[arg-type]


def test_each_kind_becomes_its_numbers(tmp_path: Path) -> None:
    """By hand. Catches a gap that becomes 0 or a mean, a level in another column, and a calendar off by a day."""
    read = frame(tmp_path)
    assert read.kinds == {"area": "number", "city": "text", "garden": "boolean", "sold": "date"}
    recipe = tables.learn(read.inputs, read.kinds)
    x = recipe.encode(read.inputs)
    names = [" ".join(feature).strip() for feature in recipe.features]
    assert names[:6] == ["area", "area is missing", "city = Oslo", "city = Rome", "city is missing", "garden"]
    np.testing.assert_array_equal(x[:, 0], [10, 20, 20, 40])  # the median of 10, 20, 40
    np.testing.assert_array_equal(x[:, 1], [0, 0, 1, 0])
    np.testing.assert_array_equal(x[:, 2:5], [[0, 1, 0], [1, 0, 0], [0, 1, 0], [0, 1, 1]])  # Rome is more frequent
    np.testing.assert_array_equal(x[:, 5], [1, 0, 1, 0])
    assert names[6:] == [
        "sold days",
        *(f"sold {w} of the {c}" for c in ("year", "week", "day") for w in ("sin", "cos")),
    ]
    np.testing.assert_array_equal(x[:, 6], [0, 182, 366, 365.5])  # 2020 was a leap year
    year = 2 * np.pi * np.array([0, 182 / 366, 0, 365.5 / 366])
    # 1 January 2020 was a Wednesday, 1 July too, 1 January 2021 a Friday, 31 December 2020 a Thursday.
    week = 2 * np.pi * np.array([2, 2, 4, 3.5]) / 7
    day = 2 * np.pi * np.array([0, 0, 0, 0.5])
    expected = np.stack([wave(phase) for phase in (year, week, day) for wave in (np.sin, np.cos)], axis=1)
    np.testing.assert_allclose(x[:, 7:], expected, atol=1e-10)  # sines of 18,000 days: 1e5 times rounding


def test_a_recipe_survives_json(tmp_path: Path) -> None:
    read = frame(tmp_path)
    recipe = tables.learn(read.inputs, read.kinds)
    again = msgspec.convert(json.loads(json.dumps(dataclasses.asdict(recipe))), tables.Recipe)
    assert again == recipe
    np.testing.assert_array_equal(again.encode(read.inputs), recipe.encode(read.inputs))


def test_the_order_of_time_has_a_season_and_no_trend(tmp_path: Path) -> None:
    """Catches new rows that are all outside the range of training."""
    read = frame(tmp_path)
    recipe = tables.learn(read.inputs, read.kinds, ordered_by="sold")
    assert next(feature.part for feature in recipe.features if feature.column == "sold") == "sin of the year"
    later = {name: values[:1] for name, values in read.inputs.items()} | {"sold": np.array([30000.0])}
    assert recipe.notes(later) == [""]


def test_what_is_unusual_is_said_for_each_row(tmp_path: Path) -> None:
    """Catches a crash on a new level, and a row that is silently extrapolated."""
    read = frame(tmp_path)
    recipe = tables.learn(read.inputs, read.kinds)
    new = {
        "area": np.array([5.0, 20.0, np.nan]),
        "city": np.array(["Rome", "Bern", ""], object),
        "sold": np.array([19000.0, 18300.0, 18300.0]),
    }
    assert recipe.notes(new) == [
        "area 5 is below 10; there is no column garden; sold 2022-01-08 is above 2021-01-01",
        "city 'Bern' is new; there is no column garden",
        "area is missing; city is missing; there is no column garden",
    ]
    assert recipe.far(new).tolist() == [True, False, False]
    areas, days = np.array([10.0, -21, 71, 20, 20]), np.array([18300.0, 18300, 18300, 17800, 17897])
    assert recipe.far({"area": areas, "sold": days}).tolist() == [
        False,
        True,
        True,
        True,
        False,
    ]  # ranges: 30, 366 days
    x = recipe.encode(new)
    np.testing.assert_array_equal(x[:, 2:4], [[0, 1], [0, 0], [0, 1]])
    np.testing.assert_array_equal(x[:, 5], [1, 1, 1])  # the most frequent


def column(*values: str) -> str:
    return "id,a,price\n" + "".join(f"{i},{value},{i}.5\n" for i, value in enumerate(values))


DOUBTFUL = {
    "line 4, column 'a': 'x' is no number, 3 others are; correct it, or `--text-column a`": ("1", "2", "x", "3"),
    "line 3, column 'a': '2020-13' is no ISO 8601 date, others are": ("2020-01-01", "2020-13", "2020-01-02"),
    "line 3, column 'a': '2021-02-29': must be a date of the calendar": ("2020-02-29", "2021-02-29"),
    "column 'a': '5 kg' is text that looks like a number; write plain numbers": ("5 kg", "7 kg", "5 kg"),
    "column 'a': '31.12.2024' is text that looks like a date; write dates as": ("31.12.2024", "1.1.2025"),
    "column 'a' has no values; drop it": ("", "NA", "?"),
    "has a time zone and other dates have none": ("2020-01-01T00:00Z", "2020-01-01T00:00"),
    "line 3, column 'a': inf: must be finite": ("1", "inf"),
}


@pytest.mark.parametrize("words", DOUBTFUL)
def test_a_doubtful_column_is_refused(words: str, tmp_path: Path) -> None:
    assert_refused(lambda: frame(tmp_path, column(*DOUBTFUL[words])), words)


def test_text_is_taken_as_it_is_where_that_is_said(tmp_path: Path) -> None:
    read = frame(tmp_path, column("007", "7", "x", "7"), texts=("a",))
    assert read.inputs["a"].tolist() == ["007", "7", "x", "7"]
    assert tables.learn(read.inputs, read.kinds).columns[0].levels == ("007", "7", "x")


def test_a_code_is_no_number(tmp_path: Path) -> None:
    """Catches 10_2 for 102, as Python reads it, among inputs and as a class."""
    text = "id,a,price\n" + "".join(f"{i},1{i % 2}_2,2_{i % 2}\n" for i in range(6))
    read = frame(tmp_path, text)
    assert (read.kinds, read.inputs["a"][0], read.y[1]) == ({"a": "text"}, "10_2", "2_1")
    mixed = column("10", "11", "12", "1_3")
    assert_refused(lambda: frame(tmp_path, mixed), "line 5, column 'a': '1_3' is no number, 3 others are")


def test_too_many_levels_and_names_of_rows_are_refused() -> None:
    """Fifty levels are taken, fifty-one are not."""

    def learned(*texts: str) -> tables.Recipe:
        return tables.learn({"a": np.array(texts, object)}, {"a": "text"})

    levels = [f"l{i}" for i in range(50)] * 2
    assert len(learned(*levels).features) == 50
    assert_refused(lambda: learned(*levels, "l50", "l50"), "'a': 51 different texts, such as 'l0'; at most 50 become")
    assert_refused(lambda: learned("p", "q", "r"), "every row has another text, such as 'p'; if it names the rows")


def test_missing_values_are_counted(tmp_path: Path) -> None:
    read = frame(tmp_path)
    assert_refused(lambda: tables.check_complete(read.inputs), "missing in columns: area 1, city 1; fill them in")


def test_a_kind_is_found_beyond_the_first_block(tmp_path: Path) -> None:
    """A text in the second block of a column of numbers. Catches a kind that is guessed from the first rows."""
    values = ["1.5"] * (ROWS + 10)
    values[ROWS + 3] = "red"
    assert_refused(lambda: frame(tmp_path, column(*values)), f"line {ROWS + 5}, column 'a': 'red' is no number")
    values[ROWS + 3] = "NA"
    read = frame(tmp_path, column(*values))
    assert np.flatnonzero(np.isnan(read.inputs["a"])).tolist() == [ROWS + 3]


def test_cells_of_other_libraries() -> None:
    """What pandas and Arrow call missing is missing; dates are days since 1970."""
    pandas = pytest.importorskip("pandas")
    where = "row {}".format
    found = cells.column(np.array([1, None, pandas.NA, float("nan")], object), "number", where)
    np.testing.assert_array_equal(found, [1, np.nan, np.nan, np.nan])
    moments = np.array(["1970-01-02", "NaT", "1970-01-01T12:00"], "M8[ms]")
    np.testing.assert_array_equal(cells.column(moments, "date", where), [1, np.nan, 0.5])
    dates = np.array([pandas.Timestamp("1970-01-03", tz="UTC"), pandas.NaT], object)
    np.testing.assert_array_equal(cells.column(dates, "date", where), [2, np.nan])


# -- splits -------------------------------------------------------------------------------------------------


def test_the_latest_rows_are_held_out_and_ties_stay_together() -> None:
    """Catches the first rows of the file held out, and one day in two parts."""
    times = np.array([5.0, 1, 3, 5, 2, 4, 5, 0, 1, 2])
    mask = tables.by_time(times, 0.2)
    assert sorted(times[mask].tolist()) == [5, 5, 5]
    assert_refused(lambda: tables.by_time(np.zeros(10), 0.1), "too few are earlier than the latest")


def test_no_group_is_in_two_parts() -> None:
    """For every seed; about a fifth of the rows, off by at most one group. Catches rows that are split alone."""
    groups = np.array([f"g{i % 17}" for i in range(170)], object)
    for seed in range(20):
        mask = tables.by_group(groups, 0.2, seed)
        assert not set(groups[mask]) & set(groups[~mask])
        assert 34 <= mask.sum() < 44
    assert (tables.by_group(groups, 0.2, 0) != tables.by_group(groups, 0.2, 1)).any()
    assert_refused(lambda: tables.by_group(np.array(["a"] * 5, object), 0.2, 0), "all rows are in group 'a'")
