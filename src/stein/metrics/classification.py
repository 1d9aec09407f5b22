r"""Scores of a classifier's predictions: plain NumPy.

``probabilities`` is (members, points, classes), ``log_probabilities`` their logarithms, which do not underflow if
a member is certain; ``mean`` is the mean over members, the ensemble's prediction; ``y`` holds class numbers.
"""

import numpy as np
import scipy  # its parts are loaded when they are first used
from jaxtyping import Bool, Float, Int

from stein.inputs import shaped

Probabilities = Float[np.ndarray, "n b c"]
Mean = Float[np.ndarray, "b c"]
Labels = Int[np.ndarray, " b"]


@shaped
def probabilities(log_probabilities: Probabilities, name: str = "log_probabilities") -> Probabilities:
    """Probabilities that sum to one in float64: rounding must not rank two confident predictions.

    Raises:
        ValueError: they are not logarithms of probabilities; ``name`` is used in the message.
    """
    if np.isnan(log_probabilities).any():
        raise ValueError(f"{name}: a log-probability is not a number; leave dead members out (predict.living)")
    found = np.exp(log_probabilities.astype(float, order="C"))  # sums depend on the order in memory
    total = found.sum(axis=2, keepdims=True)
    if not np.allclose(total, 1, atol=1e-3):
        raise ValueError(f"{name}: the exponentials do not sum to one; use jax.nn.log_softmax as the link")
    return found / total


@shaped
def tempered(log_probabilities: Probabilities, temperature: float) -> Float[np.ndarray, "_ b c"]:
    """The mean probability to the power 1/T, normalised, as if it were that of a single member; at T = 1 all members.

    Of log-probabilities, because a probability that is zero in floating point may be above zero when tempered.
    """
    if temperature == 1:
        return log_probabilities
    return scipy.special.log_softmax(
        scipy.special.logsumexp(log_probabilities.astype(float), axis=0, keepdims=True) / temperature, axis=2
    )


@shaped
def right(mean: Mean, y: Labels) -> Bool[np.ndarray, " b"]:
    """Where the most probable class is the right one."""
    _check_labels(y, mean.shape[1])
    return mean.argmax(axis=1) == y


@shaped
def nll(log_probabilities: Probabilities, y: Labels) -> float:
    r"""Negative log-likelihood, :math:`-\frac1b \sum_b \log \bar p_b(y_b)`: the proper score, 0 is best."""
    truth = _of_truth(log_probabilities, y)
    return float(np.log(len(truth)) - scipy.special.logsumexp(truth, axis=0).mean())


@shaped
def nll_paper(log_probabilities: Probabilities, y: Labels) -> float:
    r"""What the paper's tables call NLL, :math:`-\log \frac1b \sum_b \bar p_b(y_b)`: the logarithm outside the mean.

    Only for comparison with these tables. Never above :func:`nll` (Jensen), and not a proper score: a confident mistake
    hardly changes it.
    """
    truth = _of_truth(log_probabilities, y)
    return float(np.log(truth.size) - scipy.special.logsumexp(truth))


@shaped
def nll_members(log_probabilities: Probabilities, y: Labels) -> float:
    """Mean over members of their own :func:`nll`; never below the ensemble's (Jensen)."""
    return float(-_of_truth(log_probabilities, y).mean())


@shaped
def brier(mean: Mean, y: Labels) -> float:
    r"""Brier score, :math:`\frac1b \sum_b \sum_c (\bar p_{bc} - [c = y_b])^2`: from 0 to 2, 0 is best."""
    _check_labels(y, mean.shape[1])
    p = np.asarray(mean, float)
    return float((np.square(p).sum(axis=1) - 2 * p[np.arange(len(y)), y] + 1).mean())


@shaped
def accuracy_of_members(probabilities: Probabilities, y: Labels) -> Float[np.ndarray, " n"]:
    """Accuracy of every member on its own."""
    _check_labels(y, probabilities.shape[2])
    return (probabilities.argmax(axis=2) == y[None]).mean(axis=1)


@shaped
def pairwise_disagreement(probabilities: Probabilities) -> float:
    """Fraction of points where two different members predict different classes, averaged over all pairs.

    From votes: of n² ordered pairs, Σ_c votes_c² agree. It is 0 for a single member.
    """
    n, _, classes = probabilities.shape
    chosen = probabilities.argmax(axis=2)
    votes = np.stack([(chosen == c).sum(axis=0) for c in range(classes)])
    return float((n**2 - np.square(votes).sum(axis=0)).mean() / max(n * (n - 1), 1))


def _of_truth(log_probabilities: Probabilities, y: Labels) -> Float[np.ndarray, "n b"]:
    _check_labels(y, log_probabilities.shape[2])
    return log_probabilities[:, np.arange(len(y)), y].astype(float)


def _check_labels(y: Labels, classes: int) -> None:
    if len(y) and not 0 <= y.min() <= y.max() < classes:
        raise ValueError(f"y holds {y.min()} to {y.max()}: classes are 0 to {classes - 1}")
