"""Why the logits of f-SVGD grow on FashionMNIST, and which prior over functions holds them.

``python benchmarks/held_logits.py`` trains f-SVGD on the first 2,000 images, averaged to 14 x 14 pixels, with one prior
at a time: networks 196-50-50-50-10, 3,000 steps of Adam at the table's rate of 0.005. It prints, and writes to
results/held-logits/IMAGES-MEMBERS.json, for 1,500 test images: NLL, accuracy, mean confidence, the share of points with
a probability above 1 - 1e-6, and the root mean square of the logits. ``--images`` and ``--members`` change the size.
"""

import argparse
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax

from stein import data, functional_priors, likelihoods, models, predict, priors, rules, schedules, targets, train
from stein.datasets import load_images
from stein.ensembles import ensemble
from stein.storage import durable

SIZES, STEPS, RATE = [196, 50, 50, 50, 10], 3000, 5e-3
MODEL, LIKELIHOOD = models.mlp(SIZES), likelihoods.categorical()


def small(part: str, number: int) -> tuple[np.ndarray, np.ndarray]:
    images = load_images("fashion-mnist", part)
    x = images.x[:number].reshape(number, 14, 2, 14, 2).mean(axis=(2, 4)).reshape(number, -1)
    return x.astype(np.float32) / 255, images.y[:number].astype(np.int32)


def wide(scale: float) -> functional_priors.FunctionalPrior:
    """That of a fan-in prior of this scale."""
    return functional_priors.infinite_width(SIZES, [scale / m**0.5 for m in SIZES[:-1]], scale)


def numbers(particles, x, y) -> dict[str, float]:
    logits = predict.outputs(MODEL, particles, x)
    said = LIKELIHOOD.predictive(np.asarray(logits))
    confidence = said.probabilities.max(axis=1)
    return {
        **said.scores(y),
        "confidence": float(confidence.mean()),
        "certain": float((confidence > 1 - 1e-6).mean()),
        "logits": float(jnp.sqrt(jnp.mean(logits**2))),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--members", type=int, default=10)
    parser.add_argument("--priors", nargs="*", default=())
    chosen = parser.parse_args()
    (x, y), (x_test, y_test) = small("train", chosen.images), small("test", 1500)
    mean, std = x.mean(), x.std()
    batches = data.Batches((x - mean) / std, y, 64, jax.random.key(7))
    tried = {
        "none": functional_priors.none(),
        "ssge, as published": functional_priors.on_points(functional_priors.ssge(draws=chosen.members), 10),
        "infinite width, N(0, 1)": functional_priors.infinite_width(SIZES),
        "infinite width, fan-in 2": wide(2.0),
    }
    path = Path(f"results/held-logits/{chosen.images}-{chosen.members}.json")
    found = json.loads(path.read_text()) if path.exists() else {}
    for name, prior in tried.items():
        if name in found or (chosen.priors and name not in chosen.priors):
            continue
        target = targets.posterior(MODEL, LIKELIHOOD, priors.normal(), len(x), functional_prior=prior)
        algorithm = ensemble(target, rules.f_svgd(), optax.adam(RATE), anneal=schedules.linear(300))
        state = train.begin(algorithm, jax.random.key(42), chosen.members)
        state, _ = train.run(algorithm, state, batches, STEPS, chunk=250)
        found[name] = numbers(state, (x_test - mean) / std, y_test)
        print(name, {key: round(value, 4) for key, value in found[name].items()}, flush=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        durable.replace(path, (json.dumps(found, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
