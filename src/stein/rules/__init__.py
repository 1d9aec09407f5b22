"""The rules: how the members of an ensemble move each other. :mod:`stein.methods` lists them."""

import importlib
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from stein.methods import ALIASES, LEGEND, METHODS, Method, is_exact, is_sampler, lookup, refusals
from stein.rules.functional import Repulsion, exact, local
from stein.rules.independent import independent
from stein.rules.noise import Noise, cholesky, elementwise_independent, elementwise_shared
from stein.rules.rule import Force, Rule
from stein.rules.svgd import f_svgd, fw_svgd, h_svgd, hp_svgd, hs_svgd, w_svgd
from stein.rules.wgd import blob, forde, fwgd, kde, rde, sge, ssge, student_fwgd, wgd

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
    "builder",
    "cholesky",
    "elementwise_independent",
    "elementwise_shared",
    "exact",
    "f_svgd",
    "forde",
    "fw_svgd",
    "fwgd",
    "h_svgd",
    "hp_svgd",
    "hs_svgd",
    "independent",
    "is_sampler",
    "kde",
    "local",
    "lookup",
    "make",
    "rde",
    "sge",
    "ssge",
    "student_fwgd",
    "w_svgd",
    "wgd",
]


NOISES: dict[str, Callable[[], Noise]] = {
    "cholesky": cholesky,
    "elementwise-shared": elementwise_shared,
    "elementwise-independent": elementwise_independent,
}


def builder(name: str) -> Callable[..., Rule]:
    """The function that makes a method's rule, with the arguments that belong to its name."""
    method = lookup(name)
    if callable(method.rule):
        return partial(method.rule, **method.options)
    module, _, function = method.rule.partition(".")
    rules = importlib.import_module(f"stein.rules.{module}")  # noqa: TID251 - a name of methods.py, never of a file
    return partial(getattr(rules, function), **method.options)


def make(
    name: str,
    *,
    stochastic: bool = False,
    noise: str = "cholesky",
    repulsion: str | Repulsion | None = None,
    **options: Any,
) -> Rule:
    """A rule by its public name; combinations that would sample from the wrong distribution are rejected.

    Args:
        stochastic: add the noise that makes the rule a sampler (if the method has it).
        noise: ``"cholesky"``, or one of the wrong published roots, for reproduction: ``"elementwise-shared"``,
            ``"elementwise-independent"``.
        repulsion: ``"exact"`` or ``"local"`` for the rules with a functional kernel, or a repulsion made by
            :func:`exact` or :func:`local`. Default: local for deterministic rules, exact with all directions for
            stochastic ones (a truncated repulsion biases a sampler), exact for ``hp-svgd`` and ``hs-svgd``.
        options: arguments of the method's own function (kernels and so on).

    >>> rule = make("h-svgd", repulsion="exact")
    """
    method, build = lookup(name), builder(name)
    takes = set(inspect.signature(build).parameters)
    unknown = set(options) - takes
    if unknown:
        allowed = sorted(takes - {"noise", *method.options})
        raise ValueError(f"{method.name}: no option {min(unknown)!r}; it takes {', '.join(allowed) or 'none'}")
    if noise not in NOISES:
        raise ValueError(f"noise = {noise!r}: one of {', '.join(NOISES)}")
    named = repulsion if isinstance(repulsion, str) else None
    if named not in (None, "exact", "local"):
        raise ValueError(f"repulsion = {repulsion!r}: 'exact' or 'local'")
    for setting, complaint in refusals(method, stochastic, noise, named):
        raise ValueError(f"{setting} = {locals()[setting]!r}: {complaint}")
    if stochastic and method.stochastic == "optional":
        options["noise"] = NOISES[noise]()
    if method.repulsion is None:
        if repulsion is not None:
            raise ValueError(f"repulsion: {method.name} has no functional repulsion; must be left out")
    elif callable(repulsion):
        options["repulsion"] = repulsion
    elif is_exact(method, stochastic, named):
        options["repulsion"] = exact(energy=1.0) if stochastic else exact()
    else:
        options["repulsion"] = local()
    return build(**options)
