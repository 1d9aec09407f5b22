"""S3: three whole steps of every registered method against the plain NumPy twin, path by path, at 1e-10."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import twin
from problems import by_layer, flatten, relative_error, tanh_model, unflatten
from stein import ensembles, functional_priors, kernels, likelihoods, priors, rules, schedules, steps, targets, tree
from stein.types import Batch

TOLERANCE = 1e-10
NUM_DATA = 23  # more than any batch, so that N/B is seen
TEMPERATURE = 1.7
FIRST_STEP = 2  # the schedules are 0 at step 0
JITTER = 1e-6  # of the Cholesky factor
SCALES = {"hidden": 0.8, "out": 1.4}  # of the prior, layer by layer

SIZES = ((3, 4), (4, 5), (7, 3))  # particles, points in a batch
NETWORK = twin.Network(4, 4, 4)  # both layers (4, 5): every eager operation is compiled once


def compiled(kernel: kernels.Kernel) -> kernels.Kernel:
    """The same kernel; all methods share what is compiled."""
    return kernel._replace(evaluate=jax.jit(kernel.evaluate))


FROZEN = kernels.frozen(kernels.median(), after=2)
KERNELS = {
    "rbf": (compiled(kernels.rbf()), lambda: twin.Kernel(twin.Rbf())),
    "imq, frozen": (compiled(kernels.imq(FROZEN, power=0.7)), lambda: twin.Kernel(twin.Imq(0.7), freeze=2)),
    "rbf, fixed": (compiled(kernels.rbf(1.9)), lambda: twin.Kernel(twin.Rbf(), h=1.9)),
}
KERNEL_OPTIONS = dict.fromkeys(("h-svgd-l", "h-svgd-s"), ("kernel_w", "kernel_f")) | dict.fromkeys(
    ("hp-svgd", "hs-svgd"), ("kernel_w", "kernel_f")
)
SCHEDULES = (
    (schedules.linear(7), twin.linear(7)),
    (schedules.hyperbolic(6, power=2.0), twin.hyperbolic(6, 2.0)),
    (schedules.cyclical(11, cycles=2, power=1.5), twin.cyclical(11, 2, 1.5)),
)
NOISES = {
    "cholesky": twin.cholesky_noise,
    "elementwise-shared": twin.elementwise_shared_noise,
    "elementwise-independent": twin.elementwise_independent_noise,
}
LIKELIHOODS = {
    "gaussian": (likelihoods.gaussian(0.6), twin.Gaussian(0.6)),
    "heteroscedastic": (likelihoods.heteroscedastic(), twin.Heteroscedastic()),
    "categorical": (likelihoods.categorical(), twin.Categorical()),
    "probabilities": (likelihoods.categorical(), twin.Categorical("probabilities")),
    "centred": (likelihoods.categorical(center_logits=True), twin.Categorical("centred")),
}


def gp_covariance(x, y):
    """A covariance that NumPy and JAX both understand."""
    return 1.3 / (1 + ((x[:, None, :] - y[None, :, :]) ** 2).sum(axis=-1))


GP = functional_priors.gaussian_process(gp_covariance, mean=0.3, jitter=1e-2)


def gp_score(features, points):
    outputs = features.shape[1] // len(points)
    return twin.gaussian_process_score(gp_covariance, 0.3, 1e-2, outputs)(features, points)


def make_target(likelihood: str, **options) -> targets.Target:
    prior = priors.normal if likelihood in ("gaussian", "heteroscedastic") else priors.laplace
    return targets.posterior(tanh_model(NETWORK), LIKELIHOODS[likelihood][0], prior(SCALES), NUM_DATA, **options)


def with_compiled_view(target: targets.Target) -> targets.Target:
    """The rest of a step is cheaper without a compiler."""
    return target._replace(view=jax.jit(target.view, static_argnums=(6, 7)))


@functools.cache
def make_shared_target(likelihood: str) -> targets.Target:
    """One for all methods."""
    return with_compiled_view(make_target(likelihood, functional_prior=GP))


class Case:
    """Particles, batches and the twin's view of a likelihood; ``index`` chooses the annealing schedule."""

    def __init__(self, likelihood: str, size: int, index: int = 0):
        self.n, batch = SIZES[size]
        self.random = np.random.default_rng(17 * index + self.n)
        scale = by_layer(NETWORK, **SCALES)
        prior_score = twin.normal_score if likelihood in ("gaussian", "heteroscedastic") else twin.laplace_score
        self.anneal, anneal = SCHEDULES[index]
        self.problem = twin.Problem(
            NETWORK, LIKELIHOODS[likelihood][1], lambda w: prior_score(w, scale), NUM_DATA, TEMPERATURE, anneal
        )
        self.W = 0.9 * self.random.normal(size=(self.n, sum(NETWORK.sizes())))
        self.batches = []
        for _ in range(3):
            x = self.random.normal(size=(batch, NETWORK.inputs))
            y = {
                "gaussian": self.random.normal(size=(batch, 4)),
                "heteroscedastic": self.random.normal(size=(batch, 2)),
            }.get(likelihood, self.random.integers(0, 4, size=batch))
            self.batches.append((x, y))


@functools.cache
def make_adam(rate) -> optax.GradientTransformation:
    """A large epsilon, because Adam forgets the scale of its gradient otherwise, and with it a missing 1/n."""
    adam = optax.adam(rate, b1=0.8, b2=0.95, eps=2.0)
    return optax.GradientTransformation(adam.init, jax.jit(adam.update))


def keys_of_step(state: ensembles.State):
    """(key of the view, key of the rule), as `stein.ensembles` makes them."""
    return jax.random.split(jax.random.fold_in(state.key, state.step), 3)[:2]


def standard_normals(method: str, state: ensembles.State) -> np.ndarray:
    """The library's own draws for a step; rules with a functional kernel keep half of the key for the probe."""
    _, key = keys_of_step(state)
    if method.startswith(("fw-", "h-", "hp-", "hs-")):
        key, _ = jax.random.split(key)
    return flatten(tree.normal(key, state.ids, state.particles))


def compare(case, algorithm, method, step, measurement=lambda state, x: {}, measure=None, compiled=False, **options):
    """Three steps of both; errors are relative to the length of the step, not to the weights."""
    reference = twin.Algorithm(method, case.problem, case.W, step, t=FIRST_STEP, **options)
    state = algorithm.init(jax.random.key(5), case.n, weights=unflatten(NETWORK, case.W))
    state = state._replace(step=jnp.asarray(FIRST_STEP, jnp.int32))
    advance = jax.jit(algorithm.step) if compiled else algorithm.step
    for t, (x, y) in enumerate(case.batches):
        before = reference.W
        expected = reference.advance((x, y), standard_normals(method, state), **measurement(state, x)) - before
        state, info = advance(state, Batch(jnp.asarray(x), jnp.asarray(y), measure))
        assert bool(jnp.all(info.alive))
        assert relative_error(flatten(state.particles) - before, expected) < TOLERANCE, f"step {t}"


# -- every method --------------------------------------------------------------------------------------------


def variants():
    """Every method, deterministic and stochastic, with each kernel and each size once, and on both tasks.

    Kernels, sizes and tasks turn from method to method, so that all combinations of two of them occur.
    """
    rows = []
    for name, method in rules.METHODS.items():
        if name.startswith("toy") or method.dynamics == "microcanonical":
            continue  # test_microcanonical.py has the twin of chains
        for stochastic in {"no": [False], "optional": [False, True], "always": [True]}[method.stochastic]:
            for index, kernel in enumerate(KERNELS):
                turn = index + len(rows) // 3
                task = "regression" if turn % 2 and not name.endswith("-s") else "classification"
                rows.append((name, stochastic, task, kernel, turn % 3, index))
    return rows


def test_every_registered_method_has_a_twin():
    """Catches a method that was registered and never checked."""
    assert {name for name in rules.METHODS if not name.startswith("toy")} == set(twin.METHODS)


def test_every_kernel_meets_every_size():
    """Catches a hole in the table above."""
    rows = variants()
    assert {(kernel, size) for _, _, _, kernel, size, _ in rows} == set(itertools.product(KERNELS, range(3)))
    for name in {row[0] for row in rows}:
        tasks = {"classification"} if name.endswith("-s") else {"regression", "classification"}
        assert {row[2] for row in rows if row[0] == name} == tasks


def in_make_test(name, index):
    """Every method with one kernel, and a frozen bandwidth, which has a memory, with and without a kernel."""
    return index == 0 or (index == 1 and name in ("de", "w-svgd"))


@pytest.mark.parametrize(
    ("name", "stochastic", "task", "kernel", "size", "index"),
    [pytest.param(*row, marks=() if in_make_test(row[0], row[-1]) else pytest.mark.long) for row in variants()],
)
def test_three_steps(name, stochastic, task, kernel, size, index):
    """Catches a missing 1/n, N/B, gamma or T; a flipped repulsion; a wrong Jacobian, bandwidth or root; lost state."""
    likelihood = ("gaussian", "heteroscedastic", "gaussian")[index] if task == "regression" else "categorical"
    if name.endswith("-s"):
        likelihood = "probabilities"
    options, of_twin = {}, {}

    library_kernel, twin_kernel = KERNELS[kernel]
    if name == "forde" and kernel == "imq, frozen":  # new points in every step: there is nothing to freeze
        library_kernel, twin_kernel = kernels.imq(power=0.7), lambda: twin.Kernel(twin.Imq(0.7))
    if rules.METHODS[name].kernels:
        names = KERNEL_OPTIONS.get(name, ("kernel",))
        options = dict.fromkeys(names, library_kernel)
        of_twin["kernels"] = [twin_kernel() for _ in names]
    if name.startswith(("fw-", "h-", "hp-", "hs-")):
        # With Cholesky noise exact in all directions, as nothing else is allowed; without noise in the leading ones.
        exact = index == 0 and (stochastic or name in ("fw-svgd-l", "hp-svgd", "hs-svgd"))
        options["repulsion"] = "exact" if exact else "local"
        of_twin["repulsion"] = twin.exact_repulsion if exact else twin.local_repulsion
        of_twin["energy"] = 1.0 if stochastic else 0.9999

    hamiltonian = rules.METHODS[name].dynamics == "hamiltonian"
    rate, inside = 0.4, stochastic and index == 1 and not hamiltonian
    if stochastic:
        coupled = rules.METHODS[name].stochastic == "optional"
        noise = list(NOISES)[index] if coupled else "cholesky"
        options |= {"noise": noise, "noise_place": "adam-inside" if inside else "langevin"}
        of_twin["noise"] = NOISES[noise] if coupled else twin.langevin_noise
        of_twin["jitter"] = JITTER if coupled and noise == "cholesky" else 0.0
    if stochastic and not inside:
        rate = schedules.polynomial(0.4, offset=2.0)
        decay = twin.polynomial(0.4, 2.0)
        step = twin.Langevin(lambda t: decay(t) / NUM_DATA, rules.METHODS[name].preconditioner)
        if hamiltonian:
            step = twin.Sghmc(lambda t: (decay(t) / NUM_DATA) ** 0.5)
    else:
        step = twin.Adam(rate, b1=0.8, b2=0.95, eps=2.0)

    # Eager loops, of the exact repulsion or of the Cholesky factor, would be compiled at every step.
    loops = of_twin.get("repulsion") is twin.exact_repulsion or of_twin.get("noise") is twin.cholesky_noise
    case = Case(likelihood, size, index)
    target = make_target(likelihood, functional_prior=GP) if loops else make_shared_target(likelihood)
    where = {"functional_prior": gp_score}
    if rules.METHODS[name].unlabelled:
        where = {"measured": np.zeros((0, NETWORK.inputs)), "extra": case.random.normal(size=(2, NETWORK.inputs))}
        measurement = targets.Measurement("extra", extra=jnp.asarray(where["extra"]))
        target = with_compiled_view(make_target(likelihood, measurement=measurement))
    algorithm = ensembles.build(
        name,
        target,
        learning_rate=rate,
        stochastic=stochastic,
        optimiser=make_adam,
        anneal=case.anneal,
        temperature=TEMPERATURE,
        **options,
    )
    compare(case, algorithm, name, step, lambda state, x: where, compiled=loops, **of_twin)


def test_sghmc_in_cycles():
    """A cycle ends after the first step, and the noise is on in the first alone. Catches a cycle of
    another length, friction or gradient noise in the wrong place, a noise that is never off, and momenta lost."""
    case, sizes = Case("gaussian", 0), twin.cosine_cycles(0.2, 11, 4)  # 3 steps each; the first step is the third
    algorithm = ensembles.ensemble(
        make_shared_target("gaussian"),
        rules.make("sghmc"),
        steps.sghmc(schedules.cosine_cycles(0.2, 11, 4), friction=0.3, gradient_noise=2.0),
        noise_scale=schedules.late_in_cycles(11, 4, exploration=0.6),
        anneal=case.anneal,
        temperature=TEMPERATURE,
    )
    on = {2: 1.0, 3: 0.0, 4: 0.0}
    step = twin.Sghmc(sizes, 0.3, 2.0)

    def scaled(W, phi, zeta, g_mean, t):
        return step(W, phi, on[t] * zeta, g_mean, t)

    compare(case, algorithm, "sghmc", scaled, noise=twin.langevin_noise)


def test_adam_as_it_comes():
    """Catches a changed default of the optimiser, or one set of moments shared by all particles."""
    case = Case("gaussian", 0)
    algorithm = ensembles.build("w-svgd", make_shared_target("gaussian"), anneal=case.anneal, temperature=TEMPERATURE)
    compare(case, algorithm, "w-svgd", twin.Adam(1e-3), kernels=[twin.Kernel(twin.Rbf())])


# -- other steps ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shared", [True, False])
def test_frozen_preconditioner(shared):
    """Catches a preconditioner that goes on moving, is shared when it should not be, or scales the noise by P."""
    case = Case("gaussian", 0)
    step = steps.langevin(0.01, steps.rms(decay=0.7, epsilon=0.1, shared=shared, freeze_after=FIRST_STEP + 2))
    algorithm = ensembles.ensemble(
        make_shared_target("gaussian"),
        rules.w_svgd(kernels.rbf(), rules.elementwise_shared()),
        step,
        anneal=case.anneal,
        temperature=TEMPERATURE,
    )
    of_twin = twin.Langevin(lambda t: 0.01, "shared" if shared else "own", 0.7, 0.1, FIRST_STEP + 2)
    noise = twin.elementwise_shared_noise
    compare(case, algorithm, "w-svgd", of_twin, kernels=[twin.Kernel(twin.Rbf())], noise=noise)


# -- where the functional kernel looks -----------------------------------------------------------------------

PLAIN = twin.Langevin(lambda t: 0.02)


def build_plain(case, target, name, **options):
    step = steps.langevin(0.02)
    rule = rules.make(name, **options)
    return ensembles.ensemble(with_compiled_view(target), rule, step, anneal=case.anneal, temperature=TEMPERATURE)


@pytest.mark.parametrize(("name", "likelihood"), [("f-svgd", "heteroscedastic"), ("h-svgd-s", "probabilities")])
def test_extra_points(name, likelihood):
    """Catches a likelihood score at points without a label, or a force pulled back at the wrong inputs."""
    case = Case(likelihood, 0, 1)
    extra = case.random.normal(size=(2, NETWORK.inputs))
    target = make_target(likelihood, functional_prior=GP, measurement=targets.Measurement(extra=jnp.asarray(extra)))
    of_twin = [twin.Kernel(twin.Rbf()) for _ in KERNEL_OPTIONS.get(name, ("kernel",))]
    where = {"extra": extra, "functional_prior": gp_score}
    compare(case, build_plain(case, target, name), name, PLAIN, lambda state, x: where, kernels=of_twin)


def test_fresh_extra_points():
    """Catches extra points that are the same at every step or that share a key with something else."""
    case = Case("gaussian", 0, 2)
    draw = functools.partial(jax.random.normal, shape=(2, NETWORK.inputs), dtype=float)
    target = make_target("gaussian", measurement=targets.Measurement(extra=draw))

    def measurement(state, x):
        key_extra, _ = jax.random.split(keys_of_step(state)[0])
        return {"extra": np.asarray(draw(key_extra))}

    algorithm = build_plain(case, target, "fw-svgd-l")
    compare(case, algorithm, "fw-svgd-l", PLAIN, measurement, kernels=[twin.Kernel(twin.Rbf())])


def test_independent_batch():
    """Catches a kernel on the gradient batch, or a likelihood on the measurement batch."""
    case = Case("categorical", 1, 2)
    measure = case.random.normal(size=(3, NETWORK.inputs))
    target = make_target("categorical", measurement=targets.Measurement("independent"))
    algorithm = build_plain(case, target, "fw-svgd-l")
    kernel = [twin.Kernel(twin.Rbf())]
    where = {"measured": measure}
    compare(case, algorithm, "fw-svgd-l", PLAIN, lambda state, x: where, jnp.asarray(measure), kernels=kernel)


def test_subset_of_the_batch_with_extra_points():
    """Catches a subset that also thins the likelihood, or extra points dropped with it."""
    case = Case("gaussian", 1, 2)
    extra = case.random.normal(size=(1, NETWORK.inputs))
    measurement = targets.Measurement(subset=2, extra=jnp.asarray(extra))
    algorithm = build_plain(case, make_target("gaussian", measurement=measurement), "h-svgd-l")
    of_twin = [twin.Kernel(twin.Rbf()) for _ in range(2)]
    compare(case, algorithm, "h-svgd-l", PLAIN, lambda s, x: {"measured": x[:2], "extra": extra}, kernels=of_twin)


def test_centred_logits():
    """Catches a centring that is applied to the features and not to the way back."""
    case = Case("centred", 0, 1)
    algorithm = build_plain(case, make_target("centred"), "fw-svgd-l", kernel=kernels.rbf(1.9))
    compare(case, algorithm, "fw-svgd-l", PLAIN, kernels=[twin.Kernel(twin.Rbf(), h=1.9)])


@pytest.mark.parametrize("scales", [(1.0, 1.0), ((0.7, 0.4, 1.2), (0.3, 0.8, 0.5))], ids=["one", "by layer"])
def test_the_prior_of_a_wide_network(scales):
    """Catches a width or a layer's scale in the wrong place, and an angle's half of the arc-cosine kernel."""
    sizes, random = [2, 5, 4, 3], np.random.default_rng(7)
    x, features = random.normal(size=(6, 2)), random.normal(size=(3, 6, 3))
    each = [[std] * 3 if isinstance(std, float) else std for std in scales]
    prior = functional_priors.infinite_width(sizes, *scales, jitter=1e-3)
    found = prior(jax.random.key(0), jnp.asarray(features), jnp.ones(3, bool), jnp.asarray(x), lambda *_: None)
    score = twin.gaussian_process_score(lambda a, b: twin.infinite_width_covariance(a, sizes, *each), 0.0, 1e-3, 3)
    np.testing.assert_allclose(found.reshape(3, -1), score(features.reshape(3, -1), x), rtol=1e-7)


# -- functional priors from draws ----------------------------------------------------------------------------

DRAWS = 8  # with 3 particles an odd number of pairs: the median is one of the distances


def drawn_functions(target, key, points, noise):
    """The prior functions that the library draws with this key, through the twin's network."""
    key_draw, key_noise = jax.random.split(key)
    weights = flatten(jax.vmap(target.sample)(jax.random.split(key_draw, DRAWS)))
    outputs = np.array([NETWORK.f(w, points) for w in weights])
    outputs += noise * np.asarray(jax.random.normal(key_noise, outputs.shape, outputs.dtype))
    return outputs.reshape(DRAWS, -1)


@pytest.mark.parametrize(
    ("prior", "estimate", "noise", "points"),
    [
        (functional_priors.moment_matched(DRAWS, jitter=0.05), lambda s: twin.moment_matched_score(s, 0.05), 0.0, None),
        (functional_priors.ssge(DRAWS, noise=0.1), twin.ssge_score, 0.1, None),
        (functional_priors.ssge(DRAWS, 0.9, 0.02, 0.1), lambda s: twin.ssge_score(s, 0.9, 0.02), 0.1, 3),
    ],
    ids=["moment matched", "ssge", "ssge with eta on three points"],
)
def test_functional_prior_from_draws(prior, estimate, noise, points):
    """Catches a flipped prior score, a wrong width or number of eigenvectors, a subset of points put back elsewhere."""
    case = Case("gaussian", 0, 2)
    restricted = prior if points is None else functional_priors.on_points(prior, points)
    target = make_target("gaussian", functional_prior=restricted)

    def measurement(state, x):
        _, key = jax.random.split(keys_of_step(state)[0])
        chosen = np.arange(len(x))
        if points is not None:
            key_points, key = jax.random.split(key)
            chosen = np.asarray(jax.random.choice(key_points, len(x), (points,), replace=False))
        samples = drawn_functions(target, key, x[chosen], noise)

        def score(features, inputs):
            by_point = features.reshape(case.n, len(x), NETWORK.outputs)
            out = np.zeros_like(by_point)
            at_chosen = estimate(samples)(by_point[:, chosen].reshape(case.n, -1), x[chosen])
            out[:, chosen] = at_chosen.reshape(case.n, len(chosen), NETWORK.outputs)
            return out.reshape(features.shape)

        return {"functional_prior": score}

    algorithm = build_plain(case, target, "f-svgd")
    compare(case, algorithm, "f-svgd", PLAIN, measurement, kernels=[twin.Kernel(twin.Rbf())])
