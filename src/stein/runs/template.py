"""A config with every key explained, as a file and as a table."""

import textwrap
from typing import Any

import tomli_w

from stein.runs.keys import KEYS, SECTIONS, Key

WIDTH = 120


def template() -> str:
    """A config with every key at its default, explained in comments: what ``stein config init`` writes."""
    lines = [
        "# A run of stein. `stein train FILE` starts it; every line but data.name is the default and may be left out."
    ]
    for section, keys in KEYS.items():
        lines += ["", f"[{section}]  # {SECTIONS[section].__doc__}"]
        values = {key: "regression-1d" if (section, key) == ("data", "name") else keys[key].default for key in keys}
        settings = {key: f"{key} = {_toml(value)}" for key, value in values.items()}
        indent = max(map(len, settings.values())) + 2
        for key, setting in settings.items():
            comment = textwrap.wrap(_explained(keys[key]), WIDTH - indent - 2, break_on_hyphens=False)
            starts = [setting, *[""] * (len(comment) - 1)]
            lines += [f"{start:<{indent}}# {words}" for start, words in zip(starts, comment, strict=True)]
    return "\n".join(lines) + "\n"


def describe() -> Any:
    """The table of all keys for ``stein train --help``, to be printed by rich."""
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    table.add_column("key", no_wrap=True, style="bold")
    table.add_column("default", overflow="fold")
    table.add_column("meaning")
    for section, keys in KEYS.items():
        for name, key in keys.items():
            table.add_row(f"{section}.{name}", _toml(key.default), _explained(key))
    return table


def _toml(value: Any) -> str:
    """One value as TOML, a list on one line."""
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return tomli_w.dumps({"value": value}).removeprefix("value = ").strip()


def _explained(key: Key) -> str:
    plain = key.allowed.startswith(("true", "text"))  # adds nothing to the default
    return key.meaning if plain else f"{key.meaning}; {key.allowed}"
