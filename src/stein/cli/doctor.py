"""Can this JAX installation be trusted? Checks with known answers, and the fix if one fails.

Some jaxlib releases return silently wrong sums on CPU, or crash on reductions of rank 7. Each canary
compares a computation with NumPy's answer, in a shape that is known to fail.
"""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from stein import versions

FIX = versions.FIX

Jit = Callable[[Callable[..., Any]], Callable[..., Any]]


class Check(NamedTuple):
    """The outcome of one canary."""

    name: str
    passed: bool
    detail: str


def vmapped_matvec(jit: Jit = jax.jit) -> Check:
    """A matrix applied to 32,769 rows, then squared and summed: eager and jitted, exact in small integers."""
    rows, matrix = _integer_rows(), _integer_matrix()
    exact = np.sum((rows @ matrix.T) ** 2, axis=1)

    def squared_norms(rows: jax.Array) -> jax.Array:
        return jax.vmap(lambda row: jnp.sum((matrix @ row) ** 2))(rows)

    x = jnp.asarray(rows)
    return _compare("vmapped matvec", exact, eager=squared_norms(x), jit=jit(squared_norms)(x))


def long_broadcast(jit: Jit = jax.jit) -> Check:
    """Sums over a broadcast of length 32,769, one more than a thread's share of 2**15."""
    rows, matrix = _integer_rows(), _integer_matrix()
    exact = np.sum(np.sum(matrix[None] * rows[:, None], axis=2) ** 2, axis=1)

    def squared_norms(rows: jax.Array, matrix: jax.Array) -> jax.Array:
        return jnp.sum(jnp.sum(matrix[None] * rows[:, None], axis=2) ** 2, axis=1)

    return _compare("long broadcast", exact, jit=jit(squared_norms)(rows, matrix))


def repeated_sum(jit: Jit = jax.jit) -> Check:
    """The sum of four million ones, 200 times: a race between threads makes the answers differ."""
    shape = (4, 1024, 1024)
    total = jit(lambda column: jnp.sum(jnp.broadcast_to(column, shape)))
    column = np.ones((1024, 1), np.float32)
    answers = Counter(float(total(column)) for _ in range(200))
    wrong = answers.total() - answers[float(np.prod(shape))]
    detail = f"{wrong} of 200 sums wrong" if wrong else "200 sums, all the same and right"
    return Check("repeated sum", not wrong, detail)


def vmapped_networks(jit: Jit = jax.jit) -> Check:
    """Random one-layer networks, vmapped over particles and inputs, against float64 NumPy."""
    rng = np.random.default_rng(0)
    errors = []
    for particles, inputs, width, batch in [(1, 3, 3, 32769), (5, 1, 50, 256), (3, 8, 16, 1024)]:
        hidden, out, x = (
            jnp.asarray(rng.normal(size=shape), jnp.float32)
            for shape in [(particles, width, inputs), (particles, width), (batch, inputs)]
        )
        exact = np.einsum("pbh,ph->pb", np.tanh(np.einsum("phd,bd->pbh", hidden, x, dtype=float)), out)

        def network(hidden: jax.Array, out: jax.Array, x: jax.Array) -> jax.Array:
            return jnp.sum(jnp.tanh(hidden @ x) * out)

        ensemble = jax.vmap(jax.vmap(network, (None, None, 0)), (0, 0, None))
        for run in (ensemble, jit(ensemble)):
            answer = np.asarray(run(hidden, out, x))
            errors.append(np.max(np.abs(answer - exact)) / np.max(np.abs(exact)))
    worst = max(errors)
    # float32 rounding over at most 50 terms; a TPU's bfloat16 products would reach 1e-2 and fail too.
    return Check("vmapped networks", bool(worst < 1e-4), f"largest relative error {worst:.0e}")


def rank_seven(jit: Jit = jax.jit) -> Check:
    """A product of rank-7 arrays summed over one axis, exact in small integers; some backends crash on it."""
    shape = (3, 1, 2, 2, 8, 8, 8)
    size = int(np.prod(shape))
    a = (np.arange(size) % 7).astype(np.float32).reshape(shape)
    b = (np.arange(size) % 5).astype(np.float32).reshape(shape)
    answer = jit(lambda a, b: jnp.sum(a * b, axis=3))(a, b)
    return _compare("rank seven", np.sum(a * b, axis=3), jit=answer)


CANARIES: tuple[Callable[..., Check], ...] = (
    vmapped_matvec,
    long_broadcast,
    repeated_sum,
    vmapped_networks,
    rank_seven,
)


def examine(patience: float = 120.0) -> list[Check]:
    """Run every canary in a child process, because a broken backend may crash or hang; then check the versions.

    Args:
        patience: seconds after which a child process counts as hung.
    """
    checks: list[Check] = []
    while len(checks) < len(CANARIES):
        # -P: a directory named jax in the current directory must not be imported.
        command = [sys.executable, "-P", "-m", "stein.cli.doctor", str(len(checks))]
        try:
            child = subprocess.run(command, capture_output=True, text=True, timeout=patience)
            output, end = child.stdout, f"the process ended with code {child.returncode}"
            if child.returncode > 0:  # a Python exception, unlike the negative code of a signal
                end += ": " + (child.stderr.strip().splitlines() or ["no message"])[-1]
        except subprocess.TimeoutExpired as timeout:
            output, end = (timeout.stdout or b"").decode(), f"no answer in {patience:g} s"
        checks += [Check(*json.loads(line)) for line in output.splitlines()]
        if len(checks) < len(CANARIES):
            checks.append(Check(CANARIES[len(checks)].__name__.replace("_", " "), False, end))
    return [*checks, Check("versions", versions.trouble() is None, versions.trouble() or "none is known to be wrong")]


def _integer_rows() -> np.ndarray:
    """Rows of small integers, so that float32 sums are exact; 61 is prime, so that a misplaced row cannot match."""
    varying = (np.arange(32769) % 61).astype(np.float32)
    return np.stack([varying, np.full_like(varying, 1), np.full_like(varying, 2)], axis=1)


def _integer_matrix() -> np.ndarray:
    return np.array([[1, 2, 0], [0, 1, 3], [2, 0, 1]], np.float32)


def _compare(name: str, exact: np.ndarray, **answers: jax.Array) -> Check:
    """Pass if every answer equals the exact one; otherwise report the first that differs."""
    for way, answer in answers.items():
        wrong = np.flatnonzero(np.asarray(answer) != exact)
        if wrong.size:
            got, want = np.ravel(answer)[wrong[0]], np.ravel(exact)[wrong[0]]
            return Check(name, False, f"{way}: {wrong.size} of {exact.size} wrong, {got:g} for {want:g}")
    return Check(name, True, f"{exact.size} values exact")


if __name__ == "__main__":  # the child of `examine`: one JSON line per canary, flushed in case the next one crashes
    for canary in CANARIES[int(sys.argv[1]) :]:
        print(json.dumps(canary()), flush=True)
