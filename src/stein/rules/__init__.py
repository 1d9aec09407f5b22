"""The rules, and the one registry that drives the command line, the configs, the estimators and the tests.

To add a rule: write a function that returns a :class:`Rule` (or a plain ``force(key, view, memory)``), and add a line
to :data:`METHODS`.
"""

import difflib
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from stein.rules.functional import Repulsion, exact, local
from stein.rules.independent import independent
from stein.rules.noise import Noise, cholesky, elementwise_independent, elementwise_shared
from stein.rules.rule import Force, Rule
from stein.rules.svgd import f_svgd, fw_svgd, h_svgd, hp_svgd, hs_svgd, w_svgd
from stein.rules.wgd import blob, fwgd, kde, sge, ssge, wgd

__all__ = [
    "ALIASES",
    "LEGEND",
    "METHODS",
    "Force",
    "Method",
    "Noise",
    "Repulsion",
    "Rule",
    "blob",
    "cholesky",
    "elementwise_independent",
    "elementwise_shared",
    "exact",
    "f_svgd",
    "fw_svgd",
    "fwgd",
    "h_svgd",
    "hp_svgd",
    "hs_svgd",
    "independent",
    "kde",
    "local",
    "lookup",
    "make",
    "sge",
    "ssge",
    "w_svgd",
    "wgd",
]


class Method(NamedTuple):
    """A rule under its public name.

    ``stochastic`` is ``"no"``, ``"optional"`` or ``"always"``. ``preconditioner`` is what its Langevin step is scaled
    by: ``"shared"`` by all particles, ``"own"`` for each, or ``None``.
    """

    name: str
    build: Callable[..., Rule]
    summary: str
    cost: str
    posterior: str
    stochastic: str = "no"
    preconditioner: str | None = "shared"


METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        Method("de", independent, "members trained apart", "1", "modes only"),
        Method("sgld", partial(independent, noisy=True), "Langevin dynamics, apart", "1", "yes", "always", None),
        Method("psgld", partial(independent, noisy=True), "SGLD with RMSprop scaling", "1", "nearly", "always", "own"),
        Method("w-svgd", w_svgd, "SVGD, kernel on weights", "1 + n²d", "as n grows", "optional"),
        Method("f-svgd", f_svgd, "SVGD on functions", "1 + n²m", "of functions"),
        Method("fw-svgd-l", fw_svgd, "SVGD, kernel on outputs", "2, exact 1+r", "exact", "optional"),
        Method("fw-svgd-s", partial(fw_svgd, space="probabilities"), "SVGD, kernel on probabilities",
               "2, exact 1+r", "exact", "optional"),
        Method("h-svgd-l", h_svgd, "weights drive, outputs repel", "2, exact 1+r", "no", "optional"),
        Method("h-svgd-s", partial(h_svgd, space="probabilities"), "weights drive, softmax repels",
               "2, exact 1+r", "no", "optional"),
        Method("hp-svgd", hp_svgd, "SVGD, product of both kernels", "1 + r", "exact", "optional"),
        Method("hs-svgd", hs_svgd, "SVGD, sum of both kernels", "1 + r", "exact", "optional"),
        Method("kde-wgd", partial(wgd, kde()), "Wasserstein flow, kde", "1 + n²d", "as n grows"),
        Method("sge-wgd", partial(wgd, sge()), "Wasserstein flow, Stein score", "1 + n²d + n³", "as n grows"),
        Method("ssge-wgd", partial(wgd, ssge()), "Wasserstein flow, SSGE", "1 + n²d + n³", "as n grows"),
        Method("blob", partial(wgd, blob()), "Wasserstein flow, blob method", "1 + n²d", "as n grows"),
        Method("kde-fwgd", partial(fwgd, kde()), "kde-wgd on functions", "1 + n²m", "of functions"),
        Method("sge-fwgd", partial(fwgd, sge()), "sge-wgd on functions", "1 + n²m + n³", "of functions"),
        Method("ssge-fwgd", partial(fwgd, ssge()), "ssge-wgd on functions", "1 + n²m + n³", "of functions"),
        Method("f-blob", partial(fwgd, blob()), "blob on functions", "1 + n²m", "of functions"),
    )
}  # fmt: skip

LEGEND = """cost: backward passes a particle, plus products over n particles with d weights or m outputs; r: directions
kept by the exact repulsion. posterior: what the members are distributed as. "as n grows": the posterior, if n is not
small against d; "exact": likewise, with repulsion="exact" only; "of functions": one over functions at the batch."""

ALIASES = {"fw-svgd": "fw-svgd-l", "h-svgd": "h-svgd-l"}

NOISES: dict[str, Callable[[], Noise]] = {
    "cholesky": cholesky,
    "elementwise-shared": elementwise_shared,
    "elementwise-independent": elementwise_independent,
}


def lookup(name: str) -> Method:
    """The method of this name; an unknown one is a ``ValueError`` with the nearest name."""
    known = ALIASES.get(name, name)
    if known not in METHODS:
        near = difflib.get_close_matches(name, [*METHODS, *ALIASES], n=1, cutoff=0.0)[0]
        raise ValueError(f"method = {name!r}: unknown; did you mean {near!r}? ('stein methods' lists all)")
    return METHODS[known]


def make(
    name: str,
    *,
    stochastic: bool = False,
    noise: str = "cholesky",
    repulsion: str | Repulsion | None = None,
    **options: Any,
) -> Rule:
    """A rule by its public name, with combinations that would sample from the wrong distribution refused.

    Args:
        stochastic: add the noise that makes the rule a sampler (where the method defines it).
        noise: ``"cholesky"``, or one of the published wrong roots for reproduction: ``"elementwise-shared"``,
            ``"elementwise-independent"``.
        repulsion: ``"exact"`` or ``"local"`` for the rules with a functional kernel, or a repulsion made by
            :func:`exact` or :func:`local`. By default local for deterministic rules, exact with all
            directions for stochastic ones (a truncated repulsion biases a sampler); exact for ``hp-svgd``, ``hs-svgd``.
        options: what the method's own function takes (kernels and the like).

    >>> rule = make("h-svgd", repulsion="exact")
    """
    method = lookup(name)
    takes = set(inspect.signature(method.build).parameters)
    unknown = set(options) - takes
    if unknown:
        option = min(unknown)
        allowed = sorted(takes - {"noise", "noisy", "space", "estimator"})
        raise ValueError(f"{method.name}: no option {option!r}; it takes {', '.join(allowed) or 'none'}")
    if stochastic and method.stochastic == "no":
        hint = "use sgld" if method.name == "de" else "its noise is not defined"
        raise ValueError(f"stochastic = True: {method.name} has no stochastic version; {hint}")
    if noise not in NOISES:
        raise ValueError(f"noise = {noise!r}: one of {', '.join(NOISES)}")
    if stochastic and method.stochastic == "optional":
        options["noise"] = NOISES[noise]()
    if "repulsion" in takes:
        options["repulsion"] = _repulsion(method, repulsion, stochastic, noise)
    elif repulsion is not None:
        raise ValueError(f"repulsion = {repulsion!r}: {method.name} has no functional repulsion")
    return method.build(**options)


def _repulsion(method: Method, repulsion: str | Repulsion | None, stochastic: bool, noise: str) -> Repulsion:
    if callable(repulsion):
        return repulsion
    if repulsion == "local" and stochastic and noise == "cholesky":
        raise ValueError("repulsion = 'local': with noise only 'exact' leaves the posterior invariant")
    if repulsion is None:
        repulsion = "exact" if stochastic or method.build in (hp_svgd, hs_svgd) else "local"
    if repulsion == "local":
        return local()
    if repulsion == "exact":
        return exact(energy=1.0) if stochastic else exact()
    raise ValueError(f"repulsion = {repulsion!r}: 'exact' or 'local'")
