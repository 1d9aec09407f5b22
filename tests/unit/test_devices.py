"""One ensemble over devices: what passes between them, and what each of them holds."""

import functools

import jax
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import collectives
from stein import devices, rules, sharding, targets, train
from stein.ensembles import ensemble

N = 16
WEIGHTS = {"hidden": (4096, 1024), "out": (7,)}
ITEM = 4


def algorithm():
    """Members of four million weights, of which nothing is ever allocated."""
    target = targets.density(
        lambda w: -0.5 * (w["hidden"] ** 2).sum() - 0.5 * (w["out"] ** 2).sum(),
        lambda key: {name: jax.random.normal(key, shape, np.float32) for name, shape in WEIGHTS.items()},
        features=lambda w: w["hidden"][:4, :8],
    )
    return ensemble(target, rules.w_svgd(), optax.adam(1e-3))


@functools.cache
def program(over):
    """A step of all members over so many devices, compiled from shapes."""
    algo = algorithm()
    like = jax.eval_shape(lambda key: algo.init(key, N), jax.random.key(0))
    spread = sharding.Spread(sharding.mesh(jax.devices()[:over]), like)
    return train._jitted_advance().lower(spread.algorithm(algo).step, spread.shapes(like), None, None, 1).compile()


def test_bytes_between_devices():
    """Catches an all-gather of the weights, a piece above 4 MB, and a product that is computed twice."""
    over = 4
    found = collectives.sent(program(over).as_text())
    sizes = [int(np.prod(shape)) for shape in WEIGHTS.values()]
    # The distances need all columns once; K(G - cX) needs them and brings them back.
    assert collectives.total(found["all-to-all"]) == 3 * sum(devices.passed(N // over, d, ITEM, over) for d in sizes)
    assert max(size for size, _ in found["all-to-all"]) == devices.PIECE
    # Twice the mean of the members; all else is a few numbers for each pair of them.
    rest = sum(collectives.total(found[kind]) for kind in found if kind != "all-to-all")
    assert 0 <= rest - 2 * ITEM * sum(sizes) <= 16 * ITEM * N**2


def test_memory_of_a_device():
    """Catches a device that holds rows of others: a quarter of the memory on four devices, within a fifth of it."""

    def held(over):
        used = program(over).memory_analysis()
        return used.argument_size_in_bytes + used.output_size_in_bytes + used.temp_size_in_bytes

    assert held(4) <= 1.2 * held(1) / 4


@pytest.mark.parametrize("piece", [1, 100, 10**6])
def test_products_in_pieces(piece, monkeypatch):
    """Catches columns that are lost, or counted twice where the last piece overlaps the one before: 5 rows of 3, 4 and
    37 columns on 4 devices, in pieces of 4 columns and more."""
    monkeypatch.setattr(devices, "PIECE", piece)
    mesh = sharding.mesh()
    random = np.random.default_rng(0)

    def both(matrix, x):
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
            return devices.mixed(matrix, x), devices.products(x)

    for columns in (3, 4, 37):
        matrix, x = random.normal(size=(5, 5)), random.normal(size=(5, columns))
        placed = jax.device_put((matrix, x), NamedSharding(mesh, PartitionSpec()))
        mixed, products = jax.jit(both)(*placed)
        np.testing.assert_allclose(mixed, matrix @ x, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(products, x @ x.T, rtol=1e-12, atol=1e-12)
