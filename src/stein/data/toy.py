"""The paper's two toy problems, generated from a seed."""

import numpy as np


def regression_1d(seed: int = 42, noise: float = 0.25) -> tuple[np.ndarray, np.ndarray]:
    """45 points in [1.5, 2.5] and 45 in [4.5, 6] of y = x sin x plus noise, with a gap between them.

    Returns:
        x and y, each (90, 1) in float32.
    """
    random = np.random.RandomState(seed)  # the generator of the published recipe
    x = np.concatenate([random.uniform(1.5, 2.5, (45, 1)), random.uniform(4.5, 6.0, (45, 1))])
    y = x * np.sin(x) + random.normal(0.0, noise, (90, 1))
    return x.astype(np.float32), y.astype(np.float32)


def classification_2d(seed: int = 42, per_class: int = 40) -> tuple[np.ndarray, np.ndarray]:
    """Five unit Gaussians on a ring of radius 5, ``per_class`` points of each.

    Returns:
        x (5 per_class, 2) in float32 and labels (5 per_class,) in int32.
    """
    random = np.random.default_rng(seed)
    angles = np.pi / 2 + 2 * np.pi * np.arange(5) / 5
    centres = 5 * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    x = np.repeat(centres, per_class, axis=0) + random.normal(size=(5 * per_class, 2))
    return x.astype(np.float32), np.repeat(np.arange(5, dtype=np.int32), per_class)


def far_from_the_ring(seed: int = 42) -> np.ndarray:
    """Out-of-distribution points for :func:`classification_2d`.

    200 are uniform on the annulus 11 <= r <= 30; 50, of variance 0.4, lie between the classes, at the origin.

    Returns:
        x (250, 2) in float32; the first 200 are those of the annulus.
    """
    random = np.random.default_rng(seed)
    radius = np.sqrt(random.uniform(11**2, 30**2, 200))
    angle = random.uniform(0, 2 * np.pi, 200)
    annulus = radius[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    centre = random.normal(0.0, 0.4**0.5, (50, 2))
    return np.concatenate([annulus, centre]).astype(np.float32)
