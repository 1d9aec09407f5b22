"""Thinned samples of a stochastic rule, and diagnostics for Markov chains."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from stein import inputs, train
from stein.data import Batches
from stein.draws import Draws
from stein.ensembles import Algorithm, State
from stein.types import Particles


class Samples(NamedTuple):
    """Every leaf of ``particles`` is (draws, particles, ...)."""

    particles: Particles
    alive: Bool[Array, "draws n"]


def collect(
    algorithm: Algorithm, state: State, batches: Batches | None, *, burn_in: int, draws: int, thin: int = 1
) -> tuple[State, Samples]:
    """Run a stochastic rule, and keep every ``thin``-th state after ``burn_in`` steps.

    Returns:
        The last state, from which a run can continue, and the samples.
    """
    inputs.whole(0, burn_in=burn_in)
    inputs.whole(1, draws=draws, thin=thin)
    if burn_in:
        state, _ = train.run(algorithm, state, batches, burn_in)
    kept = []
    train.run(
        algorithm,
        state,
        batches,
        draws * thin,
        chunk=thin,
        hooks=[lambda moment: kept.append(moment.state)],
    )
    particles, alive = jax.tree.map(lambda *leaves: jnp.stack(leaves), *[(s.particles, s.alive) for s in kept])
    return kept[-1], Samples(particles, alive)


def kept(state: State) -> Samples:
    """The draws that a state keeps (:func:`stein.ensembles.keeping`), the oldest first."""
    if not isinstance(state.draws, Draws):
        raise ValueError("the state keeps no draws; build(..., draws=N) makes an algorithm that does")
    particles = state.draws.in_order()
    number = len(jax.tree.leaves(particles)[0])
    return Samples(particles, jnp.tile(state.alive, (number, 1)))


def to_arviz(samples: Samples) -> Any:
    """An ArviZ ``InferenceData`` whose chains are the particles that are alive at the end.

    It has one variable per leaf of the weights, named by its path. Needs the extra ``arviz``.
    """
    arviz = _arviz("to_arviz")
    alive = np.asarray(samples.alive[-1])
    variables = {
        jax.tree_util.keystr(path, simple=True, separator=".") or "w": np.moveaxis(np.asarray(leaf), 0, 1)[alive]
        for path, leaf in jax.tree.flatten_with_path(samples.particles)[0]
    }
    return arviz.from_dict(posterior=variables)


@inputs.shaped
def diagnose_functions(functions: Float[np.ndarray, "chains draws points"]) -> dict[str, np.ndarray]:
    """Mixing of the chains: split R-hat, bulk and tail effective sample size of f(x) at every point.

    It is for functions, not weights, because many weights give the same function. R-hat near 1 and hundreds of
    effective draws mean that the chains agree; they cannot show that all chains missed the same mode. Needs
    ``arviz``.

    Reference: Vehtari et al. (2021), "Rank-normalization, folding, and localization".
    """
    arviz = _arviz("diagnose_functions")
    draws = arviz.convert_to_dataset({"f": np.asarray(functions, float)})
    return {
        "rhat": arviz.rhat(draws)["f"].to_numpy(),
        "ess_bulk": arviz.ess(draws, method="bulk")["f"].to_numpy(),
        "ess_tail": arviz.ess(draws, method="tail")["f"].to_numpy(),
    }


def _arviz(user: str) -> Any:
    try:
        import arviz
    except ImportError as error:
        raise ImportError(f"{user} needs ArviZ: pip install '.[arviz]' in the checkout") from error
    return arviz
