"""Convolutions as products: the same numbers as JAX's own, and none of JAX's own left."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from problems import rounding
from stein import models
from stein.models import convolutions

KEYS = jax.random.split(jax.random.key(0), 3)
CASES = {
    "strided, channels last": ("NHWC", (2, 9, 8, 3), (3, 3, 3, 4), (2, 2), "SAME", (1, 1)),
    "dilated, own padding": ("NHWC", (2, 9, 8, 3), (3, 2, 3, 4), (1, 2), ((2, 0), (-1, 3)), (2, 1)),
    "channels first": ("NCHW", (2, 3, 9, 8), (4, 3, 2, 3), (1, 1), "VALID", (1, 1)),
    "one axis": ("NWC", (2, 9, 3), (4, 3, 5), (3,), "SAME", (1,)),
}
FILTERS = {"NHWC": "HWIO", "NCHW": "OIHW", "NWC": "WIO"}


def network(case, **options):
    layout, _, _, strides, padding, dilation = CASES[case]
    names = (layout, FILTERS[layout], layout)

    def apply(filters, images):
        answers = jax.lax.conv_general_dilated(
            images, filters, strides, padding, rhs_dilation=dilation, dimension_numbers=names, **options
        )
        return jax.nn.relu(answers).reshape(len(images), -1)

    return apply


def left(apply, *arguments):
    return str(jax.make_jaxpr(apply)(*arguments)).count("conv_general_dilated")


@pytest.mark.parametrize("case", CASES)
def test_values_and_gradients_are_those_of_jax(case):
    """Catches swapped axes, a corner that is shifted the wrong way, padding on the wrong side, and a lost stride."""
    _, shape, of_filters, *_ = CASES[case]
    images, filters = jax.random.normal(KEYS[0], shape), jax.random.normal(KEYS[1], of_filters)
    theirs = network(case)
    ours = convolutions.as_products(theirs)
    assert left(theirs, filters, images) == 1
    assert left(ours, filters, images) == 0
    cotangent = jax.random.normal(KEYS[2], theirs(filters, images).shape)
    for found, expected in zip(
        jax.tree.leaves((ours(filters, images), jax.vjp(ours, filters, images)[1](cotangent))),
        jax.tree.leaves((theirs(filters, images), jax.vjp(theirs, filters, images)[1](cotangent))),
        strict=True,
    ):
        assert found.shape == expected.shape
        assert np.abs(found - expected).max() <= rounding(cotangent.size, float) * 100


def test_what_has_no_simple_patches_stays():
    """Catches groups of channels that are mixed, and images too large for the memory that patches need."""
    apply = network("channels first", feature_group_count=3)
    grouped = jax.random.normal(KEYS[0], (3, 1, 2, 3)), jax.random.normal(KEYS[1], (2, 3, 9, 8))
    ours = convolutions.as_products(apply)
    assert left(ours, *grouped) == 1
    np.testing.assert_array_equal(ours(*grouped), apply(*grouped))
    large = jax.ShapeDtypeStruct((3, 3, 3, 4), "float32"), jax.ShapeDtypeStruct((100, 1000, 1000, 3), "float32")
    assert left(convolutions.as_products(network("strided, channels last")), *large) == 1


def test_any_library_and_jitted_layers():
    """Catches convolutions inside of a user's own jit, and an Equinox module's, which acts on one image."""

    def make(key):
        layers = [eqx.nn.Conv2d(2, 4, 3, stride=2, padding=1, key=key), eqx.nn.Lambda(jnp.ravel)]
        return eqx.nn.Sequential([*layers, eqx.nn.Linear(4 * 5 * 5, 3, key=key)])

    images = jax.random.normal(KEYS[0], (6, 2, 10, 10))
    model = models.from_equinox(make)
    weights = model.init(KEYS[1])
    assert left(model.apply, weights, images) == 0
    size = np.abs(model.apply(weights, images) - jax.vmap(make(KEYS[1]))(images)).max()
    assert size <= rounding(200, float) * 10
    inner = jax.jit(network("one axis"))
    arguments = jnp.ones((4, 3, 5)), jnp.ones((2, 9, 3))
    assert left(convolutions.as_products(lambda w, x: inner(w, x) + 1), *arguments) == 0
