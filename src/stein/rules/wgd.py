r"""Wasserstein gradient descent: every member follows its own score and an estimate of :math:`-\nabla\log q`.

.. math:: \phi_i = g_i - \widehat{\nabla \log q}(x_i)

where q is the density of the particles. The rules differ in the estimator, a formula in the kernel matrix K and the
repulsion :math:`R_i = \sum_j \nabla_{x_j} k(x_i, x_j)`. Points x are weights, or function values with a single
backward pass at the end. :func:`rde` has its score in weights and its repulsion in functions.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from stein import scores, tree
from stein.features import Space, label_gradients
from stein.kernels import AnyGram, Kernel, pointwise, rbf
from stein.rules.functional import on_functions
from stein.rules.rule import Force, Memory, Rule
from stein.targets import View
from stein.types import Key, Particles

Estimator = Callable[[AnyGram, Particles, View], Particles]
"""(kernel of x, x, view) -> the force -grad log q at every particle."""


def kde() -> Estimator:
    r"""Kernel density estimate: :math:`R_i / \sum_j k_{ij}`. Reference: D'Angelo & Fortuin (2021)."""
    return lambda gram, x, view: tree.mix(scores.kde_weights(gram.matrix, view.alive), gram.repulsion(x))


def sge(eta: float = 0.01) -> Estimator:
    r"""Stein gradient estimator: :math:`(K + \eta I)^{-1} R`. Reference: Li & Turner (2018)."""
    _check_positive(eta)
    return lambda gram, x, view: tree.mix(scores.stein_weights(gram.matrix, eta), gram.repulsion(x))


def ssge(eta: float = 0.01, energy: float = 1.0) -> Estimator:
    r"""Spectral Stein gradient estimator: :math:`K U_J \Lambda_J^{-2} U_J^\top R`. Reference: Shi et al. (2018)."""
    _check_positive(eta)
    return lambda gram, x, view: tree.mix(
        scores.spectral_weights(gram.matrix, gram.matrix, eta, energy), gram.repulsion(x)
    )


def blob() -> Estimator:
    r"""Blob method: :math:`\sum_j \nabla_{x_j} k(x_i, x_j)\,(1/r_i + 1/r_j)` with :math:`r = K\mathbf 1`.

    Reference: Carrillo et al. (2019); Chen et al. (2018), where it is w-SGLD-B.
    """

    def estimate(gram: AnyGram, x: Particles, view: View) -> Particles:
        inverse = scores.kde_weights(gram.matrix, view.alive).sum(axis=1)
        return gram.weighted(inverse[:, None] + inverse[None, :]).repulsion(x)

    return estimate


def wgd(estimator: str | Estimator, kernel: Kernel = rbf()) -> Rule:
    r"""Wasserstein gradient descent on the weights: :math:`\phi_i = g_i - \widehat{\nabla\log q}(w_i)`.

    Args:
        estimator: one of the above, or its name.

    Cost: one backward pass per particle, two to three n x n by n x d products, n^3 for ``sge`` and ``ssge``.
    Limits: converges to the posterior with n, as the density estimate does; for d >> n as far from it as w-SVGD.
    Reference: D'Angelo & Fortuin (2021), "Repulsive deep ensembles are Bayesian".

    >>> rule = wgd(kde())
    """
    estimate = _estimate(estimator)

    def force(key: Key, view: View, memory: Memory) -> tuple[Force, Memory]:
        gram, memory = kernel(view.weights, view.alive, memory)
        R = tree.where(view.alive, estimate(gram, view.weights, view), 0)
        return Force(tree.add(view.score_w, R), None, R, {"weights": gram}), memory

    return Rule(force, kernel.memory)


def fwgd(estimator: str | Estimator, kernel: Kernel = rbf()) -> Rule:
    r"""Wasserstein gradient descent on the functions.

    .. math:: \phi_i = J_i^\top \big[ s_i + p_i - \widehat{\nabla\log q}(f_i) \big]

    Cost: one backward pass per particle, n x n by n x m products, plus the functional prior.
    Limits: as f-SVGD; the prior is over functions.
    Reference: D'Angelo & Fortuin (2021), "Repulsive deep ensembles are Bayesian".

    >>> rule = fwgd(kde())
    """
    estimate = _estimate(estimator)

    def force(key: Key, view: View, memory: Memory) -> tuple[Force, Memory]:
        gram, memory = on_functions(kernel, view, memory)
        R = tree.where(view.alive, estimate(gram, view.features, view), 0)
        drift = view.backward(view.score_f + view.lift(view.prior_f + R))
        return Force(drift, None, view.pullback(R), {"functions": gram}), memory

    return Rule(force, kernel.memory, functional=True)


def rde(estimator: str | Estimator = "kde", kernel: Kernel = rbf(), space: Space = "outputs") -> Rule:
    r"""Repulsive ensemble: every member follows its own score, and is pushed apart where there are no labels.

    .. math:: \phi_i = g_i - J_i^\top \big[ \textstyle\sum_j \nabla_{f_i} k(f_i, f_j) \,\big/ \sum_j k(f_i, f_j) \big]

    where :math:`g_i` is ``view.score_w[i]``, the posterior's score of the weights, and :math:`f_i` are the features at
    unlabelled points only (``Measurement("extra", extra=...)``, with a source of :mod:`stein.measurements`).

    Args:
        estimator: of the repulsion :math:`-\widehat{\nabla\log q}(f_i)`; the equation is that of :func:`kde`.
        space: what the kernel compares, as in :func:`fw_svgd`.

    Cost: two backward passes per particle, one of them at the unlabelled points.
    Limits: not the posterior: the prior pulls all weights, but the repulsion pushes only what the functions show.
        For classes compare probabilities or centred logits: a shift of all logits, which no prediction shows and no
        label holds, would take up the repulsion. Repulsion at the data, which can make members underfit, is left to
        the other rules.
    Reference: D'Angelo & Fortuin (2021); Steger et al. (2024) for unlabelled points and repulsive last layers.

    >>> rule = rde()
    """
    estimate = _estimate(estimator)

    def force(key: Key, view: View, memory: Memory) -> tuple[Force, Memory]:
        gram, memory = on_functions(kernel, view, memory)
        R = view.pullback(tree.where(view.alive, estimate(gram, view.features, view), 0))
        return Force(tree.add(view.score_w, R), None, R, {"functions": gram}), memory

    return Rule(force, kernel.memory, space, unlabelled=True)


def forde(kernel: Kernel = rbf(), axes: Any = None) -> Rule:
    r"""First-order repulsive ensemble: members are pushed apart in the directions of their input gradients.

    .. math:: \phi_i = g_i - \nabla_{w_i} \log \textstyle\sum_j k(a_i, a_j), \qquad
        k(a_i, a_j) = \tfrac1B \sum_b \kappa_b(a_{ib}, a_{jb}), \qquad
        a_{ib} = A^\top \frac{\nabla_x f_{y_b}(x_b; w_i)}{|\nabla_x f_{y_b}(x_b; w_i)|}

    with :math:`a_j` and the bandwidths constant in the gradient. :math:`\kappa_b` is ``kernel`` with a median of its
    own at every point b of the batch (:func:`stein.kernels.pointwise`), A are the ``axes``
    (:func:`stein.features.principal_axes`; default: all directions alike).

    Cost: a second-order backward pass, about three times a deep ensemble.
    Limits: not the posterior. Members are compared at labelled points. As published but for two things: the repulsion
        has the weight of the equation (the published code gives it N/B times as much beside the likelihood), and a
        point has one bandwidth for all pairs (published: one per member), so that k is symmetric.
    Reference: Trinh, Heinonen, Acerbi & Kaski (2024).

    >>> rule = forde()
    """
    space = "label-gradients" if axes is None else label_gradients(axes)
    return rde("kde", pointwise(kernel), space)._replace(unlabelled=False)


def student_fwgd(eta: float = 0.1, tails: float = 1.0) -> Rule:
    r"""Wasserstein gradient descent on the functions, their density a multivariate t with the members' moments.

    .. math:: \phi_i = J_i^\top \Big[ s_i + p_i
        + \frac{c}{1 + d_i^2/\nu}\, (\hat\Sigma + \eta I)^{-1} (f_i - \hat\mu) \Big],
        \qquad d_i^2 = (f_i - \hat\mu)^\top (\hat\Sigma + \eta I)^{-1} (f_i - \hat\mu)

    where :math:`\hat\mu` and :math:`\hat\Sigma` are the moments of the functions at the measurement points,
    :math:`\nu` is ``tails`` times the mean of :math:`d^2`, and c makes the sum of :math:`f \cdot \nabla\log q` that of
    every density, Stein's identity. A kernel's estimate needs a bandwidth, and many more members than directions.

    Args:
        eta: makes the covariance of n members invertible. Give the functional prior the same jitter: in directions that
            are smooth over the points the two then cancel.
        tails: ``math.inf`` is a Gaussian. It matches the moments only: the noise of the batches, larger for far
            members, then makes outliers of them.

    Cost: one backward pass per particle, n x n by n x m products and n^3, plus the functional prior.
    Limits: with a Gaussian likelihood and a Gaussian functional prior, mean and covariance settle near those of the
        posterior at the points. Where the posterior has several modes the members do not show them.
    Reference: D'Angelo & Fortuin (2021) for the flow; the estimator is ours.

    >>> rule = student_fwgd()
    """
    _check_positive(eta)
    _check_positive(tails, "tails")

    def force(key: Key, view: View, memory: Memory) -> tuple[Force, Memory]:
        centred = tree.centre(view.features, view.alive)
        # C (C^T C/(n-1) + eta I)^{-1} = (C C^T/(n-1) + eta I)^{-1} C: n x n, however many points there are. Members at
        # prior draws differ by thousands: eta below the rounding of their products would not regularise them.
        covariance = tree.gram(centred) / jnp.maximum(view.num_alive() - 1, 1)
        rounding = jnp.finfo(covariance.dtype).eps * jnp.trace(covariance)
        values, U = jnp.linalg.eigh(covariance)  # no inverse: rounding would make some distances negative
        values = jnp.maximum(values, 0)
        inverse = 1 / (values + jnp.maximum(eta, rounding))
        R = tree.mix((U * inverse[None]) @ U.T, centred)
        d2 = (view.num_alive() - 1) * (U**2 @ (values * inverse))
        tiny = jnp.finfo(d2.dtype).tiny  # one member has no distances
        weight = 1 / (1 + d2 / (tails * jnp.maximum(jnp.sum(d2) / view.num_alive(), tiny)))
        c = jnp.sum(d2) / jnp.maximum(jnp.sum(weight * d2), tiny)
        R = (c * weight)[:, None, None] * R
        drift = view.backward(view.score_f + view.lift(view.prior_f + R))
        return Force(drift, None, view.pullback(R)), memory

    return Rule(force, functional=True)


ESTIMATORS: dict[str, Callable[[], Estimator]] = {"kde": kde, "sge": sge, "ssge": ssge, "blob": blob}


def _estimate(estimator: str | Estimator) -> Estimator:
    return ESTIMATORS[estimator]() if isinstance(estimator, str) else estimator


def _check_positive(value: float, name: str = "eta") -> None:
    if not value > 0:
        raise ValueError(f"{name} = {value}: must be positive")
