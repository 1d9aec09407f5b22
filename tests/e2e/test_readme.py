"""The README's example runs as it stands, and shows what it says."""

import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"
CLAIM = """
spread = f.std(axis=0)
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
