"""What XLA is told about a program, so that a first step comes soon and nothing is computed twice."""

import functools
from collections.abc import Callable
from typing import Any

import jax
from jax.experimental.xla_metadata import set_xla_metadata

from stein import versions

versions.require()

Options = dict[str, bool | int]

ONCE: Options = {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False}
"""For a program that runs once: as little as possible is optimised."""

SELDOM: Options = {"xla_backend_optimization_level": 1, "xla_cpu_use_fusion_emitters": False}
"""For a program that runs once in many steps: compiled in half the time, for a little more when it runs."""

# XLA cuts a program into 32 parts and compiles them in parallel. On a laptop so many cost more than they gain.
OFTEN: Options = {"xla_cpu_parallel_codegen_split_count": 8}
"""For a program that runs often: all optimisations. The parts do not change its results."""


def jit(function: Callable, options: Options, **settings: Any) -> Callable[[], Any]:
    """``jax.jit`` with compiler options, made when it is first asked for: only the compiler knows which it takes.

    Options come and go with its releases. One that it does not know would be an error, and is left out.
    """

    @functools.cache
    def jitted() -> Any:
        known = {name: value for name, value in options.items() if _known(name, value)}
        return jax.jit(function, compiler_options=known, **settings)

    return jitted


@functools.cache
def _known(name: str, value: bool | int) -> bool:
    try:
        jax.jit(lambda: 0, compiler_options={name: value}).lower().compile()
    except jax.errors.JaxRuntimeError as error:
        if "No such compile option" in str(error):
            return False
        raise
    return True


def stored(function: Callable) -> Callable:
    """The same function; on a CPU its result is computed once and stored.

    XLA prefers to compute cheap operations again wherever their result is read, from operands that must then be kept:
    more memory, and more of it to read. A part of the program that is not inlined has its own result.
    """
    if jax.default_backend() != "cpu":
        return function
    jitted = jax.jit(function)

    def part(*arguments: Any) -> Any:
        with set_xla_metadata(inlineable="false"):
            return jitted(*arguments)

    return part
