"""The same ensemble of networks written in four ways: a function, Flax linen, Flax nnx, Equinox.

docs/tutorial/own_network.md explains it. Needs the extras flax and sklearn.
"""

import equinox as eqx
import jax
from flax import linen, nnx
from sklearn.datasets import load_digits

import stein
from stein import data, likelihoods, models, predict, priors, train

x, y = load_digits(return_X_y=True)
x = (x / 16).astype("float32")
x_train, y_train, x_test, y_test = x[:1437], y[:1437], x[1437:], y[1437:]


def init(key):
    first, second = jax.random.split(key)
    return {"hidden": jax.random.normal(first, (64, 50)), "out": jax.random.normal(second, (50, 10))}


def apply(weights, inputs):
    return jax.nn.relu(inputs @ weights["hidden"]) @ weights["out"]


class Linen(linen.Module):
    @linen.compact
    def __call__(self, inputs):
        return linen.Dense(10)(linen.relu(linen.Dense(50)(inputs)))


class Nnx(nnx.Module):
    def __init__(self, rngs):
        self.hidden, self.out = nnx.Linear(64, 50, rngs=rngs), nnx.Linear(50, 10, rngs=rngs)

    def __call__(self, inputs):
        return self.out(nnx.relu(self.hidden(inputs)))


networks = {
    "function": models.from_function(init, apply),
    "linen": models.from_linen(Linen(), x[:1]),
    "nnx": models.from_nnx(Nnx),
    "equinox": models.from_equinox(lambda key: eqx.nn.MLP(64, 10, width_size=50, depth=1, key=key)),
}

likelihood = likelihoods.categorical()
for name, model in networks.items():
    target = stein.posterior(model, likelihood, priors.normal(1.0), num_data=len(x_train))
    algorithm = stein.build("h-svgd", target, learning_rate=1e-2)
    state = algorithm.init(jax.random.key(0), num_particles=10)
    batches = data.Batches(x_train, y_train, size=128, key=jax.random.key(1))
    state, _ = train.run(algorithm, state, batches, steps=1_000)
    prediction = predict.prediction(model, likelihood, state, x_test)
    scores = prediction.scores(y_test)
    print(f"{name}: accuracy {scores['accuracy']:.3f}, nll {scores['nll']:.3f}, one member {scores['nll_members']:.3f}")
