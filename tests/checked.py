"""The run-time type checker of the tests: shapes and types of every annotated function, an int where a float may be."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import jaxtyping
from beartype import BeartypeConf, beartype

typechecker = beartype(conf=BeartypeConf(is_pep484_tower=True))

INSTANCES = 5
"""A function inside another one is made anew at every call of it, and its checker is compiled anew: a sixth of the time
of all tests. The first so many instances in a process are checked."""

_made: Counter[Any] = Counter()
_jaxtyped = jaxtyping.jaxtyped


def jaxtyped(**options: Any) -> Callable:
    """In the place of jaxtyping's own decorator, which its import hook writes before every function."""
    decorate = _jaxtyped(**options)

    def decorated(checked: Any) -> Any:
        code = getattr(checked, "__code__", None)
        if code is None or "<locals>" not in checked.__qualname__:
            return decorate(checked)
        _made[code] += 1
        return decorate(checked) if _made[code] <= INSTANCES else checked

    return decorated


def install(package: str) -> None:
    """Check everything that is imported of ``package`` from now on."""
    jaxtyping.jaxtyped = jaxtyped
    jaxtyping.install_import_hook(package, "checked.typechecker")
