"""What a rule is."""

from collections.abc import Callable
from typing import Any, NamedTuple

from stein.kernels import AutodiffGram, Gram
from stein.targets import View
from stein.types import Key, Particles

Memory = Any


class Force(NamedTuple):
    """``drift`` is dw/dt; ``noise`` (or ``None``) has covariance 2D, D the rule's diffusion matrix.

    ``repulsion``, the part of the drift that pushes the members apart, and ``grams``, the kernels by what they compare,
    are for diagnostics; a step does not read them, so that jit does not compute them.
    """

    drift: Particles
    noise: Particles | None = None
    repulsion: Particles | None = None
    grams: dict[str, Gram | AutodiffGram] = {}  # noqa: RUF012 - never changed


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
