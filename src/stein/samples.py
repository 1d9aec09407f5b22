"""Collected samples, for the tools that judge Markov chains."""

from typing import Any

import jax
import numpy as np

from stein.train import Collected


def to_arviz(collected: Collected) -> Any:
    """An ArviZ ``InferenceData`` whose chains are the particles (those that are alive at the end).

    A variable for each leaf of the weights, named by its path. Needs the extra ``stein[arviz]``.
    """
    try:
        import arviz
    except ImportError as error:
        raise ImportError("to_arviz needs ArviZ: pip install 'stein[arviz]'") from error
    alive = np.asarray(collected.alive[-1])
    leaves = jax.tree.flatten_with_path(collected.particles)[0]
    variables = {
        jax.tree_util.keystr(path, simple=True, separator=".") or "w": np.moveaxis(np.asarray(leaf), 0, 1)[
            alive
        ]
        for path, leaf in leaves
    }
    return arviz.from_dict(posterior=variables)
