r"""Stein variational gradient descent in weights, in functions, and in both.

Every rule is :math:`\phi = \tfrac1n [\,A \cdot \mathrm{score} + \mathrm{repulsion}\,]` with a kernel matrix A. With
noise, the increments are :math:`\epsilon\phi + \sqrt{\epsilon}\,\zeta` with :math:`\operatorname{Cov}\zeta = 2A/n`.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax

from stein import tree
from stein.features import Space
from stein.kernels import AnyGram, Kernel, check_weights, product_rule, rbf, sum_rule
from stein.rules.functional import Repulsion, drive_and_repel, exact, local, on_functions
from stein.rules.noise import Noise, driven
from stein.rules.rule import Force, Memory, Rule
from stein.targets import View
from stein.types import Key, Particles


def w_svgd(kernel: Kernel = rbf(), noise: Noise | None = None) -> Rule:
    r"""Stein variational gradient descent on the weights.

    .. math:: \phi_i = \tfrac1n \sum_j \big[ k(w_i, w_j)\, g_j + \nabla_{w_j} k(w_i, w_j) \big]

    where :math:`g_j` is ``view.score_w[j]`` and k is ``kernel``.

    Cost: one backward pass per particle, two n x n by n x d products (three for other kernels than RBF), O(nd) memory.
    Limits: n = 1 is MAP training; ``kernel=indicator()`` is the deep ensemble. For d >> n the particles' variance
        collapses to log(n+1)/d of the target's, :eq:`variance-law`, and the rule behaves like a deep ensemble.
        With ``noise=cholesky()`` and a fixed bandwidth it leaves the posterior invariant, :eq:`recipe`.
    Reference: Liu & Wang (2016); Gallego & Insua (2018) for the noise.

    >>> rule = w_svgd()
    """

    def force(key: Key, view: View, memory: Memory) -> tuple[Force, Memory]:
        gram, memory = kernel(view.weights, view.alive, memory)
        drive, xi = driven(noise, key, gram.matrix, view)
        phi = gram.stein(drive, view.score_w, view.weights)
        return _force(view, phi, xi, gram.repulsion(view.weights), weights=gram), memory

    return Rule(force, kernel.memory, noisy=noise is not None)


def f_svgd(kernel: Kernel = rbf()) -> Rule:
    r"""Stein variational gradient descent on the functions.

    .. math:: \phi_i = J_i^\top\, \tfrac1n \sum_j \big[ k(f_i, f_j)\,(s_j + p_j) + \nabla_{f_j} k(f_i, f_j) \big]

    where :math:`s_j` is ``view.score_f[j]``, :math:`p_j` is ``view.prior_f[j]`` and k is ``kernel``. The weight prior
    is not used: the prior is one over functions (see :mod:`stein.functional_priors`).

    Cost: one backward pass per particle, three n x n by n x m products, plus the functional prior.
    Limits: n = 1 follows the functional posterior score. Not a sampler of the weight posterior, and undefined with
        noise. Points far from all measurement points are not repelled.
    Reference: Wang et al. (2019), "Function space particle optimization for Bayesian neural networks".

    >>> rule = f_svgd()
    """

    def force(key: Key, view: View, memory: Memory) -> tuple[Force, Memory]:
        gram, memory = on_functions(kernel, view, memory)
        score = view.score_f + view.lift(view.prior_f)
        R = view.lift(gram.repulsion(view.features))
        phi = tree.mix(gram.matrix, score) + R
        drift, R = view.backward(phi / view.num_alive()), view.backward(R / view.num_alive())
        return Force(drift, None, R, {"functions": gram}), memory

    return Rule(force, kernel.memory, functional=True)


def fw_svgd(
    kernel: Kernel = rbf(),
    repulsion: Repulsion = local(),
    noise: Noise | None = None,
    space: Space = "outputs",
) -> Rule:
    r"""SVGD on the weights with a kernel that compares functions.

    .. math:: \phi_i = \tfrac1n \Big[ \sum_j k(f_i, f_j)\, g_j + R_i \Big]

    where :math:`g_j` is ``view.score_w[j]`` and R is the ``repulsion``: :func:`~stein.rules.exact` makes this SVGD with
    the kernel :math:`k(f(w), f(w'))`, :func:`~stein.rules.local` pushes through each particle's own Jacobian;
    :eq:`difference` is how they differ.

    Args:
        space: ``"outputs"`` (logits, method ``fw-svgd-l``), ``"probabilities"`` (``fw-svgd-s``), another name or a
            function of :mod:`stein.features`.

    Cost: two backward passes per particle (local), or one plus one per direction kept (exact).
    Limits: only ``exact`` descends the KL divergence, and only ``exact`` with ``noise=cholesky()`` (all directions, or
        the probe) leaves the posterior invariant. It adds weights of networks whose hidden units are not aligned.
    Reference: D'Angelo, Fortuin & Wenzel (2021).

    >>> rule = fw_svgd(repulsion=exact())
    """

    def force(key: Key, view: View, memory: Memory) -> tuple[Force, Memory]:
        key_noise, key_probe = jax.random.split(key)
        gram, memory = on_functions(kernel, view, memory)
        drive, xi = driven(noise, key_noise, gram.matrix, view)
        phi, R = drive_and_repel(drive, repulsion, key_probe, gram, view)
        return _force(view, phi, xi, R, functions=gram), memory

    return Rule(force, kernel.memory, space, noisy=noise is not None)


def h_svgd(
    kernel_w: Kernel = rbf(),
    kernel_f: Kernel = rbf(),
    repulsion: Repulsion = local(),
    noise: Noise | None = None,
    space: Space = "outputs",
) -> Rule:
    r"""Hybrid SVGD: driven by a kernel on the weights, repelled by a kernel on the functions.

    .. math:: \phi_i = \tfrac1n \Big[ \sum_j k_w(w_i, w_j)\, g_j + R_i \Big]

    where :math:`g_j` is ``view.score_w[j]``, :math:`k_w` is ``kernel_w`` and R the ``repulsion`` of ``kernel_f``.

    Args:
        space: ``"outputs"`` (logits, method ``h-svgd-l``), ``"probabilities"`` (``h-svgd-s``), another name or a
            function of :mod:`stein.features`.

    Cost: as fw-SVGD, and two n x n by n x d products for the kernel on the weights.
    Limits: the flow of a functional other than the KL divergence, so that not even the deterministic rule targets the
        posterior; with noise (of covariance 2 K_w/n) the posterior is not invariant. :func:`hp_svgd` is the version
        with a guarantee.
    Reference: D'Angelo, Fortuin & Wenzel (2021); Mac Donald, Sisson & Pathiraja (2025).

    >>> rule = h_svgd()
    """

    def force(key: Key, view: View, memory: Memory) -> tuple[Force, Memory]:
        key_noise, key_probe = jax.random.split(key)
        gram_w, memory_w = kernel_w(view.weights, view.alive, memory[0])
        gram_f, memory_f = on_functions(kernel_f, view, memory[1])
        matrix, xi = driven(noise, key_noise, gram_w.matrix, view)
        phi, R = drive_and_repel(matrix, repulsion, key_probe, gram_f, view)
        return _force(view, phi, xi, R, weights=gram_w, functions=gram_f), (memory_w, memory_f)

    return Rule(force, (kernel_w.memory, kernel_f.memory), space, noisy=noise is not None)


def hp_svgd(
    kernel_w: Kernel = rbf(),
    kernel_f: Kernel = rbf(),
    repulsion: Repulsion = exact(),
    noise: Noise | None = None,
    space: Space = "outputs",
) -> Rule:
    r"""SVGD with the product of a kernel on the weights and one on the functions.

    .. math:: \phi_i = \tfrac1n \sum_j \big[ k_w k_f\, g_j + k_f \nabla_{w_j} k_w + k_w J_j^\top \nabla_{f_j} k_f \big]

    A product of kernels is a kernel: two members repel when they are close in weights *and* in function, and all of
    SVGD's theory holds. With ``repulsion=local()`` the last term goes through J_i, and the theory does not hold.

    Cost: as h-SVGD.
    Limits: with the exact repulsion, all directions and ``noise=cholesky()`` it leaves the posterior invariant.
    Reference: product rule; see the design page.

    >>> rule = hp_svgd()
    """

    return _joint(product_rule, kernel_w, kernel_f, repulsion, noise, space)


def hs_svgd(
    kernel_w: Kernel = rbf(),
    kernel_f: Kernel = rbf(),
    repulsion: Repulsion = exact(),
    noise: Noise | None = None,
    space: Space = "outputs",
    weights: tuple[float, float] = (0.5, 0.5),
) -> Rule:
    r"""SVGD with a weighted sum of a kernel on the weights and one on the functions.

    .. math:: \phi_i = \tfrac1n \sum_j \big[ (a k_w + b k_f)\, g_j + a \nabla_{w_j} k_w
        + b J_j^\top \nabla_{f_j} k_f \big]

    where a and b are ``weights``. A sum of kernels is a kernel: two members repel when they are close in weights *or*
    in function, and all of SVGD's theory holds. With ``repulsion=local()`` the last term goes through J_i, and
    the theory does not hold.

    Cost: as h-SVGD.
    Limits: as hp-SVGD. With (1, 0) it would be w-SVGD, with (0, 1) fw-SVGD.
    Reference: sum rule; see the design page.

    >>> rule = hs_svgd(weights=(0.2, 0.8))
    """
    check_weights(weights, 2)
    return _joint(partial(sum_rule, weights), kernel_w, kernel_f, repulsion, noise, space)


def _joint(
    summands: Callable[..., list[Any]],
    kernel_w: Kernel,
    kernel_f: Kernel,
    repulsion: Repulsion,
    noise: Noise | None,
    space: Space,
) -> Rule:
    """SVGD with one kernel made of two: ``summands(gram_w, gram_f)`` are its gradients in weights and in functions,
    both with the whole kernel as their matrix."""

    def force(key: Key, view: View, memory: Memory) -> tuple[Force, Memory]:
        key_noise, key_probe = jax.random.split(key)
        gram_w, memory_w = kernel_w(view.weights, view.alive, memory[0])
        gram_f, memory_f = on_functions(kernel_f, view, memory[1])
        in_weights, in_functions = summands(gram_w, gram_f)
        matrix, xi = driven(noise, key_noise, in_weights.matrix, view)
        R_w = in_weights.repulsion(view.weights)
        phi, R_f = drive_and_repel(matrix, repulsion, key_probe, in_functions, view)
        phi, R = tree.add(phi, R_w), tree.add(R_f, R_w)
        return _force(view, phi, xi, R, weights=gram_w, functions=gram_f), (memory_w, memory_f)

    return Rule(force, (kernel_w.memory, kernel_f.memory), space, noisy=noise is not None)


def _force(view: View, phi: Particles, noise: Particles | None, R: Particles, **grams: AnyGram) -> Force:
    """The mean over the members j instead of their sum."""
    return Force(tree.scale(1 / view.num_alive(), phi), noise, tree.scale(1 / view.num_alive(), R), grams)
