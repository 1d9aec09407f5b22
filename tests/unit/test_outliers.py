"""One finite member that is far from all others must not touch them: kernels, forces, noise, in both precisions."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from problems import rounding
from stein import functional_priors, kernels, rules, steps, targets, tree
from stein.ensembles import ensemble
from stein.rules import functional

N, D = 12, 40
# Members of scale 1 around a point of scale 10, the first of them FAR times as far: the others' squared distances, of
# about 2 D, are one part in 1e12 of those to it.
FAR = 1e6
COUPLED = ("w-svgd", "fw-svgd-l", "h-svgd-l", "hp-svgd", "hs-svgd", "kde-wgd", "sge-wgd", "ssge-wgd", "blob")
EVERYONE = jnp.ones(N, bool)


def members(dtype):
    random = np.random.default_rng(0)
    x = 10 + random.normal(size=(N, D))
    x[0] *= FAR
    return jnp.asarray(x, dtype)


def features(w):
    return jnp.tanh(w[:10] - 10)[:, None] + w[10:20, None]


def moved(method, dtype, **options):
    """The moves of all members in one step on a normal target around 10, and who is alive after it."""
    target = targets.density(
        lambda w: -0.5 * jnp.sum((w - 10) ** 2), lambda key: jax.random.normal(key, (D,), dtype), features
    )
    rule = rules.make(method, **options)
    algorithm = ensemble(target, rule, steps.langevin(0.1))
    state = algorithm.init(jax.random.key(0), N, members(dtype))
    after, _ = jax.jit(algorithm.step)(state, None)
    return np.asarray(after.particles, float) - np.asarray(state.particles, float), np.asarray(after.alive)


@pytest.mark.parametrize("method", COUPLED)
def test_the_others_move_in_float32_as_in_float64(method):
    """Fails when distances or repulsions are taken around the mean of all: the others then lose every digit.

    Moves are sums over N members, weighted by a kernel of D products.
    """
    exact, _ = moved(method, jnp.float64)
    rounded, alive = moved(method, jnp.float32)
    assert alive.all()
    assert np.abs(rounded - exact)[1:].max() < rounding(N * D, "float32") * np.abs(exact[1:]).max()


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
@pytest.mark.parametrize("method", ["w-svgd", "fw-svgd-l", "h-svgd-l", "hp-svgd", "hs-svgd"])
def test_the_others_survive_with_noise(method, dtype):
    """Fails when the kernel matrix is so wrong that it has no Cholesky factor: then no member is left alive."""
    moves, alive = moved(method, dtype, stochastic=True)
    assert alive.all()
    assert np.abs(moves[1:]).max() < 5  # a Langevin step of 0.1 over N members: some sqrt(2 * 0.1) at most


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_a_runaway_takes_nobody_with_it(dtype):
    """A member that doubles its distance in every step until it is no longer finite, under `freeze`."""

    def log_prob(w):  # a well around zero, and beyond 1e4 a slope that throws out
        return jnp.where(jnp.max(jnp.abs(w)) < 1e4, -0.5, 5.0) * jnp.sum(w**2)

    target = targets.density(log_prob, lambda key: jax.random.normal(key, (D,), dtype))
    algorithm = ensemble(target, rules.w_svgd(), steps.langevin(0.1))
    start = jax.random.normal(jax.random.key(1), (N, D), dtype).at[0].set(2e4)
    state = algorithm.init(jax.random.key(0), N, start)
    state, infos = jax.jit(lambda s: jax.lax.scan(lambda s, _: algorithm.step(s, None), s, length=3000))(state)
    assert np.asarray(infos.alive).sum(axis=1).tolist()[0] == N  # the runaway is finite at first
    assert state.alive.tolist() == [False] + [True] * (N - 1)
    assert float(jnp.abs(state.particles[1:]).max()) < 10


@pytest.mark.parametrize("kernel", [kernels.rbf(), kernels.imq()], ids=["rbf", "imq"])
def test_kernel_matrix_beside_an_outlier(kernel):
    """Entries of the others, in float32 against NumPy's float64 from differences."""
    x = members(jnp.float32)
    gram, _ = kernel(x, EVERYONE, kernel.memory)
    wide = np.asarray(x, float)
    squared = ((wide[:, None] - wide[None]) ** 2).sum(axis=2)
    found = np.asarray(tree.squared_distances(x, EVERYONE), float)
    # D products of numbers of size |x - centre|^2 ~ D: the rounding of a sum of 3 D of them.
    assert np.abs(found - squared)[1:, 1:].max() < 3 * D * D * np.finfo(np.float32).eps
    assert np.abs(np.asarray(gram.matrix).diagonal() - 1).max() < 1e-5


def test_a_cluster_far_from_the_origin_keeps_its_digits_beside_an_outlier():
    """All members at 1e3 with a spread of 1e-2. Fails without any shift, and with a shift to the mean of all."""
    random = np.random.default_rng(1)
    x = 1e3 + 1e-2 * random.normal(size=(N, D))
    x[3] = -1e8
    x = x.astype(np.float32)
    squared = ((x[:, None].astype(float) - x[None].astype(float)) ** 2).sum(axis=2)
    found = np.asarray(tree.squared_distances(jnp.asarray(x), EVERYONE), float)
    others = np.delete(np.arange(N), 3)
    error = np.abs(found - squared)[np.ix_(others, others)].max()
    assert error < 0.01 * np.median(squared[np.ix_(others, others)])


def test_distances_of_many_weights(monkeypatch):
    """More columns than one block, and not a multiple of its width. Catches columns that no block has, or two."""
    monkeypatch.setattr(tree, "BLOCK", 1000)
    x = np.random.default_rng(0).normal(size=(5, 997))
    found = tree.squared_distances(
        {"a": jnp.asarray(x[:, :900].reshape(5, 30, 30)), "b": jnp.asarray(x[:, 900:])}, jnp.ones(5, bool)
    )
    np.testing.assert_allclose(found, ((x[:, None] - x[None]) ** 2).sum(axis=2), rtol=1e-12, atol=1e-9)


# -- the exact repulsion keeps what the kernel weighs ---------------------------------------------------------


@functools.cache
def clusters():
    """Functions close to each other, which repel, beside a few far away, which hold nearly all of the variance."""
    random = np.random.default_rng(2)
    n = 16
    w = np.concatenate([0.3 * random.normal(size=(n - 4, 30)), 100 * random.normal(size=(4, 30))])
    mixing = random.normal(size=(30, 25))

    def functions(w):
        return jnp.sin(w @ mixing)[:, None] + (w @ mixing)[:, None]

    target = targets.density(lambda w: -0.5 * jnp.sum(w**2), lambda key: jax.random.normal(key, (30,)), functions)
    alive = jnp.ones(n, bool)
    view = target.view(
        jax.random.key(0), jnp.asarray(w), None, jnp.arange(n), alive, jnp.ones(()), "outputs", functional=False
    )
    gram, _ = functional.on_functions(kernels.rbf(10.0), view, ())
    return view, gram


def test_energy_is_measured_in_what_the_kernel_weighs():
    """Fails when the energy is that of the functions: the far members hold 0.9999 of it, and no member feels them."""
    view, gram = clusters()
    whole = np.asarray(rules.exact(energy=1.0)(jax.random.key(0), gram, view))
    kept = np.asarray(rules.exact()(jax.random.key(0), gram, view))
    near = slice(0, 12)
    assert np.linalg.norm(whole[near]) > 0.1
    # The default leaves out 1e-4 of the squared pushes between pairs: 1 % of them in the root mean square.
    assert np.linalg.norm((kept - whole)[near]) < 0.02 * np.linalg.norm(whole[near])


def test_the_directions_kept_are_those_with_the_largest_pushes():
    """Against the sum over the directions chosen here. Fails when directions are chosen by the functions' variance."""
    view, gram = clusters()
    norms, unit, values, vectors = functional.spectrum(view)
    shares = np.asarray(functional.pushes(gram.left, norms, values, vectors))
    order = np.argsort(-shares)
    kept = order[: int(np.searchsorted(np.cumsum(shares[order]), 0.9 * shares.sum())) + 1]
    assert set(kept) != set(range(len(kept)))  # not those of the largest eigenvalues
    C, expected = np.asarray(gram.left), 0.0
    for q in kept:
        v = jnp.tensordot(vectors[:, q], unit, axes=1)
        pulled = np.asarray(view.pullback(jnp.broadcast_to(v[None], unit.shape)))
        a = np.asarray(norms * vectors[:, q])[:, None]
        expected = expected + a * (C @ pulled) - C @ (a * pulled)
    found = np.asarray(rules.exact(energy=0.9)(jax.random.key(0), gram, view))
    np.testing.assert_allclose(found, expected, atol=1e-9 * np.abs(expected).max())


# -- functional priors and the dead --------------------------------------------------------------------------


def test_the_dead_do_not_count_in_the_width_of_the_ssge_prior():
    """Survivors' scores are those of the survivors alone. Fails when the zero rows of the dead are in the median."""
    random = np.random.default_rng(3)
    queries = jnp.asarray(3 + random.normal(size=(6, 4, 1)))
    alive = jnp.asarray([True, False, True, True, False, True])
    prior = functional_priors.ssge(draws=40)

    def draw(key, number, at):
        return jax.random.normal(key, (number, 4, 1), queries.dtype)

    def score(features, alive):
        return np.asarray(prior(jax.random.key(0), features, alive, jnp.zeros((4, 1)), draw))

    together = score(jnp.where(alive[:, None, None], queries, 0.0), alive)
    alone = score(queries[np.asarray(alive)], jnp.ones(4, bool))
    np.testing.assert_allclose(together[np.asarray(alive)], alone, rtol=1e-10)


@pytest.mark.parametrize("bandwidth", [1e-39, 0.0, -1.0, float("nan"), float("inf")])
def test_a_bandwidth_that_float32_cannot_divide_by_is_refused(bandwidth):
    with pytest.raises(ValueError, match=r"bandwidth = .*: must be positive"):
        kernels.rbf(bandwidth)


def test_a_sum_of_kernels_lies_between_its_two():
    """hs-svgd with nearly all weight on one kernel is the rule with that kernel alone."""
    w, f = kernels.rbf(2.0), kernels.rbf(0.5)
    target = targets.density(lambda x: -0.5 * jnp.sum(x**2), lambda key: jax.random.normal(key, (D,)), features)
    particles = jax.random.normal(jax.random.key(5), (N, D))
    view = target.view(
        jax.random.key(0), particles, None, jnp.arange(N), EVERYONE, jnp.ones(()), "outputs", functional=False
    )

    def drift(rule):
        return np.asarray(rule.force(jax.random.key(0), view, rule.memory)[0].drift)

    whole = rules.exact(energy=1.0)
    for weights, alone in (((1.0, 1e-12), rules.w_svgd(w)), ((1e-12, 1.0), rules.fw_svgd(f, whole))):
        np.testing.assert_allclose(drift(rules.hs_svgd(w, f, whole, weights=weights)), drift(alone), atol=1e-9)
    with pytest.raises(ValueError, match="one positive number for each of the 2 kernels"):
        rules.hs_svgd(weights=(1.0, 0.0))
