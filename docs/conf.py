"""The documentation: `make docs` builds it, tests/e2e/test_documentation.py runs its examples."""

import re
from pathlib import Path
from typing import Any

import stein
from stein.report import page

project = "stein"
copyright = "The stein developers"
version = release = stein.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
    "sphinx_design",
    "sphinx-mathjax-offline",
]
myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 3  # the slugs of links such as findings.md#the-demo
math_eqref_format = "equation ({number})"

autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints_format = "short"
autodoc_default_options = {"members": True, "show-inheritance": False}
napoleon_use_rtype = False
napoleon_use_ivar = True

html_theme = "pydata_sphinx_theme"
html_title = f"stein {version}"
html_show_sourcelink = False
html_static_path = ["static"]
html_css_files = ["stein.css"]
html_sidebars = {"choose": [], "install": []}  # they have no pages below them
html_theme_options = {
    "logo": {"text": "stein"},
    "header_links_before_dropdown": 7,
    "show_toc_level": 2,
    "footer_start": ["copyright"],
    "footer_end": [],
}


def files_elsewhere(app: Any, name: str, text: list[str]) -> None:
    """Markdown outside of docs/ (the README, results, benchmarks) is no page: links to it are to the file."""
    if "/" not in name:
        text[0] = re.sub(r"\]\((?=\.\./[^)]*\.md\))", "](path:", text[0])


def fields(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """``Cost: ...`` and its like, which every rule has, become fields; Napoleon knows only whole sections."""
    lines[:] = [re.sub(r"^(Cost|Limits|Reference): ", r":\1: ", line) for line in lines]
    for i in range(len(lines) - 1, 0, -1):
        if re.match(r":Cost|:Limits|:Reference", lines[i]) and lines[i - 1] and not lines[i - 1].startswith((":", " ")):
            lines.insert(i, "")  # a field list begins after a blank line


def without_fields_of_tuples(app: Any, what: str, name: str, obj: Any, skip: bool, options: Any) -> bool | None:
    """The fields of a ``NamedTuple`` are in its docstring; Python says of them "Alias for field number 0"."""
    return True if type(obj).__name__ == "_tuplegetter" else None


def playground(app: Any, error: Exception | None) -> None:
    """The page that `stein watch` serves too."""
    if error is None and app.builder.format == "html":
        (Path(app.outdir) / "_static" / "playground.html").write_bytes(page.live("Playground", "playground"))


def setup(app: Any) -> None:
    app.connect("source-read", files_elsewhere)
    app.connect("autodoc-process-docstring", fields, priority=400)  # before Napoleon, at 500
    app.connect("autodoc-skip-member", without_fields_of_tuples)
    app.connect("build-finished", playground)
