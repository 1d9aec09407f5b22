"""What a rule is."""

from collections.abc import Callable
from typing import Any, NamedTuple

from stein.targets import View
from stein.types import Key, Particles

Memory = Any


class Force(NamedTuple):
    """``drift`` is dw/dt; ``noise`` (or ``None``) has covariance 2D, D the rule's diffusion matrix."""

    drift: Particles
    noise: Particles | None = None


class Rule(NamedTuple):
    """How the members pull and push one another: ``force(key, view, memory) -> (Force, memory)``.

    ``memory`` is what it starts from, () for most rules. ``space`` names the features that ``view.features``
    must hold. ``functional`` rules drive in function space (they read ``score_f`` and ``prior_f``), and
    ``noisy`` ones return noise. A plain function stands for a rule with all the defaults.
    """

    force: Callable[[Key, View, Memory], tuple[Force, Memory]]
    memory: Memory = ()
    space: str = "outputs"
    functional: bool = False
    noisy: bool = False
