"""Pages from run directories: every section says what the files say, or what is missing. No browser here."""

import html
import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

import pages
from stein.cli import main
from stein.report import charts, numbers, studies, style
from stein.runs import pages as run_pages
from stein.runs import reading, standings

RESULTS = Path(__file__).parents[2] / "results"


def report(*folders: Path, rows: bool = True) -> str:
    return run_pages.report(folders, "stein report", rows).decode()


def section(page: str, name: str) -> str:
    return re.search(rf'<section id="{name}".*?</section>', page, re.S)[0]


def test_best_only_beyond_the_error_of_the_difference():
    """Catches a bold number that is chance: 0.90 ± 0.03 against 0.86 ± 0.03 differs by less than 0.042."""
    close = {"a": numbers.Standing(0.90, 0.03), "b": numbers.Standing(0.86, 0.03)}
    apart = {"a": numbers.Standing(0.90, 0.02), "b": numbers.Standing(0.86, 0.02)}
    assert numbers.best(close, "high") is None
    assert numbers.best(apart, "high") == "a"
    assert numbers.best(apart, "low") == "b"
    assert numbers.best({"a": numbers.Standing(0.9, None), "b": numbers.Standing(0.1, 0.01)}, "high") is None
    assert numbers.best({"a": numbers.Standing(0.9, 0.01)}, "high") is None


def test_errors_over_seeds():
    """Of 1, 2 and 3: mean 2, deviation 1 (n - 1), error 1/√3. Catches n for n - 1."""
    assert numbers.over_seeds([1.0, 2.0, 3.0]) == numbers.Standing(2.0, pytest.approx(3**-0.5), 3)


def test_seeds_of_a_method_are_one_line(tmp_path):
    """Two seeds of one method and one run of another: two lines, an error over seeds, the better one in bold."""
    runs = [
        pages.write_run(tmp_path / "a", "de", 0, accuracy=0.80),
        pages.write_run(tmp_path / "b", "de", 1, accuracy=0.82),
        pages.write_run(tmp_path / "c", "fw-svgd-l", 0, accuracy=0.95),
    ]
    found = standings.groups(reading.subjects(runs))
    assert [(group.key.name, len(group.runs)) for group in found] == [("de", 2), ("fw-svgd-l", 1)]
    assert found[0].standings["accuracy"] == numbers.Standing(pytest.approx(0.81), pytest.approx(0.01), 2)
    page = section(report(*runs), "methods")
    assert "<strong>0.950 ± 0.011</strong>" in page
    assert page.count("<tr data-key") == 2


def test_sentences_follow_the_numbers(tmp_path):
    """The same runs with exchanged numbers. Catches words that are written beforehand."""
    for i, (first, second) in enumerate([(0.8, 0.95), (0.95, 0.8)]):
        runs = [
            pages.write_run(tmp_path / f"{i}-de", "de", accuracy=first),
            pages.write_run(tmp_path / f"{i}-h", "h-svgd-l", accuracy=second),
        ]
        words = section(report(*runs), "summary")
        best = "h-svgd-l" if second > first else "de"
        assert f"{best} has the highest accuracy: 0.950 ± 0.011" in words
        assert "The difference is more than its standard error" in words


def test_one_run_in_words(tmp_path):
    page = report(pages.write_run(tmp_path / "run", "de"))
    words = section(page, "summary")
    assert "is right in 90.0% of the cases on 400 held-out points; always saying the most frequent class" in words
    # Fifteen equal bins from 0.5 to 1: a mean confidence of 75 %, and an accuracy of 90 %.
    assert "mean confidence is 75.0%, 15.0% below its accuracy (± 1.7%): not sure enough" in words
    assert "It notices points of far: of one such point and one test point" in words
    assert '<p class="missing">' not in page


@pytest.mark.parametrize(
    ("given", "missing"),
    [
        ({"evaluated": False}, ["Not evaluated yet", "stein evaluate "]),
        ({"finished": False}, ["is interrupted: step 70 of 200", "stein resume "]),
        ({"outside": ""}, ["There are no out-of-distribution points", "--ood FILE"]),
        ({"dead": 1}, ["1 of the 4 members of run died in training", "3 of 4"]),
        ({"dead": 3}, ["The distances between members is not here yet"]),
    ],
)
def test_what_is_missing_is_said(tmp_path, given, missing):
    """Catches a section that fails, or is silent, where its data are not there."""
    page = html.unescape(report(pages.write_run(tmp_path / "run", "de", **given)))
    for words in missing:
        assert words in page
    assert page.count("<section") >= 10


def test_a_failed_run_says_why(tmp_path):
    run = pages.write_run(tmp_path / "run", "de", finished=False)
    (run / "failed.json").write_text(json.dumps({"reason": "too few members <b>alive</b>"}))
    (run / "metrics.jsonl").write_text((run / "metrics.jsonl").read_text() + '{"step": 80, "al')  # killed while writing
    words = section(report(run), "summary")
    assert "run failed at step 70 of 200: too few members &lt;b&gt;alive&lt;/b&gt;" in words


@pytest.mark.parametrize(
    "name", ["views.json", "rows.json", "curves.json", "evaluation.json", "metrics.jsonl", "env.json"]
)
@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[1, 2",
        b'{"kind": 3}',
        b"\xff\xfe",
        b'{"errors": "x", "snapshots": [{}]}',
        b'{"step": [1], "alive": "x"}\n',
    ],
)
def test_damaged_files_are_missing_files(tmp_path, name, content):
    run = pages.write_run(tmp_path / "run", "de")
    (run / name).write_bytes(content)
    assert report(run).count("<section") >= 10


@pytest.mark.parametrize("name", pages.HOSTILE.values(), ids=pages.HOSTILE)
def test_hostile_names_are_text(tmp_path, name):
    """As class, column, set, row and directory. Catches what a template, a script or an attribute lets through."""
    folder = re.sub(r"[/\0]", "_", name)[:100]
    page = report(
        pages.write_run(tmp_path / folder, "de", names=(name, name + "2"), outside=name),
        pages.write_run(tmp_path / "other", "h-svgd-l", names=(name,)),
    )
    scripts = re.findall(r"<script(?![^>]*application/json)[^>]*>", page)
    assert scripts == ["<script>"]
    assert page.count("<img") == 0
    assert "49" not in re.findall(r"<h1>.*?</h1>", page, re.S)[0]
    blocks = re.findall(r'<script type="application/json"[^>]*>(.*?)</script>', page, re.S)
    assert blocks
    for block in blocks:
        json.loads(block)
    assert len(page) < 1.5e6


def test_no_rows_means_none(tmp_path):
    """Every text and number of rows.json is one that appears nowhere else. Catches a section that shows them anyway."""
    run = pages.write_run(tmp_path / "run", "de")
    rows = json.loads((run / "rows.json").read_text())
    for row in (*rows["least"], *rows["most"]):
        row.update(name="Jane Doe", true="secret-true", said="secret-said", values={"secret-column": "secret-value"})
        row["near"][0].update(true="secret-near", values={})
    (run / "rows.json").write_text(json.dumps(rows))
    shown, hidden = report(run), report(run, rows=False)
    for secret in ("Jane Doe", "secret-true", "secret-said", "secret-column", "secret-value", "secret-near"):
        assert secret in shown
        assert secret not in hidden
    assert "contains single rows or images of the data" in shown
    assert "contains no single row of the data" in hidden
    assert 'class="dot' in section(shown, "functions")
    assert 'class="dot' not in section(hidden, "functions")


def test_thirteen_runs_in_ten_seconds_and_one_and_a_half_megabytes(tmp_path):
    methods = ["de", "w-svgd", "f-svgd", "fw-svgd-l", "fw-svgd-s", "h-svgd-l", "h-svgd-s", "hp-svgd", "hs-svgd"]
    methods += ["kde-wgd", "blob", "f-blob", "ssge-wgd"]
    for method in methods:
        run = pages.write_run(tmp_path / method, method)
        row = {"step": 0, "alive": 4, "log_likelihood": -1.0, "test_nll": 1.0, "effective_rank": 2.0}
        (run / "metrics.jsonl").write_text("".join(json.dumps(row | {"step": step}) + "\n" for step in range(2000)))
    began = time.process_time()
    page = report(tmp_path)
    assert time.process_time() - began < 10
    assert len(page.encode()) < 1.5e6
    assert page.count("data-switch=") == 13


def test_every_method_has_a_look_of_its_own():
    """Catches two methods that nobody can tell apart."""
    from stein.methods import METHODS

    looks = style.looks(METHODS)
    assert len(set(looks.values())) == len(METHODS)
    assert style.looks(["h-svgd-l", "de"])["de"] == looks["de"]
    assert style.ordered(["HMC", "fw-SVGD", "DE"]) == ["DE", "fw-SVGD", "HMC"]


def test_charts_without_numbers_and_with_extreme_ones():
    """Catches a division by zero, a logarithm of zero, and NaN in the page."""
    for y in ([], [None], [1.0], [0.0, 0.0], [1e300, -1e300], [float("nan"), 1.0], [1e-300, 1e-290]):
        series = [charts.Series("one", list(range(len(y))), y)]
        for log in (False, True):
            drawn = charts.chart("title", series, "x", "y", ylog=log)
            assert "nan" not in re.sub(r"<[^>]*aria-label[^>]*>", "", drawn).lower()
            assert "inf" not in drawn


@pytest.mark.parametrize("study", ["fig1", "digits", "table1-laptop"])
def test_studies(study):
    """The table of every seed, as it is in the repository."""
    page = studies.page_of(RESULTS / study, f"stein report results/{study}").decode()
    assert len(page.encode()) < 1.5e6
    assert "<strong>" in page or study == "table1-laptop"  # one seed has no error, so nothing is best
    for label in ("DE", "w-SVGD", "f-SVGD"):
        assert f"<bdi>{label}</bdi></th>" in page
    assert re.search(r"has the (highest|lowest)|is closest to the posterior", page)


def test_the_command(tmp_path, capsys):
    run = pages.write_run(tmp_path / "run", "de")
    out = tmp_path / "page.html"
    assert main(["report", str(run), "--out", str(out), "--no-rows"]) == 0
    assert "Content-Security-Policy" in out.read_text()
    for arguments, words in (
        (["report"], "no run is named"),
        (["report", str(tmp_path / "nowhere")], "no such directory"),
        (["report", str(run), "--out", str(tmp_path / "page.pdf")], "must end in .html"),
        (["report", str(RESULTS / "uci"), "--out", str(out)], "not that of a figure or an image table"),
    ):
        capsys.readouterr()
        assert main(arguments) == 2
        error = capsys.readouterr().err
        assert words in error
        assert error.count("\n") == 1


def test_pages_need_no_jax():
    """A page of runs is there in a second. Catches an import that takes longer than the work."""
    script = "import sys, stein.runs.pages, stein.report.studies; sys.exit('jax' in sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True)
