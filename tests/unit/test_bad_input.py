"""Bad input gets one clear sentence: the argument, its value, and what is allowed."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from problems import assert_refused
from stein import (
    data,
    functional_priors,
    kernels,
    likelihoods,
    models,
    priors,
    rules,
    samples,
    schedules,
    scores,
    sharding,
    steps,
    targets,
    train,
)
from stein.ensembles import build, ensemble

X, Y = data.regression_1d()
LABELS = np.arange(90, dtype=np.int32) % 3
NETWORK = models.mlp([1, 4, 1])
REGRESSION = targets.posterior(NETWORK, likelihoods.gaussian(), priors.normal(), 90)
CLASSES = targets.posterior(models.mlp([1, 4, 3]), likelihoods.categorical(), priors.normal(), 90)
DENSITY = targets.density(lambda w: -jnp.sum(w**2), lambda key: jax.random.normal(key, (2,)))
ADAM = optax.adam(1e-3)


def spoiled(array, row):
    bad = array.copy()
    bad[row] = np.nan
    return bad


def run(target, x, y):
    algo = build("de", target)
    train.run(algo, algo.init(jax.random.key(0), 2), data.Batches(x, y), 1)


def start(**options):
    return build("de", REGRESSION).init(jax.random.key(0), **options)


NETWORK_WEIGHTS = NETWORK.init(jax.random.key(0))
CASES = {
    "bandwidth = -1": lambda: kernels.rbf(-1),
    "bandwidth = 0": lambda: kernels.imq(0.0),
    "power = 0": lambda: kernels.imq(power=0),
    "floor = 0": lambda: kernels.median(floor=0),
    "after = 0: must be at least 1": lambda: kernels.frozen(kernels.median(), 0),
    "weights = (1.0,): one positive number for each of the 2": lambda: kernels.add(
        kernels.rbf(), kernels.imq(), weights=(1.0,)
    ),
    "no kernel given": lambda: kernels.product(),
    "num_particles = 0: must be at least 1": lambda: start(num_particles=0),
    "weights: neither one network": lambda: start(num_particles=3, weights={"a": jnp.ones(3)}),
    "spread = 0: must be positive": lambda: start(num_particles=3, weights=NETWORK_WEIGHTS, spread=0),
    "method ending in -s": lambda: build("h-svgd-s", REGRESSION),
    "f-svgd has no stochastic version": lambda: build("f-svgd", REGRESSION, stochastic=True),
    "use sgld": lambda: build("de", REGRESSION, stochastic=True),
    "method = 'h-svdg': unknown; did you mean 'h-svgd'?": lambda: build("h-svdg", REGRESSION),
    "w-svgd: no option 'bandwith'; it takes kernel": lambda: build("w-svgd", REGRESSION, bandwith=1.0),
    "noise = 'choleski': one of cholesky": lambda: rules.make("w-svgd", stochastic=True, noise="choleski"),
    "repulsion = 'global': 'exact' or 'local'": lambda: rules.make("fw-svgd", repulsion="global"),
    "w-svgd has no functional repulsion": lambda: rules.make("w-svgd", repulsion="exact"),
    "with noise only exact": lambda: rules.make("fw-svgd", stochastic=True, repulsion="local"),
    "noise_place = 'outside'": lambda: build("sgld", REGRESSION, noise_place="outside"),
    "needs a kernel in closed form": lambda: build(
        "fw-svgd",
        DENSITY,
        repulsion="exact",
        kernel=kernels.from_function(lambda a, b: jnp.exp(-jnp.sum((a - b) ** 2))),
    ).step(build("de", DENSITY).init(jax.random.key(0), 2), None),
    "combine the functions themselves": lambda: kernels.product(
        kernels.rbf(), kernels.from_function(lambda a, b: jnp.exp(-jnp.sum((a - b) ** 2)))
    )(jnp.ones((2, 1)), jnp.ones(2, bool), ((), ())),
    "energy = 2": lambda: rules.exact(energy=2),
    "energy = 0: must be in (0, 1]": lambda: scores.spectral_weights(jnp.eye(2), jnp.eye(2), energy=0),
    "eta = -1": lambda: rules.sge(-1),
    "jitter = -1": lambda: rules.cholesky(-1),
    "a stochastic rule needs steps.langevin": lambda: ensemble(REGRESSION, rules.w_svgd(noise=rules.cholesky()), ADAM),
    "a functional rule works on the gradient batch": lambda: build("f-svgd", DENSITY),
    "temperature = 0": lambda: build("de", REGRESSION, temperature=0),
    "start = 'zero': 'prior' or 'model'": lambda: build("de", REGRESSION, start="zero"),
    "on_nan = 'ignore': 'freeze', 'resample' or 'stop'": lambda: build("de", REGRESSION, on_nan="ignore"),
    "step_size = 0": lambda: steps.langevin(0),
    "decay = 1": lambda: steps.rms(decay=1),
    "epsilon = 0": lambda: steps.rms(epsilon=0),
    "freeze_after = 0": lambda: steps.rms(freeze_after=0),
    "steps = 1: must be at least 2": lambda: schedules.linear(1),
    "steps = 3: must be at least 5": lambda: schedules.cyclical(3),
    "cycles = 0": lambda: schedules.cyclical(10, cycles=0),
    "initial = 0": lambda: schedules.polynomial(0),
    "sigma = 0": lambda: likelihoods.gaussian(0),
    "std = -1": lambda: priors.normal(-1.0),
    "std['head'] = 0": lambda: priors.normal({"body": 1.0, "head": 0}),
    "scale = 0": lambda: priors.laplace(0),
    "num_data = 0": lambda: targets.posterior(NETWORK, likelihoods.gaussian(), priors.normal(), 0),
    "measurement.where = 'test'": lambda: targets.posterior(
        NETWORK, likelihoods.gaussian(), priors.normal(), 90, measurement=targets.Measurement("test")
    ),
    "measurement.subset = 0": lambda: targets.posterior(
        NETWORK, likelihoods.gaussian(), priors.normal(), 90, measurement=targets.Measurement(subset=0)
    ),
    "the batch has no `measure` inputs": lambda: run(
        targets.posterior(
            NETWORK, likelihoods.gaussian(), priors.normal(), 90, measurement=targets.Measurement("independent")
        ),
        X,
        Y,
    ),
    "points = 0": lambda: functional_priors.on_points(functional_priors.none(), 0),
    "draws = 1": lambda: functional_priors.ssge(draws=1),
    "x[7, 0] = nan: row 7 is not finite": lambda: run(REGRESSION, spoiled(X, 7), Y),
    "y[89, 0] = nan: row 89 is not finite": lambda: run(REGRESSION, X, spoiled(Y, 89)),
    "y[4] = 7: labels of a model with 3 outputs are 0 to 2": lambda: run(
        CLASSES, X, np.where(np.arange(90) == 4, 7, LABELS).astype(np.int32)
    ),
    "class labels must be integers": lambda: run(CLASSES, X, Y[:, 0]),
    "class labels must be one number a row": lambda: run(CLASSES, X, LABELS[:, None]),
    "regression targets must be floating point": lambda: run(REGRESSION, X, LABELS),
    "y has 2 targets a row, the model 1 outputs": lambda: run(REGRESSION, X, np.concatenate([Y, Y], axis=1)),
    "x has 90 rows, y has 80": lambda: run(REGRESSION, X, Y[:80]),
    "num_data = 90: the data has 80 rows": lambda: run(REGRESSION, X[:80], Y[:80]),
    "the model has 1 outputs: a mean and log sigma per target need an even number": lambda: run(
        targets.posterior(NETWORK, likelihoods.gaussian(None), priors.normal(), 90), X, Y
    ),
    "size = 91: must be between 1 and the 90 rows": lambda: data.Batches(X, Y, 91, jax.random.key(0)),
    "size = 0": lambda: data.Batches(X, Y, 0, jax.random.key(0)),
    "key = None": lambda: data.Batches(X, Y, 10),
    "steps = 0": lambda: train.run(build("de", DENSITY), start(num_particles=1), None, 0),
    "thin = 0": lambda: samples.collect(
        build("sgld", DENSITY), start(num_particles=1), None, burn_in=0, draws=1, thin=0
    ),
    "data = 3: must divide the number of devices, 4": lambda: sharding.mesh(data=3),
}


@pytest.mark.parametrize("message", CASES)
def test_bad_input_is_refused_with_one_clear_line(message):
    assert_refused(CASES[message], message)
