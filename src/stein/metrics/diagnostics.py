"""Diagnostics of members, kernels and forces, and warnings in words: is the ensemble still an ensemble?"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from stein import tree
from stein.types import Particles


def norm(x: Particles) -> Float[Array, ""]:
    """Euclidean norm over all particles and leaves."""
    return jnp.sqrt(jnp.sum(tree.squared_norms(x)))


def kernel(matrix: Float[Array, "n n"], alive: Bool[Array, " n"]) -> dict[str, Float[Array, ""]]:
    """``row_sum``, the mean sum of a row, and ``similarity``, the mean kernel value of two different members."""
    n = jnp.maximum(jnp.sum(alive), 1).astype(matrix.dtype)
    total, own = jnp.sum(matrix), jnp.trace(matrix)
    return {"row_sum": total / n, "similarity": (total - own) / jnp.maximum(n * (n - 1), 1)}


def effective_rank(features: Float[Array, "n m k"], alive: Bool[Array, " n"]) -> Float[Array, ""]:
    r"""The number of different functions: the exponential of the entropy of the normalised eigenvalues of the
    centred Gram matrix of the members' outputs.

    n members that differ in independent ways have rank n - 1; members that all lie on one line have rank 1.

    Reference: Roy & Vetterli (2007), "The effective rank".
    """
    values = jnp.maximum(jnp.linalg.eigvalsh(tree.gram(tree.centre(features, alive))), 0)
    share = values / jnp.maximum(jnp.sum(values), jnp.finfo(values.dtype).tiny)
    return jnp.exp(-jnp.sum(jax.scipy.special.xlogy(share, share)))


def stein_discrepancy(x: Particles, score: Particles, alive: Bool[Array, " n"]) -> Float[Array, ""]:
    r"""Kernel Stein discrepancy of the particles from the target with this score, as a V-statistic.

    .. math:: \mathrm{KSD}^2 = \frac1{n^2} \sum_{ij} k_{ij} \Big[ g_i \cdot g_j
        + \tfrac2h (g_i - g_j) \cdot (x_i - x_j) + \tfrac{2d}h - \tfrac{4}{h^2} |x_i - x_j|^2 \Big]

    with :math:`k_{ij} = \exp(-|x_i - x_j|^2/h)` and h the mean squared distance over log(n + 1). Comparable within
    a run, not between models of different size; on a minibatch it contains the minibatch's noise.

    Cost: four n x n by n x d products.
    Reference: Liu, Lee & Jordan (2016).
    """
    squared = tree.squared_distances(x, alive)  # as a rule computes them: XLA does so once for both
    x, g = tree.around_middle(x, alive), tree.where(alive, score, 0)
    pairs = (alive[:, None] & alive[None, :]).astype(squared.dtype)
    n = jnp.maximum(jnp.sum(alive), 1).astype(squared.dtype)
    d = sum(leaf[0].size for leaf in jax.tree.leaves(x))
    h = jnp.sum(squared * pairs) / jnp.maximum(n * n, 1)
    h = jnp.maximum(h / jnp.log1p(n), jnp.finfo(squared.dtype).tiny)
    cross = _products(g, x)
    own = jnp.diagonal(cross)
    along = own[:, None] - cross - cross.T + own[None, :]  # (g_i - g_j) . (x_i - x_j)
    terms = tree.gram(g) + 2 / h * along + 2 * d / h - 4 / h**2 * squared
    return jnp.sqrt(jnp.maximum(jnp.sum(pairs * jnp.exp(-squared / h) * terms), 0)) / n


def conditional_spread(
    at_data: Float[np.ndarray, "draws N"], elsewhere: Float[np.ndarray, "draws g"], noise: float
) -> Float[np.ndarray, " g"]:
    r"""The spread that data leave to prior draws at other points, if the draws are taken as Gaussian.

    .. math:: \operatorname{Var} f_* = F_*^\top \big(I + F F^\top/\sigma^2\big)^{-1} F_*

    where F and :math:`F_*` are the centred draws at the data and at the other points, over the root of their number,
    and :math:`\sigma` is ``noise``, the standard deviation of the targets around the function. Needs several times
    as many draws as the data determine directions.
    """
    F, other = ((f - f.mean(axis=0)).astype(float) / np.sqrt(len(f) - 1) for f in (at_data, elsewhere))
    left = np.linalg.solve(np.eye(len(F)) + F @ F.T / noise**2, other)
    return np.sqrt((other * left).sum(axis=0))


def troubles(found: Mapping[str, float], members: int) -> dict[str, str]:
    """Warnings by a short name for each problem; empty if there is none."""
    troubles = {}
    for space in ("weights", "functions"):
        similarity = found.get(f"similarity_{space}")
        if similarity is None or members < 2:
            continue
        if similarity > 0.99:
            troubles[f"collapse_{space}"] = (
                f"the members have collapsed: the kernel finds their {space} all alike (mean similarity "
                f"{similarity:.3f} of 1), so that nothing pushes them apart; use a smaller bandwidth or 'median'"
            )
        elif similarity < 0.1 / (members + 1):
            troubles[f"isolation_{space}"] = (
                f"the members no longer see each other: the kernel finds the {space} of any two unrelated (mean "
                f"similarity {similarity:.1e}); they train as a deep ensemble; use a larger bandwidth or 'median'"
            )
    ratio = found.get("force_ratio")
    if ratio is not None and ratio < 1e-3:
        other = "" if "similarity_functions" in found else "a functional method (fw-svgd, h-svgd), "
        troubles["repulsion"] = (
            f"the repulsion is {100 * ratio:.2g} % of the pull of the data: the members find their modes as a deep "
            f"ensemble does; more spread needs {other}noise where there is none, or fewer weights"
        )
    return troubles


def _products(x: Particles, y: Particles) -> Float[Array, "n n"]:
    """Inner products <x_i, y_j> over all leaves."""
    products = [
        jnp.matmul(a.reshape(a.shape[0], -1), b.reshape(b.shape[0], -1).T, precision="highest")
        for a, b in zip(jax.tree.leaves(x), jax.tree.leaves(y), strict=True)
    ]
    return sum(products[1:], products[0])
