"""The methods: names, arguments and guarantees. No jax here: help, configs and errors must be fast.

To add a method, write a function that returns a :class:`stein.rules.Rule` (or a plain ``force(key, view, memory)``),
and add an entry to :data:`METHODS`. The registry of rules, the configs, the command line and the tests follow it.
"""

import difflib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, NamedTuple


class Method(NamedTuple):
    """A rule under its public name.

    Args:
        rule: the function that makes it, as ``module.function`` of :mod:`stein.rules` or as a function.
        summary, cost, posterior: texts for users; :data:`LEGEND` explains the last two.
        options: arguments of the function that are fixed by the name.
        stochastic: whether it has noise.
        preconditioner: of its Langevin step: ``"shared"`` by all particles, or ``"own"`` for each.
        dynamics: how a sampler moves: ``"langevin"`` steps, ``"hamiltonian"`` ones, with momentum, or
            ``"microcanonical"`` ones, whose noise is their own.
        kernels: the arguments of the function that take a kernel.
        repulsion: the default for methods that repel functions and move weights; ``None`` for all others.
        functional: whether its target posterior is over functions; it then uses the functional prior.
        compares: what its functional kernel compares, as in :mod:`stein.features`; ``None`` without one.
        unlabelled: whether it compares functions at points without labels only.
        recommended: what we recommend it for, by our own numbers (docs/findings.md).
    """

    name: str
    rule: str | Callable[..., Any]
    summary: str
    cost: str
    posterior: str
    options: Mapping[str, Any] = {}
    stochastic: Literal["no", "optional", "always"] = "no"
    preconditioner: Literal["shared", "own"] | None = "shared"
    kernels: tuple[str, ...] = ()
    repulsion: Literal["local", "exact"] | None = None
    functional: bool = False
    compares: str | None = None
    unlabelled: bool = False
    recommended: str = ""
    dynamics: Literal["langevin", "hamiltonian", "microcanonical"] = "langevin"


_NOISE: dict[str, Any] = {"stochastic": "optional"}
_ONE: dict[str, Any] = {"kernels": ("kernel",)}
_TWO: dict[str, Any] = {"kernels": ("kernel_w", "kernel_f")}
_LOCAL: dict[str, Any] = {"repulsion": "local", "compares": "outputs", **_NOISE}
_EXACT: dict[str, Any] = {"repulsion": "exact", "compares": "outputs", **_NOISE}
_SOFTMAX: dict[str, Any] = {"options": {"space": "probabilities"}, "compares": "probabilities"}
_FUNCTIONS: dict[str, Any] = {"functional": True, "compares": "outputs", **_ONE}


def _flow(estimator: str) -> dict[str, Any]:
    return {"options": {"estimator": estimator}}


METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        Method("de", "independent.independent", "members trained apart", "1", "modes only"),
        Method("sgld", "independent.independent", "Langevin dynamics, apart", "1", "yes",
               {"noisy": True}, "always", None),
        Method("psgld", "independent.independent", "SGLD with RMSprop scaling", "1", "nearly",
               {"noisy": True}, "always", "own",
               recommended="samples, from a trained start: spreads within 12 % of the posterior's (toy regression)"),
        Method("sghmc", "independent.independent", "Langevin dynamics with momentum", "1", "yes",
               {"noisy": True}, "always", None, dynamics="hamiltonian",
               recommended="samples with minibatches, friction 0.01, after fw-svgd: E_std 0.06 (toy regression)"),
        Method("mile", "independent.independent", "microcanonical chains from de", "2", "nearly",
               dynamics="microcanonical",
               recommended="samples, all data in a step: E_std 0.12, de 0.82 (toy regression)"),
        Method("w-svgd", "svgd.w_svgd", "SVGD, kernel on weights", "1 + n²d", "as n grows", **_ONE, **_NOISE),
        Method("f-svgd", "svgd.f_svgd", "SVGD on functions", "1 + n²m", "of functions", **_FUNCTIONS),
        Method("fw-svgd-l", "svgd.fw_svgd", "SVGD, kernel on outputs", "2, exact 1+r", "exact", **_ONE, **_LOCAL,
               recommended="few data, with method.extra_points = 1: E_std 0.10, a deep ensemble 0.82 (toy regression)"),
        Method("fw-svgd-s", "svgd.fw_svgd", "SVGD, kernel on probabilities", "2, exact 1+r", "exact",
               **_ONE, **_LOCAL | _SOFTMAX),
        Method("h-svgd-l", "svgd.h_svgd", "weights drive, outputs repel", "2, exact 1+r", "no", **_TWO, **_LOCAL,
               recommended="images: NLL 0.38, de 0.49 (FashionMNIST, three seeds); equal on digits"),
        Method("h-svgd-s", "svgd.h_svgd", "weights drive, softmax repels", "2, exact 1+r", "no",
               **_TWO, **_LOCAL | _SOFTMAX),
        Method("hp-svgd", "svgd.hp_svgd", "SVGD, product of both kernels", "1 + r", "exact", **_TWO, **_EXACT),
        Method("hs-svgd", "svgd.hs_svgd", "SVGD, sum of both kernels", "1 + r", "exact", **_TWO, **_EXACT),
        Method("kde-wgd", "wgd.wgd", "Wasserstein flow, kde", "1 + n²d", "as n grows", **_flow("kde"), **_ONE),
        Method("sge-wgd", "wgd.wgd", "Wasserstein flow, Stein score", "1 + n²d + n³", "as n grows",
               **_flow("sge"), **_ONE),
        Method("ssge-wgd", "wgd.wgd", "Wasserstein flow, SSGE", "1 + n²d + n³", "as n grows", **_flow("ssge"), **_ONE),
        Method("blob", "wgd.wgd", "Wasserstein flow, blob method", "1 + n²d", "as n grows", **_flow("blob"), **_ONE),
        Method("kde-fwgd", "wgd.fwgd", "kde-wgd on functions", "1 + n²m", "of functions", **_flow("kde"), **_FUNCTIONS),
        Method("sge-fwgd", "wgd.fwgd", "sge-wgd on functions", "1 + n²m + n³", "of functions",
               **_flow("sge"), **_FUNCTIONS),
        Method("ssge-fwgd", "wgd.fwgd", "ssge-wgd on functions", "1 + n²m + n³", "of functions",
               **_flow("ssge"), **_FUNCTIONS),
        Method("f-blob", "wgd.fwgd", "blob on functions", "1 + n²m", "of functions", **_flow("blob"), **_FUNCTIONS),
        Method("rde", "wgd.rde", "apart, but repelled where no label is", "2 + n²m", "no", **_ONE,
               compares="outputs", unlabelled=True),
        Method("forde", "wgd.forde", "apart, but input gradients repelled", "3 + n²m", "no", **_ONE,
               compares="label-gradients"),
        Method("student-fwgd", "wgd.student_fwgd", "flow on functions, t density", "1 + n²m + n³", "of functions",
               **_FUNCTIONS | {"kernels": ()}),
    )
}  # fmt: skip

FEATURES: dict[str, str | Callable[..., Any]] = {
    "input-gradients": "input_gradients",
    "label-gradients": "label_gradients",
}
"""What functional kernels can compare besides outputs, probabilities and hidden layers: a name, and a function of
:mod:`stein.features` that makes the map, or a map of your own."""


def layer(name: str) -> int | None:
    """The number in ``hidden-1``, ``hidden-2`` ...; ``None`` for other names."""
    number = name.removeprefix("hidden-")
    return int(number) if number != name and number.isdecimal() else None


LEGEND = """cost: backward passes per particle, plus products over n particles with d weights or m outputs; r: the
directions kept by the exact repulsion. posterior: what the members are distributed as. "as n grows": the posterior, if
n is not small against d; "exact": likewise, with repulsion="exact" only; "of functions": one over functions at the
batch."""

ALIASES = {"fw-svgd": "fw-svgd-l", "h-svgd": "h-svgd-l"}


def names() -> tuple[str, ...]:
    """All names and short names, a short name before the long one."""
    short = {name: alias for alias, name in ALIASES.items()}
    return tuple(known for name in METHODS for known in ((short[name], name) if name in short else (name,)))


def lookup(name: str) -> Method:
    """The method of this name; raises ``ValueError`` with the nearest name if it is unknown."""
    known = ALIASES.get(name, name)
    if known not in METHODS:
        near = difflib.get_close_matches(name, names(), n=1, cutoff=0.0)[0]
        raise ValueError(f"method = {name!r}: unknown; did you mean {near!r}? ('stein methods' lists all)")
    return METHODS[known]


def refusals(method: Method, stochastic: bool, noise: str, repulsion: str | None) -> Iterator[tuple[str, str]]:
    """Settings that the method does not have, or with which it would sample from the wrong distribution.

    Args:
        repulsion: ``"exact"`` or ``"local"``; ``None`` for the method's own.

    Returns:
        The name of a setting, and what is wrong with it.
    """
    if stochastic and method.stochastic == "no":
        hint = "use sgld" if not method.kernels else "its noise is not defined"
        if method.dynamics == "microcanonical":
            hint = "its chains are random as they are"
        yield "stochastic", f"{method.name} has no stochastic version; must be false; {hint}"
    if repulsion is not None and method.repulsion is None:
        yield "repulsion", f"{method.name} has no functional repulsion; must be left out"
    if repulsion == "local" and stochastic and noise == "cholesky":
        yield "repulsion", "got 'local'; must be exact: with noise only exact leaves the posterior invariant"


def is_noisy(method: Method, stochastic: bool) -> bool:
    """Whether the method, with this setting, adds noise."""
    return stochastic or method.stochastic == "always"


def is_sampler(method: Method, stochastic: bool) -> bool:
    """Whether the members, with this setting, are Markov chains, of which draws can be kept."""
    return is_noisy(method, stochastic) or method.dynamics == "microcanonical"


def is_exact(method: Method, stochastic: bool, repulsion: str | None) -> bool:
    """Whether the functional repulsion is exact, with its default filled in: with noise it must be."""
    if method.repulsion is None:
        return False
    return (repulsion or ("exact" if stochastic else method.repulsion)) == "exact"
