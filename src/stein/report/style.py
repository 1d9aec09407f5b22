"""One look for figures and pages: colours, fonts, the order of methods, and which method has which colour."""

import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from stein.methods import ALIASES, METHODS

INK, DATA, BAND, MUTED = "#1f3b57", "#c8553d", "#4a8fc4", "#666666"
CLASSES = ("#e07a5f", "#81b29a", "#f2cc8f", "#6d9dc5", "#b07aa1")
FONTS = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', 'DejaVu Sans', sans-serif"
MONOSPACE = "ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace"
MAP = "viridis"  # a map of matplotlib whose lightness is monotonic: also right in grey

# Okabe and Ito's colours, safe for colour-blind readers, with grey for yellow, which is too light on white; beside each
# the same hue for a dark background.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#56B4E9", "#E69F00", "#8C8C8C")
ON_DARK = ("#5AA9E6", "#F0803C", "#2FC39A", "#E29CC2", "#F2F2F2", "#8FD0F7", "#F2BD3A", "#A8A8A8")
MARKERS = "osD^vPXh"
DASHES = {"-": "", "--": "6 3", ":": "1.5 3", "-.": "8 3 1.5 3"}
"""As matplotlib writes them, and as SVG does."""
_COLOUR_OF = {"de": 4, "sgld": 7, "w-svgd": 5, "f-svgd": 6, "fw-svgd": 1, "h-svgd": 0, "hp-svgd": 2, "wgd": 3}
"""The colour of a family of methods: the same in every figure."""


class Look(NamedTuple):
    """How a method is drawn: the number of its colour, and its dashes, as matplotlib writes them."""

    number: int
    dashes: str

    @property
    def colour(self) -> str:
        return COLOURS[self.number]

    @property
    def marker(self) -> str:
        return MARKERS[self.number]

    @property
    def dasharray(self) -> str:
        return DASHES[self.dashes]


def ordered(names: Iterable[str]) -> list[str]:
    """Names of methods in the order of `stein methods`; a posterior, and names that are none, come last.

    >>> ordered(["HMC", "h-SVGD", "fw-SVGD, exact", "DE"])
    ['DE', 'fw-SVGD, exact', 'h-SVGD', 'HMC']
    """
    places = {name: place for place, name in enumerate(METHODS)}
    return sorted(dict.fromkeys(names), key=lambda name: places.get(_method(name), len(places)))


def looks(names: Iterable[str]) -> dict[str, Look]:
    """A look for each name, all different as long as there are any: a family of methods keeps its colour.

    >>> looks(["DE", "fw-SVGD-l", "fw-SVGD-s"])["fw-SVGD-s"]
    Look(number=1, dashes='--')
    """
    found: dict[str, Look] = {}
    for name in dict.fromkeys(names):
        own = _COLOUR_OF.get(_family(_method(name)))
        numbers = range(len(COLOURS))
        free = [Look(number, dash) for dash in DASHES for number in numbers if Look(number, dash) not in found.values()]
        found[name] = next((look for look in free if look.number == own), free[0] if free else Look(4, "-"))
    return found


def bare(*axes: Any) -> None:
    """Without a frame above and on the right."""
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)


def legend(figure: Any, axes: Iterable[Any]) -> None:
    """One legend for all panels of a matplotlib figure, below them; every name once."""
    found = {label: handle for axis in axes for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    rows = -(-len(found) // max(1, int(figure.get_figwidth() / 1.35)))
    columns = -(-len(found) // rows)
    figure.legend(found.values(), found.keys(), loc="outside lower center", ncols=columns, frameon=False)


def _method(label: str) -> str:
    """The method that a label begins with: ``fw-svgd-l`` of "fw-SVGD, exact"; the label itself if it is none."""
    first = re.split(r"[,\s]", label.strip().lower(), maxsplit=1)[0]
    return ALIASES.get(first, first)


def _family(method: str) -> str:
    family = re.sub(r"-[ls]$", "", method)
    if family.endswith(("wgd", "blob")):
        return "wgd"
    return {"psgld": "sgld", "sghmc": "sgld", "mile": "sgld", "hs-svgd": "hp-svgd"}.get(family, family)
