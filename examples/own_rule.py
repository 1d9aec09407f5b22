"""A rule of one's own: out of the crowd.

docs/tutorial/own_rule.md explains it.
"""

import jax
import jax.numpy as jnp
import numpy as np

import stein
from stein import data, kernels, likelihoods, methods, models, predict, priors, rules, train, tree
from stein.rules.functional import on_functions


def crowd(kernel=kernels.rbf(), strength=1.0):
    def force(key, view, memory):
        gram, memory = on_functions(kernel, view, memory)
        crowding = jnp.maximum(jnp.sum(gram.matrix, axis=1), 1)
        repulsion = tree.rows(strength / crowding, rules.local()(key, gram, view))
        return rules.Force(tree.add(view.score_w, repulsion), None, repulsion, {"functions": gram}), memory

    return rules.Rule(force, kernel.memory)


methods.METHODS["crowd"] = methods.Method(
    "crowd", crowd, "each for itself, out of the crowd", "2", "no", kernels=("kernel",), compares="outputs"
)

x, y = data.regression_1d()
model, likelihood = models.mlp([1, 50, 50, 1]), likelihoods.gaussian(1.0)
target = stein.posterior(model, likelihood, priors.normal(1.0), num_data=len(x))
grid = np.linspace(0.0, 7.0, 8)[:, None].astype("float32")
for name in ("de", "crowd"):
    algorithm = stein.build(name, target, learning_rate=1e-3)
    state = algorithm.init(jax.random.key(0), num_particles=20)
    state, _ = train.run(algorithm, state, data.Batches(x, y, size=64, key=jax.random.key(1)), steps=5_000)
    print(name, predict.prediction(model, likelihood, state, grid).epistemic[:, 0].round(2))
