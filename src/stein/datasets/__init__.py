"""Data sets by name: where they are, downloads, digests, images and UCI tables."""

from stein.datasets.images import Images, load_images, to_floats
from stein.datasets.uci import load_uci

__all__ = ["Images", "load_images", "load_uci", "to_floats"]
