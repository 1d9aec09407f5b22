"""Data sets and minibatches."""

from typing import TYPE_CHECKING, Any

from stein.data.corruptions import gaussian_blur
from stein.data.files import Arrays, Standardiser, held_out, load_arrays, load_inputs, load_pair, split, standardiser
from stein.data.images import Images, load_images, to_floats
from stein.data.toy import classification_2d, far_from_the_ring, regression_1d
from stein.data.uci import load_uci

if TYPE_CHECKING:
    from stein.data.batches import Batches

__all__ = [
    "Arrays",
    "Batches",
    "Images",
    "Standardiser",
    "classification_2d",
    "far_from_the_ring",
    "gaussian_blur",
    "held_out",
    "load_arrays",
    "load_images",
    "load_inputs",
    "load_pair",
    "load_uci",
    "regression_1d",
    "split",
    "standardiser",
    "to_floats",
]


def __getattr__(name: str) -> Any:
    """Minibatches need jax; `stein data` does not, and should not wait for it."""
    if name == "Batches":
        from stein.data.batches import Batches

        return Batches
    raise AttributeError(f"module 'stein.data' has no attribute {name!r}")
