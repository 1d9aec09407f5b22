"""The images of a run: which are learned, which are held out, and which have never been seen."""

import numpy as np
import pytest

from stein import datasets
from stein.runs import images
from stein.runs.schema import Data

TEST = 100  # first pixel of the first test image; those of training begin with 0


def numbered(labels, first=0, top=255):
    """Images of one pixel in three colours: their number in two of them, and their class."""
    number = first + np.arange(len(labels))
    x = np.stack([number // 256, number % 256, labels], axis=-1).astype(np.uint8)
    return datasets.Images(x[:, None, None], np.array(labels, np.int32), "numbered", top=top)


def numbers(x):
    """The numbers of images, read back from their pixels."""
    pixels = np.rint(x.reshape(len(x), 3) * 255).astype(int)
    return (256 * pixels[:, 0] + pixels[:, 1]).tolist()


@pytest.fixture
def parts(monkeypatch):
    """What can be loaded, by part; a part that is not there must not be asked for."""
    found = {"train": numbered([3, 7, 2, 7, 0, 2, 3, 0]), "test": numbered([2, 3, 7, 0], TEST)}
    monkeypatch.setattr(datasets, "load_images", lambda name, part, folder: found[part])
    return found


def test_classes_are_renumbered_as_they_are_listed(parts):
    """Catches classes in the order of their size, images that keep another's class, and a class too many."""
    train, test = images.load(Data(name="mnist", classes=(7, 2)), flat=True)
    assert (numbers(train.x), train.y.tolist()) == ([1, 2, 3, 5], [0, 1, 0, 1])
    assert (numbers(test.x), test.y.tolist()) == ([TEST, TEST + 2], [1, 0])
    every, _ = images.load(Data(name="mnist"), flat=True)
    assert every.y.tolist() == parts["train"].y.tolist()


def test_pixels_are_from_0_to_1_and_flat_only_where_asked(parts):
    """Catches pixels that are scaled by 255 where the brightest is 16."""
    parts["train"] = parts["train"]._replace(top=7)
    train, test = images.load(Data(name="digits"), flat=False)
    assert (train.x.shape, test.x.shape, train.x.dtype) == ((8, 1, 1, 3), (4, 1, 1, 3), np.float32)
    assert train.x[1, 0, 0, 2] == 1
    assert images.load(Data(name="digits"), flat=True)[0].x.shape == (8, 3)


def test_a_class_that_is_not_there_is_named(parts):
    with pytest.raises(ValueError, match=r"data.classes: mnist has no class 5"):
        images.load(Data(name="mnist", classes=(7, 5)), flat=True)


def test_validation_images_come_from_training_alone(parts):
    """The test part cannot be loaded here. Catches a validation that reads it, that shares images with training, that
    does not follow data.seed and data.test_fraction, or that has classes which are not learned."""
    del parts["test"]
    parts["train"] = numbered(np.arange(40) % 4)
    section = Data(name="mnist", validate=True, test_fraction=0.25, classes=(3, 1))
    train, validation = images.load(section, flat=True)
    odd = set(range(1, 40, 2))
    assert set(numbers(train.x)) | set(numbers(validation.x)) == odd
    assert (len(train.x), len(validation.x)) == (15, 5)
    assert [3 - 2 * y for y in validation.y] == [n % 4 for n in numbers(validation.x)]
    _, other = images.load(Data(name="mnist", validate=True, test_fraction=0.25, classes=(3, 1), seed=1), flat=True)
    assert numbers(other.x) != numbers(validation.x)


@pytest.mark.parametrize("classes", [(), (0, 1)])
def test_the_first_5000_of_cifar_are_never_trained_on(parts, classes):
    """Validation or not, and whichever classes are learned. Catches the first 5,000 of the chosen classes instead, a
    validation that reads the test part, and one that is a fraction."""
    parts |= {"train": numbered(np.arange(5006) % 3), "test": numbered(np.arange(6) % 3, first=6000)}
    section = Data(name="cifar10", classes=classes, test_fraction=0.5)
    wanted = {n for n in range(5006) if not classes or n % 3 in classes}
    train, test = images.load(section, flat=False)
    assert set(numbers(train.x)) == {n for n in wanted if n >= 5000}
    assert set(numbers(test.x)) == {6000 + n for n in range(6) if not classes or n % 3 in classes}
    del parts["test"]
    again, validation = images.load(Data(name="cifar10", classes=classes, validate=True, test_fraction=0.5), flat=False)
    assert set(numbers(validation.x)) == {n for n in wanted if n < 5000}
    assert numbers(again.x) == numbers(train.x)


def test_other_classes_are_those_of_both_parts_that_are_not_learned(parts):
    """Catches classes that are learned among them, and a part left out."""
    found, note = images.outside("other-classes", Data(name="mnist", classes=(7, 2)), flat=True)
    assert (numbers(found), note) == ([0, 4, 6, 7, TEST + 1, TEST + 3], "")
    with pytest.raises(ValueError, match="--ood other-classes: the run learns all classes"):
        images.outside("other-classes", Data(name="mnist"), flat=True)


def test_other_sets_are_their_first_test_images_with_their_note(parts):
    """As many as the paper has. Catches training images, all of them, and a note that is lost."""
    del parts["train"]
    parts["test"] = numbered(np.zeros(images.MOST_OUTSIDE + 5), TEST)._replace(y=None, note="half of it")
    found, note = images.outside("svhn", Data(name="cifar10"), flat=False)
    assert numbers(found) == list(range(TEST, TEST + images.MOST_OUTSIDE))
    assert (found.shape[1:], note) == ((1, 1, 3), "half of it")


def test_images_without_classes_cannot_be_learned(parts):
    parts["train"] = parts["train"]._replace(y=None)
    with pytest.raises(ValueError, match="numbered: has no labels; it can only be out of distribution"):
        images.load(Data(name="mnist"), flat=True)
