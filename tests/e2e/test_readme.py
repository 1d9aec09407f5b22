"""The README's example runs as it stands, and shows what it says."""

import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"
CLAIM = """
spread = prediction.epistemic[:, 0]
assert spread[0] > 5 * max(spread[2], spread[5]), spread  # 0 is far from the data, 2 and 5 are in its midst
"""


def test_the_example_is_short_and_its_comment_is_true():
    (example,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert len([line for line in example.splitlines() if line.strip()]) <= 15
    subprocess.run([sys.executable, "-W", "error", "-c", example + CLAIM], check=True)


def test_the_readme_is_one_screen_and_names_its_commands():
    text = README.read_text()
    assert len(text.splitlines()) < 85
    assert "make demo" in text
    assert "make test" in text


def test_the_example_of_the_page_on_runs(tmp_path):
    examples = re.findall(r"```python\n(.*?)```", (README.parent / "docs" / "runs.md").read_text(), re.DOTALL)
    (example,) = [text for text in examples if "hooks.progress" in text]
    before = """if True:
        import jax, stein
        from stein import data, likelihoods, models, priors
        x, y = data.regression_1d()
        target = stein.posterior(models.mlp([1, 8, 1]), likelihoods.gaussian(1.0), priors.normal(1.0), len(x))
        algorithm = stein.build("h-svgd", target)
        batches = data.Batches(x, y, 16, jax.random.key(1))
        state = algorithm.init(jax.random.key(0), 4)
    """
    command = [sys.executable, "-W", "error", "-c", before + "\n" + example.replace("10_000", "300")]
    subprocess.run(command, check=True, cwd=tmp_path)
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 3
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-00000300"]
