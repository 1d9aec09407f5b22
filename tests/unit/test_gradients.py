"""S11: everything with a closed-form gradient against central differences; densities against scipy; streams of data."""

import math

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import twin
from problems import central_difference, relative_error
from stein import kernels, likelihoods, priors, schedules
from stein.data import Batches

TOLERANCE = 1e-6
POINTS = np.random.default_rng(3).normal(size=(5, 4))
OUTPUTS = np.random.default_rng(4).normal(size=(6, 4))
ALIVE = jnp.ones(5, bool)
SOME_DEAD = jnp.array([True, False, True, True, False])


# -- likelihoods ---------------------------------------------------------------------------------------------

REAL = np.random.default_rng(5).normal(size=(6, 4))
COUNTS = np.random.default_rng(6).poisson(3.0, size=(6, 4)).astype(float)
WEIGHTS_OF_ROWS = np.array([0.0, 1.0, 2.0, 0.5, 3.0, 1.0])
LABELS = np.array([2, 0, 1, 1, 2, 0])
LIKELIHOODS = {
    "gaussian": (likelihoods.gaussian(0.6), REAL),
    "learned sigma": (likelihoods.gaussian(None), REAL[:, :2]),
    "heteroscedastic": (likelihoods.heteroscedastic(), REAL[:, :2]),
    "categorical": (likelihoods.categorical(), LABELS),
    "student-t": (likelihoods.student_t(0.6), REAL),
    "student-t, learned sigma": (likelihoods.student_t(degrees=3.0), REAL[:, :2]),
    "student-t, input-dependent": (likelihoods.student_t("input-dependent"), REAL[:, :2]),
    "poisson": (likelihoods.poisson(2.5), COUNTS),
    "weighted gaussian": (likelihoods.weighted(likelihoods.gaussian(0.6)), np.c_[REAL, WEIGHTS_OF_ROWS]),
    "weighted categorical": (likelihoods.weighted(likelihoods.categorical()), np.c_[LABELS, WEIGHTS_OF_ROWS]),
}


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_likelihood_score(name):
    """Catches a wrong sign or power of sigma, a log sigma counted once instead of once a target, points that mix."""
    likelihood, y = LIKELIHOODS[name]
    score = likelihood.score(jnp.asarray(OUTPUTS), jnp.asarray(y))
    numeric = central_difference(lambda f: likelihood.log_prob(jnp.asarray(f), jnp.asarray(y)).sum(), OUTPUTS)
    assert relative_error(score, numeric) < TOLERANCE


def test_likelihoods_against_scipy():
    """Catches a missing normalising constant and a sigma that is a variance."""
    f, y = jnp.asarray(OUTPUTS), jnp.asarray(REAL)
    normal = scipy.stats.norm.logpdf
    expected = normal(REAL, OUTPUTS, 0.6).sum(axis=1)
    np.testing.assert_allclose(likelihoods.gaussian(0.6).log_prob(f, y), expected, rtol=1e-12)
    expected = normal(REAL[:, :2], OUTPUTS[:, :2], np.exp(OUTPUTS[:, 2:])).sum(axis=1)
    np.testing.assert_allclose(likelihoods.heteroscedastic().log_prob(f, y[:, :2]), expected, rtol=1e-12)
    expected = scipy.stats.t.logpdf(REAL, 5.0, OUTPUTS, 0.6).sum(axis=1)
    np.testing.assert_allclose(likelihoods.student_t(0.6, 5.0).log_prob(f, y), expected, rtol=1e-12)
    expected = scipy.stats.t.logpdf(REAL[:, :2], 4.0, OUTPUTS[:, :2], np.exp(OUTPUTS[:, 2:])).sum(axis=1)
    np.testing.assert_allclose(likelihoods.student_t().log_prob(f, y[:, :2]), expected, rtol=1e-12)
    expected = scipy.stats.poisson.logpmf(COUNTS, 2.5 * np.exp(OUTPUTS)).sum(axis=1)
    np.testing.assert_allclose(likelihoods.poisson(2.5).log_prob(f, jnp.asarray(COUNTS)), expected, rtol=1e-12)
    expected = [
        scipy.stats.multinomial.logpmf(np.eye(4)[c], 1, twin.softmax(o)) for c, o in zip(LABELS, OUTPUTS, strict=True)
    ]
    np.testing.assert_allclose(likelihoods.categorical().log_prob(f, jnp.asarray(LABELS)), expected, rtol=1e-12)


@pytest.mark.parametrize("name", ["gaussian", "student-t", "poisson", "categorical"])
def test_a_weight_is_a_repetition(name):
    """Whole weights against repeated rows. Catches a weight that is normalised, squared or forgotten in the score."""
    likelihood, y = LIKELIHOODS[name]
    times = np.array([0, 1, 2, 1, 3, 1])
    rows, with_weights = likelihoods.weighted(likelihood), np.c_[y, times].astype(float)
    repeated = jnp.asarray(np.repeat(OUTPUTS, times, axis=0)), jnp.asarray(np.repeat(y, times, axis=0))
    f = jnp.asarray(OUTPUTS)
    rows.check(4, with_weights)
    for of_rows, of_repeated in ((rows.log_prob, likelihood.log_prob), (rows.score, likelihood.score)):
        total = np.asarray(of_rows(f, jnp.asarray(with_weights))).sum(axis=0)
        np.testing.assert_allclose(total, np.asarray(of_repeated(*repeated)).sum(axis=0), rtol=1e-12)


@pytest.mark.parametrize(
    ("likelihood", "y", "message"),
    [
        (likelihoods.poisson(), np.array([[0.5]]), "y holds 0.5: counts must be whole numbers, 0 or more"),
        (likelihoods.poisson(), np.array([[-1.0]]), "y holds -1: counts must be"),
        (likelihoods.weighted(likelihoods.gaussian()), np.array([1.0]), "the weight in the last column"),
        (likelihoods.weighted(likelihoods.gaussian()), np.array([[1.0, -1.0]]), "weights: from -1 to -1; must be 0"),
        (likelihoods.weighted(likelihoods.gaussian()), np.array([[1.0, 0.0]]), "must be 0 or more, one above 0"),
        (likelihoods.heteroscedastic(), np.array([[1.0]]), "the model has 1 outputs: a mean and log sigma per target"),
    ],
    ids=["half a count", "negative count", "no weight", "negative weight", "no weight above zero", "no log sigma"],
)
def test_targets_that_do_not_fit_are_rejected(likelihood, y, message):
    with pytest.raises(ValueError, match=message):
        likelihood.check(1, y)


def test_regression_targets_without_a_column():
    """Catches (b,) targets broadcast against (b, 1) outputs to (b, b)."""
    f, y = jnp.asarray(OUTPUTS[:, :1]), jnp.asarray(REAL[:, 0])
    np.testing.assert_allclose(likelihoods.gaussian(0.6).score(f, y)[:, 0], (REAL[:, 0] - OUTPUTS[:, 0]) / 0.36)


# -- priors --------------------------------------------------------------------------------------------------

WEIGHTS = {"first": (POINTS[0], POINTS[1:3]), "last": POINTS[3]}
SCALES = {"first": 0.7, "last": 1.9}
PRIORS = {
    "normal": (priors.normal(0.7), scipy.stats.norm, {"first": 0.7, "last": 0.7}),
    "normal by layer": (priors.normal(SCALES), scipy.stats.norm, SCALES),
    "laplace": (priors.laplace(0.7), scipy.stats.laplace, {"first": 0.7, "last": 0.7}),
    "laplace by layer": (priors.laplace(SCALES), scipy.stats.laplace, SCALES),
}


@pytest.mark.parametrize("name", PRIORS)
def test_prior_score(name):
    """Catches a variance taken for a standard deviation, and a scale given to the wrong layer."""
    prior = PRIORS[name][0]
    flat, unflatten = jax.flatten_util.ravel_pytree(jax.tree.map(jnp.asarray, WEIGHTS))
    score, _ = jax.flatten_util.ravel_pytree(prior.score(unflatten(flat)))
    numeric = central_difference(lambda w: prior.log_prob(unflatten(jnp.asarray(w))), np.asarray(flat))
    assert relative_error(score, numeric) < TOLERANCE


@pytest.mark.parametrize("name", PRIORS)
def test_prior_log_prob_and_sample(name):
    """Catches a missing constant in the density, and draws of another scale than the density's."""
    prior, distribution, scales = PRIORS[name]
    expected = sum(
        distribution.logpdf(leaf, scale=scales[layer]).sum()
        for layer, leaves in WEIGHTS.items()
        for leaf in jax.tree.leaves(leaves)
    )
    weights = jax.tree.map(jnp.asarray, WEIGHTS)
    np.testing.assert_allclose(prior.log_prob(weights), expected, rtol=1e-12)
    big = {"first": jnp.zeros((300, 100)), "last": jnp.zeros((200, 100))}
    for layer, draws in prior.sample(jax.random.key(0), big).items():
        # The KS distance of 20 000 draws is below 0.017 with probability 1 - 2e-5; a scale 10 % off gives 0.02.
        test = scipy.stats.kstest(np.asarray(draws).ravel(), distribution(scale=scales[layer]).cdf)
        assert test.statistic < 0.014


FAN_IN = {"a": {"kernel": jnp.zeros((3, 4, 500))}, "b": {"weight": jnp.zeros((500, 12)), "bias": jnp.zeros(6000)}}


@pytest.mark.parametrize("prior", [priors.fan_in, priors.laplace], ids=["fan-in", "laplace"])
def test_a_prior_with_its_own_scale(prior):
    """Catches a scale that is not divided by, divided by twice, or learned."""
    weights, scale = jax.tree.map(lambda leaf: leaf + 0.1, FAN_IN), 0.7
    own, known = priors.with_own_scale(prior(1.0)), prior(scale)
    both = {"weights": weights, "scale": jnp.asarray(scale)}
    np.testing.assert_allclose(own.log_prob(both), known.log_prob(weights), rtol=1e-5)
    score = own.score(both)
    assert score["scale"] == 0
    expected = (known.score(weights), known.sample(jax.random.key(0), weights))
    found = (score["weights"], own.sample(jax.random.key(0), both)["weights"])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), found, expected)


def test_fan_in_is_normal_by_the_inputs_of_a_unit():
    """Catches fan-out for fan-in, an axis left out, a variance for a standard deviation, and a scaled bias."""
    prior, weights = priors.fan_in(0.7), jax.tree.map(lambda leaf: leaf + 0.1, FAN_IN)
    stds = {"a": 0.7 / math.sqrt(12), "b": {"weight": 0.7 / math.sqrt(12), "bias": 0.7}}
    expected = priors.normal(stds)
    np.testing.assert_allclose(prior.log_prob(weights), expected.log_prob(weights), rtol=1e-12)
    for one, other in zip(*(jax.tree.leaves(p.score(weights)) for p in (prior, expected)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)
    draws = jax.tree.map(jnp.std, prior.sample(jax.random.key(0), FAN_IN))
    for drawn, std in zip(jax.tree.leaves(draws), jax.tree.leaves(jax.tree.broadcast(stds, FAN_IN)), strict=True):
        assert abs(drawn / std - 1) < 4.6 / math.sqrt(2 * 6000)  # 4.6 standard errors of a standard deviation


# -- kernels -------------------------------------------------------------------------------------------------


def anisotropic(a, b):
    """A kernel that knows its first argument from its second: no translation invariance, a mixed metric."""
    return jnp.exp(-jnp.sum((a - b) ** 2 * jnp.arange(1.0, 5.0)) / 3) + 0.1 * jnp.sum(a * b) ** 2


FIXED = {
    "rbf": kernels.rbf(2.3),
    "imq": kernels.imq(1.7),
    "imq of power 1.5": kernels.imq(1.7, power=1.5),
    "linear": kernels.linear(),
    "product": kernels.product(kernels.rbf(2.3), kernels.imq(1.7)),
    "product with linear": kernels.product(kernels.rbf(4.0), kernels.linear()),
    "product of three": kernels.product(kernels.rbf(9.0), kernels.imq(1.7), kernels.linear()),
    "add": kernels.add(kernels.rbf(2.3), kernels.imq(1.7), weights=(0.4, 2.5)),
    "add linear": kernels.add(kernels.rbf(2.3), kernels.linear()),
    "from_function": kernels.from_function(anisotropic),
}
FUNCTIONS = {
    "rbf": lambda a, b: np.exp(-np.sum((a - b) ** 2) / 2.3),
    "imq": lambda a, b: (1 + np.sum((a - b) ** 2) / 1.7) ** -0.5,
    "imq of power 1.5": lambda a, b: (1 + np.sum((a - b) ** 2) / 1.7) ** -1.5,
    "linear": lambda a, b: a @ b + 1,
    "product": lambda a, b: FUNCTIONS["rbf"](a, b) * FUNCTIONS["imq"](a, b),
    "product with linear": lambda a, b: np.exp(-np.sum((a - b) ** 2) / 4) * (a @ b + 1),
    "product of three": lambda a, b: np.exp(-np.sum((a - b) ** 2) / 9) * FUNCTIONS["imq"](a, b) * (a @ b + 1),
    "add": lambda a, b: 0.4 * FUNCTIONS["rbf"](a, b) + 2.5 * FUNCTIONS["imq"](a, b),
    "add linear": lambda a, b: FUNCTIONS["rbf"](a, b) + a @ b + 1,
    "from_function": lambda a, b: np.exp(-np.sum((a - b) ** 2 * np.arange(1, 5)) / 3) + 0.1 * np.sum(a * b) ** 2,
}
PAIRS = np.random.default_rng(6).uniform(0.2, 2.0, size=(5, 5))  # not symmetric


def numeric_repulsion(function, points, pairs, alive, factor=1.0):
    """Row i: sum_j pairs_ij grad_{x_j} k(c x_i, c x_j), by differences in the second argument alone."""
    out = np.zeros_like(points)
    living = [i for i in range(len(points)) if alive[i]]
    for i in living:
        for j in living:
            one = factor * points[i]
            out[i] += pairs[i, j] * central_difference(lambda x, a=one: function(a, factor * x), points[j])
    return out


@pytest.mark.parametrize("alive", [ALIVE, SOME_DEAD], ids=["all alive", "some dead"])
@pytest.mark.parametrize("name", FIXED)
def test_kernel_matrix_and_repulsion(name, alive):
    """Catches a repulsion that attracts, a missing 2/h, a lost summand of the product rule, dead particles that
    push."""
    function = FUNCTIONS[name]
    x = jnp.where(alive[:, None], jnp.asarray(POINTS), 1e3)  # the dead may be anywhere
    gram, _ = FIXED[name](x, alive, FIXED[name].memory)
    mask = np.outer(alive, alive)
    expected = np.array([[function(a, b) for b in POINTS] for a in POINTS]) * mask
    np.testing.assert_allclose(gram.matrix, expected, rtol=1e-12, atol=1e-15)
    force = gram.repulsion(jnp.asarray(POINTS))
    numeric = numeric_repulsion(function, POINTS, np.ones((5, 5)), np.asarray(alive))
    assert relative_error(jnp.where(alive[:, None], force, 0.0), numeric) < TOLERANCE


@pytest.mark.parametrize("name", ["imq", "add linear", "from_function"])
def test_weighted_and_seen_through(name):
    """Catches pair weights transposed or applied to one coefficient only, and a chain rule with one factor missing."""
    function, factor = FUNCTIONS[name], 0.6
    gram, _ = FIXED[name](jnp.asarray(factor * POINTS), ALIVE, FIXED[name].memory)
    gram = gram.seen_through(factor).weighted(jnp.asarray(PAIRS))
    expected = [[PAIRS[i, j] * function(factor * POINTS[i], factor * POINTS[j]) for j in range(5)] for i in range(5)]
    np.testing.assert_allclose(gram.matrix, expected, rtol=1e-12)
    numeric = numeric_repulsion(function, POINTS, PAIRS, np.ones(5, bool), factor)
    assert relative_error(gram.repulsion(jnp.asarray(POINTS)), numeric) < TOLERANCE


def test_product_rule_across_spaces():
    """Catches a factor differentiated in the other factor's space or weighted by itself."""
    W, F = POINTS, np.random.default_rng(7).normal(size=(5, 3))
    k_w, k_f = FUNCTIONS["imq"], FUNCTIONS["add linear"]
    gram_w, _ = FIXED["imq"](jnp.asarray(W), ALIVE, ())
    gram_f, _ = FIXED["add linear"](jnp.asarray(F), ALIVE, FIXED["add linear"].memory)
    in_w, in_f = kernels.product_rule(gram_w, gram_f)
    values_w = np.array([[k_w(a, b) for b in W] for a in W])
    values_f = np.array([[k_f(a, b) for b in F] for a in F])
    np.testing.assert_allclose(in_w.matrix, values_w * values_f, rtol=1e-12)
    np.testing.assert_allclose(in_f.matrix, values_w * values_f, rtol=1e-12)
    everyone = np.ones(5, bool)
    assert relative_error(in_w.repulsion(jnp.asarray(W)), numeric_repulsion(k_w, W, values_f, everyone)) < TOLERANCE
    assert relative_error(in_f.repulsion(jnp.asarray(F)), numeric_repulsion(k_f, F, values_w, everyone)) < TOLERANCE


def test_kernel_on_a_pytree():
    """Catches a leaf left out of the distance, or leaves that each get a distance of their own."""
    tree = {"a": jnp.asarray(POINTS[:, :1]), "b": jnp.asarray(POINTS[:, 1:]).reshape(5, 3, 1)}
    one, _ = kernels.rbf(2.3)(jnp.asarray(POINTS), ALIVE, ())
    other, _ = kernels.rbf(2.3)(tree, ALIVE, ())
    np.testing.assert_allclose(other.matrix, one.matrix, rtol=1e-12)
    flat = one.repulsion(jnp.asarray(POINTS))
    np.testing.assert_allclose(other.repulsion(tree)["b"][:, :, 0], flat[:, 1:], rtol=1e-12)


@pytest.mark.parametrize("name", [name for name in FIXED if name != "from_function"])
def test_kernels_are_positive_semidefinite(name):
    """Catches a kernel that is none, for which a Cholesky factor and SVGD's theory do not exist."""
    x = jnp.asarray(np.random.default_rng(8).normal(size=(12, 4)))
    gram, _ = FIXED[name](x, jnp.ones(12, bool), FIXED[name].memory)
    values = np.linalg.eigvalsh(gram.matrix)
    assert values[0] > -1e-13 * values[-1]


def test_close_particles_far_from_the_origin_keep_their_digits():
    """Catches distances from an uncentred Gram matrix: here they would have no digit left.

    Points of size 1e4 are rounded by 1e-12, their differences of 1e-4 thus by 1e-8, and distances enter an exponent.
    """
    near = jnp.asarray(1e-4 * POINTS + 1e4)
    gram, _ = kernels.rbf()(near, ALIVE, ())
    exact, _ = kernels.rbf()(jnp.asarray(1e-4 * POINTS), ALIVE, ())
    np.testing.assert_allclose(gram.matrix, exact.matrix, rtol=1e-6)
    assert relative_error(gram.repulsion(near), exact.repulsion(jnp.asarray(1e-4 * POINTS))) < 1e-6


# -- bandwidths ----------------------------------------------------------------------------------------------


MEDIAN, OFF_DIAGONAL = (jax.jit(kernels.rbf(kernels.median(diagonal)).evaluate) for diagonal in (True, False))


def bandwidth_of(kernel, points, alive, memory=()):
    gram, memory = kernel(jnp.asarray(points), jnp.asarray(alive), memory)
    return float(gram.bandwidth), memory


@pytest.mark.parametrize(("n", "total"), [(2, 2), (5, 5), (2, 8), (3, 8), (4, 8), (5, 8), (6, 8), (7, 8), (8, 8)])
def test_median_bandwidth(n, total):
    """Catches log n for log(n + 1), a median without the diagonal (or with it), and dead particles that are counted."""
    points = np.random.default_rng(n).normal(size=(total, 3))
    alive = np.random.default_rng(n).permutation(total) < n
    living = points[alive]
    squared = ((living[:, None] - living[None, :]) ** 2).sum(axis=-1)
    expected = np.median(squared) / np.log(n + 1)
    np.testing.assert_allclose(bandwidth_of(MEDIAN, points, alive)[0], expected, rtol=1e-10)
    expected = np.median(squared[~np.eye(n, dtype=bool)]) / np.log(n + 1)
    np.testing.assert_allclose(bandwidth_of(OFF_DIAGONAL, points, alive)[0], expected, rtol=1e-10)


def test_floor_and_fixed_bandwidth():
    """Catches a division by zero for equal or single particles, and a fixed bandwidth that moves."""
    assert bandwidth_of(kernels.rbf(kernels.median(floor=1e-3)), np.ones((4, 2)), [True] * 4)[0] == 1e-3
    assert bandwidth_of(MEDIAN, np.ones((1, 2)), [True])[0] == 1e-12
    assert bandwidth_of(kernels.rbf(kernels.fixed(0.7)), POINTS, ALIVE)[0] == 0.7


def test_frozen_bandwidth():
    """Catches a bandwidth frozen a step early or late, or one that is not kept."""
    frozen, seen = kernels.rbf(kernels.frozen(kernels.median(), after=3)), []
    memory = frozen.memory
    for step in range(6):
        h, memory = bandwidth_of(frozen, (1 + step) * POINTS, ALIVE, memory)
        seen.append(h)
    np.testing.assert_allclose(np.array(seen) / seen[0], [1, 4, 9, 9, 9, 9], rtol=1e-12)


# -- schedules -----------------------------------------------------------------------------------------------

A = 21
SCHEDULES = {
    "linear": (schedules.linear(A), twin.linear(A)),
    "hyperbolic": (schedules.hyperbolic(A), twin.hyperbolic(A)),
    "hyperbolic, power 3": (schedules.hyperbolic(A, 3.0), twin.hyperbolic(A, 3.0)),
    "cyclical": (schedules.cyclical(A), twin.cyclical(A)),
    "cyclical, other": (schedules.cyclical(A, 2, 3.0), twin.cyclical(A, 2, 3.0)),
    "polynomial": (schedules.polynomial(0.3, 5.0, 0.7), twin.polynomial(0.3, 5.0, 0.7)),
    "constant": (schedules.constant(0.4), lambda t: 0.4),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules(name):
    """Catches t/A for t/(A - 1), a schedule that never reaches 1 or ends a step early, a wrong length of the cycles."""
    schedule, formula = SCHEDULES[name]
    for t in (0, 1, A // 2, A - 2, A - 1, A, A + 1, 10 * A):
        np.testing.assert_allclose(schedule(jnp.asarray(t)), formula(t), rtol=1e-12)


# -- batches -------------------------------------------------------------------------------------------------


def rows_of(batch) -> list[int]:
    return np.asarray(batch.x)[:, 0].astype(int).tolist()


DATA = np.arange(10.0)[:, None], 100 + np.arange(10.0)[:, None]
BATCHES = Batches(*DATA, size=4, key=jax.random.key(1), independent=True)
AT, WINDOW = jax.jit(BATCHES.at), jax.jit(lambda start: BATCHES.indices(BATCHES.cursor(start), 7))


@pytest.mark.parametrize("size", [2, 3, 7, 10])
def test_every_epoch_visits_every_row_once(size):
    """Catches rows drawn with replacement, a remainder that is dropped, targets that are shuffled apart from inputs."""
    batches = Batches(*DATA, size=size, key=jax.random.key(1))
    stream, at = [], jax.jit(batches.at)
    for t in range(3 * 10 // size):
        batch = at(t)
        np.testing.assert_array_equal(batch.y, batch.x + 100)
        stream += rows_of(batch)
    epochs = [stream[start : start + 10] for start in range(0, len(stream) - 9, 10)]
    assert all(sorted(epoch) == list(range(10)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == len(epochs)


def test_batches_depend_on_key_and_step_alone():
    """Catches a stream with hidden state, which a resumed run would not continue."""
    at = jax.jit(lambda key, step: Batches(*DATA, size=3, key=key).at(step))
    kept = Batches(*DATA, size=3, key=jax.random.key(1))
    kept.at(2)
    assert rows_of(kept.at(7)) == rows_of(at(jax.random.key(1), 7))
    one, other = ([rows_of(at(jax.random.key(seed), t)) for t in range(4)] for seed in (1, 2))
    assert one != other


@pytest.mark.parametrize("start", [0, 2, 3, 33])
def test_windows_agree_with_single_steps(start):
    """Catches a chunk of steps that sees other batches than the steps one by one, across the ends of epochs."""
    window = WINDOW(start)
    for t in range(7):
        chunked = BATCHES.take(jax.tree.map(lambda rows, t=t: rows[t], window))
        single = AT(start + t)
        np.testing.assert_array_equal(chunked.x, single.x)
        np.testing.assert_array_equal(chunked.measure, single.measure)


def test_a_step_beyond_two_to_the_31_points_is_still_its_own():
    """Catches a position in the stream that wraps around in 32 bits."""
    step = 10**9 + 3  # 4e9 points, of which the batch takes two from the end of an epoch and two of the next
    epoch, place = divmod(4 * step, 10)
    orders = [jax.random.permutation(jax.random.fold_in(jax.random.key(1), e), 10) for e in (epoch, epoch + 1)]
    assert rows_of(BATCHES.at(step)) == np.concatenate(orders)[place : place + 4].tolist()


def test_independent_stream():
    """Catches a measurement batch that is the gradient batch."""
    drawn = [AT(t) for t in range(5)]
    assert [rows_of(batch) for batch in drawn] != [np.asarray(b.measure)[:, 0].astype(int).tolist() for b in drawn]
    assert sorted(np.concatenate([b.measure[:, 0] for b in drawn])) == sorted([*range(10)] * 2)


def test_whole_data_set_as_a_batch():
    """Catches full-batch training on a shuffled or repeated data set."""
    assert rows_of(Batches(*DATA).at(3)) == list(range(10))
