"""The posterior of a toy task by a long run of NUTS, and the draws from it that come with the package.

A run directory holds the last checkpoint and every kept draw of the weights; an interrupted run continues from there.
"""

import io
import json
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from stein import data, hmc, hooks, samples, train
from stein.ensembles import State, build
from stein.paper import toys
from stein.paper.toys import Task
from stein.report import plots
from stein.storage import checkpoint, durable


class Length(NamedTuple):
    """How long the chains run: ``draws`` of each are kept, ``thin`` transitions apart."""

    chains: int = 8
    training: int = 10_000
    warm_up: int = 600
    draws: int = 200
    thin: int = 3
    max_doublings: int = 10


def sample(task: Task, folder: Path, length: Length, *, seed: int = 0, say: Callable[[str], None], show: bool) -> None:
    """Run or continue the chains until all draws are in ``folder/draws``. Needs float64.

    Each chain starts at a network trained from its own prior draw: from prior draws they do not converge.

    Args:
        say: called with a short message when a phase begins.
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
    """The kept draws' predictions at the task's points, and the sampler's facts about each draw."""

    said: Float[np.ndarray, "chains draws g c"]
    facts: dict[str, Float[np.ndarray, "chains draws"]]


def load(task: Task, folder: Path, length: Length) -> Draws:
    """The draws of a finished run."""
    like = jax.eval_shape(lambda: jax.vmap(task.model.init)(jax.random.split(jax.random.key(0), length.chains)))
    said, facts = [], []
    for step in range(length.thin, length.draws * length.thin + 1, length.thin):
        weights, metadata = checkpoint.load_export(_draw(folder, step), like)
        said.append(task.predict(weights).astype(np.float32))
        facts.append(json.loads(metadata["stein"]))
    return Draws(np.stack(said, axis=1), {name: np.array([fact[name] for fact in facts]).T for name in facts[0]})


def _draw(folder: Path, step: int) -> Path:
    return folder / "draws" / f"{checkpoint.name_of(step)}.safetensors"


class Posterior(NamedTuple):
    """The packaged posterior of a task.

    Regression: ``draws`` (m, 141) of f on :data:`~stein.paper.toys.GRID`. Classification: ``draws`` (m, 350, 5)
    of the probabilities at the test and OOD points, and ``mean`` (10000, 5), those of all draws on the plane. ``about``
    has the command, the length of the chains and the diagnostics.
    """

    draws: np.ndarray
    mean: np.ndarray
    about: dict[str, Any]


def posterior(name: str) -> Posterior:
    """The committed posterior of a task, ``"regression"`` or ``"classification"``."""
    raw = (resources.files("stein.paper") / "posteriors" / f"{name}.npz").read_bytes()
    with np.load(io.BytesIO(raw)) as found:
        return Posterior(
            found["draws"].astype(np.float32), found["mean"].astype(np.float32), json.loads(str(found["about"]))
        )


def publish(task: Task, draws: Draws, folder: Path, length: Length) -> dict[str, Any]:
    """Thin the draws to less than 1 MB in ``folder/NAME.npz``, and write diagnostics and traces of all draws.

    Traces show the log density and f, or the probability of the first class, at five of the points.
    """
    about: dict[str, Any] = {
        "command": f"stein reproduce hmc --tasks {task.name}",
        "sampler": "BlackJAX NUTS, float64, full batch, window adaptation, chains started at trained networks",
        "length": length._asdict(),
    }
    if task.has_classes:
        mean = draws.said[:, :, : toys.SIDE**2].mean(axis=(0, 1), dtype=float)
        functions = draws.said[:, :, toys.SIDE**2 :]
        most = 160
        about |= {"floor": _floor(task, draws.said, mean), "floor_against": "the mean of the other draws"}
    else:
        functions = draws.said[..., 0]
        most, mean = 1600, functions.mean(axis=(0, 1))
    about |= _diagnosis(functions, draws.facts)
    each = most // len(functions)
    kept = functions[:, np.linspace(0, functions.shape[1] - 1, each).round().astype(int)]
    kept = kept.reshape(-1, *kept.shape[2:]).astype(np.float16 if task.has_classes else np.float32)
    buffer = io.BytesIO()
    np.savez_compressed(buffer, draws=kept, mean=mean.astype(np.float32), about=json.dumps(about))
    durable.replace(folder / f"{task.name}.npz", buffer.getvalue())
    durable.replace(folder / f"{task.name}.json", (json.dumps(about) + "\n").encode())
    watched = np.linspace(0, functions.shape[2] - 1, 5).round().astype(int)
    lines = {f"point {i}": functions[:, :, i].reshape(*functions.shape[:2], -1)[..., 0] for i in watched}
    plots.traces({"log density": draws.facts["log_density"]} | lines).savefig(
        folder / f"{task.name}-traces.png", dpi=75
    )
    return about


def _floor(task: Task, probabilities: np.ndarray, mean: np.ndarray, repeats: int = 5) -> list[dict[str, float]]:
    """Distance of as many draws as the ensemble has members from all other draws: the error of a random sample.

    ``mean`` is that of all draws on the plane; the chosen draws are subtracted from it.
    """
    flat = probabilities.reshape(-1, *probabilities.shape[2:])
    random = np.random.default_rng(0)
    found = []
    for _ in range(repeats):
        chosen = flat[random.choice(len(flat), task.particles, replace=False)]
        taken = chosen[:, : len(mean)].sum(axis=0, dtype=float)
        others = (len(flat) * mean.astype(float) - taken) / (len(flat) - len(chosen))
        found.append(toys.compare_classification(chosen, np.clip(others, 0, 1)))
    return found


def _diagnosis(functions: np.ndarray, facts: dict[str, np.ndarray]) -> dict[str, Any]:
    found = samples.diagnose_functions(functions.reshape(*functions.shape[:2], -1))
    numbers = {name: [round(float(v), 4) for v in values] for name, values in found.items()}
    means = {name: float(values.mean()) for name, values in facts.items()}
    return {"diagnostics": numbers, "means": means, "kept": int(np.prod(functions.shape[:2]))}
