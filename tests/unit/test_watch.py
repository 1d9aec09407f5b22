"""The page that follows runs: read-only, for this machine only, and nothing by path."""

import asyncio
import html
import json
import shutil
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

import pages
from stein import watch
from stein.storage import locks


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    pages.write_run(tmp_path / "runs" / "de", "de")
    pages.write_run(tmp_path / "runs" / pages.HOSTILE["image"].replace("/", "_"), "w-svgd", finished=False)
    (tmp_path / "secret.txt").write_text("secret")
    (tmp_path / "runs" / "secret.txt").write_text("secret")
    return tmp_path / "runs"


class Asking:
    """Requests to the application itself, without a port."""

    def __init__(self, *folders: Path, host: str = "127.0.0.1"):
        self._application, self._host = watch.application(folders), host

    def __call__(self, method: str, path: str, **params: str) -> httpx.Response:
        async def ask() -> httpx.Response:
            transport: Any = httpx.ASGITransport(app=self._application)
            async with httpx.AsyncClient(transport=transport, base_url=f"http://{self._host}") as client:
                return await client.request(method, path, params=params or None)

        return asyncio.run(ask())

    def get(self, path: str, **params: str) -> httpx.Response:
        return self("GET", path, **params)


def test_runs_their_curves_and_their_reports(folder: Path) -> None:
    asking = Asking(folder)
    assert "script-src 'sha256-" in html.unescape(asking.get("/").text)
    runs = {run["method"]: run for run in asking.get("/runs").json()}
    assert {method: run["state"] for method, run in runs.items()} == {"de": "finished", "w-svgd": "interrupted"}
    curves = asking.get("/curves", run=runs["de"]["run"]).json()
    assert curves["test_nll"][0] == [10, 0.1]
    report = asking.get("/report", run=runs["w-svgd"]["run"]).text
    assert "is interrupted: step 70 of 200" in report
    assert "<img" not in report


@pytest.mark.parametrize(
    "name",
    [
        "../secret.txt",
        "..",
        "/",
        "",
        "runs/../../secret.txt",
        "secret.txt",
        "%2e%2e/secret.txt",
        "de",
        "\0",
        "a" * 10**4,
    ],
)
def test_nothing_is_found_by_path(folder: Path, name: str) -> None:
    """Only the names that were listed. Catches a directory joined with what the address says."""
    asking = Asking(folder)
    for route in ("/curves", "/report"):
        answer = asking.get(route, run=name)
        assert answer.status_code == 404
        assert "secret" not in answer.text
    for path in ("/secret.txt", "/../secret.txt", "/%2e%2e/secret.txt", "/runs/de/config.toml"):
        assert asking.get(path).status_code == 404


def test_it_only_answers_here_and_only_reads(folder: Path) -> None:
    """Catches a page of another site that reads through a name of its own, and a request that changes something."""
    assert Asking(folder, host="evil.example").get("/runs").status_code == 400
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        assert Asking(folder)(method, "/runs").status_code == 405


def test_runs_come_and_go(folder: Path) -> None:
    """Started, training, killed, damaged, deleted, while the page is open."""
    asking = Asking(folder)
    pages.write_run(folder / "new", "h-svgd-l", finished=False)

    def state() -> str | None:
        return next((run["state"] for run in asking.get("/runs").json() if run["name"] == "new"), None)

    assert state() == "interrupted"
    with locks.locked(folder / "new"):
        assert state() == "running"
    assert state() == "interrupted"
    (folder / "new" / "failed.json").write_text(json.dumps({"reason": "the disk is full"}))
    assert state() == "failed"
    (folder / "new" / "config.toml").write_text("[data\n")
    assert state() == "unreadable"
    shutil.rmtree(folder / "new")
    assert state() is None


def test_a_hundred_runs_without_lag(tmp_path: Path) -> None:
    """Once they are known, a look at all of them takes a fraction of the two seconds between two looks."""
    first = pages.write_run(tmp_path / "0", "de")
    for i in range(1, 100):
        shutil.copytree(first, tmp_path / str(i))
    asking = Asking(tmp_path)
    assert len(asking.get("/runs").json()) == 100
    began = time.process_time()
    asking.get("/runs")
    assert time.process_time() - began < 0.5
