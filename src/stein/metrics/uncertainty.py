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
    """Model disagreement: the standard deviation over members (n - 1), averaged over classes; 0 of a single one."""
    return np.sqrt(_variance(probabilities)).mean(axis=1)


def rms_disagreement(probabilities: Probabilities) -> Points:
    """The root of the class-averaged variance: the paper's formula, where its tables have :func:`disagreement`.

    It orders points differently, because the root of a mean is not the mean of roots.
    """
    return np.sqrt(_variance(probabilities).mean(axis=1))


def mutual_information(probabilities: Probabilities) -> Points:
    """Entropy of the mean less the mean entropy of the members: what more data could still teach."""
    p = np.asarray(probabilities, float)
    own = -_x_log_x(p).sum(axis=2).mean(axis=0) / np.log(p.shape[2])
    return entropy(p.mean(axis=0)) - own


def _variance(probabilities: Probabilities) -> Float[np.ndarray, "b c"]:
    n = len(probabilities)
    return np.var(np.asarray(probabilities, float), axis=0) * (n / max(n - 1, 1))


def _x_log_x(p: np.ndarray) -> np.ndarray:
    return p * np.log(np.where(p > 0, p, 1))
