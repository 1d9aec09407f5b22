r"""How far an ensemble of functions is from a reference, such as draws of Hamiltonian Monte Carlo.

Functions are rows: ``members`` (n, g) and ``reference`` (m, g) hold n and m functions on the same g inputs. Standard
deviations are over functions, with n - 1. Plain NumPy in double precision.
"""

import numpy as np
from jaxtyping import Bool, Float

from stein.inputs import shaped

Functions = Float[np.ndarray, "_ g"]


@shaped
def spread(functions: Functions) -> Float[np.ndarray, " g"]:
    """Standard deviation over functions at every input."""
    if len(functions) < 2:
        raise ValueError(f"functions has shape {functions.shape}: a spread is of at least two functions")
    return np.std(np.asarray(functions, float), axis=0, ddof=1)


@shaped
def spread_ratio(members: Functions, reference: Functions, where: Bool[np.ndarray, " g"]) -> float:
    r""":math:`\rho`: the mean spread over the inputs ``where``, over that of the reference; 1 is right."""
    return float(spread(members)[where].mean() / spread(reference)[where].mean())


@shaped
def log_spread_error(members: Functions, reference: Functions) -> float:
    r""":math:`E_\mathrm{std}`, the mean over inputs of :math:`|\log(s/s_\mathrm{ref})|`: too narrow and too wide count
    equally."""
    return float(np.abs(np.log(spread(members) / spread(reference))).mean())


@shaped
def wasserstein(members: Functions, reference: Functions) -> float:
    r"""Mean over inputs of the Wasserstein-1 distance of f(x), over the mean spread of the reference.

    On the line the best coupling is that of the quantiles, :math:`W_1 = \int_0^1 |F^{-1}(p) - G^{-1}(p)|\,dp`, and both
    quantile functions are steps.
    """
    a, b = np.sort(np.asarray(members, float), axis=0), np.sort(np.asarray(reference, float), axis=0)
    ends = np.union1d(np.arange(1, len(a) + 1) / len(a), np.arange(1, len(b) + 1) / len(b))
    middles = ends - np.diff(ends, prepend=0) / 2
    steps = np.diff(ends, prepend=0)
    at_a, at_b = (middles * len(a)).astype(int), (middles * len(b)).astype(int)
    distance = np.abs(a[at_a] - b[at_b]).T @ steps
    return float(distance.mean() / spread(reference).mean())


@shaped
def gaussian_kl(members: Functions, reference: Functions) -> float:
    r"""Mean over inputs of :math:`\mathrm{KL}(N(\mu, s^2)\,\|\,N(\mu_\mathrm{ref}, s_\mathrm{ref}^2))`."""
    s, r = spread(members), spread(reference)
    shift = np.mean(members, axis=0, dtype=float) - np.mean(reference, axis=0, dtype=float)
    return float((np.log(r / s) + (s**2 + shift**2) / (2 * r**2) - 0.5).mean())


@shaped
def energy_distance(members: Functions, reference: Functions) -> float:
    r""":math:`2\,E|f - h| - E|f - f'| - E|h - h'|` for whole functions, which sees wrong correlations between inputs.

    Pairs of a function with itself are left out, so that the estimate is unbiased (and may be negative).
    """
    a, b = np.asarray(members, float), np.asarray(reference, float)
    from scipy.spatial.distance import cdist, pdist  # slow to import

    return float(2 * cdist(a, b).mean() - pdist(a).mean() - pdist(b).mean())


@shaped
def coverage(members: Functions, reference: Functions, deviations: float = 2.0) -> float:
    """Fraction of inputs where the reference's mean is within ``deviations`` spreads of the members' mean."""
    shift = np.mean(members, axis=0, dtype=float) - np.mean(reference, axis=0, dtype=float)
    return float((np.abs(shift) <= deviations * spread(members)).mean())
