"""One ensemble over many devices: particles over the first axis of a mesh, rows of the batch over the second."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from stein import inputs, processes
from stein.devices import DATA, PARTICLES
from stein.ensembles import Algorithm, Info, State
from stein.types import Batch, Key


def shard(
    algorithm: Algorithm, state: State, devices: Sequence[jax.Device] | None = None, data: int = 1
) -> tuple[Algorithm, State]:
    """The same algorithm and state with the particles spread over devices.

    ``train.run`` takes both like any other, and computes the same numbers, to rounding. The number of particles is
    arbitrary: if it is no multiple of the devices, the state gets further rows of zeros at its end, dead ones, which
    the rule never sees.

    Args:
        devices: default: all, those of other processes included.
        data: so many devices share the same particles, and each of them gets a part of the batch.

    >>> import optax, stein
    >>> target = stein.density(lambda w: -0.5 * (w**2).sum(), lambda key: jax.random.normal(key, (2,)))
    >>> algorithm = stein.ensemble(target, stein.rules.w_svgd(), optax.adam(0.1))
    >>> algorithm, state = shard(algorithm, algorithm.init(jax.random.key(0), 5))
    """
    spread = Spread(mesh(devices, data), state)
    return spread.algorithm(algorithm), spread.place(state)


def mesh(devices: Sequence[jax.Device] | None = None, data: int = 1) -> Mesh:
    """A mesh of ``devices`` (default: all), ``data`` of which share the same particles."""
    chosen = np.array(jax.devices() if devices is None else devices)
    inputs.whole(1, data=data)
    if chosen.size % data:
        raise ValueError(f"data = {data}: must divide the number of devices, {chosen.size}")
    return Mesh(chosen.reshape(-1, data), (PARTICLES, DATA), axis_types=(AxisType.Auto, AxisType.Auto))


class Spread:
    """Particles over a mesh: an algorithm and states of it, placed there and back.

    Args:
        like: a state of the algorithm, or its shapes.
    """

    def __init__(self, mesh: Mesh, like: State):
        self.mesh = mesh
        self.members = len(like.ids)
        self._filled = self.members + -self.members % mesh.shape[PARTICLES]
        # Leaves with a particle axis. One that only looks so does no harm: it is cut exactly as it was filled up.
        looks = jax.tree.map(lambda leaf: leaf.ndim > 0 and leaf.shape[0] == self.members, like)
        self._by_particle = looks._replace(key=False, step=False)
        rows, everywhere = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in ((PARTICLES,), ()))
        shardings = jax.tree.map(lambda by_particle: rows if by_particle else everywhere, self._by_particle)
        # Every process looks at these two between chunks.
        self.shardings = shardings._replace(ids=everywhere, alive=everywhere)
        self._everywhere = everywhere

    def algorithm(self, algorithm: Algorithm) -> Algorithm:
        """The same algorithm, for states that are placed on the mesh. Its rule sees the particles alone."""

        def init(key: Key, num_particles: int, *arguments: Any, **options: Any) -> State:
            if num_particles != self.members:
                raise ValueError(f"num_particles = {num_particles}: spread over devices are {self.members}")
            with self._traced():
                return self._fill(algorithm.init(key, num_particles, *arguments, **options))

        def step(state: State, batch: Batch | None) -> tuple[State, Info]:
            with self._traced():
                moved, info = algorithm.step(self._cut(state), self._share(batch))
                return self._fill(moved), _constrain(info, self._everywhere)

        def diagnose(state: State, batch: Batch | None) -> dict[str, jax.Array]:
            with self._traced():
                return _constrain(algorithm.diagnose(self._cut(state), self._share(batch)), self._everywhere)

        return algorithm._replace(init=init, step=step, diagnose=diagnose)

    def shapes(self, like: State) -> State:
        """The shapes of a placed state, to compile a program for it: nothing is allocated."""

        def shape(leaf: Any, by_particle: bool, sharding: NamedSharding) -> jax.ShapeDtypeStruct:
            filled = (self._filled, *leaf.shape[1:]) if by_particle else leaf.shape
            return jax.ShapeDtypeStruct(filled, leaf.dtype, sharding=sharding)

        return jax.tree.map(shape, like, self._by_particle, self.shardings)

    def place(self, state: State) -> State:
        """A state of ``members`` particles, on the mesh."""

        def fill(leaf: Any, by_particle: bool) -> Any:
            return _numbers(lambda rows: np.pad(rows, self._filling(rows)), leaf) if by_particle else leaf

        return jax.tree.map(_put, jax.tree.map(fill, state, self._by_particle), self.shardings)

    def everywhere(self, tree: Any) -> Any:
        """Arrays that every device needs as a whole, such as the data of :class:`stein.data.Batches`."""
        return jax.tree.map(lambda leaf: _put(leaf, self._everywhere), tree)

    def mine(self, state: State) -> State:
        """This process's rows of the particles and their optimiser, on the host; the rest is complete.

        What has no rows is in the first process only. Rows of all processes, one below the other, are the ensemble.
        """

        def local(leaf: jax.Array) -> np.ndarray:
            # Of devices that hold the same particles, the first counts.
            shards = [shard for shard in leaf.addressable_shards if shard.replica_id == 0]
            parts = {shard.index[0].start or 0: np.asarray(shard.data) for shard in shards}
            kept = [parts[start][: max(self.members - start, 0)] for start in sorted(parts)]
            return np.concatenate([np.zeros((0, *leaf.shape[1:]), leaf.dtype), *kept])

        def rows(leaf: jax.Array, by_particle: bool) -> Any:
            if by_particle:
                return _numbers(local, leaf)
            return leaf if processes.is_first() else None

        large = ("particles", "opt_state", "memory", "draws")
        own = {name: jax.tree.map(rows, getattr(state, name), getattr(self._by_particle, name)) for name in large}
        return state._replace(**own, ids=state.ids[: self.members], alive=state.alive[: self.members])

    def _traced(self) -> Any:
        """Under the mesh, which :mod:`stein.devices` reads."""
        return jax.sharding.use_abstract_mesh(self.mesh.abstract_mesh)

    def _filling(self, leaf: Any) -> list[tuple[int, int]]:
        return [(0, self._filled - self.members)] + [(0, 0)] * (leaf.ndim - 1)

    def _fill(self, state: State) -> State:
        def fill(leaf: jax.Array, by_particle: bool) -> jax.Array:
            return _numbers(lambda rows: jnp.pad(rows, self._filling(rows)), leaf) if by_particle else leaf

        return _constrain(jax.tree.map(fill, state, self._by_particle), self.shardings)

    def _cut(self, state: State) -> State:
        def cut(leaf: jax.Array, by_particle: bool) -> jax.Array:
            return leaf[: self.members] if by_particle else leaf

        return _constrain(jax.tree.map(cut, state, self._by_particle), self.shardings)

    def _share(self, batch: Batch | None) -> Batch | None:
        """A part of the batch for each of the devices that have the same particles."""
        return _constrain(batch, NamedSharding(self.mesh, PartitionSpec(DATA)))


_constrain = jax.lax.with_sharding_constraint


def _put(leaf: Any, sharding: NamedSharding) -> jax.Array:
    """An array that every process has as a whole, with each device's part of it there."""

    def put(whole: np.ndarray) -> jax.Array:
        return jax.make_array_from_callback(whole.shape, sharding, lambda part: whole[part])

    return _numbers(lambda whole: put(np.asarray(whole)), leaf)


def _numbers(function: Callable[[Any], Any], leaf: Any) -> Any:
    """``function(leaf)``; of a random key, which may be in an optimiser's state, its numbers."""
    if not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return function(leaf)
    return jax.random.wrap_key_data(function(jax.random.key_data(leaf)), impl=jax.random.key_impl(leaf))
