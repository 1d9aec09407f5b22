"""The architecture as a table: a module imports only from lower rows, the lowest see only arrays."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import stein

ROWS = """
15 cli
14 paper
13 sklearn serve watch
12 runs
11 report
10 samples evaluate hooks
9  hmc train predict sharding
8  ensembles
7  rules steps microcanonical
6  targets
5  likelihoods functional_priors datasets calibration
4  predictions scores data
3  kernels priors models pullbacks batches measurements features draws metrics tables
2  tree
1  types schedules devices processes compiler defaults
0  inputs versions methods storage
"""
# The rooms of `runs`, likewise.
RUNS = """
15 trials
14 pool run adaptive
13 assess
12 streaming portrait
11 exported
10 training
9 conclusion pages
8 card summary standings
7 comparison fitting choosing forecast reading launchers
6 build environment more_steps status search
5 named
4 configs dataset
3 conflicts tables
2 wording template
1 keys folder kinds record images
0 schema sizes signals calibrated
"""

PURE_UP_TO_ROW = 8
IMPURE = ("stein.data", "stein.datasets", "stein.models.adapters", "stein.storage", "stein.versions")
PURE_IMPORTS = {
    *("jax", "jaxlib", "jaxtyping", "numpy", "scipy", "optax", "equinox", "blackjax"),
    *(
        "__future__",
        "abc",
        "collections",
        "contextlib",
        "dataclasses",
        "difflib",
        "enum",
        "functools",
        "importlib",
        "inspect",
        "itertools",
        "math",
    ),
    *("numbers", "operator", "string", "types", "typing"),
}
IMPURE_CALLS = ("print", "open", "input", "config.update", "debug.print", "load", "save", "savez", "tofile")

# The package itself offers rows 0-12 by name; what needs its names must therefore stand above them.
FACADE_ROW = 13


def rows(table: str) -> dict[str, int]:
    return {name: int(row) for row, *names in map(str.split, table.strip().splitlines()) for name in names}


ROW_OF = rows(ROWS)
ROW_IN_RUNS = rows(RUNS)

SOURCE = Path(stein.__file__).parent


def violations(package: Path) -> list[str]:
    """Everything in the tree of ``package`` (a directory called ``stein``) that the table forbids."""
    found = []
    for path in sorted(package.rglob("*.py")):
        module = ".".join(path.relative_to(package.parent).with_suffix("").parts).removesuffix(".__init__")
        found += [f"{module}: {problem}" for problem in _problems(module, path, package)]
    return found


def _problems(module: str, path: Path, package: Path) -> list[str]:
    own = _part(module)
    if own and own not in ROW_OF:
        return [f"{own} is missing from the table"]
    tree = ast.parse(path.read_text(), str(path))
    row = ROW_OF[own] if own else FACADE_ROW
    pure = row <= PURE_UP_TO_ROW and not module.startswith(IMPURE)
    problems = []
    for imported in _imports(tree, module, is_package=path.name == "__init__.py"):
        if imported.split(".")[0] != "stein":
            if pure and imported.split(".")[0] not in PURE_IMPORTS:
                problems.append(f"imports {imported}, which is not pure")
            continue
        other = _part(imported)
        if own == other == "runs":
            problems += _inside_runs(module, imported)
            continue
        if other and not ((package / other).is_dir() or (package / f"{other}.py").is_file()):
            if other == "__version__":
                continue
            other = ""  # a name that the package itself offers
        if other == own:
            continue
        if (ROW_OF.get(other, FACADE_ROW) if other else FACADE_ROW) >= row:
            problems.append(f"imports {imported}, which is not in a lower row")
    if pure:
        problems += [f"calls {call}" for call in _calls(tree) if f".{call}".endswith(_IMPURE_ENDINGS)]
    return problems


def _inside_runs(module: str, imported: str) -> list[str]:
    here, there = (name.split(".")[2] if name.count(".") > 1 else "" for name in (module, imported))
    if here not in ROW_IN_RUNS:
        return [] if not here else [f"{here} is missing from the table of runs"]
    if there not in ROW_IN_RUNS or ROW_IN_RUNS[there] >= ROW_IN_RUNS[here]:
        return [f"imports {imported}, which is not in a lower row of runs"]
    return []


_IMPURE_ENDINGS = tuple(f".{call}" for call in IMPURE_CALLS)


def _part(module: str) -> str:
    """``stein.rules.svgd`` belongs to ``rules``; the package itself is the empty part."""
    return module.split(".")[1] if "." in module else ""


def _imports(tree: ast.AST, module: str, is_package: bool) -> list[str]:
    """Absolute dotted names of all imports, wherever in the file they stand."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = module.split(".")
                kept = len(above) - node.level + is_package
                base = ".".join([*above[:kept], *([base] if base else [])])
            found += [f"{base}.{alias.name}" for alias in node.names]
    return found


def _calls(tree: ast.AST) -> list[str]:
    return [ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)]


def test_source_keeps_the_table() -> None:
    assert violations(SOURCE) == []


@pytest.mark.parametrize(
    ("file", "code", "complaint"),
    [
        ("kernels.py", "from stein.rules import svgd", "stein.kernels: imports stein.rules.svgd"),
        ("kernels.py", "import stein.train", "stein.kernels: imports stein.train"),
        ("kernels.py", "from . import priors", "stein.kernels: imports stein.priors"),
        ("kernels.py", "def f():\n    from .train import run", "stein.kernels: imports stein.train.run"),
        ("kernels.py", "from stein import posterior", "stein.kernels: imports stein.posterior"),
        ("kernels.py", "import stein", "stein.kernels: imports stein"),
        ("rules/svgd.py", "from ..train import run", "stein.rules.svgd: imports stein.train.run"),
        ("rules/__init__.py", "from ..train import run", "stein.rules: imports stein.train.run"),
        ("train.py", "from stein import predict", "stein.train: imports stein.predict"),
        (
            "storage/checkpoint.py",
            "from stein.ensembles import State",
            "stein.storage.checkpoint: imports stein.ensembles",
        ),
        ("runs/build.py", "from stein.runs import training", "stein.runs.build: imports stein.runs.training"),
        ("runs/build.py", "from stein.paper import demo", "stein.runs.build: imports stein.paper.demo"),
        ("runs/folder.py", "from stein.runs.record import facts", "stein.runs.folder: imports stein.runs.record.facts"),
        ("__init__.py", "from stein import paper", "stein: imports stein.paper"),
        ("steps.py", "from stein import rules", "stein.steps: imports stein.rules"),
        ("targets.py", "import sklearn.linear_model", "stein.targets: imports sklearn.linear_model, which is not pure"),
        ("targets.py", "import time", "stein.targets: imports time, which is not pure"),
        ("targets.py", "def f(x):\n    print(x)", "stein.targets: calls print"),
        ("targets.py", "open('x')", "stein.targets: calls open"),
        ("targets.py", "import jax\njax.config.update('x', 1)", "stein.targets: calls jax.config.update"),
        ("models/mlp.py", "import flax", "stein.models.mlp: imports flax, which is not pure"),
        ("utils.py", "", "stein.utils: utils is missing from the table"),
    ],
)
def test_planted_violation_is_found(tmp_path: Path, file: str, code: str, complaint: str) -> None:
    found = violations(_tree(tmp_path, {file: code}))
    assert len(found) == 1
    assert found[0].startswith(complaint)


def test_allowed_imports_pass(tmp_path: Path) -> None:
    files = {
        "__init__.py": "from stein.train import run",
        "train.py": "import time\nfrom stein import batches, ensembles\nprint(time.time())",
        "storage/checkpoint.py": "from stein import __version__\nfrom stein.storage import durable",
        "rules/svgd.py": "from .noise import none\nfrom stein.targets import View\nimport jax.numpy as jnp",
        "models/adapters.py": "import flax",
        "data/__init__.py": "import gzip\nopen('x')",
        "cli/main.py": "from stein import posterior, runs",
        "runs/training.py": "from stein.runs import build, configs",
        "kernels.py": "from collections.abc import Callable\nfrom .types import Key",
    }
    assert violations(_tree(tmp_path, files)) == []


def _tree(parent: Path, files: dict[str, str]) -> Path:
    """A package with every module of the table, empty but for ``files``."""
    package = parent / "stein"
    packages = {"models", "metrics", "data", "tables", "datasets", "rules", "runs", "paper", "report", "storage"}
    packages |= {"hooks", "cli", "sklearn", "serve"}
    empty = {f"{name}/__init__.py" if name in packages else f"{name}.py": "" for name in ROW_OF}
    for file, code in (empty | files).items():
        (package / file).parent.mkdir(parents=True, exist_ok=True)
        (package / file).write_text(code)
    return package


@pytest.mark.parametrize("name", stein.__all__)
def test_public_names_resolve(name: str) -> None:
    assert getattr(stein, name).__name__.split(".")[-1] == name


def test_ensemble_stays_the_function() -> None:
    import stein.ensembles

    assert stein.ensemble is stein.ensembles.ensemble
    assert not (SOURCE / "ensemble.py").exists(), "a submodule would shadow the function stein.ensemble"


def test_type_checkers_see_the_lazy_names() -> None:
    block = next(n for n in ast.parse((SOURCE / "__init__.py").read_text()).body if isinstance(n, ast.If))
    shown = [alias.name for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names]
    assert sorted(shown) == sorted(stein.__all__)


def test_only_public_names_are_listed() -> None:
    assert dir(stein) == sorted(["__version__", *stein.__all__])


def test_unknown_attribute_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        stein.nonsense  # noqa: B018


def test_no_module_is_imported_under_another_name() -> None:
    """One thing has one name: a reader finds it by that."""
    modules = {".".join(path.relative_to(SOURCE.parent).with_suffix("").parts) for path in SOURCE.rglob("*.py")}
    modules |= {module.removesuffix(".__init__") for module in modules}
    renamed = [
        f"{path.name}: {node.module}.{alias.name} as {alias.asname}"
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname and f"{node.module}.{alias.name}" in modules
    ]
    assert renamed == []


def test_nothing_is_told_by_its_display_name() -> None:
    """A likelihood or a task is what it does, not what it is called."""
    compared = [
        f"{path.name}:{node.lineno}: {ast.unparse(node)}"
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Compare)
        and re.search(r"\b(likelihood|task|self)\.name\b", ast.unparse(node))
        and not re.search(r"\bconfig\.likelihood\.name\b", ast.unparse(node))  # a key of a config is a word
    ]
    assert compared == []


def test_importing_the_command_line_does_not_import_jax() -> None:
    script = "import sys, stein.cli; sys.exit('jax' in sys.modules or 'numpy' in sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True)
