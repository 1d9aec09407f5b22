"""Users' files, in memory or as streams; toy sets, corruptions and minibatches."""

from typing import TYPE_CHECKING, Any

from stein.data.arrays import Arrays, Standardiser, Unskewing, held_out, split, standardiser
from stein.data.corruptions import gaussian_blur
from stein.data.files import load_arrays, load_inputs, load_pair
from stein.data.streams import GrainBatches, MemoryMapped, ParquetRows, Stream
from stein.data.toy import classification_2d, far_from_the_ring, regression_1d

if TYPE_CHECKING:
    from stein.batches import Batches

__all__ = [
    "Arrays",
    "Batches",
    "GrainBatches",
    "MemoryMapped",
    "ParquetRows",
    "Standardiser",
    "Stream",
    "Unskewing",
    "classification_2d",
    "far_from_the_ring",
    "gaussian_blur",
    "held_out",
    "load_arrays",
    "load_inputs",
    "load_pair",
    "regression_1d",
    "split",
    "standardiser",
]


def __getattr__(name: str) -> Any:
    """Import minibatches lazily: they need jax; reading a file does not, and should not wait for it."""
    if name == "Batches":
        from stein.batches import Batches

        return Batches
    raise AttributeError(f"module 'stein.data' has no attribute {name!r}")
