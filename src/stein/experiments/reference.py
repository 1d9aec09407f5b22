"""The posterior of a toy task by a long run of NUTS, and the draws of it that come with the package.

A run directory holds the last checkpoint and every kept draw of the weights; a run that was cut goes on where it was.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from stein import checkpoint, data, hmc, hooks, predict, train
from stein.ensembles import State, build
from stein.experiments.toys import Task


class Length(NamedTuple):
    """How long the chains run: ``draws`` of each are kept, ``thin`` transitions apart."""

    chains: int = 8
    training: int = 10_000
    warm_up: int = 1000
    draws: int = 400
    thin: int = 10
    max_doublings: int = 8


def sample(task: Task, folder: Path, length: Length, *, seed: int = 0, say: Callable[[str], None], show: bool) -> None:
    """Run the chains, or go on with them, until all draws are in ``folder/draws``. Needs float64.

    Each chain starts at a network trained from its own prior draw: from raw prior draws they do not converge.

    Args:
        say: told in a few words what begins.
        show: draw a progress bar.
    """
    if not jax.config.read("jax_enable_x64"):
        raise ValueError("the chains need float64: JAX_ENABLE_X64=1")
    x, y = (jnp.asarray(a, float) if a.dtype.kind == "f" else jnp.asarray(a) for a in (task.x, task.y))
    log_prob = hmc.log_posterior(task.model, task.likelihood, task.prior, x, y)
    algorithm = hmc.nuts(log_prob, length.max_doublings)
    key_train, key_chains = jax.random.split(jax.random.key(seed))
    networks = build("de", task.target(), learning_rate=1e-3)

    def first(weights: Any) -> State:
        return algorithm.init(key_chains, length.chains, weights=weights)

    like = jax.eval_shape(lambda: first(networks.init(key_train, length.chains).particles))
    found = checkpoint.newest(folder / "checkpoints", like, say)
    if found is None:
        say(f"training {length.chains} networks to start from")
        trained = networks.init(key_train, length.chains)
        trained, _ = train.run(networks, trained, data.Batches(x, y, len(x), key_train), length.training)
        say(f"warming up: {length.warm_up} transitions, no draws yet")
        state = hmc.warm_up(log_prob, first(trained.particles), length.warm_up, length.max_doublings)
        checkpoint.save(folder / "checkpoints", state)
    else:
        state = found[0]
        say(f"going on from transition {int(state.step)}")
    (folder / "draws").mkdir(exist_ok=True)

    def keep(moment: train.Moment) -> None:
        more = {name: np.asarray(value).mean(axis=0).tolist() for name, value in moment.info.more.items()}
        facts = more | {"log_density": np.asarray(moment.info.log_likelihood[-1]).tolist()}
        checkpoint.export(_draw(folder, moment.step), moment.state.particles, {"stein": json.dumps(facts)})

    left = length.draws * length.thin - int(state.step)
    if left > 0:
        with hooks.progress(show, int(state.step)) as bar:
            saver = hooks.Checkpoints(folder / "checkpoints", every=10 * length.thin, keep=1)
            train.run(algorithm, state, None, left, chunk=length.thin, hooks=[keep, bar, saver])


class Draws(NamedTuple):
    """Outputs of the kept draws at the task's points, and what the sampler said about each draw."""

    outputs: Float[np.ndarray, "chains draws g c"]
    facts: dict[str, Float[np.ndarray, "chains draws"]]


def load(task: Task, folder: Path, length: Length) -> Draws:
    """The draws of a finished run."""
    like = jax.eval_shape(lambda: jax.vmap(task.model.init)(jax.random.split(jax.random.key(0), length.chains)))
    outputs, facts = [], []
    for step in range(length.thin, length.draws * length.thin + 1, length.thin):
        weights, metadata = checkpoint.load_export(_draw(folder, step), like)
        outputs.append(np.asarray(predict.outputs(task.model, weights, jnp.asarray(task.points)), np.float32))
        facts.append(json.loads(metadata["stein"]))
    return Draws(np.stack(outputs, axis=1), {name: np.array([fact[name] for fact in facts]).T for name in facts[0]})


def _draw(folder: Path, step: int) -> Path:
    return folder / "draws" / f"{checkpoint.name_of(step)}.safetensors"
