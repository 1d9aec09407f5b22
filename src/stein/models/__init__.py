"""Networks as `Model` pairs: built in, adapted from other libraries, or made from another model."""

from stein.models.adapters import from_equinox, from_function, from_linen, from_nnx
from stein.models.mlp import mlp
from stein.models.resnet import resnet32
from stein.models.transforms import in_bfloat16, split, with_log_sigma

__all__ = [
    "from_equinox",
    "from_function",
    "from_linen",
    "from_nnx",
    "in_bfloat16",
    "mlp",
    "resnet32",
    "split",
    "with_log_sigma",
]
