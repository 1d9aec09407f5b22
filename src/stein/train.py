"""The training loop: jitted chunks of steps, with hooks between them."""

import math
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from stein import compiler, inputs, processes
from stein.batches import Batches
from stein.ensembles import Algorithm, Info, State
from stein.types import Batch, Key


class ParticlesDiedError(RuntimeError):
    """Too many particles are not finite; the message names the step and the particles."""


MOST_BYTES = 2**25
"""Size of a block of batches that is read from a stream at once, unless one batch is larger; three are in memory."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C during training. ``state`` is that of the last complete chunk, from which :func:`run` can continue."""

    def __init__(self, state: State):
        super().__init__(f"training stopped at step {int(state.step)}; `.state` of this exception goes on from there")
        self.state = state


class Moment(NamedTuple):
    """What a hook sees between two chunks.

    ``last_step`` is the step at which the run ends; ``metrics`` are the numbers of this step so far.
    """

    state: State
    info: Info  # of every step of the chunk: a leading step axis
    step: int
    last_step: int
    metrics: Mapping[str, Any]


Hook = Callable[[Moment], Mapping[str, Any] | bool | None]
"""Called between chunks, in order. Numbers that a hook returns are in the ``metrics`` of the hooks after it, so hooks
that measure come before hooks that report. ``True`` ends the run. :mod:`stein.hooks` has the usual ones."""


def begin(algorithm: Algorithm, key: Key, num_particles: int, weights: Any = None) -> State:
    """The first state, compiled: ``algorithm.init`` of the same arguments, to rounding.

    Random numbers for every leaf take ten seconds to compile with all optimisations, and are needed once: so they are
    compiled without.
    """
    make_room()
    return _jitted_begun()(algorithm.init, key, num_particles, weights)


def make_room(most: int | None = None) -> None:
    """Forget what was compiled if it takes more than ``most`` of the process's memory maps (default: half of them).

    Linux grants a process 65,530. The programs of one fit take a thousand, and without any left XLA cannot compile: a
    search over sixty sizes of networks would end there. What is used again is compiled again.
    """
    try:
        used = Path("/proc/self/maps").read_bytes().count(b"\n")
        most = int(Path("/proc/sys/vm/max_map_count").read_text()) // 2 if most is None else most
    except OSError:  # not Linux
        return
    if used > most:
        jax.clear_caches()


def _begun(init: Callable[..., State], key: Key, num_particles: int, weights: Any) -> State:
    return init(key, num_particles, weights)


_jitted_begun = compiler.jit(_begun, compiler.ONCE, static_argnums=(0, 2))


def run(
    algorithm: Algorithm,
    state: State,
    batches: Any,
    steps: int,
    *,
    chunk: int | Callable[[int], int] = 1000,
    hooks: Iterable[Hook] = (),
    min_alive: float = 0.5,
    history: int | None = None,
) -> tuple[State, Info]:
    """Train for ``steps`` steps from wherever ``state`` is.

    Args:
        batches: the data, as one of

            - :class:`stein.data.Batches`: in memory, shuffled; the batch depends on the step alone, so that a run that
              continues from a saved state sees the same batches as an uninterrupted one;
            - a stream: anything with ``batch_at(step)``, such as :class:`stein.data.Stream`: the same holds. It is
              read ahead in a thread;
            - a function of the step that returns a :class:`stein.types.Batch` or a pair ``(x, y)``: the same holds;
            - an iterable of these, such as a list or a loader, which is restarted when it ends. A continued run
              always starts it from the beginning;
            - ``None`` for a target without data (:func:`stein.density`).

        chunk: steps between two calls of the hooks, or a function from a chunk's first step to its length. Steps
            of :class:`stein.data.Batches` and of streams are compiled into one loop.
        hooks: called between chunks, in order: progress, logs, checkpoints, evaluation (see :mod:`stein.hooks`).
        min_alive: stop with :class:`ParticlesDiedError` when a smaller fraction of the particles is finite.
        history: return the infos of the whole run, thinned to at most this many steps: every k-th step from the first,
            where k is ``ceil(steps / history)``.

    Returns:
        The last state, and the infos of the last chunk or the history. ``state`` itself is not changed.

    Raises:
        Interrupted: on Ctrl-C, with the state of the last complete chunk.
    """
    inputs.whole(1, steps=steps)
    if not callable(chunk):
        inputs.whole(1, chunk=chunk)
    if not 0 <= min_alive <= 1:
        raise ValueError(f"min_alive = {min_alive}: must be between 0 and 1")
    if history is not None:
        inputs.whole(1, history=history)
    hooks = tuple(hooks)
    start = int(state.step)
    last_step, every = start + steps, math.ceil(steps / (history or steps))
    kept: list[Info] = []
    try:
        with ExitStack() as stack:
            advance = _advancer(algorithm, batches, partial(_chunks, chunk, start, last_step), stack)
            for step, length in _chunks(chunk, start, last_step):
                advanced, info = advance(state, step, length)
                _check_alive(algorithm, advanced, info, step, min_alive)
                if history is not None:
                    first = -(step - start) % every  # first step of the chunk that is kept
                    kept.append(jax.device_get(jax.tree.map(lambda values, first=first: values[first::every], info)))
                state = advanced
                if processes.agreed(_call(hooks, Moment(state, info, step + length, last_step, _summary(info)))):
                    break
    except KeyboardInterrupt:
        raise Interrupted(state) from None
    return state, info if history is None else jax.tree.map(lambda *parts: np.concatenate(parts), *kept)


Chunks = Iterator[tuple[int, int]]
"""The first step and the length of every chunk."""


def _chunks(chunk: int | Callable[[int], int], step: int, last_step: int) -> Chunks:
    while step < last_step:
        length = min(chunk(step) if callable(chunk) else chunk, last_step - step)
        yield step, length
        step += length


def _call(hooks: Sequence[Hook], moment: Moment) -> bool:
    """Call every hook with the numbers of those before it; returns whether one of them ends the run."""
    ends = False
    for hook in hooks:
        answer = hook(moment._replace(metrics=MappingProxyType(dict(moment.metrics))))
        if isinstance(answer, Mapping):
            moment = moment._replace(metrics={**moment.metrics, **answer})
        else:
            ends = bool(answer) or ends
    return ends


def _advancer(
    algorithm: Algorithm, batches: Any, chunks: Callable[[], Chunks], stack: ExitStack
) -> Callable[[State, int, int], tuple[State, Info]]:
    """A function of a state, its step and the number of steps to take, for any kind of data.

    Args:
        chunks: what it will be called for, so that streams can be read ahead.
        stack: ends what was begun for it.
    """
    if batches is None or isinstance(batches, Batches):
        if batches is not None:
            algorithm.target.check(batches.x, batches.y)

        def scan(state: State, step: int, length: int) -> tuple[State, Info]:
            return _jitted_advance()(algorithm.step, state, *operands(batches, step, length), length)

        return scan
    if hasattr(batches, "batch_at"):
        first = as_batch(batches.batch_at(next(chunks())[0]))
        algorithm.target.check(first.x, first.y, whole=False)
        most = max(1, MOST_BYTES // sum(leaf.nbytes for leaf in jax.tree.leaves(first)))
        blocks = stack.enter_context(closing(_ahead(partial(_read, batches), _blocks(chunks(), most))))

        def stream(state: State, step: int, length: int) -> tuple[State, Info]:
            infos = []
            while length:
                block = next(blocks)
                state, info = _jitted_advance()(algorithm.step, state, None, block, len(block.x))
                infos.append(info)
                length -= len(block.x)
            return state, jax.tree.map(lambda *values: jnp.concatenate(values), *infos)

        return stream
    batch_at = batches if callable(batches) else _following(batches)
    checked = False

    def one_by_one(state: State, step: int, length: int) -> tuple[State, Info]:
        nonlocal checked
        infos = []
        for i in range(length):
            batch = as_batch(batch_at(step + i))
            if not checked:
                algorithm.target.check(batch.x, batch.y, whole=False)
                checked = True
            state, info = _advance_one(algorithm.step, state, batch)
            infos.append(info)
        return state, jax.tree.map(lambda *values: jnp.stack(values), *infos)

    return one_by_one


def operands(batches: Any, step: int, length: int) -> tuple[Batches | None, Any]:
    """The data of some steps as the compiled loop takes them: all data and row numbers, or the batches themselves."""
    if batches is None or isinstance(batches, Batches):
        return batches, None if batches is None else _jitted_rows()(batches, batches.cursor(step), length)
    return None, _read(batches, (step, length))


_jitted_rows = compiler.jit(Batches.indices, compiler.SELDOM, static_argnums=2)


def _read(stream: Any, block: tuple[int, int]) -> Batch:
    """The batches of some steps of a stream, which are the first axis.

    NumPy only: this runs in a thread, and threads do not inherit jax's precision.
    """
    step, steps = block
    if hasattr(stream, "batches_at"):
        return Batch(*stream.batches_at(step, steps))
    found = [stream.batch_at(step + i) for i in range(steps)]
    found = [batch if isinstance(batch, Batch) else Batch(*_pair(batch)) for batch in found]
    shapes = [[leaf.shape for leaf in jax.tree.leaves(batch)] for batch in found]
    for i, shape in enumerate(shapes):
        if shape != shapes[0]:
            raise ValueError(
                f"the batch of step {step + i} has shapes {shape}, that of step {step} {shapes[0]}: must be equal; "
                "leave out a smaller last batch, or repeat the data before they are batched"
            )
    return jax.tree.map(lambda *leaves: np.stack(leaves), *found)


def _blocks(chunks: Chunks, most: int) -> Chunks:
    """Chunks cut into blocks of at most ``most`` steps, as equal as possible: every length is a program of its own."""
    for step, length in chunks:
        size = math.ceil(length / math.ceil(length / most))
        yield from ((step + i, min(size, length - i)) for i in range(0, length, size))


def _ahead(read: Callable[[Any], Any], items: Iterable[Any]) -> Generator[Any, None, None]:
    """``read`` of every item; the next one is read in a thread while this one is used. Errors come at their turn."""
    with ThreadPoolExecutor(1, "stein-stream") as pool:
        waiting: deque[Future] = deque()
        for item in items:
            waiting.append(pool.submit(read, item))
            if len(waiting) > 1:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def as_batch(given: Any) -> Batch:
    """A batch unchanged, or made from a pair ``(x, y)`` of array-likes."""
    return given if isinstance(given, Batch) else Batch(*map(jnp.asarray, _pair(given)))


def _pair(given: Any) -> list[Any]:
    """Inputs and targets in NumPy."""
    if not isinstance(given, (tuple, list)) or len(given) != 2:
        raise ValueError(
            f"a batch is of type {type(given).__name__}: must be a types.Batch or a pair "
            "(x, y); data.Batches(x, y) makes batches from arrays"
        )
    return [inputs.array(name, values) for name, values in zip("xy", given, strict=True)]


def _following(batches: Any) -> Callable[[int], Any]:
    """The next batch at every call; restarts the iterable when it ends, if possible."""
    if not isinstance(batches, Iterable):
        raise ValueError(
            f"batches is of type {type(batches).__name__}: must be data.Batches(x, y), a stream with batch_at(step), "
            "an iterable of batches, a function of the step, or None"
        )
    iterator = iter(batches)

    def following(step: int) -> Any:
        nonlocal iterator
        for _ in range(2):
            for batch in iterator:
                return batch
            iterator = iter(batches)
        raise ValueError(f"batches: nothing is left at step {step}; give a list, a loader, or a function of the step")

    return following


def compiled(algorithm: Algorithm, state: State, batches: Batches | None, rows: Any) -> Any:
    """The program that :func:`run` uses for the steps of ``rows`` (both as :func:`operands` returns them).

    ``program(state, batches, rows)`` runs it, ``program.memory_analysis()`` and ``program.cost_analysis()`` are
    XLA's own account of it. Shapes are enough for ``state``: nothing is allocated.
    """
    length = len(jax.tree.leaves(rows)[0]) if jax.tree.leaves(rows) else 1
    return _jitted_advance().lower(algorithm.step, state, batches, rows, length).compile()


@partial(jax.jit, static_argnums=0)
def _advance_one(step: Callable, state: State, batch: Batch) -> tuple[State, Info]:
    return step(state, batch)


def _advance(step: Callable, state: State, batches: Batches | None, rows: Any, length: int) -> tuple[State, Info]:
    """``length`` steps in one scan; compiled once per algorithm, data shapes and length."""

    def one(state: State, rows: Any) -> tuple[State, Info]:
        return step(state, rows if batches is None else batches.take(rows))

    return jax.lax.scan(one, state, rows, length=length)


_jitted_advance = compiler.jit(_advance, compiler.OFTEN, static_argnums=(0, 4))


def _summary(info: Info) -> dict[str, Any]:
    """Means over the chunk and the members that are alive at its end."""
    alive = np.asarray(info.alive)[-1]  # on the host: a slice of a jax array is a program of its own
    return {
        "log_likelihood": float(np.asarray(info.log_likelihood)[:, alive].mean()),
        "log_prior": float(np.asarray(info.log_prior)[:, alive].mean()),
        "alive": int(alive.sum()),
    }


def _check_alive(algorithm: Algorithm, state: State, info: Info, step: int, min_alive: float) -> None:
    """``step`` is the first of the chunk; under ``on_nan="stop"`` the state's own counter does not advance."""
    alive = np.asarray(info.alive)
    last = alive[-1]
    allowed = 1.0 if algorithm.on_nan == "stop" else min_alive
    if algorithm.on_nan != "resample" and last.mean() < allowed:
        first = step + int(np.argmax(alive.mean(axis=1) < allowed))
        dead = ", ".join(map(str, np.asarray(state.ids)[: last.size][~last]))  # over devices there may be more rows
        advice = (
            "already at the first step: scale the inputs and targets (data.standardise = true in a config) or "
            "lower the learning rate"
            if first == 0
            else "lower the learning rate"
        )
        raise ParticlesDiedError(
            f"step {first}: particles {dead} are not finite ({last.sum()} of {last.size} alive); {advice}"
        )
