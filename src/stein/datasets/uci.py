"""The UCI regression tables with the twenty standard splits."""

from pathlib import Path

import numpy as np

from stein.data.arrays import Arrays
from stein.datasets import sources
from stein.datasets.fetch import Progress, obtain

SPLITS = 20


def load_uci(
    name: str,
    split: int,
    data_dir: Path | str | None = None,
    offline: bool = False,
    progress: Progress | None = None,
) -> tuple[Arrays, Arrays]:
    """Training and test rows of one split, in float64 and in their own units.

    Args:
        name: concrete, energy, wine-quality-red or yacht.
        split: 0 to 19.
        data_dir, offline, progress: as in :func:`stein.datasets.load_images`.
    """
    if split not in range(SPLITS):
        raise ValueError(f"split = {split}: must be 0 to {SPLITS - 1}")
    table = sources.dataset(f"uci-{name.removeprefix('uci-')}")
    names = ("data", "index_features", "index_target", f"index_train_{split}", f"index_test_{split}")
    by_name = {Path(file.path).stem: file for file in table.files}
    files = [by_name[name] for name in names]
    folder = None if data_dir is None else Path(data_dir)
    paths = obtain(files, folder, offline, progress)
    values, *indices = (_numbers(path, file) for path, file in zip(paths, files, strict=True))
    features, (target,), *parts = (index.astype(int) for index in indices)
    train, test = (Arrays(values[np.ix_(rows, features)], values[rows, target]) for rows in parts)
    return train, test


def _numbers(path: Path, file: sources.File) -> np.ndarray:
    content = sources.read(path, file)
    sources.check(content, file, str(path))
    return np.loadtxt(content.decode().splitlines(), ndmin=1)
