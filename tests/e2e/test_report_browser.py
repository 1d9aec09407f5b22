"""Pages in a real browser: nothing is complained about, nothing is asked for, everything that moves works."""

import contextlib
import csv
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pages
import runs
from stein.report import studies
from stein.runs import pages as run_pages

pytestmark = pytest.mark.skipif(pages.CHROMIUM is None, reason=pages.NO_BROWSER)

RESULTS = Path(__file__).parents[2] / "results"
TABLE = """
[data]
file = "houses.csv"
target = "{target}"
text_columns = ["{text}"]
[method]
name = "h-svgd-l"
particles = 4
[model]
hidden = [8]
[train]
steps = 60
log_every = 10
batch_size = 32
[evaluation]
every = 30
[checkpoints]
every = 10
keep = 5
[tracking]
tensorboard = false
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with pages.browser() as found:
        yield found


def quoted(name: str) -> str:
    return json.dumps(name)[1:-1]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Path:
    """A real run on a table whose every name is hostile, trained and evaluated by the commands."""
    folder = tmp_path_factory.mktemp("table")
    names = {key: value[:200] for key, value in pages.HOSTILE.items()}  # a CSV may have columns of 10 kB, a path not
    random = np.random.default_rng(0)
    columns = [names["script"], names["template"], names["right-to-left"], names["quotes"]]
    levels, target = [names["image"], names["closing"], names["template"]], names["long"]
    for file, shift in (("houses.csv", 0.0), ("other.csv", 5.0)):
        rows = [
            [*(f"{v:.3f}" for v in random.normal(shift, 1, 3)), levels[i % 3], "yes" if i % 2 else names["script"]]
            for i in range(160)
        ]
        with open(folder / file, "w", newline="") as opened:
            csv.writer(opened).writerows([[*columns, target], *rows])
    config = TABLE.format(target=quoted(target), text=quoted(columns[3]))
    run = folder / "run <b>{{7*7}}"
    path = runs.write_config(folder, config)
    trained = runs.run(["train", path, "--out", run, "--quiet", "--threads", "1"], cache, **runs.QUICK)
    assert trained.returncode == 0, trained.stderr
    done = runs.run(["evaluate", run, "--ood", folder / "other.csv"], cache, **runs.QUICK)
    assert done.returncode == 0, done.stderr
    made = runs.run(["report", run, "--out", folder / "table.html"], cache)
    assert made.returncode == 0, made.stderr
    return folder / "table.html"


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("several")
    pages.write_run(folder / "runs" / "de", "de", accuracy=0.7)
    pages.write_run(folder / "runs" / "fw", "fw-svgd-l", accuracy=0.9, dead=1)
    pages.write_run(folder / "runs" / "h", "h-svgd-l", accuracy=0.8, names=tuple(pages.HOSTILE.values()))
    pages.write_run(folder / "runs" / "killed", "w-svgd", finished=False)
    path = folder / "several.html"
    path.write_bytes(run_pages.report([folder / "runs"], "stein report runs"))
    return path


@pytest.fixture(scope="module")
def demonstrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from stein.paper import demo, reference, toys

    task = toys.regression()._replace(particles=30, steps=1000)
    draws = reference.posterior("regression").draws
    members = {"DE": 0.5 * draws[:30], "fw-SVGD": draws[30:60]}
    found = {label: toys.compare_regression(functions, draws) for label, functions in members.items()}
    frames = [(step, {label: f * step / 1000 for label, f in members.items()}) for step in (250, 500, 1000)]
    result = demo.Result(task, members | {"posterior": draws}, frames, found, found["DE"])
    path = tmp_path_factory.mktemp("demo") / "report.html"
    path.write_bytes(demo.report(result))
    return path


def check(browser: Any, path: Path, sections: int) -> None:
    """No complaint, no request, nothing beyond the edge, and no serious finding of axe, on a screen and on a phone."""
    from axe_playwright_python.sync_playwright import Axe

    for width, dark in ((1280, False), (390, True)):
        opened = pages.Opened(browser, path, width, dark)
        page = opened.page
        assert page.locator("main section").count() == sections
        assert page.locator("main section").filter(has=page.locator("svg, table, pre, p, img")).count() == sections
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        found = Axe().run(page).response["violations"]
        serious = [(v["id"], v["nodes"][0]["html"][:200]) for v in found if v["impact"] in ("serious", "critical")]
        assert serious == []
        assert opened.complaints == []
        assert opened.network == []
        assert page.title() != "hacked"
        opened.close()


@pytest.mark.long
def test_a_table_with_hostile_names(browser: Any, table: Path) -> None:
    """Every section of a run on a table, as the commands make it. Catches a name that runs, or that is lost."""
    check(browser, table, 10)
    opened = pages.Opened(browser, table)
    text = opened.page.inner_text("body")
    for name in ("script", "template", "quotes"):
        assert pages.HOSTILE[name] in text
    assert opened.page.locator("h1").inner_text() == "run <b>{{7*7}}"
    assert opened.page.locator("main section .missing").count() == 0
    opened.close()


def test_several_runs(browser: Any, several: Path) -> None:
    check(browser, several, 11)


def test_the_demo(browser: Any, demonstrated: Path) -> None:
    check(browser, demonstrated, 3)


@pytest.mark.long
@pytest.mark.parametrize("study", ["fig1", "digits", "table1-laptop"])
def test_studies(browser: Any, tmp_path: Path, study: str) -> None:
    path = tmp_path / "study.html"
    path.write_bytes(studies.page_of(RESULTS / study, "stein report"))
    check(browser, path, 5)


def test_methods_are_switched_on_and_off(browser: Any, several: Path) -> None:
    opened = pages.Opened(browser, several)
    page = opened.page
    lines = page.locator("#training figure").first.locator("g[data-key]")
    assert lines.count() == 4
    box = page.locator("[data-switch]").nth(1)
    key = box.get_attribute("data-switch")
    box.focus()
    page.keyboard.press("Space")
    assert page.locator(f'#training [data-key="{key}"]:visible').count() == 0
    assert page.locator(f'#methods tr[data-key="{key}"]').is_hidden()
    page.keyboard.press("Space")
    assert page.locator(f'#training g[data-key="{key}"]').first.is_visible()
    opened.close()


def test_tables_are_sorted(browser: Any, several: Path) -> None:
    """Up, down, and by name; what has no number stays last. Catches a sort by text, where 10 is before 9."""
    opened = pages.Opened(browser, several)
    page = opened.page
    table = page.locator("main table").first
    head = table.locator("thead th", has_text="accuracy")

    def column() -> list[str]:
        place = head.evaluate("cell => cell.cellIndex")
        return [row.locator("th, td").nth(place).inner_text().split(" ")[0] for row in table.locator("tbody tr").all()]

    head.locator("button").click()
    assert head.get_attribute("aria-sort") == "ascending"
    assert column() == ["0.5", "0.700", "0.800", "0.900"]
    head.locator("button").press("Enter")
    assert head.get_attribute("aria-sort") == "descending"
    assert column() == ["0.900", "0.800", "0.700", "0.5"]
    table.locator("thead button").first.click()
    names = [row.locator("th").inner_text() for row in table.locator("tbody tr").all()]
    assert names == sorted(names)
    opened.close()


def test_values_under_the_pointer_and_under_the_keys(browser: Any, several: Path) -> None:
    """The tip shows the number that the log has at that step. Catches an axis that is read the wrong way round."""
    opened = pages.Opened(browser, several)
    page = opened.page
    figure = page.locator("#training figure", has_text="Effective rank")
    figure.locator("svg[role=img]").hover()
    tip = page.locator("#tip")
    assert tip.is_visible()
    assert "de: 2.5" in tip.inner_text()
    page.mouse.move(0, 0)
    assert tip.is_hidden()
    chart = page.locator("#training figure", has_text="NLL on test points").locator("svg[role=img]")
    chart.focus()
    page.keyboard.press("ArrowRight")
    assert tip.inner_text().startswith("step 10\n")
    assert "de: 0.1" in tip.inner_text()
    page.keyboard.press("ArrowRight")
    assert "de: 0.05" in tip.inner_text()  # 1 / 20
    page.keyboard.press("Escape")
    assert tip.is_hidden()
    matrix = page.locator("#members .frames figure", has_text="in functions").first.locator("svg[role=img]")
    matrix.focus()
    page.keyboard.press("ArrowUp")
    assert tip.inner_text() == "members 1 and 1\nsimilarity 1.00"
    opened.close()


def test_the_slider_goes_through_the_snapshots(browser: Any, several: Path, demonstrated: Path) -> None:
    opened = pages.Opened(browser, several)
    group = opened.page.locator("#functions .frames").first
    image = group.locator("image")
    last = image.get_attribute("href")
    group.locator("input").focus()
    opened.page.keyboard.press("Home")
    assert group.locator("output").inner_text() == "0"
    assert image.get_attribute("href") != last
    opened.page.keyboard.press("End")
    assert (group.locator("output").inner_text(), image.get_attribute("href")) == ("200", last)
    opened.close()

    opened = pages.Opened(browser, demonstrated)
    mean = opened.page.locator("[data-part=mean]").first
    before = mean.get_attribute("d")
    opened.page.locator(".frames input").focus()
    opened.page.keyboard.press("ArrowLeft")
    assert opened.page.locator(".frames output").inner_text() == "500"
    assert mean.get_attribute("d") not in (before, "", None)
    opened.close()


def test_light_and_dark_and_on_paper(browser: Any, several: Path) -> None:
    opened = pages.Opened(browser, several)
    page = opened.page

    def background() -> str:
        return page.evaluate("getComputedStyle(document.body).backgroundColor")

    light = background()
    page.locator("#theme").click()
    assert background() != light
    page.emulate_media(media="print")
    assert background() == light  # paper is white, whatever the screen was
    assert page.locator("nav").is_hidden()
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator("details:not([open])").count() == 0
    opened.close()


@pytest.mark.long
def test_watch_while_a_run_is_killed_and_resumed(browser: Any, tmp_path: Path, cache: Path) -> None:
    """The command, a run that trains, kill -9, resume, in one open page. Catches a page that stays behind, that
    complains, or that asks anybody else."""
    from playwright.sync_api import expect

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    out = tmp_path / "runs" / "one"
    out.parent.mkdir()
    long = ["train", runs.write_config(tmp_path), "--out", out, "--quiet", "--set", "train.steps=80000"]
    processes = [runs.start(long, cache)]
    runs.wait_for(out / "metrics.jsonl", processes[0])
    try:
        processes.append(runs.start(["watch", out.parent, "--port", port], cache))
        address = f"http://127.0.0.1:{port}/"
        shown = browser.new_page()
        complaints: list[str] = []
        asked: list[str] = []
        shown.on("console", lambda message: complaints.append(message.text))
        shown.on("pageerror", lambda error: complaints.append(str(error)))
        shown.on("request", lambda request: asked.append(request.url))
        for _ in range(200):
            with contextlib.suppress(Exception):
                shown.goto(address)
                break
            shown.wait_for_timeout(100)
        complaints.clear()  # of the time before there was a server
        state, patience = shown.locator("#runs tbody td").first, {"timeout": 60_000}
        expect(state).to_have_text("running", **patience)
        shown.click("#runs tbody button")
        expect(shown.locator("#curves figure").first).to_be_visible(**patience)
        processes[0].kill()
        expect(state).to_have_text("interrupted", **patience)
        processes.append(runs.start(["resume", out, "--quiet"], cache))
        expect(state).to_have_text("running", **patience)
        expect(state).to_have_text("finished", timeout=300_000)
        shown.click("#runs tbody a")
        expect(shown.locator("h1")).to_have_text("one", **patience)
        shown.goto(address + "playground")
        shown.click("#run")
        expect(shown.locator("#numbers")).to_contain_text("Step 5", **patience)
        assert complaints == []
        assert [url for url in asked if not url.startswith((address, "data:"))] == []
    finally:
        for process in processes:
            process.kill()
            process.communicate()
