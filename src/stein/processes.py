"""The processes of one run on several hosts, as `jax.distributed` connects them. One process alone is the usual case.

Between chunks of training, processes exchange a few words over jax's coordination service and not by a collective:
gloo gives up after 30 seconds, and one process may write a file, or compile, for longer than the others.
"""

import itertools
from typing import Any

import jax
import numpy as np
from jax._src.distributed import global_state  # jax has no public name for its key-value store
from jax.experimental import multihost_utils

from stein import versions

versions.require()

PATIENCE = 600
"""Seconds to wait for the slowest process. One that has died is noticed by its missing heartbeats, much earlier."""
_numbers = itertools.count()


def is_first() -> bool:
    """Whether this process is the one that writes logs and results."""
    return jax.process_index() == 0


def exchange(word: str = "") -> list[str]:
    """The words of all processes, in their order. Every process must call this, and waits for the others."""
    client, count, own = global_state.client, jax.process_count(), jax.process_index()
    if client is None or count == 1:
        return [word]
    call = next(_numbers)
    client.key_value_set(f"stein/{call}/{own}", f"={word}")
    client.wait_at_barrier(f"stein/{call}", PATIENCE * 1000)
    words = [client.blocking_key_value_get(f"stein/{call}/{i}", PATIENCE * 1000)[1:] for i in range(count)]
    if call:  # all have read those of the call before
        client.key_value_delete(f"stein/{call - 1}/{own}")
    return words


def agreed(wish: bool) -> bool:
    """Whether any process wishes so: the same answer in all of them."""
    return any(exchange("yes" if wish else ""))


def part() -> None:
    """The end of the common work: waits for the others, and goes on alone."""
    if jax.process_count() > 1:
        jax.distributed.shutdown()


def fetch(array: Any) -> np.ndarray:
    """An array on the host, also if other processes hold parts of it. Then every process must call this."""
    if isinstance(array, jax.Array) and not (array.is_fully_addressable or array.is_fully_replicated):
        return np.asarray(multihost_utils.process_allgather(array, tiled=True))
    return np.asarray(array)
