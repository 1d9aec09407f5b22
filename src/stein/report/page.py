"""Self-contained pages: templates, styles and the script in one HTML file, which loads nothing and asks nobody.

Names come from strangers: every text goes through the templates, which escape it, and the page's own policy lets the
browser run this script and no other.
"""

import base64
import hashlib
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
from markupsafe import Markup

from stein import __version__
from stein.report import style
from stein.report.style import Look

TEMPLATES = Path(__file__).parent / "templates"
LONGEST = 60  # characters of a name in a figure or a table


class Section(NamedTuple):
    """A part of a page; ``body`` is made by the functions below."""

    id: str
    title: str
    body: Markup


class Key(NamedTuple):
    """Something that can be switched on and off in all figures: ``key`` is in the markup, ``name`` is shown."""

    key: str
    name: str
    look: Look


class Head(NamedTuple):
    """The head of a column, and what it means."""

    text: str
    meaning: str = ""


class Cell(NamedTuple):
    """A cell: its text, the number that it is sorted by, and whether it is the best of its column."""

    text: str
    value: float | None = None
    best: bool = False


class Line(NamedTuple):
    """A row of a table; the first cell names it."""

    cells: Sequence[Cell]
    key: str = ""
    look: Look | None = None


class Missing(NamedTuple):
    """What a section would need, and the command that makes it."""

    words: str
    command: str = ""


@cache
def _environment() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _part(name: str, *arguments: Any, **keywords: Any) -> Markup:
    """A macro of parts.html; all arguments that are not markup are escaped."""
    module: Any = _environment().get_template("parts.html").module
    return Markup(getattr(module, name)(*arguments, **keywords))


def page(
    title: str, sections: Sequence[Section], keys: Sequence[Key] = (), about: Sequence[str] = (), footer: str = ""
) -> bytes:
    """A complete page. Characters that cannot be written, such as half of a file name, become question marks."""
    script = _script("page")
    text = (
        _environment()
        .get_template("page.html")
        .render(
            title=shortened(title, 200),
            sections=sections,
            keys=keys,
            about=about,
            footer=footer or f"Written by stein {__version__}.",
            css=Markup(css()),
            script=Markup(script),
            policy=_policy(script),
        )
    )
    return text.encode("utf-8", "replace")


def live(title: str, name: str) -> bytes:
    """A page that fetches what it shows from its own server: the templates NAME.html and NAME.js."""
    script = _script(name)
    template = _environment().get_template(f"{name}.html")
    policy = _policy(script) + "; connect-src 'self'"
    shown = {"css": Markup(css()), "script": Markup(script)}
    return template.render(title=title, policy=policy, **shown).encode()


def _script(name: str) -> str:
    return (TEMPLATES / f"{name}.js").read_text(encoding="utf-8")


def _policy(script: str) -> str:
    """What a browser may run: this script and no other, and nothing from anywhere else."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"


def css() -> str:
    """The style sheet, with the colours of :mod:`stein.report.style`."""
    light = {"ink": "#1d2733", "soft": "#56626e", "paper": "#ffffff", "shade": "#eef2f5", "line": "#d5dce2"}
    light |= {"link": "#0b62a0", "data": style.DATA, "font": style.FONTS, "mono": style.MONOSPACE}
    dark = {"ink": "#e6ebf0", "soft": "#a9b4bf", "paper": "#14191f", "shade": "#222a33", "line": "#37424d"}
    dark |= {"link": "#7fc0f0", "data": "#ff8a70"}
    light |= {f"c{i}": colour for i, colour in enumerate(style.COLOURS)}
    dark |= {f"c{i}": colour for i, colour in enumerate(style.ON_DARK)}

    def variables(values: dict[str, str]) -> str:
        return "".join(f"--{name}: {value};" for name, value in values.items())

    series = "".join(
        f".s{i} {{ stroke: var(--c{i}); }} .f{i} {{ fill: var(--c{i}); }}\n" for i in range(len(style.COLOURS))
    )
    return (
        f":root {{ color-scheme: light; {variables(light)} }}\n"
        f"@media screen and (prefers-color-scheme: dark) {{ :root:not([data-theme=light]) {{ color-scheme: dark; "
        f"{variables(dark)} }} }}\n"
        f"@media screen {{ :root[data-theme=dark] {{ color-scheme: dark; {variables(dark)} }} }}\n"
        f"{series}{(TEMPLATES / 'page.css').read_text(encoding='utf-8')}"
    )


def shortened(name: str, most: int = LONGEST) -> str:
    """A name that fits: the middle of a longer one is left out."""
    return name if len(name) <= most else f"{name[: most // 2]}…{name[-(most // 2 - 1) :]}"


# -- the parts of a section ---------------------------------------------------------------------------------


def join(*parts: Markup) -> Markup:
    return Markup("\n").join(parts)


def paragraphs(sentences: Iterable[str]) -> Markup:
    return _part("paragraphs", list(sentences))


def items(sentences: Iterable[str]) -> Markup:
    return _part("items", list(sentences))


def missing(lines: Iterable[Missing]) -> Markup:
    return _part("missing", list(lines))


def terms(explained: Iterable[tuple[str, str]]) -> Markup:
    """Terms and their meanings."""
    return _part("terms", list(explained))


def commands(lines: Iterable[str]) -> Markup:
    return _part("commands", list(lines))


def details(summary: str, body: Markup, is_open: bool = False) -> Markup:
    return _part("details", summary, body, is_open)


def table(caption: str, header: Sequence[Head], rows: Sequence[Line], note: str = "") -> Markup:
    """A table that the reader can sort."""
    return _part("table", caption, header, rows, note)


def grid(figures: Iterable[Markup], small: bool = False) -> Markup:
    start = Markup('<div class="grid small">') if small else Markup('<div class="grid">')
    return start + Markup("\n").join(figures) + Markup("</div>")


def figure(
    title: str,
    drawing: Markup,
    data: Markup | str = "",
    legend: Sequence[Key] = (),
    note: str = "",
    wide: bool = False,
) -> Markup:
    return _part("figure", title, drawing, data, legend, note, wide)


def switched(part: Markup, key: str) -> Markup:
    """A part that is switched on and off with a key."""
    return Markup('<div data-key="{}">{}</div>').format(key, part)


def frames(label: str, steps: Sequence[str], panels: Sequence[Markup], small: bool = False) -> Markup:
    """Panels with one slider through their snapshots."""
    return _part("frames", label, steps, panels, small)


def rows(title: str, entries: Sequence[Any]) -> Markup:
    """Single rows of the data, with what the ensemble says about each."""
    return _part("rows", title, entries)


def picture(path: Path, words: str, title: str = "") -> Markup:
    """The embedded image, not a link; ``words`` are its alternative text."""
    kind = path.suffix.removeprefix(".")
    data = base64.b64encode(path.read_bytes()).decode()
    return _part("picture", f"data:image/{kind};base64,{data}", words, title)
