"""Corrupted images, to test predictions as inputs move away from the training distribution."""

import math

import numpy as np
from jaxtyping import Float, Shaped

SIGMAS = (0.1, 0.5, 1.0, 1.5, 2.0, 3.0)
"""The paper's intensities; the first leaves images unchanged."""
Images = Shaped[np.ndarray, "b h w c"]


def gaussian_blur(images: Images, sigma: float, size: int = 7) -> Images:
    r"""Every channel convolved with :math:`\exp(-(u^2 + v^2)/2\sigma^2)` on ``size`` x ``size`` pixels, sum one.

    Borders are mirrored without repeating the outermost pixel, as torchvision does. Whole numbers are rounded once, at
    the end.

    Args:
        images: (rows, height, width, channels).
        sigma: standard deviation in pixels; 0.1 is the identity to rounding.
        size: odd; the sides of the images must be more than half of it.
    """
    reach = size // 2
    if size % 2 == 0 or size < 1:
        raise ValueError(f"size = {size}: must be odd and positive")
    if not sigma > 0:
        raise ValueError(f"sigma = {sigma}: must be positive")
    if min(images.shape[1:3]) <= reach:
        raise ValueError(f"images of {images.shape[1]} x {images.shape[2]} pixels: a side must be above {reach}")
    floating = np.issubdtype(images.dtype, np.floating)
    blurred = images if floating else images.astype(np.float32)
    for axis in (1, 2):  # the Gaussian is a product: first down the columns, then along the rows
        blurred = _convolved(blurred, kernel(sigma, size).astype(blurred.dtype), axis)
    return blurred if floating else np.rint(blurred).astype(images.dtype)


def kernel(sigma: float, size: int) -> Float[np.ndarray, " size"]:
    """A Gaussian at the pixels around the middle one, sum one."""
    offsets = np.arange(size) - size // 2
    weights = np.exp(-0.5 * (offsets / sigma) ** 2)
    return weights / weights.sum()


def as_images(rows: Shaped[np.ndarray, "b *shape"]) -> Images:
    """Images unchanged; flat rows of s² or 3 s² columns as square images of one or three channels.

    A flat row is a flattened (height, width, channels): pixel by pixel, the channels of a pixel side by side.
    """
    if rows.ndim == 4:
        return rows
    columns = math.prod(rows.shape[1:])
    for channels in (1, 3):
        side = math.isqrt(columns // channels)
        if rows.ndim == 2 and side > 3 and channels * side**2 == columns:
            return rows.reshape(-1, side, side, channels)
    raise ValueError(f"inputs of shape {rows.shape[1:]}: neither (height, width, channels) nor square images as rows")


def _convolved(images: np.ndarray, weights: np.ndarray, axis: int) -> np.ndarray:
    reach, length = len(weights) // 2, images.shape[axis]
    padded = np.pad(images, [(reach, reach) if i == axis else (0, 0) for i in range(images.ndim)], mode="reflect")
    result = np.zeros_like(images)
    for offset, weight in enumerate(weights):
        result += weight * padded.take(range(offset, offset + length), axis=axis)
    return result
