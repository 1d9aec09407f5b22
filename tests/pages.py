"""Run directories for the tests of pages: written by hand where no training is needed, and a real browser."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from stein.runs import configs, schema

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
NO_BROWSER = "no Chromium: apt install chromium"

HOSTILE = {
    "script": "<script>document.title='hacked'</script>",
    "image": "<img src=x onerror=\"document.title='hacked'\">",
    "template": "{{7*7}}{% raw %}",
    "quotes": "a\"b'c`d</td>&amp;",
    "closing": "</script><!-- ]]>",
    "long": "long" * 2500,
    "right-to-left": "\u202eمرحبا\u2066 עולם",
}


def config(method: str = "de", seed: int = 0, **data: Any) -> schema.Config:
    """A config whose run was never trained."""
    document = {
        "data": {"name": "classification-2d", "seed": seed} | data,
        "method": {"name": method, "particles": 4},
        "train": {"steps": 200, "seed": seed},
    }
    return msgspec.convert(document, schema.Config)


def write_run(
    folder: Path,
    method: str = "de",
    seed: int = 0,
    *,
    finished: bool = True,
    evaluated: bool = True,
    dead: int = 0,
    accuracy: float = 0.9,
    names: tuple[str, ...] = (),
    outside: str = "far",
    points: int = 400,
) -> Path:
    """The files of a classifier's run, with numbers made up."""
    folder.mkdir(parents=True)
    random = np.random.default_rng(seed + len(method))
    (folder / "config.toml").write_text(configs.dump(config(method, seed)))
    (folder / "env.json").write_text(json.dumps({"stein": "0.1.0", "CPU": names[0] if names else "one"}))
    (folder / "data.json").write_text(json.dumps({"kind": "categorical", "name": "classification-2d"}))
    steps = range(10, 210, 10) if finished else range(10, 80, 10)
    log = [
        {"step": step, "alive": 4 - dead, "log_likelihood": -10 / step, "test_nll": 1 / step, "test_accuracy": 0.5}
        | {"effective_rank": 2.5, "force_ratio": 0.1 + step / 1000, "bandwidth_functions": 1.0 + step}
        for step in steps
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in log))
    if not finished:
        return folder
    numbers = {"method": method, "steps": 200, "alive": 4 - dead, "test_accuracy": accuracy, "test_nll": 0.3}
    (folder / "metrics.json").write_text(json.dumps(numbers))
    if not evaluated:
        return folder
    scores = {"test_points": points, "members": 4 - dead, "note": "", "accuracy": accuracy, "nll": 1 - accuracy}
    scores |= {"ece": 0.05, "brier": 0.1, "baseline_accuracy": 0.25}
    scores |= {"auroc_h": 0.8, "auroc_md": 0.85} if outside else {}
    (folder / "evaluation.json").write_text(json.dumps(scores))
    bins = {"points": [0] * 15 + [20] * 15, "confidence": [None] * 15 + np.linspace(0.5, 1, 15).tolist()}
    ranked = {"points": list(range(1, 100)), "accuracy": np.linspace(1, accuracy, 99).tolist()}
    ranked |= {"accuracy_md": ranked["accuracy"], "perfect": [1.0] * 99}
    blurred = [
        {"sigma": s, "accuracy": accuracy - s / 10, "ece": s / 10, "nll": s, "auroc_h": 0.5} for s in (0.1, 1, 3)
    ]
    curves = {"reliability": bins | {"accuracy": bins["confidence"]}, "calibration": {outside or "test": ranked}}
    (folder / "curves.json").write_text(json.dumps(curves | {"corruption": blurred}))
    labels = list(names) or ["red", "green"]
    sets = {"test": [0.05] * 20} | ({outside: [0.05] * 20} if outside else {})
    roc = {"false": [0, 0.2, 1], "found": [0, 0.8, 1]}
    alive = list(range(4 - dead))
    pairs = len(alive) * (len(alive) - 1) // 2
    entropy = np.outer(np.linspace(0, 1, 8), np.linspace(0, 1, 8))
    views = {
        "kind": "categorical", "target": labels[0], "labels": labels, "points": points, "images": True,
        "errors": {"accuracy": (accuracy * (1 - accuracy) / points) ** 0.5, "nll": 0.01, "brier": 0.01},
        "histograms": {"entropy": {"edges": np.linspace(0, 1, 21).tolist(), "shares": sets}},
        "roc": {outside: {"entropy": roc, "disagreement": roc}} if outside else {},
        "dependence": [],
        "function": {"x": np.linspace(-2, 2, 8).tolist(), "y": np.linspace(-2, 2, 8).tolist()},
        "snapshots": [
            {"step": step, "members": alive, "weights": random.uniform(1, 2, pairs).tolist(),
             "functions": random.uniform(0, 1, pairs).tolist(), "entropy": (entropy * step / 200).tolist()}
            for step in (0, 50, 100, 150, 200)
        ],
    }  # fmt: skip
    (folder / "views.json").write_text(json.dumps(views))
    row = {"name": labels[0], "score": 0.7, "true": labels[-1], "said": f"{labels[0]} (51%)", "votes": {labels[0]: 3}}
    row |= {"values": {labels[0]: labels[-1]}, "near": [{"distance": 0.1, "true": labels[0], "values": {"a": "1"}}]}
    points_of = {"x": random.normal(size=(30, 2)).tolist(), "y": random.integers(0, 2, 30).tolist()}
    (folder / "rows.json").write_text(json.dumps({"least": [row] * 2, "most": [row], "points": points_of}))
    return folder


@contextmanager
def browser() -> Iterator[Any]:
    """Debian's Chromium, driven by Playwright; never a download of its own."""
    from playwright.sync_api import sync_playwright

    flags = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=CHROMIUM, args=[*flags, "--disable-sync", "--no-first-run"]
        )
        try:
            yield chromium
        finally:
            chromium.close()


class Opened:
    """A page in a browser, with what it complained about and what it asked the network for."""

    def __init__(self, browser: Any, path: Path, width: int = 1280, dark: bool = False):
        self.context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme="dark" if dark else "light"
        )
        self.page = self.context.new_page()
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", lambda dialog: self.complaints.append(dialog.message) or dialog.dismiss())
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(path.as_uri())

    @property
    def network(self) -> list[str]:
        return [url for url in self.requests if not url.startswith(("data:", "file:"))]

    def close(self) -> None:
        self.context.close()
