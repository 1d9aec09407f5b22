"""How much of the exact repulsion is left out for a given energy, along a run of fw-SVGD on the regression task.

``python benchmarks/exact_energy.py`` prints, for each step and energy, the directions kept of 49 and the relative error
of the repulsion in weight space, in float64, against all directions.
"""

import jax
import jax.numpy as jnp
import numpy as np

from stein import data, kernels, likelihoods, models, priors, rules, targets, train
from stein.ensembles import build
from stein.rules import functional

PARTICLES, STEPS, ENERGIES = 50, (0, 300, 1000, 3000, 10_000), (0.99, 0.999, 0.9999)


def main() -> None:
    x, y = data.regression_1d()
    model = models.mlp([1, 50, 50, 1])
    target = targets.posterior(model, likelihoods.gaussian(1.0), priors.normal(), len(x))
    algorithm = build("fw-svgd", target, learning_rate=1e-3)
    batches = data.Batches(x, y, 64, jax.random.key(1))
    state, done = algorithm.init(jax.random.key(42), PARTICLES), 0
    for step in STEPS:
        if step > done:
            state, _ = train.run(algorithm, state, batches, step - done)
            done = step
        with jax.enable_x64(True):
            batch = jax.tree.map(lambda leaf: jnp.asarray(leaf, float), batches.at(done))
            particles = jax.tree.map(lambda leaf: leaf.astype(float), state.particles)
            found = repulsions(target, particles, batch, state.ids, state.alive)
        words = [f"{energy}: {kept:2} directions, error {error:.4f}" for energy, (kept, error) in found.items()]
        print(f"step {done:6}  " + "   ".join(words), flush=True)


def repulsions(target, particles, batch, ids, alive) -> dict[float, tuple[int, float]]:
    """For each energy: how many directions are kept, and the relative error."""
    view = target.view(jax.random.key(0), particles, batch, ids, alive, jnp.ones(()), "outputs", False)
    gram, _ = functional.on_functions(kernels.rbf(), view, ())

    def flat(energy: float) -> np.ndarray:
        leaves = jax.tree.leaves(rules.exact(energy)(jax.random.key(0), gram, view))
        return np.concatenate([np.asarray(leaf).ravel() for leaf in leaves])

    norms, _, values, vectors = functional.spectrum(view)
    shares = jnp.sort(functional.pushes(gram.left, norms, values, vectors))[::-1]
    whole = flat(1.0)
    return {
        energy: (
            int(functional.sufficient(shares, energy)),
            float(np.linalg.norm(flat(energy) - whole) / np.linalg.norm(whole)),
        )
        for energy in ENERGIES
    }


if __name__ == "__main__":
    main()
