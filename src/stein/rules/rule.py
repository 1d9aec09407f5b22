"""The interface of a rule."""

from collections.abc import Callable
from typing import Any, NamedTuple

from stein.features import Space
from stein.kernels import AnyGram
from stein.targets import View
from stein.types import Key, Particles

Memory = Any


class Force(NamedTuple):
    """``drift`` is dw/dt; ``noise`` (or ``None``) has covariance 2D, D the rule's diffusion matrix.

    ``repulsion``, the part of the drift that pushes the members apart, and ``grams``, the kernels by what they compare,
    are for diagnostics; a step does not use them, so jit does not compute them.
    """

    drift: Particles
    noise: Particles | None = None
    repulsion: Particles | None = None
    grams: dict[str, AnyGram] = {}  # noqa: RUF012 - never changed


class Rule(NamedTuple):
    """How the members interact: ``force(key, view, memory) -> (Force, memory)``.

    ``memory`` is its initial memory, () for most rules. ``space`` is what ``view.features`` must hold.
    ``functional`` rules work in function space (they use ``score_f`` and ``prior_f``), ``noisy`` ones return noise,
    and ``unlabelled`` ones look at points without labels only. A plain function is a rule with all the defaults.
    """

    force: Callable[[Key, View, Memory], tuple[Force, Memory]]
    memory: Memory = ()
    space: Space = "outputs"
    functional: bool = False
    noisy: bool = False
    unlabelled: bool = False
