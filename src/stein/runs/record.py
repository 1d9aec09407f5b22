"""The record of a run's data in data.json, and how data that are read again differ from it. No jax here.

Digests are of the numbers and names, not of the bytes of a file: a CSV that was saved again has the same digest.
"""

import hashlib
import math
from typing import Annotated, Any

import msgspec
import numpy as np

from stein import data
from stein.data.arrays import Table

MOST_COLUMNS = 1000  # tables with more columns have no digest per column
MOST_NUMBERS = 2**24  # larger tables are not checked for reordered rows, which takes about a second here


class _Unskewing(msgspec.Struct):
    power: list[float]
    mean: list[float]
    scale: list[float]


class Scales(msgspec.Struct):
    """A :class:`stein.data.Standardiser` in JSON; ``shape`` is that of an image, whose pixels are listed in order."""

    mean: list[float]
    scale: list[float]
    unskewing: _Unskewing | None = None
    shape: list[Annotated[int, msgspec.Meta(ge=1)]] | None = None


def scales(of: data.Standardiser | None) -> dict[str, Any] | None:
    """A standardiser as it is written."""
    if of is None:
        return None
    found: dict[str, Any] = {"mean": of.mean.ravel().tolist(), "scale": of.scale.ravel().tolist()}
    if of.mean.ndim > 1:
        found["shape"] = list(of.mean.shape)
    if of.unskewing is not None:
        found["unskewing"] = {name: values.tolist() for name, values in of.unskewing._asdict().items()}
    return found


def standardiser(written: Any) -> data.Standardiser:
    """The standardiser that was written, as builtins or as :class:`Scales`."""
    found = msgspec.convert(written, Scales, from_attributes=True)
    bent = None
    if found.unskewing is not None:
        bent = data.Unskewing(*map(np.array, msgspec.structs.astuple(found.unskewing)))
    numbers = (np.array(found.mean), np.array(found.scale), *(bent or ()))
    if len({len(values) for values in numbers}) > 1:
        raise ValueError("standardiser: its lists have different lengths; the file is damaged")
    shape = [len(numbers[0])] if found.shape is None else found.shape
    if math.prod(shape) != len(numbers[0]):
        raise ValueError(f"standardiser: {len(numbers[0])} numbers do not have the shape {shape}; the file is damaged")
    return data.Standardiser(numbers[0].reshape(shape), numbers[1].reshape(shape), bent)


def facts(table: Table) -> dict[str, Any]:
    """Rows, names and digests of a table."""
    columns = _columns(table)
    found = {
        "rows": len(table.x),
        "inputs": list(table.inputs),
        "target": table.target,
        "columns": columns,
        "values": _digest(_numbers(table.x)),
        "targets": _targets(table),
        "split": None if table.parts is None else _text_digest(table.parts),
        "any_order": _any_order(table),
    }
    return found | {"digest": _digest(repr(sorted(found.items())).encode())}


def as_numbers(values: np.ndarray) -> np.ndarray:
    """A column as numbers that identify its values: text becomes 48 bits of its digest."""
    if values.dtype.kind != "O":
        return values
    number = {text: float(int(_text_digest(text)[:12], 16)) for text in set(values.tolist())}
    return np.array([number[text] for text in values.tolist()])


def difference(before: dict[str, Any], table: Table) -> str:
    """A description of how a table differs from its recorded facts; empty if it does not."""
    now = facts(table)
    if now["digest"] == before.get("digest"):
        return ""
    names, old = now["inputs"], before.get("inputs", [])
    if sorted(names) == sorted(old) and names != old:
        return f"its columns have another order: {_some(names)}, before {_some(old)}"
    if names != old:
        gone, new = [n for n in old if n not in names], [n for n in names if n not in old]
        words = [f"{len(names)} inputs, before {len(old)}"] if len(names) != len(old) else []
        words += [f"no column {_some(gone)}"] if gone else []
        return ", ".join(words + ([f"new: {_some(new)}"] if new else []))
    if now["target"] != before.get("target"):
        return f"the target column is {now['target']!r}, before {before.get('target')!r}"
    more = now["rows"] - before.get("rows", 0)
    if more:
        others = ""
        if more > 0:
            rows = before["rows"]
            parts = None if table.parts is None else table.parts[:rows]
            first = facts(table._replace(x=table.x[:rows], y=table.y[:rows], parts=parts))
            others = ", appended to the same rows" if first["digest"] == before["digest"] else ", and others changed"
        return f"it has {abs(more)} rows {'more' if more > 0 else 'fewer'}{others}"
    same = [now[key] == before.get(key) for key in ("values", "targets")]
    if not all(same) and now["any_order"] and now["any_order"] == before.get("any_order"):
        return "the same rows are in another order"
    changed = [name for name, digest in now["columns"].items() if digest != before.get("columns", {}).get(name)]
    if sorted(now["columns"].values()) == sorted(before.get("columns", {}).values()) and changed:
        return f"the values of columns {_some(changed)} are exchanged"
    words = []
    if not same[0]:
        words.append("input values changed" + (f" in {_some(changed)}" if changed else ""))
    if not same[1]:
        words.append("target values changed")
    return " and ".join(words) or "the split column changed"


def stream_difference(before: dict[str, Any], now: dict[str, Any]) -> str:
    """A description of how the files of a stream differ from the recorded ones; empty if they do not."""
    for old, new in zip(before.get("files", []), now["files"], strict=False):
        if new["bytes"] != old.get("bytes"):
            return f"{new['name']} has {new['bytes']} bytes, before {old.get('bytes')}"
        if new["ends"] != old.get("ends"):
            return f"the first or last bytes of {new['name']} changed"
    return "" if now == before else "its files are others"


def _columns(table: Table) -> dict[str, str]:
    if table.x.ndim != 2 or table.x.shape[1] > MOST_COLUMNS:
        return {}
    values = np.ascontiguousarray(table.x.T)
    return {name: _digest(_numbers(column))[:16] for name, column in zip(table.inputs, values, strict=True)}


def _targets(table: Table) -> str:
    return _text_digest(table.y) if table.y.dtype.kind == "U" else _digest(_numbers(table.y))


def _any_order(table: Table) -> str:
    """A digest of the rows as a set: each row is hashed, the hashes are sorted."""
    if table.x.size > MOST_NUMBERS:
        return ""
    y = table.y
    if y.dtype.kind == "U":
        labels, which = np.unique(y, return_inverse=True)
        y = np.array([int(_text_digest(label)[:12], 16) for label in labels], np.float64)[which]
    columns = [values.reshape(len(values), -1) for values in (table.x, y) if values.size]
    hashes = np.zeros(len(table.x), np.uint64)
    factor = np.uint64(1)
    with np.errstate(over="ignore"):
        for values in columns:
            for column in values.T:
                factor = factor * np.uint64(0x9E3779B97F4A7C15)
                bits = np.ascontiguousarray(column, np.float64).view(np.uint64)
                bits = (bits ^ (bits >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
                hashes += (bits ^ (bits >> np.uint64(32))) * factor
    return _digest(np.sort(hashes).tobytes())


def _numbers(values: np.ndarray) -> bytes:
    return str(values.shape[1:]).encode() + np.ascontiguousarray(values, np.float64).tobytes()


def _text_digest(values: Any) -> str:
    return _digest("\0".join(np.ravel(values).tolist()).encode(errors="surrogatepass"))


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _some(names: list[str]) -> str:
    return ", ".join(repr(name) for name in names[:4]) + (", ..." if len(names) > 4 else "")
