"""The images of a run, and out-of-distribution images."""

from collections.abc import Iterable
from typing import Literal

import numpy as np

from stein import data, datasets
from stein.datasets.fetch import Progress
from stein.runs.schema import Data

OTHER_CLASSES = "other-classes"  # of the run's own data set
MOST_OUTSIDE = 10_000  # out-of-distribution points: the paper's number


def obtain(section: Data, others: Iterable[str], progress: Progress) -> None:
    """Download the missing images of a run and of its evaluation."""
    datasets.load_images(section.name, "train", section.folder or None, progress=progress)
    for name in (section.name, *others):
        if name != OTHER_CLASSES:
            datasets.load_images(name, "test", section.folder or None, progress=progress)


def load(section: Data, flat: bool) -> tuple[data.Arrays, data.Arrays]:
    """Training and test images of the chosen classes, pixels from 0 to 1.

    The first 5,000 training images of CIFAR-10 are held out for validation, as in the paper.
    """
    found = _read(section, "train")
    if section.name == "cifar10":  # split before classes are chosen, so that the images are always the same
        held_out, found = (
            found._replace(x=found.x[at], y=_classes(found)[at]) for at in (slice(5000), slice(5000, None))
        )
        train, test = _learned(found, section, flat), _learned(held_out, section, flat)
    else:
        train = _learned(found, section, flat)
        train, test = data.split(train.x, train.y, section.test_fraction if section.validate else 0, section.seed)
    if not section.validate:
        test = _learned(_read(section, "test"), section, flat)
    number = section.most_test or len(test.x)
    return train, data.Arrays(test.x[:number], test.y[:number])


def outside(name: str, section: Data, flat: bool) -> tuple[np.ndarray, str]:
    """Out-of-distribution images for a run, and a note about them (may be empty).

    Args:
        name: a data set, whose test images are taken, or ``other-classes``: all images of the run's own set whose
            classes it does not learn.
        section: the run's data.
    """
    if name == OTHER_CLASSES:
        if not section.classes:
            raise ValueError(f"--ood {name}: the run learns all classes of its data (data.classes is empty)")
        parts = [_read(section, "train"), _read(section, "test")]
        x = np.concatenate([datasets.to_floats(p, flat)[~np.isin(_classes(p), section.classes)] for p in parts])
        return x[: section.most_test or None], ""
    found = datasets.load_images(name, "test", section.folder or None)
    return datasets.to_floats(found._replace(x=found.x[: section.most_test or MOST_OUTSIDE]), flat), found.note


def _read(section: Data, part: Literal["train", "test"]) -> datasets.Images:
    return datasets.load_images(section.name, part, section.folder or None)


def _learned(found: datasets.Images, section: Data, flat: bool) -> data.Arrays:
    x, y = datasets.to_floats(found, flat), _classes(found)
    if not section.classes:
        return data.Arrays(x, y)
    missing = sorted(set(section.classes) - set(y.tolist()))
    if missing:
        raise ValueError(f"data.classes: {section.name} has no class {missing[0]}")
    learned = np.isin(y, section.classes)
    order = np.argsort(section.classes)  # class numbers follow the order of the list
    return data.Arrays(x[learned], order[np.searchsorted(section.classes, y[learned], sorter=order)])


def _classes(found: datasets.Images) -> np.ndarray:
    if found.y is None:
        raise ValueError(f"{found.name}: has no labels; it can only be out of distribution")
    return found.y
