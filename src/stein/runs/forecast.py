"""What a run will cost on this machine: its memory from the compiled program, its time from a few steps."""

import time
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from stein import train
from stein.runs.build import Parts, assemble, begin, shapes
from stein.runs.environment import precision
from stein.runs.schema import Config

CHUNK = 5
"""Steps of the compiled program that is timed."""
SECONDS = 1.0
"""It runs at least this long, but at least twice."""


class Forecast(NamedTuple):
    """Times in seconds, memory in bytes; ``free`` is None where the system does not tell."""

    method: str
    members: int
    weights: int
    steps: int
    compilation: float
    step: float
    memory: int
    free: int | None

    def __str__(self) -> str:
        free = "" if self.free is None else f" of the {_bytes(self.free)} that are free"
        return (
            f"{self.method}: {self.members:,} members of {self.weights:,} weights, {self.steps:,} steps\n"
            f"time: {_time(self.compilation)} to compile, then {1e3 * self.step:.3g} ms a step: "
            f"{_time(self.steps * self.step)} of training\n"
            f"memory: {_bytes(self.memory)}{free}, for data, members and a step"
        )


def of(config: Config) -> Forecast:
    """Compile the config's training and time a few steps. Nothing is written.

    Evaluations, checkpoints and figures are not in the time.

    Raises:
        ValueError: the training needs more memory than is free. Then no member is ever made.
    """
    with precision(config):
        parts = assemble(config)
        state = shapes(parts.algorithm, config)
        fits(config, state)
        data = train.operands(parts.batches, 0, CHUNK)
        began = time.perf_counter()
        program = train.compiled(parts.algorithm, state, *data)
        compilation = time.perf_counter() - began
        used = program.memory_analysis()
        memory = used.argument_size_in_bytes + used.output_size_in_bytes + used.temp_size_in_bytes
        _refuse(memory, config)
        seconds = _seconds(program, parts, config, data)
    weights = sum(leaf.size for leaf in jax.tree.leaves(state.particles)) // config.method.particles
    return Forecast(
        config.method.name, config.method.particles, weights, config.train.steps, compilation, seconds, memory, free()
    )


def fits(config: Config, state: Any, processes: int = 1) -> None:
    """Raise ``ValueError`` if not even the members and their optimiser fit in memory, before and after a step.

    Args:
        state: of the first step, or its shapes: nothing needs to be allocated.
        processes: how many hold a part of the members each.
    """
    arrays = (leaf for leaf in jax.tree.leaves(state) if jnp.issubdtype(leaf.dtype, jnp.floating))
    _refuse(2 * sum(leaf.size * leaf.dtype.itemsize for leaf in arrays) // processes, config)


def free() -> int | None:
    """Bytes of memory that programs can still get; None where the system does not tell."""
    about = Path("/proc/meminfo")
    lines = about.read_text().splitlines() if about.exists() else []
    found = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    return found[0] if found else None


def _refuse(needed: int, config: Config) -> None:
    if jax.default_backend() != "cpu" or (have := free()) is None or needed <= have:
        return
    raise ValueError(
        f"{config.method.particles} members need at least {_bytes(needed)} of memory, and {_bytes(have)} are free; "
        "fewer members (method.particles), smaller batches (train.batch_size) or a smaller network need less"
    )


def _seconds(program: Any, parts: Parts, config: Config, data: tuple[Any, Any]) -> float:
    """Of a step: the shortest of several chunks, because anything else on the machine only makes them longer."""
    state = begin(parts.algorithm, config)
    taken: list[float] = []
    while len(taken) < 2 or sum(taken) < SECONDS:
        began = time.perf_counter()
        state, _ = jax.block_until_ready(program(state, *data))
        taken.append(time.perf_counter() - began)
    return min(taken) / CHUNK


def _bytes(number: int) -> str:
    return f"{number / 1e9:,.1f} GB" if number >= 1e9 else f"{number / 1e6:,.1f} MB"


def _time(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.2g} s"
    return f"{seconds / 60:.2g} minutes" if seconds < 6000 else f"{seconds / 3600:.2g} hours"
