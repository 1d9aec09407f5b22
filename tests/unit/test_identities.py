"""Identities that hold to rounding: limits, equal forms of one force, symmetries, exact fixed points."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import stein
import twin
from problems import central_difference, flatten, relative_error, rounding, tanh_model, unflatten
from stein import functional_priors, kernels, likelihoods, priors, rules, scores, steps, targets, tree
from stein.rules import functional
from stein.types import Batch, Model

KEY = jax.random.key(11)
NETWORK = twin.Network(2, 3, 2)


CENTRED = likelihoods.categorical(center_logits=True)
LIKELIHOODS = {"outputs": likelihoods.gaussian(0.7), "probabilities": likelihoods.categorical(), "centred": CENTRED}
GP = functional_priors.gaussian_process(lambda a, b: jnp.exp(-jnp.abs(a @ b.T)) + jnp.eye(len(a)))
EXACT = jax.jit(rules.exact(energy=1.0))
LOCAL = jax.jit(rules.local())


@functools.cache
def make_look(likelihood):
    """The compiled view of a target, one for all tests."""
    model = tanh_model(NETWORK)
    target = targets.posterior(model, LIKELIHOODS[likelihood], priors.normal(1.3), 9, functional_prior=GP)
    return jax.jit(target.view, static_argnums=(6, 7))


def make_view(W, likelihood="outputs", points=4, functional=False, space=None):
    """One look at an ensemble of tanh networks, and the inputs it looks at."""
    random, n = np.random.default_rng(points), len(W)
    x = random.normal(size=(points, 2))
    y = random.normal(size=(points, 2)) if likelihood == "outputs" else random.integers(0, 2, points)
    space = space or ("probabilities" if likelihood == "probabilities" else "outputs")
    batch, ids, alive = Batch(jnp.asarray(x), jnp.asarray(y)), jnp.arange(n), jnp.ones(n, bool)
    look = make_look(likelihood)
    return look(KEY, unflatten(NETWORK, W), batch, ids, alive, jnp.asarray(0.6), space, functional), x


def draw(n, seed=0):
    return np.random.default_rng(seed).normal(size=(n, sum(NETWORK.sizes())))


def features_of(W, x, space):
    """Features (n, m k) and their Jacobians (n, m k, d), by the twin."""
    seen = twin.Categorical("probabilities" if space == "probabilities" else "logits")
    outputs = [NETWORK.f(w, x) for w in W]
    F = np.array([np.concatenate([seen.features(f) for f in points]) for points in outputs])
    lift = [twin.blocks([seen.feature_jacobian(f) for f in points]) for points in outputs]
    J = np.array([lift_i @ NETWORK.jacobian(w, x) for lift_i, w in zip(lift, W, strict=True)])
    return F, J


# -- A1 ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("noisy", [False, True])
def test_indicator_kernel_is_the_deep_ensemble(noisy):
    """A1: catches a missing 1/n, a root of 2/n for a root of 2, or noise that is not tied to the particle's id."""
    view, _ = make_view(draw(4))
    noise = rules.cholesky(jitter=0.0) if noisy else None
    coupled, _ = rules.w_svgd(kernels.indicator(), noise).force(KEY, view, ())
    alone, _ = rules.independent(noisy).force(KEY, view, ())
    np.testing.assert_allclose(flatten(coupled.drift), flatten(alone.drift), rtol=1e-14)
    if noisy:
        np.testing.assert_allclose(flatten(coupled.noise), flatten(alone.noise), rtol=1e-14)


# -- A2, A3, A4: exact and local repulsion -------------------------------------------------------------------


@pytest.mark.parametrize("n", [2, 4])
def test_exact_and_local_repulsion_cancel_in_sum(n):
    """A2: catches a Jacobian at the wrong particle or a sign: sum_i R^ex_i = -sum_i R^loc_i, and pairwise for n = 2."""
    view, _ = make_view(draw(n))
    gram, _ = functional.on_functions(kernels.rbf(1.5), view, ())
    exact, local = flatten(EXACT(KEY, gram, view)), flatten(LOCAL(KEY, gram, view))
    assert relative_error(exact.sum(axis=0), -local.sum(axis=0)) < 1e-12
    if n == 2:
        assert relative_error(exact, -local[::-1]) < 1e-12
    assert relative_error(exact, local) > 0.1  # else the identities would say nothing


@pytest.mark.parametrize("space", ["outputs", "probabilities"])
def test_exact_repulsion_is_the_gradient_of_the_kernel(space):
    """A3: sees any error of R^ex: row i against finite differences of sum_j k(f(w_i), f(w_j)) in the w_j."""
    W = draw(4)
    view, x = make_view(W, space)
    gram, _ = functional.on_functions(kernels.imq(0.8), view, ())
    numeric = np.zeros_like(W)
    for i, j in itertools.product(range(4), range(4)):
        f_i = features_of(W, x, space)[0][i]

        def k(w, f_i=f_i):
            f_j = features_of([w], x, space)[0][0]
            return (1 + np.sum((f_i - f_j) ** 2) / len(x) / 0.8) ** -0.5

        numeric[i] += central_difference(k, W[j])
    assert relative_error(flatten(EXACT(KEY, gram, view)), numeric) < 1e-6


PAIRWISE = {
    "rbf": kernels.rbf(1.5),
    "linear": kernels.linear(),
    "rbf times linear": kernels.product(kernels.rbf(4.0), kernels.linear()),
}


@pytest.mark.parametrize(
    ("name", "space", "n", "points"),
    [
        ("linear", "outputs", 4, 4),
        ("rbf times linear", "outputs", 6, 1),
        ("linear", "probabilities", 4, 4),
        ("rbf", "probabilities", 6, 1),
    ],
)
def test_stream_of_directions_equals_the_pair_loop(name, space, n, points):
    """A4: catches a lost direction, an uncentred mean, right used for left; fewer points than particles, too."""
    W = draw(n)
    view, x = make_view(W, space, points=points)
    kernel = PAIRWISE[name]
    gram, _ = functional.on_functions(kernel, view, kernel.memory)
    F, J = features_of(W, x, space)
    left, right = np.asarray(gram.left), np.asarray(gram.left if gram.right is None else gram.right)
    loop = np.zeros_like(W)
    for i, j in itertools.product(range(n), range(n)):
        loop[i] += J[j].T @ (left[i, j] * F[i] - right[i, j] * F[j])
    assert relative_error(flatten(EXACT(KEY, gram, view)), loop) < 1e-10


@functools.cache
def spectrum():
    """An ensemble with its kernel, and the eigenvectors that the exact repulsion runs over."""
    view, _ = make_view(draw(4, seed=3))
    gram, _ = functional.on_functions(kernels.rbf(1.5), view, ())
    norms, unit, values, vectors = functional.spectrum(view)
    shares = functional.pushes(gram.left, norms, values, vectors)
    order = jnp.argsort(-shares)
    return view, gram, unit, norms, shares[order], values[order], vectors[:, order]


@functools.cache
def all_repulsions():
    """The exact repulsion for each energy."""
    view, gram, *_ = spectrum()
    return {energy: flatten(rules.exact(energy)(KEY, gram, view)) for energy in (0.0, 0.5, 0.8, 0.999, 1.0)}


def along(alpha, z):
    """One pair (alpha, z) in the place of a direction, by the equation of the probe."""
    view, gram, unit, norms, *_ = spectrum()
    B = flatten(view.pullback(jnp.broadcast_to(z[None], unit.shape)))
    C, alpha = np.asarray(gram.left), np.asarray(norms * alpha)[:, None]
    return alpha * (C @ B) - C @ (alpha * B)


def test_the_number_of_directions_is_bounded():
    """Catches a bound that keeps the wrong directions, or leaves the probe to count them again."""
    view, gram, unit, _, shares, values, vectors = spectrum()
    repulsions, bounded = all_repulsions(), flatten(rules.exact(1.0, directions=1)(KEY, gram, view))
    assert int(functional.sufficient(shares, 0.5)) == 1
    assert relative_error(bounded, repulsions[0.5]) < 1e-11
    assert relative_error(bounded, repulsions[1.0]) > 1e-3
    assert relative_error(flatten(rules.exact(1.0, directions=9)(KEY, gram, view)), repulsions[1.0]) < 1e-11
    probed = flatten(rules.exact(1.0, probe=True, directions=1)(KEY, gram, view))
    drawn = along(*functional.combine(jax.random.rademacher(KEY, (4,), float), 1, values, vectors, unit))
    assert relative_error(probed, bounded + drawn) < 1e-11


@pytest.mark.parametrize("energy", [0.0, 0.5])
def test_probe_is_exactly_unbiased(energy):
    """A4: catches a probe that counts a kept direction again, or misses a scale: the mean over all signs is R^ex."""
    view, gram, unit, _, shares, values, vectors = spectrum()
    kept = functional.sufficient(shares, energy)
    assert int(kept) == (0 if energy == 0 else 1)
    signs = [jnp.asarray(s) for s in itertools.product([-1.0, 1.0], repeat=4)]
    probes = np.array([along(*functional.combine(s, kept, values, vectors, unit)) for s in signs])
    repulsions = all_repulsions()
    assert relative_error(repulsions[energy] + probes.mean(axis=0), repulsions[1.0]) < 1e-11
    assert np.std(probes, axis=0).max() > 1e-3  # a probe that does not move would be the answer itself
    probed = flatten(rules.exact(energy, probe=True)(KEY, gram, view))
    drawn = along(*functional.combine(jax.random.rademacher(KEY, (4,), float), kept, values, vectors, unit))
    assert relative_error(probed, repulsions[energy] + drawn) < 1e-11


def test_truncation_error_shrinks_with_energy():
    """A4: sees eigenvalues in the wrong order, or an energy that is not used."""
    repulsions = all_repulsions()
    errors = [float(np.linalg.norm(r - repulsions[1.0]) / np.linalg.norm(repulsions[1.0])) for r in repulsions.values()]
    assert 1 == errors[0] > errors[1] > errors[2] > 0.1  # 0, 1 and 2 of the 3 directions
    assert errors[3] < 1e-12


# -- A5: a linear model, where all forms are one -------------------------------------------------------------


def test_linear_model_makes_all_forms_equal():
    """A5: catches an inconsistent prior, Jacobian or bandwidth: f = fw exact = fw local = w in the metric of A."""
    random = np.random.default_rng(0)
    d, n, h, std = 3, 5, 1.7, 1.3
    A = jnp.asarray(random.normal(size=(d, d)) + 2 * np.eye(d))
    y = jnp.asarray(random.normal(size=(d, 1)))
    particles = {"w": jnp.asarray(random.normal(size=(n, d)))}
    model = Model(lambda key: {"w": jnp.zeros(d)}, lambda w, x: x @ w["w"][:, None])
    exact_prior = functional_priors.gaussian_process(lambda a, b: std**2 * a @ b.T, jitter=0.0)
    target = targets.posterior(model, likelihoods.gaussian(0.8), priors.normal(std), 7, functional_prior=exact_prior)

    def metric(a, b):
        return jnp.exp(-jnp.sum((A @ (a["w"] - b["w"])) ** 2) / (d * h))

    kernel = kernels.rbf(h)
    forms = {
        "f": rules.f_svgd(kernel),
        "fw exact": rules.fw_svgd(kernel, rules.exact(energy=1.0)),
        "fw local": rules.fw_svgd(kernel, rules.local()),
        "w": rules.w_svgd(kernels.from_function(metric)),
    }

    @functools.partial(jax.jit)
    def drifts_of(particles):
        alive, drive = jnp.ones(n, bool), jnp.asarray(0.6)
        view = target.view(KEY, particles, Batch(A, y), jnp.arange(n), alive, drive, "outputs", True)
        return {name: rule.force(KEY, view, rule.memory)[0].drift["w"] for name, rule in forms.items()}

    drifts = drifts_of(particles)
    for name in ("fw exact", "fw local", "w"):
        assert relative_error(drifts[name], drifts["f"]) < 1e-11, name


# -- A6: hidden units ----------------------------------------------------------------------------------------


def test_hidden_units_of_the_others():
    """A6: sees functions compared through weights: relabelled hidden units of the others move only the exact form."""
    W = draw(4)
    permuted = W.copy()
    for j, order in ((1, [2, 0, 1]), (2, [1, 2, 0]), (3, [0, 2, 1])):
        U, V = NETWORK.layers(W[j])
        permuted[j] = np.concatenate([U[order].ravel(), V[:, [*order, 3]].ravel()])

    @functools.partial(jax.jit)
    def forces_of(view):
        gram, _ = functional.on_functions(kernels.rbf(), view, ())
        on_functions = {"f": rules.f_svgd(), "kde": rules.fwgd(rules.kde()), "ssge": rules.fwgd(rules.ssge())}
        drifting = on_functions | {"fw": rules.fw_svgd()}
        forces = {name: rule.force(KEY, view, rule.memory)[0].drift for name, rule in drifting.items()}
        return forces | {"local": rules.local()(KEY, gram, view), "exact": rules.exact(energy=1.0)(KEY, gram, view)}

    before, after = (forces_of(make_view(weights, functional=True)[0]) for weights in (W, permuted))
    changes = {name: relative_error(flatten(after[name])[0], flatten(before[name])[0]) for name in before}
    assert all(changes[name] < 1e-11 for name in ("f", "kde", "ssge", "local")), changes
    assert all(changes[name] > 0.05 for name in ("exact", "fw")), changes


# -- A7: one particle ----------------------------------------------------------------------------------------


ONE = [
    (name, stochastic)
    for name, method in rules.METHODS.items()
    if not name.startswith("toy")
    for stochastic in {"no": [False], "optional": [False, True], "always": [True]}[method.stochastic]
]


@functools.cache
def views_of_one():
    spaces = (("outputs", False), ("outputs", True), ("probabilities", False))
    views = {(space, functional): make_view(draw(1), space, functional=functional)[0] for space, functional in spaces}
    return views | {("label-gradients", False): make_view(draw(1), "probabilities", space="label-gradients")[0]}


@functools.cache
def forces_of_one():
    """All methods at once: they share most of what has to be compiled."""

    def compute(views):
        forces = {}
        for name, stochastic in ONE:
            rule = rules.make(name, stochastic=stochastic)
            forces[name, stochastic], _ = rule.force(KEY, views[rule.space, rule.functional], rule.memory)
        return forces

    return jax.jit(compute)(views_of_one())


@pytest.mark.parametrize(("name", "stochastic"), ONE)
def test_one_particle_follows_its_own_score(name, stochastic):
    """A7: catches a particle that repels itself, a 0/0 in the bandwidth, or noise of another scale than SGLD's."""
    rule = rules.make(name, stochastic=stochastic)
    view, force = views_of_one()[rule.space, rule.functional], forces_of_one()[name, stochastic]
    score = view.backward(view.score_f + view.lift(view.prior_f)) if rule.functional else view.score_w
    coupled = stochastic and rules.METHODS[name].stochastic == "optional"
    more = 1 + 1e-6 * coupled  # jitter of the Cholesky factor, in the drift as well
    np.testing.assert_allclose(flatten(force.drift), flatten(score) * more, rtol=1e-12)
    if stochastic:
        key = KEY if name in ("sgld", "psgld", "sghmc", "w-svgd") else jax.random.split(KEY)[0]
        xi = flatten(tree.normal(key, view.ids, view.weights))
        np.testing.assert_allclose(flatten(force.noise), np.sqrt(2 * more) * xi, rtol=1e-12)


# -- A8: the way back through the features -------------------------------------------------------------------


@pytest.mark.parametrize("likelihood", ["probabilities", "centred"])
def test_pullback_equals_autodiff(likelihood):
    """A8: catches a softmax Jacobian with a sign or a term missing, and centring that is not undone."""
    W = draw(4)
    view, x = make_view(W, likelihood)

    def features(w):
        logits = jax.vmap(lambda one: tanh_model(NETWORK).apply(one, jnp.asarray(x)))(w)
        return jax.nn.softmax(logits) if likelihood == "probabilities" else logits - logits.mean(axis=2, keepdims=True)

    u = jnp.asarray(np.random.default_rng(2).normal(size=view.features.shape))
    expected, pulled = jax.jit(lambda w: (features(w), jax.vjp(features, w)[1](u)[0]))(unflatten(NETWORK, W))
    np.testing.assert_allclose(view.features, expected, rtol=1e-12)
    assert relative_error(flatten(view.pullback(u)), flatten(pulled)) < 1e-12


# -- A9: score estimators ------------------------------------------------------------------------------------


def test_ssge_closed_form_is_the_spectral_form():
    """A9: sees Lambda^{-1} for Lambda^{-2}, and eigenvectors in rows."""
    x, queries = np.random.default_rng(0).normal(size=(7, 2)), np.random.default_rng(1).normal(size=(3, 2))
    k = lambda a, b: np.exp(-((a[:, None] - b[None, :]) ** 2).sum(axis=-1))  # noqa: E731
    values, U = np.linalg.eigh(k(x, x) + 0.01 * np.eye(7))
    spectral = k(queries, x) @ U @ np.diag(values**-2.0) @ U.T
    samples, cross = jnp.asarray(k(x, x)), jnp.asarray(k(queries, x))
    for energy in (1.0, 1 - 1e-9):  # closed form, eigenvectors
        assert relative_error(scores.spectral_weights(samples, cross, 0.01, energy), spectral) < 1e-9
    leading = k(queries, x) @ U[:, -2:] @ np.diag(values[-2:] ** -2.0) @ U[:, -2:].T
    between = (values[-1] + 0.5 * values[-2]) / values.sum()
    assert relative_error(scores.spectral_weights(samples, cross, 0.01, between), leading) < 1e-9


def test_ssge_of_a_normal():
    """A9: catches a flipped sign or a wrong scale of the estimated score.

    The samples are quantiles: with 200 random ones the error exceeds 0.3 for nine seeds out of ten.
    """
    samples = jnp.asarray(scipy.stats.norm.ppf((np.arange(200) + 0.5) / 200))[:, None]
    x = jnp.linspace(-1.5, 1.5, 31)[:, None]
    score = jax.jit(scores.ssge, static_argnames="energy")(samples, x, energy=0.99)
    assert float(jnp.max(jnp.abs(score + x))) < 0.3


# -- S2: SVGD with the linear kernel matches two moments exactly ---------------------------------------------


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-10), ("float32", rounding(20 * 20, "float32"))])
def test_linear_kernel_on_a_gaussian(dtype, tolerance):
    r"""S2: catches a driving force or repulsion of the wrong size, and float64 that leaks into float32.

    At rest :math:`M x_i + b = 0` for all i, with :math:`b = \bar s` and :math:`M = I + \overline{s x^T}`. Particles
    that span the space leave M = 0 and b = 0: the mean is the target's, and the covariance with divisor n, too.
    In float32 the sums over 20 particles are rounded anew in each of the 20 steps that the step size 0.05 remembers.
    """
    mean = np.array([0.7, -0.4, 0.9])
    covariance = np.array([[1.3, 0.5, -0.2], [0.5, 0.8, 0.1], [-0.2, 0.1, 0.6]])
    centre, precision = jnp.asarray(mean, dtype), jnp.asarray(np.linalg.inv(covariance), dtype)
    target = stein.density(
        lambda w: -0.5 * (w - centre) @ precision @ (w - centre), lambda key: jax.random.normal(key, (3,), dtype)
    )
    algorithm = stein.ensemble(target, rules.w_svgd(kernels.linear()), steps.langevin(0.05))
    state = algorithm.init(jax.random.key(0), 20)

    @jax.jit
    def run(state):
        return jax.lax.fori_loop(0, 1000, lambda _, s: algorithm.step(s, None)[0], state)

    particles = run(state).particles
    assert particles.dtype == dtype
    assert np.abs(np.mean(particles, axis=0, dtype=float) - mean).max() < tolerance
    assert np.abs(np.cov(np.asarray(particles, float), rowvar=False, ddof=0) - covariance).max() < tolerance
