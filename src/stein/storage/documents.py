"""Small files: JSON, text and figures, written atomically."""

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stein.storage import durable


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object; empty if the file is missing or was truncated by a crash."""
    try:
        found = json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    durable.replace(path, (json.dumps(value, indent=2) + "\n").encode())


def write_text(path: Path, text: str) -> None:
    durable.replace(path, f"{text.rstrip()}\n".encode())


def write_figure(path: Path, figure: Any, dpi: int) -> None:
    """A matplotlib figure as PNG, or as SVG, by the ending of the name."""
    picture, kind = io.BytesIO(), path.suffix.removeprefix(".")
    figure.savefig(picture, format=kind, dpi=dpi, metadata={"Date": None} if kind == "svg" else None)
    durable.replace(path, picture.getvalue())
