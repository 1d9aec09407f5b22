"""The wheel, installed by itself into an empty environment, is complete and holds nothing else."""

import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.long  # installs half a gigabyte

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "build", "--wheel", "--outdir", str(out), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True, text=True)
    return next(out.glob("*.whl"))


def test_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert "stein/py.typed" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    source = {str(p.relative_to(ROOT / "src")) for p in (ROOT / "src/stein").rglob("*.py")}
    assert source <= set(names)
    strangers = [name for name in names if not name.startswith(("stein/", "stein-"))]
    assert strangers == []
    assert not [name for name in names if "test" in name or "result" in name or "__pycache__" in name]


def test_wheel_works_in_a_clean_environment(wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "env", with_pip=True)
    scripts = tmp_path / "env" / "bin"

    def run(*command: str | Path) -> str:
        # Isolated from the checkout: another directory, and no variable that leads back to it.
        keep = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        return subprocess.run(
            command, check=True, capture_output=True, text=True, cwd=tmp_path, env=keep, timeout=300
        ).stdout

    run(scripts / "python", "-m", "pip", "install", "-q", "--disable-pip-version-check", wheel)
    where = run(scripts / "python", "-c", "import stein; stein.posterior; print(stein.__file__)")
    assert Path(where.strip()).is_relative_to(tmp_path)
    assert "methods" in run(scripts / "stein", "--help")
    assert "w-svgd" in run(scripts / "stein", "methods")
