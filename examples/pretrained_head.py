"""One network, trained and frozen, with an ensemble of last layers for a new question.

docs/tutorial/pretrained_head.md explains it. Needs the extra sklearn.
"""

import jax
from sklearn.datasets import load_digits

import stein
from stein import data, likelihoods, measurements, models, predict, priors, train
from stein.targets import Measurement

x, y = load_digits(return_X_y=True)
x = (x / 16).astype("float32")
old, new = y < 5, y >= 5

network, likelihood, prior = models.mlp([64, 100, 100, 5]), likelihoods.categorical(), priors.normal(1.0)
training = stein.build("de", stein.posterior(network, likelihood, prior, old.sum()), start="model")
batches = data.Batches(x[old], y[old], size=128, key=jax.random.key(1))
state, _ = train.run(training, training.init(jax.random.key(0), num_particles=1), batches, steps=1_000)
pretrained = jax.tree.map(lambda leaf: leaf[0], state.particles)

model, head = models.split(network, pretrained, example=x[:2])
x_new, y_new, x_test, y_test = x[new][:60], y[new][:60] - 5, x[new][60:], y[new][60:] - 5
sizes = [sum(leaf.size for leaf in jax.tree.leaves(weights)) for weights in (head, pretrained)]
print(f"{sizes[0]:,} of {sizes[1]:,} weights per member")

target = stein.posterior(model, likelihood, prior, num_data=60)
for method, members in [("de", 1), ("de", 20), ("fw-svgd", 20)]:
    algorithm = stein.build(method, target, learning_rate=1e-2)
    state = algorithm.init(jax.random.key(2), members)
    state, _ = train.run(algorithm, state, data.Batches(x_new, y_new, size=60, key=jax.random.key(3)), steps=1_000)
    scores = predict.prediction(model, likelihood, state, x_test).scores(y_test)
    print(f"{members:2} heads by {method}: accuracy {scores['accuracy']:.3f}, nll {scores['nll']:.3f}")

points = Measurement("extra", extra=measurements.rows_of(x[old], 20))
apart = stein.posterior(model, likelihood, prior, num_data=60, measurement=points)
for method, where, options in [("de", target, {}), ("fw-svgd", target, {}), ("rde", apart, {"space": "probabilities"})]:
    algorithm = stein.build(method, where, learning_rate=1e-2, **options)
    state = algorithm.init(jax.random.key(2), 20)
    state, _ = train.run(algorithm, state, data.Batches(x_new, y_new, size=60, key=jax.random.key(3)), steps=1_000)
    nll = predict.prediction(model, likelihood, state, x_test).scores(y_test)["nll"]
    known, other = (
        predict.prediction(model, likelihood, state, at).mutual_information.mean() for at in (x_test, x[old])
    )
    print(f"20 heads by {method}: nll {nll:.3f}, disagreement at 5 to 9 {known:.4f}, at 0 to 4 {other:.4f}")
