"""Three ensembles beside the posterior of a small network, sampled by Hamiltonian Monte Carlo.

docs/tutorial/hmc.md explains it. Needs the extra arviz.
"""

import jax

jax.config.update("jax_enable_x64", True)

import numpy as np

import stein
from stein import data, hmc, likelihoods, models, predict, priors, samples, train
from stein.metrics import divergence

x, y = data.regression_1d()
x, y = x.astype(float), y.astype(float)
model, likelihood, prior = models.mlp([1, 20, 1]), likelihoods.gaussian(1.0), priors.normal(1.0)
target = stein.posterior(model, likelihood, prior, num_data=len(x))
grid = np.linspace(0.0, 7.0, 29)[:, None]
batches = data.Batches(x, y, size=64, key=jax.random.key(1))

functions = {}
for name in ("de", "w-svgd", "fw-svgd"):
    algorithm = stein.build(name, target, learning_rate=3e-3)
    state = algorithm.init(jax.random.key(0), num_particles=20)
    state, _ = train.run(algorithm, state, batches, steps=5_000)
    functions[name] = np.asarray(predict.outputs(model, state, grid))[:, :, 0]

networks = stein.build("de", target, learning_rate=3e-3)
trained, _ = train.run(networks, networks.init(jax.random.key(2), num_particles=4), batches, steps=2_000)
log_prob = hmc.log_posterior(model, likelihood, prior, x, y)
nuts = hmc.nuts(log_prob)
chains = hmc.warm_up(log_prob, nuts.init(jax.random.key(3), 4, weights=trained.particles), steps=300)
_, draws = samples.collect(nuts, chains, None, burn_in=0, draws=200, thin=2)

flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), draws.particles)
posterior = np.asarray(predict.outputs(model, flat, grid))[:, :, 0]
mixing = samples.diagnose_functions(posterior.reshape(*draws.alive.shape, -1).swapaxes(0, 1))
print(f"R-hat at most {mixing['rhat'].max():.2f}, effective draws at least {mixing['ess_bulk'].min():.0f}")

everywhere = np.full(len(grid), True)
for name, values in functions.items():
    ratio = divergence.spread_ratio(values, posterior, everywhere)
    print(f"{name}: spread {ratio:.2f} of the posterior's")

from stein.paper import reference

print(reference.posterior("regression").draws.shape)  # draws of f on the 141 points of stein.paper.toys.GRID
