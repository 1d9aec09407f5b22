"""Self-contained pages: text, tables and figures in one HTML file."""

import base64
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

STYLE = """
body { font: 16px/1.55 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #1d2733; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2.2rem; }
img { max-width: 100%; } code { background: #eef2f5; padding: .1em .3em; border-radius: 3px; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .25rem .8rem; border-bottom: 1px solid #d9e0e6; }
th:first-child, td:first-child { text-align: left; white-space: nowrap; }
dt { font-weight: 600; margin-top: .5rem; } dd { margin-left: 1.2rem; }
pre { background: #eef2f5; padding: .7rem 1rem; border-radius: 4px; overflow-x: auto; }
"""


def page(title: str, sections: Iterable[tuple[str, str]]) -> str:
    """A complete page; a section is a heading and HTML made by the functions below."""
    body = "\n".join(f"<h2>{escape(heading)}</h2>\n{content}" for heading, content in sections)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>\n'
        f"<style>{STYLE}</style></head>\n<body><h1>{escape(title)}</h1>\n{body}\n</body></html>\n"
    )


def text(paragraph: str) -> str:
    return f"<p>{escape(paragraph)}</p>"


def items(sentences: Iterable[str]) -> str:
    return "<ul>" + "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences) + "</ul>"


def terms(explained: Iterable[tuple[str, str]]) -> str:
    """Terms and their meanings."""
    return "<dl>" + "".join(f"<dt>{escape(term)}</dt><dd>{escape(sense)}</dd>" for term, sense in explained) + "</dl>"


def commands(lines: Iterable[str]) -> str:
    return "<pre>" + escape("\n".join(lines)) + "</pre>"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    def line(cells: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"

    return "<table>" + line(header, "th") + "".join(line(row, "td") for row in rows) + "</table>"


def image(path: Path, words: str) -> str:
    """The embedded image, not a link; ``words`` are its alternative text."""
    kind = path.suffix.removeprefix(".")
    data = base64.b64encode(path.read_bytes()).decode()
    return f'<img alt="{escape(words, quote=True)}" src="data:image/{kind};base64,{data}">'
