"""What every registered rule must keep, whatever it computes. A new line in METHODS is tested here by itself."""

import functools
import inspect
import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from problems import CHAINS, close, rounding
from stein import cli, functional_priors, kernels, likelihoods, methods, priors, rules, schedules, steps, train, tree
from stein.data import Batches
from stein.ensembles import build, ensemble
from stein.sharding import shard
from stein.targets import Measurement, posterior
from stein.types import Batch, Model

# With noise, a method ending in -s differs from its -l only in its features, and those are tested without noise.
CASES = [(name, False) for name in rules.METHODS] + [
    (name, True)
    for name, method in rules.METHODS.items()
    if method.stochastic == "optional" and not name.endswith("-s")
]
NOISY = [(name, noisy) for name, noisy in CASES if noisy or rules.METHODS[name].stochastic == "always"]
# One case for each kind of machinery; the rest of what compiles for seconds is left to `make test-long`.
KINDS = [("de", False), ("psgld", False), ("w-svgd", True), ("f-svgd", False), ("fw-svgd-l", True), ("sge-wgd", False)]


MIXED = ("h-svgd-l", "hp-svgd", "blob")  # two kernels, or sums over other rows


def first(kinds, without=()):
    """All cases but some, those that are not of these kinds marked long."""
    kept = [case for case in CASES if case not in without]
    return [pytest.param(*case, marks=() if case in kinds else pytest.mark.long) for case in kept]


def some(names, short):
    """All names, those that are not among ``short`` marked long."""
    return [pytest.param(name, marks=() if name in short else pytest.mark.long) for name in names]


NUM_DATA, N = 30, 4


def network(dtype):
    """A classifier with leaves of rank 0, 2 and 3 in a nested tree."""

    def init(key):
        keys = jax.random.split(key, 3)
        return {
            "in": [jax.random.normal(keys[0], (2, 5), dtype)],
            "gain": jnp.ones((), dtype),
            "out": jax.random.normal(keys[1], (5, 3, 2), dtype),
        }

    def apply(w, x):
        hidden = jnp.tanh(x @ w["in"][0])
        return w["gain"] * jnp.einsum("bh,hcr->bc", hidden, w["out"])

    return Model(init, apply)


def data(dtype=jnp.float64, seed=0):
    random = np.random.default_rng(seed)
    x = jnp.asarray(random.normal(size=(NUM_DATA, 2)), dtype)
    return x, jnp.asarray(random.integers(0, 3, NUM_DATA), jnp.int32)


def target(dtype=jnp.float64, num_data=NUM_DATA, **options):
    return posterior(network(dtype), likelihoods.categorical(), priors.normal(1.3), num_data, **options)


def measured(name):
    """Where the method's functional kernel looks."""
    x = np.random.default_rng(2).normal(size=(3, 2))
    return Measurement("extra", extra=x) if rules.METHODS[name].unlabelled else Measurement()


def algorithm(name, noisy, dtype=jnp.float64, **options):
    prior = functional_priors.gaussian_process(
        lambda x, y: jnp.exp(-((x @ y.T) ** 2)) + 2 * jnp.eye(len(x), dtype=x.dtype)
    )
    # Chains take all data in every step: for them the batch is all there is.
    rows = 8 if name in CHAINS else NUM_DATA
    where = target(dtype, num_data=rows, functional_prior=prior, measurement=measured(name))
    return build(name, where, stochastic=noisy, learning_rate=0.01, **CHAINS.get(name, {}), **options)


@functools.cache
def compiled(name, noisy):
    """The algorithm and its jitted step."""
    algo = algorithm(name, noisy)
    return algo, jax.jit(algo.step)


def batch(dtype=jnp.float64):
    x, y = data(dtype)
    return Batch(x[:8], y[:8], x[8:16])


def steps_from(step, state, number, at=None):
    for _ in range(number):
        state, _ = step(state, batch() if at is None else at)
    return state


def permuted(state, order):
    """The same ensemble with its members in another order."""
    n = len(order)
    return jax.tree.map(lambda leaf: leaf[order] if leaf.ndim and leaf.shape[0] == n else leaf, state)


def differs(a, b):
    return any(
        np.max(np.abs(np.asarray(x) - np.asarray(y))) > 1e-9
        for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    )


def noise_map(rule, state, monkeypatch):
    """The rule's noise as a matrix on the particle index: column j is what a unit draw of particle j does."""

    @jax.jit
    def column(j):
        def unit(key, ids, like):
            return tree.rows((ids == j).astype(jnp.float64), jax.tree.map(jnp.ones_like, like))

        monkeypatch.setattr(tree, "normal", unit)
        view = target().view(
            jax.random.key(0), state.particles, batch(), state.ids, state.alive, jnp.ones(()), rule.space, False
        )
        return rule.force(jax.random.key(1), view, rule.memory)[0].noise["gain"]

    return np.stack([column(j) for j in state.ids], axis=1)


ORDER = np.array([2, 0, 3, 1])


@pytest.mark.parametrize(("name", "noisy"), first([*KINDS, *((name, False) for name in MIXED)], without=NOISY))
def test_order_of_members_does_not_matter_to_the_drift(name, noisy):
    """Catches a sum over the wrong particle axis, K in place of its transpose, an index used as an id."""
    algo, step = compiled(name, noisy)
    state = algo.init(jax.random.key(0), N)
    moved, other = steps_from(step, state, 2), steps_from(step, permuted(state, ORDER), 2)
    close(other.particles, jax.tree.map(lambda leaf: leaf[ORDER], moved.particles), 1e-8)


@pytest.mark.parametrize(("name", "noisy"), NOISY)
def test_order_of_members_does_not_matter_to_the_noise(name, noisy, monkeypatch):
    """The covariance of the noise over particles is permuted with them. Catches noise that depends on position."""
    rule = rules.make(name, stochastic=noisy)
    state = algorithm(name, noisy).init(jax.random.key(0), N)
    root, other = noise_map(rule, state, monkeypatch), noise_map(rule, permuted(state, ORDER), monkeypatch)
    covariance = root @ root.T
    np.testing.assert_allclose(other @ other.T, covariance[np.ix_(ORDER, ORDER)], rtol=1e-9, atol=1e-12)
    assert np.diag(covariance).min() > 0.1


@pytest.mark.parametrize(("name", "noisy"), first([("w-svgd", True)]))
def test_jitted_and_eager_agree_without_recompiling(name, noisy):
    """Catches Python control flow on traced values, hidden state, and types that drift from step to step."""
    algo, step = compiled(name, noisy)
    state = algo.init(jax.random.key(0), N)
    jitted, _ = step(state, batch())
    compilations = step._cache_size()
    step(jitted, batch())
    assert step._cache_size() == compilations

    eager, _ = algo.step(state, batch())
    close(eager.particles, jitted.particles, 1e-9)


@pytest.mark.parametrize(("name", "noisy"), first([("w-svgd", True)]))
def test_vmapped_over_seeds_is_each_seed(name, noisy):
    """Catches a reduction over the wrong axis, and a branch that all seeds take together."""
    algo, step = compiled(name, noisy)
    states = [algo.init(jax.random.key(seed), N) for seed in (0, 1)]
    jitted = [step(state, batch())[0] for state in states]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)
    vmapped, _ = jax.jit(jax.vmap(algo.step, (0, None)))(stacked, batch())
    for i in (0, 1):
        close(tree.index(vmapped.particles, i), jitted[i].particles, 1e-9)


@pytest.mark.parametrize(("name", "noisy"), first([("f-svgd", False), ("fw-svgd-l", True)]))
def test_float32_stays_float32_and_agrees_with_float64(name, noisy):
    """Catches a constant that promotes, and an algorithm that loses its digits in single precision.

    A force sums over 8 points, 5 hidden units and 4 members; a Stein or spectral estimate also divides by eigenvalues
    as small as its eta of 0.01. Plain gradient steps, because Adam's first step is the sign of a gradient.
    """
    plain = {} if (name, noisy) in NOISY else {"optimiser": optax.sgd}
    wide_algo, narrow_algo = (algorithm(name, noisy, dtype, **plain) for dtype in (jnp.float64, jnp.float32))
    wide = wide_algo.init(jax.random.key(0), N)
    # The draws of the two precisions differ, so the start is cast, and noise is left out of the comparison.
    start = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), wide.particles)
    narrow = narrow_algo.init(jax.random.key(0), N, weights=start)
    moved, info = jax.jit(narrow_algo.step)(narrow, batch(jnp.float32))
    assert {leaf.dtype for leaf in jax.tree.leaves(moved.particles)} == {jnp.dtype("float32")}
    assert bool(info.alive.all())
    if (name, noisy) in NOISY or name in CHAINS:
        return
    exact = jax.jit(wide_algo.step)(wide, batch())[0].particles
    force = max(float(jnp.abs(a - b).max()) for a, b in pairs(exact, wide.particles))
    size = max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(exact))
    allowed = rounding(8 * 5 * N, "float32") * (100 if "sge" in name else 1) * force + rounding(1, "float32") * size
    error = max(float(jnp.abs(a - b).max()) for a, b in pairs(moved.particles, exact))
    assert error < allowed


def pairs(a, b):
    """The leaves of two trees, in float64."""
    both = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return [tuple(jnp.asarray(leaf, jnp.float64) for leaf in pair) for pair in both]


@pytest.mark.parametrize(("name", "noisy"), first([("psgld", False), ("f-svgd", False), ("fw-svgd-l", True)]))
def test_seven_particles_over_four_devices(name, noisy):
    """The same numbers with the particle axis sharded. Catches draws that depend on the device, rows of filling that
    take part, and a sum over the particles of one device alone."""
    algo, step = compiled(name, noisy)
    state = algo.init(jax.random.key(0), 7)
    spread, placed = shard(algo, state)
    assert len(placed.particles["out"].sharding.device_set) == 4
    moved = steps_from(jax.jit(spread.step), placed, 2)
    assert moved.alive.tolist() == [True] * 7 + [False]
    assert moved.particles["out"].sharding.spec == placed.particles["out"].sharding.spec
    close(jax.tree.map(lambda leaf: leaf[:7], moved.particles), steps_from(step, state, 2).particles, 1e-10)


@pytest.mark.long
@pytest.mark.parametrize("name", ["f-svgd", "h-svgd-l"])
def test_a_batch_over_two_devices_of_each_particle(name):
    """The same numbers with the batch sharded as well. Catches a likelihood that is averaged over a part of it."""
    algo, step = compiled(name, False)
    state = algo.init(jax.random.key(0), 3)
    spread, placed = shard(algo, state, data=2)
    assert placed.particles["out"].sharding.mesh.shape == {"particles": 2, "data": 2}
    moved = steps_from(jax.jit(spread.step), placed, 2)
    close(jax.tree.map(lambda leaf: leaf[:3], moved.particles), steps_from(step, state, 2).particles, 1e-10)


@pytest.mark.parametrize(
    ("name", "noisy"), first([("w-svgd", True), ("f-svgd", False), ("hp-svgd", False), ("blob", False)])
)
def test_a_dead_member_is_as_if_it_never_was(name, noisy):
    """Survivors equal the run without the dead one. Catches a mask forgotten in a kernel, median, mean or noise."""
    algo, step = compiled(name, noisy)
    state = algo.init(jax.random.key(0), N)
    broken = state._replace(
        particles=jax.tree.map(lambda leaf: leaf.at[2].set(jnp.nan), state.particles),
    )
    keep = np.array([0, 1, 3])
    without = jax.tree.map(lambda leaf: leaf[keep] if leaf.ndim and leaf.shape[0] == N else leaf, state)
    moved, reduced = step(broken, batch())[0], step(without, batch())[0]
    assert moved.alive.tolist() == [True, True, False, True]
    close(jax.tree.map(lambda leaf: leaf[keep], moved.particles), reduced.particles, 1e-6)


@pytest.mark.parametrize("name", some(["de", "sgld", "psgld", "sghmc", "mile"], ["de", "sgld", "psgld", "sghmc"]))
def test_an_independent_member_trained_alone_is_the_same(name):
    """R18. Catches shared optimiser state, shared noise, and draws that depend on the number of members."""
    algo, step = compiled(name, False)
    state = algo.init(jax.random.key(0), N)
    together = steps_from(step, state, 20)
    one = jax.tree.map(lambda leaf: leaf[2:3] if leaf.ndim and leaf.shape[0] == N else leaf, state)
    alone = steps_from(jax.jit(algo.step), one, 20)
    close(tree.index(together.particles, 2), tree.index(alone.particles, 0), 1e-9)

    other = state._replace(particles=jax.tree.map(lambda leaf: leaf.at[0].add(0.1), state.particles))
    changed = steps_from(step, other, 20)
    close(
        jax.tree.map(lambda leaf: leaf[1:], changed.particles),
        jax.tree.map(lambda leaf: leaf[1:], together.particles),
        0,
    )


# -- every hyperparameter does something ---------------------------------------------------------------------

IMQ = kernels.imq(0.7)
OPTION_VALUES = {
    "kernel": IMQ,
    "kernel_w": IMQ,
    "kernel_f": IMQ,
    "repulsion": rules.exact(energy=1.0),
    "noise": rules.elementwise_shared(),
    "space": "probabilities",
    "noisy": True,
    "estimator": rules.blob(),
    "weights": (0.2, 0.8),
    "axes": np.array([[1.0, 0.5], [0.0, 3.0]]),
    "eta": 0.5,
    "tails": 3.0,
}
OTHER_VALUES = {  # where the value above is what the method has anyway
    ("hp-svgd", "repulsion"): rules.local(),
    ("hs-svgd", "repulsion"): rules.local(),
    ("blob", "estimator"): rules.kde(),
    ("f-blob", "estimator"): rules.kde(),
    ("fw-svgd-s", "space"): "outputs",
    ("h-svgd-s", "space"): "outputs",
    ("sgld", "noisy"): False,
    ("psgld", "noisy"): False,
    ("sghmc", "noisy"): False,
}


@pytest.mark.parametrize("name", some(rules.METHODS, ["f-svgd", "fw-svgd-l", "hs-svgd"]))
def test_every_option_of_a_rule_changes_it(name):
    """Catches a parameter that does nothing. A new option must be given a second value above."""
    build_rule = rules.builder(name)
    langevin = steps.langevin(1e-3)
    where = target(measurement=measured(name))
    base = ensemble(where, build_rule(), langevin)
    state = base.init(jax.random.key(0), N)
    usual = base.step(state, batch())[0].particles
    for option in inspect.signature(build_rule).parameters:
        value = OTHER_VALUES.get((name, option), OPTION_VALUES[option])
        rule = build_rule.func(value) if option == "estimator" else build_rule(**{option: value})
        changed = ensemble(where, rule, langevin)
        moved = changed.step(changed.init(jax.random.key(0), N), batch())[0].particles
        assert differs(moved, usual), f"{name}: {option} does nothing"


def moved_by(algo, number=2):
    return steps_from(algo.step, algo.init(jax.random.key(0), N), number).particles


ADAM = optax.adam(0.01)
W_SVGD, NOISY_W = rules.w_svgd(), rules.w_svgd(noise=rules.cholesky())
FW, SGHMC = rules.fw_svgd(), rules.make("sghmc")
VARIANTS = {
    "temperature": lambda on: ensemble(target(), W_SVGD, ADAM, temperature=2.0 if on else 1.0),
    "anneal": lambda on: ensemble(target(), W_SVGD, ADAM, anneal=schedules.linear(10) if on else 1.0),
    "hyperbolic power": lambda on: ensemble(target(), W_SVGD, ADAM, anneal=schedules.hyperbolic(4, 3 if on else 2)),
    "cyclical cycles": lambda on: ensemble(target(), W_SVGD, ADAM, anneal=schedules.cyclical(12, 3 if on else 2, 1.0)),
    "cyclical power": lambda on: ensemble(target(), W_SVGD, ADAM, anneal=schedules.cyclical(12, 2, 2.0 if on else 1.0)),
    "start": lambda on: ensemble(target(), W_SVGD, ADAM, start="model" if on else "prior"),
    "median diagonal": lambda on: ensemble(target(), rules.w_svgd(kernels.rbf(kernels.median(not on))), ADAM),
    "median floor": lambda on: ensemble(
        target(), rules.w_svgd(kernels.rbf(kernels.median(floor=1e4 if on else 1e-12))), ADAM
    ),
    "median factor": lambda on: ensemble(
        target(), rules.w_svgd(kernels.rbf(kernels.median(factor=2.0 if on else 1.0))), ADAM
    ),
    "imq power": lambda on: ensemble(target(), rules.w_svgd(kernels.imq(power=1.0 if on else 0.5)), ADAM),
    "frozen after": lambda on: ensemble(
        target(), rules.w_svgd(kernels.rbf(kernels.frozen(kernels.median(), 1 if on else 3))), optax.adam(0.3)
    ),
    "sum weights": lambda on: ensemble(
        target(), rules.w_svgd(kernels.add(kernels.rbf(), kernels.imq(), weights=(1.0, 3.0 if on else 1.0))), ADAM
    ),
    "product": lambda on: ensemble(
        target(), rules.w_svgd(kernels.product(*([kernels.rbf()] * (2 if on else 1)))), ADAM
    ),
    "exact energy": lambda on: ensemble(
        target(), rules.fw_svgd(repulsion=rules.exact(1.0 if on else 0.1)), steps.langevin(1e-3)
    ),
    "exact probe": lambda on: ensemble(
        target(), rules.fw_svgd(repulsion=rules.exact(0.1, probe=on)), steps.langevin(1e-3)
    ),
    "sge eta": lambda on: ensemble(target(), rules.wgd(rules.sge(0.5 if on else 0.01)), ADAM),
    "ssge eta": lambda on: ensemble(target(), rules.wgd(rules.ssge(0.5 if on else 0.01)), ADAM),
    "ssge energy": lambda on: ensemble(target(), rules.wgd(rules.ssge(energy=0.5 if on else 1.0)), ADAM),
    "noise jitter": lambda on: ensemble(
        target(), rules.w_svgd(noise=rules.cholesky(0.5 if on else None)), steps.langevin(1e-3)
    ),
    "independent roots": lambda on: ensemble(
        target(),
        rules.w_svgd(noise=rules.elementwise_independent() if on else rules.elementwise_shared()),
        steps.langevin(1e-3),
    ),
    "step size": lambda on: ensemble(target(), NOISY_W, steps.langevin(2e-3 if on else 1e-3)),
    "polynomial offset": lambda on: ensemble(
        target(), NOISY_W, steps.langevin(schedules.polynomial(1e-3, 2.0 if on else 1.0))
    ),
    "polynomial power": lambda on: ensemble(
        target(), NOISY_W, steps.langevin(schedules.polynomial(1e-3, power=1.0 if on else 0.55))
    ),
    "preconditioner": lambda on: ensemble(target(), NOISY_W, steps.langevin(1e-3, steps.rms() if on else None)),
    "rms decay": lambda on: ensemble(target(), NOISY_W, steps.langevin(1e-3, steps.rms(decay=0.5 if on else 0.9))),
    "rms epsilon": lambda on: ensemble(target(), NOISY_W, steps.langevin(1e-3, steps.rms(epsilon=0.1 if on else 1e-5))),
    "rms shared": lambda on: ensemble(target(), NOISY_W, steps.langevin(1e-3, steps.rms(shared=on))),
    "rms freeze": lambda on: ensemble(
        target(), NOISY_W, steps.langevin(1e-3, steps.rms(freeze_after=1 if on else None))
    ),
    "sghmc friction": lambda on: ensemble(target(), SGHMC, steps.sghmc(1e-2, 0.5 if on else 0.1)),
    "sghmc gradient noise": lambda on: ensemble(target(), SGHMC, steps.sghmc(1e-2, gradient_noise=100.0 * on)),
    "noise scale": lambda on: ensemble(
        target(), SGHMC, steps.sghmc(1e-2), noise_scale=schedules.late_in_cycles(4, 1, 0.5 if on else 0.0)
    ),
    "cosine cycles": lambda on: ensemble(
        target(), SGHMC, steps.sghmc(schedules.cosine_cycles(1e-2, 4, 2 if on else 1))
    ),
    "noise inside": lambda on: ensemble(target(), NOISY_W, steps.noise_inside(ADAM, 1e-3 if on else 1e-2)),
    "measurement where": lambda on: ensemble(
        target(measurement=Measurement("independent" if on else "batch")), FW, ADAM
    ),
    "measurement subset": lambda on: ensemble(target(measurement=Measurement(subset=3 if on else None)), FW, ADAM),
    "measurement extra": lambda on: ensemble(
        target(measurement=Measurement(extra=np.full((2, 2), 9.0) if on else None)), FW, ADAM
    ),
    "extra drawn": lambda on: ensemble(
        target(measurement=Measurement(extra=lambda key: jax.random.normal(key, (2, 2)) if on else jnp.ones((2, 2)))),
        FW,
        ADAM,
    ),
    "center_logits": lambda on: ensemble(
        posterior(network(jnp.float64), likelihoods.categorical(on), priors.normal(), NUM_DATA), FW, ADAM
    ),
    "num_data": lambda on: ensemble(
        posterior(network(jnp.float64), likelihoods.categorical(), priors.normal(), 30 if on else 60),
        W_SVGD,
        steps.langevin(1e-3),
    ),
    "prior": lambda on: ensemble(
        posterior(network(jnp.float64), likelihoods.categorical(), priors.normal() if on else priors.laplace(), 30),
        W_SVGD,
        ADAM,
    ),
}  # fmt: skip
F, SSGE = rules.f_svgd(), functional_priors.ssge(draws=20)
FUNCTIONAL = {
    "none or ssge": (functional_priors.none(), SSGE),
    "ssge draws": (SSGE, functional_priors.ssge(draws=30)),
    "ssge energy": (SSGE, functional_priors.ssge(draws=20, energy=0.5)),
    "ssge eta": (SSGE, functional_priors.ssge(draws=20, eta=0.5)),
    "ssge noise": (SSGE, functional_priors.ssge(draws=20, noise=0.5)),
    "moments jitter": (functional_priors.moment_matched(20), functional_priors.moment_matched(20, jitter=1.0)),
    "points": tuple(functional_priors.on_points(functional_priors.moment_matched(20), points) for points in (2, 4)),
    "gp mean": tuple(functional_priors.gaussian_process(lambda x, y: jnp.eye(len(x)), mean) for mean in (0.0, 1.0)),
    "gp jitter": tuple(
        functional_priors.gaussian_process(lambda x, y: jnp.eye(len(x)), jitter=jitter) for jitter in (1e-6, 1.0)
    ),
    "own": (functional_priors.none(), functional_priors.from_function(lambda x, f: -f)),
}  # fmt: skip


# tests/unit/test_twin.py compares most settings with numbers of their own; the rest of the others is long.
SHORT = ["median factor", "exact energy", "noise jitter"]


@pytest.mark.parametrize("name", some(VARIANTS, SHORT))
def test_every_setting_changes_the_result(name):
    """Catches a setting that is accepted and ignored."""
    assert differs(moved_by(VARIANTS[name](True)), moved_by(VARIANTS[name](False)))


@functools.cache
def score_of(prior):
    """The score of a functional prior; the draws are not a network's, which would take longer to compile."""

    def draw(key, number, at):
        return jnp.sin(jax.random.normal(key, (number, 1, 3)) + jnp.sum(at, axis=1)[None, :, None])

    features = draw(jax.random.key(5), N, batch().x)
    everyone = jnp.ones(N, bool)
    return jax.jit(lambda key, f, x: prior(key, f, everyone, x, draw))(jax.random.key(0), features, batch().x)


@pytest.mark.parametrize("name", FUNCTIONAL)
def test_every_functional_prior_setting_changes_the_score(name):
    """Catches a parameter that does nothing."""
    assert differs(*map(score_of, FUNCTIONAL[name]))


def test_the_functional_prior_is_part_of_the_step():
    """Catches a prior that is accepted and ignored."""
    a, b = (moved_by(ensemble(target(functional_prior=p), F, steps.langevin(1e-3)), 1) for p in FUNCTIONAL["own"])
    assert differs(a, b)


def toward_the_mean(pull=1.0):
    def force(key, view, memory):
        mean = tree.mean(view.weights, view.alive)
        back = jax.tree.map(lambda m, w: pull * (m[None] - w), mean, view.weights)
        return rules.Force(tree.add(view.score_w, back)), memory

    return rules.Rule(force)


@pytest.fixture
def toy(monkeypatch):
    """The promise of CONTRIBUTING: a rule is one function and one entry."""
    entry = methods.Method("toy", toward_the_mean, "back to the mean", "1", "no", {"pull": 200.0})
    monkeypatch.setitem(methods.METHODS, "toy", entry)


def test_a_rule_in_one_function_and_one_entry(toy):
    """It is looked up by its name, and trains."""
    algo = build("toy", target(), learning_rate=0.05)
    x, y = data()
    state = algo.init(jax.random.key(0), N)
    trained, info = train.run(algo, state, Batches(x, y, 10, jax.random.key(1)), 300)
    spread = lambda s: float(jnp.std(s.particles["out"], axis=0).mean())  # noqa: E731
    assert spread(trained) < 0.1 * spread(state)
    assert float(info.log_likelihood[-1].mean()) > float(info.log_likelihood[0].mean())


def test_such_a_rule_trains_from_a_config_and_is_listed(toy, tmp_path, capsys):
    """Catches a second place that knows what a method is."""
    (tmp_path / "run.toml").write_text(
        """
        [data]
        name = "regression-1d"
        [method]
        name = "toy"
        particles = 3
        [model]
        hidden = [4]
        [train]
        steps = 20
        """
    )
    assert cli.main(["train", str(tmp_path / "run.toml"), "--out", str(tmp_path / "run"), "--quiet", "--no-cache"]) == 0
    assert "20 steps of toy done, 3 members alive" in capsys.readouterr().out
    assert "toy: back to the mean" in (tmp_path / "run" / "card.md").read_text()
    assert cli.main(["methods", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[-1]["name"] == "toy"
    assert cli.main(["train", str(tmp_path / "run.toml"), "--stochastic", "--out", str(tmp_path / "other")]) == 2
    assert "method.stochastic (from --stochastic): toy has no stochastic version" in capsys.readouterr().err
