"""Members that do not interact."""

from stein import tree
from stein.rules.rule import Force, Memory, Rule
from stein.targets import View
from stein.types import Key


def independent(noisy: bool = False) -> Rule:
    r"""Deep ensemble; with noise, stochastic-gradient Langevin dynamics.

    .. math:: \phi_i = g_i \qquad (\text{noise: } \sqrt{2}\,\xi_i)

    where :math:`g_i` is ``view.score_w[i]``. pSGLD is SGLD under a Langevin step with a separate preconditioner
    for each particle.

    Cost: one backward pass per particle.
    Limits: deterministic members find modes of the posterior independently; nothing keeps two of them from finding
        the same function.
    Reference: Lakshminarayanan et al. (2017); Welling & Teh (2011); Li et al. (2016) for pSGLD.

    >>> rule = independent()
    """

    def force(key: Key, view: View, memory: Memory) -> tuple[Force, Memory]:
        noise = tree.scale(2**0.5, tree.normal(key, view.ids, view.weights)) if noisy else None
        return Force(view.score_w, noise), memory

    return Rule(force, noisy=noisy)
