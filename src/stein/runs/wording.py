"""Values and keys of a config in error messages: on one short line, with the nearest name that exists."""

import difflib
import re
import reprlib
from collections.abc import Iterable
from typing import Any

from stein.runs.keys import KEYS

_short = reprlib.Repr()
_short.maxstring = _short.maxother = _short.maxlong = 80


def shown(value: Any) -> str:
    """A value from the file, on one short line."""
    if isinstance(value, bool):
        return str(value).lower()
    try:
        return _short.repr(value)
    except ValueError:  # Python formats no integer of more than 4300 digits
        return "a number too long to show"


def key_name(key: str) -> str:
    """A key from the file; quoted if it has unusual characters."""
    return key if re.fullmatch(r"[\w-]{1,60}", key) else shown(key)


def printable(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text)


def nearest(word: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(word[:100].lower(), known, n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def where_it_belongs(key: str, known: Iterable[str]) -> str:
    """The hint for an unknown key: the section where it belongs, or the nearest name."""
    homes = [f"{section}.{key}" for section, keys in KEYS.items() if key in keys]
    return f"; did you mean {homes[0]!r}?" if homes else nearest(key, known)
