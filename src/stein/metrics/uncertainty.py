r"""What a classifier's members say about their own uncertainty. ``probabilities`` is (members, points, classes).

Entropies are over log C, so that 1 is a uniform prediction.
"""

import numpy as np
from jaxtyping import Float

Probabilities = Float[np.ndarray, "n b c"]
Points = Float[np.ndarray, " b"]


def entropy(mean: Float[np.ndarray, "b c"]) -> Points:
    r"""Entropy of predictions, :math:`-\sum_c p_c \log p_c / \log C`: all uncertainty, whatever it comes from."""
    p = np.asarray(mean, float)
    return -_x_log_x(p).sum(axis=1) / np.log(p.shape[1])


def disagreement(probabilities: Probabilities) -> Points:
    """Model disagreement: the standard deviation over members (n - 1), averaged over classes."""
    return np.std(np.asarray(probabilities, float), axis=0, ddof=1).mean(axis=1)


def mutual_information(probabilities: Probabilities) -> Points:
    """Entropy of the mean less the mean entropy of the members: what more data could still teach."""
    p = np.asarray(probabilities, float)
    own = -_x_log_x(p).sum(axis=2).mean(axis=0) / np.log(p.shape[2])
    return entropy(p.mean(axis=0)) - own


def _x_log_x(p: np.ndarray) -> np.ndarray:
    return p * np.log(np.where(p > 0, p, 1))
