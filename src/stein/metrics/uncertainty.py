r"""Uncertainty of a classifier. ``probabilities`` is (members, points, classes).

Entropies are over log C, so that 1 is a uniform prediction.
"""

import numpy as np
import scipy  # its parts are loaded when they are first used
from jaxtyping import Float

from stein.inputs import shaped

Probabilities = Float[np.ndarray, "n b c"]
Points = Float[np.ndarray, " b"]


@shaped
def entropy(mean: Float[np.ndarray, "b c"]) -> Points:
    r"""Entropy of predictions, :math:`-\sum_c p_c \log p_c / \log C`: total uncertainty, from all sources.

    The largest probability is computed as 1 minus the others, which is more precise when it is nearly 1. Terms are
    summed in order of size, so that the order of the classes does not matter.
    """
    p = np.sort(_sum_to_one("mean", mean), axis=1)
    others = p[:, :-1]
    rest = np.minimum(others.sum(axis=1), 1)
    negative = scipy.special.xlogy(others, others).sum(axis=1) + scipy.special.xlog1py(1 - rest, -rest)
    return -negative / np.log(p.shape[1])


@shaped
def disagreement(probabilities: Probabilities) -> Points:
    """Model disagreement: the standard deviation over members (n - 1), averaged over classes; 0 for a single member."""
    return np.sqrt(_variance(probabilities)).mean(axis=1)


@shaped
def rms_disagreement(probabilities: Probabilities) -> Points:
    """The root of the class-averaged variance: the paper's formula; its tables use :func:`disagreement`.

    It orders points differently, because the root of a mean is not the mean of roots.
    """
    return np.sqrt(_variance(probabilities).mean(axis=1))


@shaped
def mutual_information(probabilities: Probabilities) -> Points:
    r"""Entropy of the mean minus the mean entropy of the members: the part that more data could reduce.

    Computed as the mean divergence from the mean, :math:`\frac1n \sum_i \mathrm{KL}(p_i \| \bar p) / \log C`,
    which is equal, never negative, and exactly zero if all members agree.
    """
    p = _sum_to_one("probabilities", probabilities)
    # Where the mean of numbers near the smallest of all is rounded to zero, their divergence from it would be infinite.
    p = np.where(p < len(p) * np.finfo(p.dtype).tiny, 0, p)
    mean = p[0] + (p - p[0]).mean(axis=0)
    return scipy.special.kl_div(p, mean[None]).sum(axis=2).mean(axis=0) / np.log(p.shape[2])


def _variance(probabilities: Probabilities) -> Float[np.ndarray, "b c"]:
    """From the differences to the first member, which are exactly zero if all members agree."""
    p = _sum_to_one("probabilities", probabilities)
    return np.var(p - p[0], axis=0) * (len(p) / max(len(p) - 1, 1))


def _sum_to_one(name: str, probabilities: np.ndarray) -> np.ndarray:
    """In float64 and contiguous, because the memory layout decides the order of summation."""
    p = np.asarray(probabilities, float, order="C")
    if not np.allclose(p.sum(axis=-1), 1, atol=1e-3):
        raise ValueError(f"{name}: must sum to one over classes; logits become probabilities by jax.nn.softmax")
    return p
