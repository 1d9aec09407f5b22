"""Bad tables for `stein fit` and `stein predict`: exit 2, one line with place and remedy, nothing left behind."""

import gzip
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest

from stein import cli

RANDOM = np.random.default_rng(0)


def table(rows: int = 40, header: str = "a,b,y", **cells: str) -> str:
    """Numbers in columns a, b, y; ``cells`` such as b7="x" replace a cell of a column in the rows from 0."""
    names = header.split(",")
    values = [[f"{value:.4f}" for value in row] for row in RANDOM.normal(size=(rows, len(names)))]
    for place, cell in cells.items():
        values[int(place[1:])]["aby".index(place[0])] = cell
    return "\n".join([header, *map(",".join, values)]) + "\n"


def with_column(cells: list[str], rows: int = 40) -> str:
    lines = table(rows).splitlines()
    return "\n".join([f"c,{lines[0]}", *(f"{cells[i % len(cells)]},{line}" for i, line in enumerate(lines[1:]))]) + "\n"


def target(cells: list[str]) -> str:
    lines = table().splitlines()[1:]
    return "\n".join(["a,y", *(f"{line.split(',')[0]},{cells[i % len(cells)]}" for i, line in enumerate(lines))]) + "\n"


LEVELS = [f"level {chr(97 + i // 26)}{chr(97 + i % 26)}" for i in range(51)]
FIT: dict[str, tuple[str | bytes, list[str]]] = {
    "t.csv: is empty; must have a header": ("", []),
    "t.csv: has a header and no rows": ("a,b,y\n", []),
    "t.csv: fraction = 0.1: of 1 rows nothing is left to train on": (table(1), ["--task", "regression"]),
    "t.csv: has 19 rows; a fit with a test needs at least 20": (table(19), []),
    "'y': all targets are 'cat'; there is nothing to learn": (target(["cat"]), []),
    "'y': all targets are 1.5; there is nothing to learn": (target(["1.5"]), []),
    "t.csv: 'y': numbers or classes? 40 different whole numbers, from 0 to 3900; `--task regression` for": (
        target([str(100 * i) for i in range(40)]),
        [],
    ),
    "'y': numbers or classes? '10 €' is text that looks like a number": (target(["10 €", "20 €"]), []),
    "t.csv: values are missing in columns: a 1, b 2; fill": (table(a3="nan", b5="", b6="N/A"), []),
    "t.csv: line 5, column 'a': inf: must be finite": (table(a3="inf"), ["--impute"]),
    "t.csv: line 9, column 'b': -inf: must be finite": (table(b7="-1e999"), ["--impute"]),
    "t.csv: line 42: 2 values; the header has 3": (table() + "1,2\n", []),
    "t.csv: line 2: 4 values; the header has 3": ("a,b,y\n1,2,3,4\n", []),
    "t.csv: column 'c' has no values; drop it": (with_column(["", "NA"]), ["--impute"]),
    "column 'c': 51 different texts, such as 'level": (with_column(LEVELS, 300), []),
    "column 'c': every row has another text": (with_column(LEVELS), []),
    "line 4, column 'c': '2021-02-29': must be a date": (with_column(["2020-01-01", "2020-02-01", "2021-02-29"]), []),
    "column 'c': '31/12/2020' is text that looks like a date": (with_column(["31/12/2020", "01/01/2021"]), []),
    "column 'c': '2021-01-01T00:00Z' has a time zone": (with_column(["2020-01-01", "2021-01-01T00:00Z"]), []),
    "line 7, column 'a': 'abc' is no number, 39 others are": (table(a5="abc"), []),
    "line 7, column 'a': '1,5' is no number": (table(a5='"1,5"'), []),
    "column 'c': '12 kg' is text that looks like a number": (with_column(["12 kg", "15 kg", "12 kg"]), []),
    "t.csv: two columns are called 'a'": (table(header="a,a,y"), []),
    "t.csv: column 1 has no name; a row number is no input: drop it": (table(header=",a,y"), []),
    "t.csv: has 10001 columns; a fit takes at most 5000": (
        table(20, ",".join([*map("x{}".format, range(10_000)), "y"])),
        [],
    ),
    "t.csv: is not UTF-8 text; save it as UTF-8": (table(a1="1").encode() + "ä,1,2\n".encode("latin-1"), []),
    "t.csv: is not UTF-8 text": (table().encode("utf-16"), []),
    "t.csv: is a web page, not a table": ("<!DOCTYPE html><html><body>404</body></html>", []),
    "t.csv: is a gzip archive; unpack it first": (gzip.compress(table().encode()), []),
    "t.csv: is a zip archive or an Excel file": (b"PK\3\4" + bytes(100), []),
    "t.csv: cannot be read: unexpected end of data": (table() + '1,"2,3\n', []),
    "t.csv: no column 'price'; it has a, b, y": (table(), ["--target", "price"]),
    "t.csv: no column 'Y'; it has": (table(), ["--target", "Y"]),
    "t.csv: 2 of 40 targets are missing, the first in line 4, column 'y'": (table(y2="", y9="NA"), []),
    "t.csv: 'y' is the only column": ("y\n" + "1.5\n2.5\n" * 20, []),
    "t.csv: no column 'key'; it has a, b, y": (table(), ["--id-column", "key"]),
    "t.csv: no column 'aa'; did you mean 'a'?": (table(), ["--text-column", "aa"]),
    "column 'c': all rows are in group 'one'": (with_column(["one"]), ["--group-column", "c"]),
    "column 'c': all rows are in group 'two'": (with_column(["one"] * 4 + ["two"] * 4), ["--group-column", "c"]),
    "line 2, column 'c': 'soon': a time must be a number or a date": (
        with_column(["soon", "late"]),
        ["--time-column", "c"],
    ),
    "column 'c': line 3 has no time; fill it in": (with_column(["2020-01-01", ""]), ["--time-column", "c"]),
    "column 'c': of 40 rows too few are earlier": (with_column(["5"]), ["--time-column", "c"]),
    "line 4, column 'c': 'tset': must be train, validation or test": (
        with_column(["train", "test", "tset"]),
        ["--split-column", "c"],
    ),
    "t.csv: there are no test rows": (with_column(["train"]), ["--split-column", "c"]),
    "column 'c': no row is for training": (with_column(["test"]), ["--split-column", "c"]),
    "data.time_column: got 'y'; must not be data.target too": (table(), ["--time-column", "y"]),
    "data.split_column: says which rows are held out; data.group_column": (
        table(),
        ["--split-column", "a", "--group-column", "b"],
    ),
    "t.csv: is separated by ';'; save it with commas": (table().replace(",", ";"), []),
    "t.csv: is separated by tabs": (table().replace(",", "\t"), []),
    "t.csv: has no header; add a first line": ("1,2,3\n4,5,6\n", []),
    "method.name: got 'h-svdg'; must be one of": (table(), ["--method", "h-svdg"]),
    "train.steps: got 0; must be a whole number": (table(), ["--steps", "0"]),
    "evaluation.coverage: got 1.5; must be a number": (table(), ["--coverage", "1.5"]),
    "'y' holds text, such as 'owl'; must be numbers": (target(["owl", "cat"]), ["--task", "regression"]),
    "--set 'steps=5': must be section.key=value": (table(), ["--set", "steps=5"]),
    "class 'rare' is only in the": (
        with_column(["train"] * 9 + ["test"], 40).replace("c,a,b,y", "c,a,b,y2").replace("\n", ",cat\n").replace(
            "c,a,b,y2,cat", "c,a,b,y2,y"
        )
        + "test,1.5,2.5,3.5,rare\n",
        ["--split-column", "c"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("words", FIT)
def test_fit_refuses(words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content, options = FIT[words]
    (tmp_path / "t.csv").write_bytes(content if isinstance(content, bytes) else content.encode())
    given = options if "--target" in options else ["--target", "y", *options]
    code = cli.main(["fit", str(tmp_path / "t.csv"), *given, "--out", str(tmp_path / "run"), "--no-cache"])
    err = capsys.readouterr().err
    assert words in err
    assert (code, err.count("\n")) == (2, 1)
    assert os.listdir(tmp_path) == ["t.csv"]


FILES: dict[str, Callable[[Path], Path]] = {
    "t.csv: no such file": lambda folder: folder / "t.csv",
    "t.xlsx: must end in .csv, .parquet, .arrow, .feather": lambda folder: folder / "t.xlsx",
    "bad.parquet: cannot be read": lambda folder: folder / "bad.parquet",
    "bad.arrow: cannot be read": lambda folder: folder / "bad.arrow",
    "none.parquet: has columns and no rows": lambda folder: folder / "none.parquet",
    "list.parquet: column 'a' has type list<": lambda folder: folder / "list.parquet",
}


@pytest.mark.parametrize("words", FILES)
def test_fit_refuses_other_files(words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 no")
    (tmp_path / "bad.arrow").write_bytes(b"ARROW1 no")
    pa.parquet.write_table(
        pa.table({"a": pa.array([], pa.float64()), "y": pa.array([], pa.float64())}), tmp_path / "none.parquet"
    )
    pa.parquet.write_table(pa.table({"a": [[1.0]] * 30, "y": np.arange(30) / 7}), tmp_path / "list.parquet")
    code = cli.main(["fit", str(FILES[words](tmp_path)), "--target", "y", "--out", str(tmp_path / "run"), "--no-cache"])
    err = capsys.readouterr().err
    assert words in err
    assert (code, err.count("\n")) == (2, 1)
    assert not (tmp_path / "run").exists()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a number, a text and a date."""
    folder = tmp_path_factory.mktemp("bad-new-rows")
    lines = [f"{i % 7}.5,{'xy'[i % 2]},2020-01-{1 + i % 28:02},{i % 5}.25" for i in range(60)]
    (folder / "t.csv").write_text("a,b,c,y\n" + "\n".join(lines) + "\n")
    options = ["--target", "y", "--steps", "4", "--particles", "2", "--method", "de", "--set", "model.hidden=[3]"]
    options.append("prior.scale=2")  # nothing to try
    code = cli.main(["fit", str(folder / "t.csv"), *options, "--out", str(folder / "run"), "--no-cache", "--quiet"])
    assert code == 0
    return folder / "run"


GOOD = "1,x,2020-01-05"
PREDICT: dict[str, str | bytes] = {
    "n.csv: is empty; must have a header": "",
    "n.csv: has a header and no rows": "a,b,c\n",
    "n.csv: line 3: 2 values; the header has 3": f"a,b,c\n{GOOD}\n1,x\n",
    "n.csv: line 3, column 'a': 'abc': must be a number": f"a,b,c\n{GOOD}\nabc,x,2020-01-05\n",
    "n.csv: line 2, column 'a': inf: must be finite": "a,b,c\ninf,x,2020-01-05\n",
    "n.csv: line 2, column 'c': '5.1.2020': must be a date": "a,b,c\n1,x,5.1.2020\n",
    "n.csv: line 2, column 'c': '2020-02-30': must be a date of the calendar": "a,b,c\n1,x,2020-02-30\n",
    "n.csv: has none of the run's columns, 'a', 'b', 'c'; it has 'p', 'q'": "p,q\n1,2\n",
    "n.csv: is separated by ';'": "a;b;c\n1;x;2020-01-05\n",
    "n.csv: two columns are called 'a'": f"a,a,b,c\n1,{GOOD}\n",
    "n.csv: is not UTF-8 text": "a,b,c\n1,ä,2020-01-05\n".encode("latin-1"),
    "n.csv: is a web page": "<html>",
    "n.csv: is a gzip archive": gzip.compress(b"a,b,c\n"),
    "n.csv: has no header": f"{GOOD}\n1,x,2020-01-05\n",
}


@pytest.mark.parametrize("words", PREDICT)
def test_predict_refuses(words: str, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An output of before stays. Catches half a file of predictions under its name."""
    content = PREDICT[words]
    (tmp_path / "n.csv").write_bytes(content if isinstance(content, bytes) else content.encode())
    (tmp_path / "out.csv").write_text("before")
    code = cli.main(["predict", str(run), str(tmp_path / "n.csv"), "--out", str(tmp_path / "out.csv"), "--no-cache"])
    err = capsys.readouterr().err
    assert words in err
    assert (code, err.count("\n")) == (2, 1)
    assert (tmp_path / "out.csv").read_text() == "before"
    assert sorted(os.listdir(tmp_path)) == ["n.csv", "out.csv"]
