"""What networks computed in bfloat16 change: accuracy, NLL and the time of a step, on scikit-learn's digits.

``python benchmarks/bfloat16.py`` trains h-svgd in both precisions with three seeds (a few minutes) and prints a table;
docs/performance.md quotes it. Weights, kernels and the optimiser are in float32 in both.
"""

import time

import jax
import numpy as np
from sklearn.datasets import load_digits

from stein import data, evaluate, likelihoods, models, predict, priors, targets, train
from stein.ensembles import build

MEMBERS, STEPS, BATCH, TEST, SEEDS = 10, 1500, 128, 400, (0, 1, 2)


def main() -> None:
    x, y = load_digits(return_X_y=True)
    x = (x / 16).astype(np.float32)
    for name, change in {"float32": lambda model: model, "bfloat16": models.in_bfloat16}.items():
        found = np.array([trained(change(models.mlp([64, 100, 100, 10])), x, y, seed) for seed in SEEDS])
        mean, error = found.mean(axis=0), found.std(axis=0, ddof=1) / len(SEEDS) ** 0.5
        words = zip(("accuracy", "NLL", "ms a step"), mean, error, strict=True)
        print(f"{name:9}" + "   ".join(f"{word} {m:.4f} ± {e:.4f}" for word, m, e in words), flush=True)


def trained(model, x, y, seed) -> tuple[float, float, float]:
    """Accuracy and NLL on test rows, and milliseconds of a step after compiling."""
    order = np.random.default_rng(seed).permutation(len(x))
    test, rest = order[:TEST], order[TEST:]
    likelihood = likelihoods.categorical()
    target = targets.posterior(model, likelihood, priors.fan_in(2.0), len(rest))
    algorithm = build("h-svgd", target, learning_rate=1e-3, start="model")
    batches = data.Batches(x[rest], y[rest].astype(np.int32), BATCH, jax.random.key(seed))
    state = train.begin(algorithm, jax.random.key(seed), MEMBERS)
    state, _ = train.run(algorithm, state, batches, STEPS // 2, chunk=STEPS // 2)
    began = time.perf_counter()
    state, _ = train.run(algorithm, state, batches, STEPS // 2, chunk=STEPS // 2)
    seconds = time.perf_counter() - began
    prediction = likelihood.predictive(predict.in_chunks(model, state.particles, x[test]))
    scores = evaluate.classification(prediction.log_probabilities, y[test])
    return scores["accuracy"], scores["nll"], 1e3 * seconds / (STEPS // 2)


if __name__ == "__main__":
    main()
