"""What differs between the data of a run and those that are read again: in words."""

import numpy as np
import pytest

from stein.data.arrays import Table
from stein.runs import record

RANDOM = np.random.default_rng(0)
X, Y = RANDOM.normal(size=(30, 3)), RANDOM.normal(size=30)
TABLE = Table(X, Y, ("a", "b", "c"), "price")
NAMED = TABLE._replace(y=np.array(["red", "green", "blue"] * 10))
ORDER = RANDOM.permutation(30)


def more(table, rows):
    return table._replace(x=np.concatenate([table.x, rows]), y=np.concatenate([table.y, np.zeros(len(rows))]))


CHANGES = {
    "the same rows are in another order": TABLE._replace(x=X[ORDER], y=Y[ORDER]),
    "it has 2 rows more, appended to the same rows": more(TABLE, np.zeros((2, 3))),
    "it has 2 rows more, and others changed": more(TABLE._replace(x=X + 1), np.zeros((2, 3))),
    "it has 5 rows fewer": TABLE._replace(x=X[:25], y=Y[:25]),
    "target values changed": TABLE._replace(y=1000 * Y),
    "input values changed in 'b'": TABLE._replace(x=X * [1, 2, 1]),
    "input values changed in 'a', 'b', 'c' and target values changed": TABLE._replace(x=2 * X, y=2 * Y),
    "the values of columns 'a', 'c' are exchanged": TABLE._replace(x=X[:, [2, 1, 0]]),
    "its columns have another order: 'c', 'b', 'a', before 'a', 'b', 'c'": TABLE._replace(
        x=X[:, ::-1], inputs=("c", "b", "a")
    ),
    "no column 'b', new: 'bb'": TABLE._replace(inputs=("a", "bb", "c")),
    "2 inputs, before 3, no column 'c'": TABLE._replace(x=X[:, :2], inputs=("a", "b")),
    "the target column is 'rent', before 'price'": TABLE._replace(target="rent"),
    "the split column changed": TABLE._replace(parts=np.array(["train"] * 30)),
}


@pytest.mark.parametrize("words", CHANGES)
def test_what_differs_is_said(words):
    """Catches data that changed after training and are taken for the same."""
    assert record.difference(record.facts(TABLE), CHANGES[words]) == words


def test_nothing_differs():
    """Also in another precision and memory order. Catches a digest that depends on more than the numbers."""
    whole = TABLE._replace(x=np.round(X), y=np.round(Y))
    copies = [whole._replace(x=np.asfortranarray(whole.x)), whole._replace(x=whole.x.astype(np.float32))]
    for table, copy in [(TABLE, TABLE), (NAMED, NAMED), *((whole, copy) for copy in copies)]:
        assert record.difference(record.facts(table), copy) == ""


def test_names_of_classes_count():
    """Catches text targets whose words are not in the digest."""
    facts = record.facts(NAMED)
    assert record.difference(facts, NAMED._replace(y=np.roll(NAMED.y, 1))) == "target values changed"
    shuffled = NAMED._replace(x=X[ORDER], y=NAMED.y[ORDER])
    assert record.difference(facts, shuffled) == "the same rows are in another order"


def test_images_in_a_file_have_no_columns():
    images = Table(RANDOM.normal(size=(6, 4, 4, 1)), np.arange(6), (), "y")
    assert record.difference(record.facts(images), images._replace(x=images.x + 1)) == "input values changed"
