"""Which JAX versions may be used, read from the metadata of the installed packages before anything is computed.

Every module that computes with JAX calls :func:`require` when it is imported, most of them by way of
:mod:`stein.types`; only :mod:`stein.cli.doctor` does not, because it has to report what is wrong.
"""

import importlib.metadata
import re

FIX = "pip install 'jax>=0.10.0,!=0.10.2,!=0.11.*' 'jaxlib>=0.10.0,!=0.10.2,!=0.11.*'"
"""The command that replaces a wrong backend with a correct one."""
OLDEST = (0, 10, 0)
WRONG = ((0, 10, 2), (0, 11))
"""Releases that return silently wrong sums on CPU."""


def trouble() -> str | None:
    """What is wrong with the installed versions, in one line; None if nothing is."""
    for package in ("jax", "jaxlib"):
        try:
            version = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            return f"{package} is not installed; fix: {FIX}"
        release = tuple(int(number) for number in re.findall(r"\d+", version)[:3])
        if release < OLDEST:
            return f"{package} {version} is too old; fix: {FIX}"
        if any(release[: len(wrong)] == wrong for wrong in WRONG):
            return f"{package} {version} computes wrong sums on CPU; fix: {FIX}"
    return None


def require() -> None:
    """Raise ``ImportError`` if the installed JAX must not be used."""
    if wrong := trouble():
        raise ImportError(wrong)
