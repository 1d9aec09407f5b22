"""The code of the documentation: found in its pages, and run at a small size, all pages in one process."""

import contextlib
import functools
import inspect
import io
import json
import os
import re
import shlex
import shutil
import sys
import time
import traceback
import types
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
TUTORIAL = ROOT / "docs" / "tutorial"

# What a reader has at hand where the blocks of a page begin; `runs/houses` is what the first tutorial left.
NETWORK = """
import jax, numpy as np, stein
from stein import data, likelihoods, models, priors, train
from stein.targets import Measurement
x, y = data.regression_1d()
model, likelihood, prior = models.mlp([1, 8, 1]), likelihoods.gaussian(1.0), priors.normal(1.0)
algorithm = stein.build("h-svgd", stein.posterior(model, likelihood, prior, len(x)))
batches = data.Batches(x, y, 16, jax.random.key(1))
state = algorithm.init(jax.random.key(0), 4)
"""
BEFORE = {
    "docs/data.md": """
from pathlib import Path
import numpy as np
import documents
documents.tiny_data_sets(Path("data"))
np.save("my_pictures.npy", np.zeros((2, 28, 28), np.uint8))
""",
    "docs/evaluation.md": """
import jax
from stein import data, likelihoods, models
x_test, y_test = data.classification_2d()
x_far = data.far_from_the_ring()
model, likelihood = models.mlp([2, 8, 5]), likelihoods.categorical()
state = jax.vmap(model.init)(jax.random.split(jax.random.key(0), 3))
""",
    "docs/findings.md": NETWORK,
    "docs/runs.md": NETWORK + 'import pandas\nnew_houses = pandas.read_csv("examples/new_houses.csv")\n',
    "docs/scale.md": NETWORK
    + """
import pyarrow, pyarrow.parquet
np.save("x.npy", x), np.save("y.npy", y)
pyarrow.parquet.write_table(pyarrow.table({"x": x[:, 0], "price": np.ravel(y)}), "houses.parquet")
rows = list(zip(x.astype(np.float32), y.astype(np.float32)))
""",
    "docs/tables.md": 'import pandas, stein\ntable = pandas.read_csv("examples/new_houses.csv")\n',
    "docs/tutorial/unusual.md": 'import shutil\nshutil.copy("examples/new_houses.csv", "far.csv")\n',
}
# Run by tests of their own, which hold them to what they say: test_readme.py, test_deploy.py.
ELSEWHERE = ("README.md", "docs/research.md", "docs/deploy.md")
# More of these only takes longer: function, argument, the most.
LIMITS = [("train.run", "steps", 20), ("hmc.warm_up", "steps", 20), ("samples.collect", "draws", 5)]
SMALL = {"fit": ["--steps", "20", "--particles", "2", "--set", "model.hidden=[8]", "--quiet"], "train": ["--quiet"]}


class Block(NamedTuple):
    """A fenced block: its language ("" or "sh" for a terminal's), its text, and the line on which that begins."""

    language: str
    text: str
    line: int

    @property
    def commands(self) -> list[str]:
        """The lines of a terminal, without comments."""
        lines = self.text.replace("\\\n", " ").splitlines()
        return [line.split(" #")[0].strip() for line in lines if line.strip()]


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path) -> Iterator[Block]:
    """The code of a page, without directives such as a table of contents."""
    text = page.read_text()
    for found in re.finditer(r"^```([^\n]*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        if not found[1].startswith("{"):
            yield Block(found[1], found[2], text.count("\n", 0, found.start()) + 2)


def python(page: Path) -> list[Block]:
    return [block for block in blocks(page) if block.language == "python"]


def runs(page: Path) -> bool:
    """Whether a page has code to run: Python, or the commands of a tutorial."""
    if name(page) in ELSEWHERE:
        return False
    return bool(python(page)) or any(block.language == "" for block in blocks(page) if page.parent == TUTORIAL)


def tiny_data_sets(root: Path) -> None:
    """FashionMNIST and yacht of a few bytes, where the real ones would be looked for first."""
    import tiny_data
    from stein.datasets import sources

    images = tiny_data.mnist("fashion-mnist")
    table = {"data": b"1 10\n2 20\n3 30\n", "index_features": b"0\n", "index_target": b"1\n"}
    table |= {"index_train_0": b"0\n2\n", "index_test_0": b"1\n"}
    files = [tiny_data.file(f"UCI/yacht/{name}.txt", content) for name, content in table.items()]
    sources.DATASETS["fashion-mnist"] = tiny_data.known("fashion-mnist", images)
    sources.DATASETS["uci-yacht"] = sources.DATASETS["uci-yacht"]._replace(files=tuple(files))
    for path, content in images.items():
        tiny_data.put(root, path, tiny_data.zipped(content))
    for entry, content in zip(files, table.values(), strict=True):
        tiny_data.put(root, entry.path, content)
    os.environ["STEIN_DATA"] = str(root)


def limited(function: Callable, argument: str, most: int) -> Callable:
    @functools.wraps(function)
    def small(*given: Any, **named: Any) -> Any:
        bound = inspect.signature(function).bind(*given, **named)
        bound.arguments[argument] = min(bound.arguments[argument], most)
        return function(*bound.args, **bound.kwargs)

    return small


def run_command(command: str, small: bool) -> None:
    """A command of a terminal: `stein` in this process; others are only checked (test_documentation.py)."""
    from stein import cli

    program, *arguments = shlex.split(command)
    if program != "stein":
        return
    if small:
        arguments = [re.sub(r"\b(\d+)000$", r"\1", argument) for argument in arguments] + SMALL.get(arguments[0], [])
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        code = cli.main(arguments)
    if code:
        raise AssertionError(f"{command}: exit {code}: {said.getvalue()}")


def run_page(page: Path, small: bool) -> None:
    """Its Python, and of a tutorial its commands too, in the order of the page, as one program."""
    module = types.ModuleType(f"page_{page.stem}")  # not "sklearn", which others import
    sys.modules[module.__name__] = module  # Flax looks its modules' types up there
    exec(BEFORE.get(name(page), ""), module.__dict__)  # noqa: S102 - our own pages
    for block in blocks(page):
        if block.language == "python":
            code = "\n" * (block.line - 1) + block.text  # so that a traceback has the line of the page
            exec(compile(code, name(page), "exec"), module.__dict__)  # noqa: S102
        elif block.language == "" and page.parent == TUTORIAL:
            for command in block.commands:
                run_command(command, small)


def main(results: Path, small: bool, only: list[str]) -> None:
    """Every page in turn, the tutorial of the houses first: the others use its run. Writes page -> error or ""."""
    import jax

    import stein
    from stein.runs import choosing

    warnings.filterwarnings("ignore", r"\s*ArviZ is undergoing a major refactor", FutureWarning)
    if small:
        warnings.filterwarnings("ignore", r"step \d+: ", UserWarning)  # twenty steps are too few, as it says
        for place, argument, most in LIMITS:
            module, function = place.split(".")
            home = getattr(stein, module)
            setattr(home, function, limited(getattr(home, function), argument, most))
    shutil.copytree(ROOT / "examples", "examples")
    errors = {}
    for page in sorted(filter(runs, PAGES), key=lambda page: page.name != "houses.md"):
        if only and name(page) not in [*only, "docs/tutorial/houses.md"]:
            continue
        start = time.process_time()
        try:
            run_page(page, small)
            errors[name(page)] = ""
        except Exception:
            errors[name(page)] = traceback.format_exc()
        jax.config.update("jax_enable_x64", False)  # one page turns it on
        if small:
            choosing.FEW = 10**9  # only the first page, `stein fit`, tries priors
        print(f"--- {name(page)}: {time.process_time() - start:.1f} s", flush=True)
    results.write_text(json.dumps(errors))


if __name__ == "__main__":
    os.environ["MPLBACKEND"] = "Agg"
    main(Path(sys.argv[1]), sys.argv[2] == "small", sys.argv[3:])
