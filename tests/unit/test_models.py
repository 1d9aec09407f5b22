"""Networks: shapes and layouts, adapters against the libraries they adapt, frozen parts, learned noise."""

import inspect
import sys
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx

import stein
from problems import relative_error, rounding
from stein import models, tree
from stein.models import resnet
from stein.models.mlp import LARGE, _rectified
from stein.sklearn import SteinRegressor
from stein.types import Model

KEY = jax.random.key(0)


def normal(seed: int, *shape: int, dtype=jnp.float32):
    return jax.random.normal(jax.random.key(seed), shape, dtype)


def num_weights(model: Model) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(model.init, KEY)))


def random_weights(model: Model, dtype=np.float64):
    rng = np.random.default_rng(0)
    shapes = jax.eval_shape(model.init, KEY)
    return jax.tree.map(lambda leaf: jnp.asarray(0.2 * rng.standard_normal(leaf.shape), dtype), shapes)


def assert_close(left, right, terms: int):
    """Two trees that differ in the order of their sums only; ``terms`` enter an entry at most."""
    left, right = jax.tree.leaves(left), jax.tree.leaves(right)
    assert len(left) == len(right) > 0
    for a, b in zip(left, right, strict=True):
        assert relative_error(a, b) <= rounding(terms, a.dtype)


def chosen_paths(part) -> set[str]:
    leaves = jax.tree_util.tree_leaves_with_path(part)
    return {jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in leaves}


# Built-in networks


@pytest.mark.parametrize(
    ("model", "count"),
    [
        (models.mlp([1, 50, 50, 1]), 2_701),
        (models.mlp([2, 50, 50, 5]), 2_955),
        (models.mlp([784, 100, 100, 100, 10]), 99_710),
        (models.resnet32(), 463_018),
        (models.resnet32(num_classes=100, channels=1), 463_018 + 90 * 65 - 2 * 9 * 16),
    ],
)
def test_the_number_of_weights(model, count):
    assert num_weights(model) == count


def test_an_mlp_is_its_formula():
    model = models.mlp([3, 4, 5, 2], activation=jnp.tanh)
    weights = random_weights(model)
    x = normal(1, 6, 3, dtype=jnp.float64)
    h = np.asarray(x)
    for layer in weights[:-1]:
        h = np.tanh(h @ np.asarray(layer.weight).T + np.asarray(layer.bias))
    expected = h @ np.asarray(weights[-1].weight).T + np.asarray(weights[-1].bias)
    np.testing.assert_allclose(model.apply(weights, x), expected, rtol=1e-12)


@pytest.mark.parametrize("size", [3, LARGE])
def test_units_of_an_mlp_and_their_derivatives_are_those_of_relu(size):
    """At zero, where the derivative is a choice, and at NaN, which must not vanish; stored or not. Catches a derivative
    that is 1 at zero, and a NaN that becomes 0."""
    products = jnp.resize(jnp.array([-1.0, 0.0, 2.0, jnp.nan]), (1, size))
    for differentiated in (0, 1):
        ours, theirs = (
            jax.jit(jax.vmap(jax.value_and_grad(lambda z, b, unit=unit: unit(z, b).sum(), differentiated)))(
                products[:, :, None], jnp.zeros((1, size, 1))
            )
            for unit in (_rectified, lambda z, b: jax.nn.relu(z + b))
        )
        jax.tree.map(np.testing.assert_array_equal, ours, theirs)


def test_an_mlp_starts_uniform_in_the_inverse_root_of_the_fan_in():
    (layer,) = models.mlp([400, 100]).init(KEY)
    for values in (layer.weight, layer.bias):
        bound = float(jnp.abs(values).max())
        assert 0.95 / 20 < bound < 1 / 20


def test_shared_inputs_enter_the_first_layer_through_one_product():
    model = models.mlp([7, 4, 2])
    particles = jax.eval_shape(jax.vmap(model.init), jax.random.split(KEY, 3))
    jaxpr = jax.make_jaxpr(jax.vmap(model.apply, (0, None)))(particles, normal(1, 5, 7, dtype=jnp.float64))
    products = [e.params["dimension_numbers"] for e in jaxpr.eqns if e.primitive.name == "dot_general"]
    assert [len(batch_axes) for _, (batch_axes, _) in products] == [0]  # the others have a derivative of their own


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
@pytest.mark.parametrize(
    ("model", "inputs"),
    [
        (models.mlp([3, 4, 2]), normal(1, 5, 3)),
        (models.mlp([3, 4, 2]), np.arange(15, dtype=np.uint8).reshape(5, 3)),
        (models.with_log_sigma(models.mlp([3, 4, 2]), targets=2), normal(1, 5, 3, dtype=jnp.float64)),
        (models.resnet32(blocks=1), normal(1, 2, 8, 8, 3, dtype=jnp.float64)),
    ],
)
def test_outputs_have_the_dtype_of_the_weights(model, inputs, dtype):
    weights = jax.tree.map(lambda w: jax.ShapeDtypeStruct(w.shape, dtype), jax.eval_shape(model.init, KEY))
    assert jax.eval_shape(model.apply, weights, inputs).dtype == dtype


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: models.mlp([3]), r"sizes: got \[3\]"),
        (lambda: models.mlp([3, 0, 1]), r"sizes: got \[3, 0, 1\]; need at least two widths, each 1 or more"),
        (lambda: models.resnet32(num_classes=0), "num_classes: got 0; must be 1 or more"),
        (lambda: models.resnet32(channels=-1), "channels: got -1"),
        (lambda: models.resnet32(blocks=0), "blocks: got 0"),
        (lambda: models.resnet32(filters=0), "filters: got 0"),
        (lambda: models.resnet32(stride=0), "stride: got 0"),
        (lambda: models.with_log_sigma(models.mlp([1, 1]), float("nan")), "initial: got nan; must be finite"),
        (lambda: models.with_log_sigma(models.mlp([1, 1]), targets=0), "targets: got 0; must be 1 or more"),
    ],
)
def test_bad_arguments_are_named(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def convolve(x, layer):
    """A 3x3 convolution with zero padding, one output pixel at a time."""
    stride, weight, bias = layer.stride, np.asarray(layer.weight), np.asarray(layer.bias)
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    out = np.zeros((len(x), -(-x.shape[1] // stride), -(-x.shape[2] // stride), len(bias)))
    for i in range(out.shape[1]):
        for j in range(out.shape[2]):
            window = padded[:, i * stride : i * stride + 3, j * stride : j * stride + 3]
            out[:, i, j] = np.einsum("bhwc,hwco->bo", window, weight) + bias
    return out


@pytest.mark.parametrize("together", [1, 2**21], ids=["image by image", "all images at once"])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("shared", [True, False], ids=["images shared", "images of each member"])
def test_members_that_take_turns_convolve_alike(stride, shared, together, monkeypatch):
    """As XLA's own convolutions of all members together: values, gradients and second derivatives, odd sizes and even
    ones. Catches filters that are not turned round for the gradient, a stride whose gradient falls on the wrong pixels,
    and images that are left out of the filters' gradient."""
    monkeypatch.setattr(resnet, "PATCHES", together)
    images = normal(1, *(() if shared else (2,)), 2, 7, 8, 3, dtype=jnp.float64)
    filters, weight = normal(0, 2, 3, 3, 3, 4, dtype=jnp.float64), normal(2, 4, dtype=jnp.float64)

    def value_and_gradients(way):
        def loss(images, filters):
            return jnp.sum(jnp.sin(way(images, filters, stride)) @ weight)

        def slope(images, filters):
            return sum(jnp.sum(jnp.sin(slopes)) for slopes in jax.grad(loss, (0, 1))(images, filters))

        def each(images, filters):
            return jax.value_and_grad(loss, (0, 1))(images, filters), jax.grad(slope, (0, 1))(images, filters)

        return jax.jit(jax.vmap(each, (None if shared else 0, 0)))(images, filters)

    turns, right = value_and_gradients(resnet._in_turns), value_and_gradients(resnet._slide)
    # The loss sums over pixels and channels, and each of these over a filter; a gradient has no more terms. A second
    # derivative has as many for each term of the gradient, all of order one.
    (first, second), (right_first, right_second) = turns, right
    assert_close(first, right_first, 2 * 7 * 8 * 4 * 27)
    assert_close(second, right_second, (2 * 7 * 8 * 4 * 27) ** 2)


def test_a_resnet_against_numpy():
    """A narrow one that begins with every second pixel. Catches widths or strides of another stage, and a shortcut that
    takes other pixels than the convolution."""
    model = models.resnet32(num_classes=3, channels=2, blocks=2, filters=4, stride=2)
    weights = random_weights(model)
    x = normal(1, 2, 9, 12, 2, dtype=jnp.float64)
    blocks = [block for stage in weights.stages for block in (stage.entrance, tree.index(stage.rest, 0))]

    h = np.maximum(convolve(np.asarray(x), weights.stem), 0)
    for block in blocks:
        residual = convolve(np.maximum(convolve(h, block.first), 0), block.second)
        shortcut = np.zeros_like(residual)
        stride = 2 if residual.shape[-1] != h.shape[-1] else 1
        shortcut[..., : h.shape[-1]] = h[:, ::stride, ::stride]
        h = np.maximum(shortcut + residual, 0)
    expected = h.mean((1, 2)) @ np.asarray(weights.head.weight) + np.asarray(weights.head.bias)

    assert [block.first.stride for block in blocks] == [1, 1, 2, 1, 2, 1]
    assert (weights.stem.stride, weights.head.weight.shape) == (2, (16, 3))
    np.testing.assert_allclose(jax.jit(model.apply)(weights, x), expected, rtol=1e-10)


def test_first_weights_of_a_resnet_fill_their_bounds():
    """Catches a bound taken from another layer, or from the stack of blocks."""
    weights = models.resnet32(channels=1, blocks=3).init(KEY)
    for layer, inputs in (
        (weights.stem, 9),
        (weights.stages[1].entrance.first, 9 * 16),
        (weights.stages[1].entrance.second, 9 * 32),
        (weights.stages[2].rest.first, 9 * 64),
        (weights.head, 64),
    ):
        assert inputs**-0.5 * 0.9 < jnp.max(jnp.abs(layer.weight)) < inputs**-0.5
        assert inputs**-0.5 * 0.3 < jnp.std(layer.bias) < inputs**-0.5 * 0.9  # of the distribution: 0.58
        assert abs(jnp.mean(layer.weight)) < 4 * inputs**-0.5 / np.sqrt(3 * layer.weight.size)


def test_blocks_of_zero_weight_subsample_and_pad_with_zeros():
    model = models.resnet32(num_classes=64, channels=3, blocks=1)
    # The stem copies the image's channels, the blocks add nothing, the head shows the pooled features.
    copy = np.zeros((3, 3, 3, 16))
    copy[1, 1, range(3), range(3)] = 1
    weights = jax.tree.map(jnp.zeros_like, random_weights(model))
    weights = eqx.tree_at(lambda w: (w.stem.weight, w.head.weight), weights, (jnp.asarray(copy), jnp.eye(64)))
    images = jax.random.uniform(KEY, (2, 8, 12, 3))
    expected = np.zeros((2, 64))
    expected[:, :3] = np.asarray(images)[:, ::4, ::4].mean((1, 2))
    np.testing.assert_allclose(jax.jit(model.apply)(weights, images), expected, rtol=1e-12)


# Adapters, with networks as users of each library write them


class EquinoxNet(eqx.Module):
    layers: list
    norm: eqx.nn.LayerNorm
    dropout: eqx.nn.Dropout
    order: jax.Array
    extra_bias: jax.Array

    def __init__(self, key):
        first, second = jax.random.split(key)
        self.layers = [
            eqx.nn.Linear(3, 8, key=first, dtype=jnp.float32),
            eqx.nn.Linear(8, 2, key=second, dtype=jnp.float32),
        ]
        self.norm = eqx.nn.LayerNorm(8, dtype=jnp.float32)
        self.dropout = eqx.nn.Dropout(0.5, inference=True)
        self.order = jnp.array([2, 0, 1])
        self.extra_bias = jnp.ones(2, jnp.float32)

    def __call__(self, x, key=None):
        x = jax.nn.relu(self.layers[0](x[self.order]))
        return self.layers[1](self.dropout(self.norm(x), key=key)) + self.extra_bias


class LinenNet(linen.Module):
    @linen.compact
    def __call__(self, x, train: bool = False):
        order = self.variable("constants", "order", lambda: jnp.array([2, 0, 1]))
        x = linen.relu(linen.Dense(8, name="encoder")(x[:, order.value]))
        x = linen.Dropout(0.5, deterministic=not train)(linen.LayerNorm(name="norm")(x))
        return linen.Dense(2, name="classifier")(x)


class LinenConvNet(linen.Module):
    @linen.compact
    def __call__(self, x):
        x = linen.relu(linen.Conv(4, (3, 3))(x))
        return linen.Dense(2)(x.reshape(len(x), -1))


class NnxNet(nnx.Module):
    def __init__(self, rngs: nnx.Rngs, deterministic: bool = True):
        self.layers = nnx.List([nnx.Linear(3, 8, rngs=rngs), nnx.Linear(8, 2, rngs=rngs)])
        self.norm = nnx.LayerNorm(8, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, deterministic=deterministic, rngs=rngs)
        self.order = nnx.Variable(jnp.array([2, 0, 1]))

    def __call__(self, x):
        x = nnx.relu(self.layers[0](x[:, self.order[...]]))
        return self.layers[1](self.dropout(self.norm(x)))


def plain_init(key):
    first, second = jax.random.split(key)
    return {
        "w": jax.random.normal(first, (3, 8), jnp.float32),
        "v": jax.random.normal(second, (8, 2), jnp.float32),
        "power": 2,
    }


def plain_apply(p, x):
    return jnp.tanh(x @ p["w"]) ** p["power"] @ p["v"]


def equinox_direct(key, x):
    loss = eqx.filter_value_and_grad(lambda net: (jax.vmap(net)(x) ** 2).sum())
    return jax.vmap(EquinoxNet(key))(x), loss(EquinoxNet(key))[1]


def linen_direct(key, x, module=LinenNet()):
    variables = module.init(key, x)
    others = {name: value for name, value in variables.items() if name != "params"}
    gradient = jax.grad(lambda params: (module.apply({"params": params, **others}, x) ** 2).sum())
    return module.apply(variables, x), gradient(variables["params"])


def nnx_direct(key, x):
    gradient = nnx.grad(lambda net: (net(x) ** 2).sum())(NnxNet(nnx.Rngs(key)))
    return NnxNet(nnx.Rngs(key))(x), nnx.to_pure_dict(gradient)


def plain_direct(key, x):
    p = plain_init(key)
    gradient = jax.grad(lambda w, v: (plain_apply({"w": w, "v": v, "power": 2}, x) ** 2).sum(), (0, 1))
    return plain_apply(p, x), dict(zip("wv", gradient(p["w"], p["v"]), strict=True))


ROWS, IMAGES = normal(1, 6, 3), normal(2, 6, 4, 5, 1)

ADAPTED: dict[str, tuple[Callable[[], Model], Callable, jax.Array, int]] = {
    "equinox": (lambda: models.from_equinox(EquinoxNet), equinox_direct, ROWS, 3 * 8 + 8 + 16 + 16 + 2 + 2),
    "linen": (lambda: models.from_linen(LinenNet(), ROWS), linen_direct, ROWS, 3 * 8 + 8 + 16 + 16 + 2),
    "linen-conv": (
        lambda: models.from_linen(LinenConvNet(), IMAGES),
        lambda key, x: linen_direct(key, x, LinenConvNet()),
        IMAGES,
        9 * 4 + 4 + 80 * 2 + 2,
    ),
    "nnx": (lambda: models.from_nnx(NnxNet), nnx_direct, ROWS, 3 * 8 + 8 + 16 + 16 + 2),
    "function": (lambda: models.from_function(plain_init, plain_apply), plain_direct, ROWS, 3 * 8 + 8 * 2),
}


@pytest.mark.parametrize("library", ADAPTED)
def test_an_adapted_network_is_the_original_for_every_particle(library):
    adapt, direct, x, count = ADAPTED[library]
    model = adapt()
    assert num_weights(model) == count

    @jax.jit
    def ensemble(keys):
        particles = jax.vmap(model.init)(keys)
        gradients = jax.grad(lambda p: (jax.vmap(model.apply, (0, None))(p, x) ** 2).sum())(particles)
        return particles, jax.vmap(model.apply, (0, None))(particles, x), gradients

    keys = jax.random.split(KEY, 2)
    particles, outputs, gradients = ensemble(keys)
    assert all(jnp.issubdtype(leaf.dtype, jnp.inexact) for leaf in jax.tree.leaves(particles))
    assert outputs.shape == (2, 6, 2)
    assert outputs.dtype == jnp.float32
    direct = jax.jit(direct)
    for i, key in enumerate(keys):
        expected, gradient = direct(key, x)
        # An output sums at most one term a weight; a gradient sums these over the rows.
        assert_close(outputs[i], expected, count)
        assert_close(tree.index(gradients, i), gradient, count * len(x))


@pytest.mark.parametrize("library", ADAPTED)
def test_an_adapted_network_trains(library):
    adapt, _, x, _ = ADAPTED[library]
    model, target = adapt(), normal(5, 6, 2)

    @jax.jit
    def step(weights, _):
        loss, gradient = jax.value_and_grad(lambda w: ((model.apply(w, x) - target) ** 2).mean())(weights)
        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradient), loss

    _, losses = jax.lax.scan(step, random_weights(model, np.float32), length=200)
    assert losses[-1] < 0.5 * losses[0]


def test_arguments_of_a_linen_call_are_passed_on():
    with pytest.raises(
        ValueError, match=r"Dropout_0 needs PRNG.*noise is not part of the posterior.*deterministic=True"
    ):
        models.from_linen(LinenNet(), ROWS, train=True)
    assert models.from_linen(LinenNet(), ROWS, train=False).apply is not None


class LinenBatchNorm(linen.Module):
    @linen.compact
    def __call__(self, x):
        return linen.Dense(1)(linen.BatchNorm(use_running_average=True)(x))


class LinenCounter(linen.Module):
    @linen.compact
    def __call__(self, x):
        calls = self.variable("counter", "calls", lambda: jnp.zeros(()))
        calls.value += 1
        return linen.Dense(1)(x)


class NnxBatchNorm(nnx.Module):
    def __init__(self, rngs):
        self.norm = nnx.BatchNorm(3, rngs=rngs)

    def __call__(self, x):
        return self.norm(x)


class NnxAttention(nnx.Module):
    def __init__(self, rngs):
        self.attend = nnx.MultiHeadAttention(1, 3, dropout_rate=0.1, rngs=rngs)

    def __call__(self, x):
        return self.attend(x)


def equinox_chain(*layers):
    return lambda key: eqx.nn.Sequential([eqx.nn.Linear(3, 2, key=key), *layers])


def linen_chain(deterministic):
    return linen.Sequential([linen.Dense(2), linen.Dropout(0.1, deterministic=deterministic)])


STATISTICS = "keeps running statistics that an ensemble of particles cannot share; use GroupNorm or LayerNorm"
NOISE = "its noise is not part of the posterior; remove it or switch it off with"


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda: models.from_equinox(equinox_chain(eqx.nn.BatchNorm(2, "batch", mode="batch"))),
            f"BatchNorm at layers/1 {STATISTICS}",
        ),
        (
            lambda: models.from_equinox(lambda key: eqx.nn.make_with_state(eqx.nn.BatchNorm)(2, "batch", mode="ema")),
            f"BatchNorm at 0 {STATISTICS}",
        ),
        (
            lambda: models.from_equinox(equinox_chain(eqx.nn.Dropout(0.1))),
            f"Dropout at layers/1: {NOISE} eqx.nn.inference_mode",
        ),
        (
            lambda: models.from_linen(LinenBatchNorm(), ROWS),
            rf"BatchNorm_0 \(collection 'batch_stats'\) {STATISTICS}",
        ),
        (
            lambda: models.from_linen(linen_chain(deterministic=False), ROWS),
            f'layers_1 needs PRNG for "dropout": {NOISE} deterministic=True',
        ),
        (lambda: models.from_linen(LinenCounter(), ROWS), '.*collection "counter" is immutable. .* keep no state'),
        (lambda: models.from_nnx(NnxBatchNorm), rf"norm/mean \(nnx.BatchStat\) {STATISTICS}"),
        (
            lambda: models.from_nnx(lambda rngs: NnxNet(rngs, deterministic=False)),
            rf"Dropout at dropout: {NOISE} deterministic=True or module.eval\(\)",
        ),
        (lambda: models.from_nnx(NnxAttention), f"MultiHeadAttention at attend: {NOISE} deterministic=True"),
    ],
)
def test_state_and_noise_are_refused_in_one_line(build, message):
    with pytest.raises(ValueError, match=f"^{message}") as refusal:
        build()
    assert "\n" not in str(refusal.value)


class TorchNet:
    """What is known of a PyTorch network where PyTorch is not installed: the module that its classes come from."""

    def __call__(self, *inputs):
        raise AssertionError("a network that cannot be trained must not be called")


TorchNet.__module__ = "torch.nn.modules.module"


class Mine(TorchNet):
    """A user's own network is of a module of their own."""


TORCH = {
    "equinox": lambda: models.from_equinox(Mine()),
    "made": lambda: models.from_equinox(lambda key: Mine()),
    "class": lambda: models.from_nnx(Mine),
    "made by nnx": lambda: models.from_nnx(lambda rngs: Mine()),
    "linen": lambda: models.from_linen(Mine(), ROWS),
    "function": lambda: models.from_function(lambda key: {}, Mine()),
    # The tests' type checker would speak before ours.
    "frozen": lambda: inspect.unwrap(models.split)(Mine(), {}),
    "posterior": lambda: inspect.unwrap(stein.posterior)(Mine(), None, None, 1),
    "estimator": lambda: SteinRegressor(model=Mine()).fit(ROWS, ROWS[:, 0]),
    "estimator, made": lambda: SteinRegressor(model=lambda key: Mine()).fit(ROWS, ROWS[:, 0]),
}


@pytest.mark.parametrize("build", TORCH.values(), ids=TORCH)
def test_a_pytorch_network_is_refused_with_two_ways_out(build):
    """Catches an error from inside Flax or PyTorch, and an adapter that calls the network."""
    with pytest.raises(
        ValueError, match=r"^Mine is a PyTorch network.*Flax or Equinox.*features as an array"
    ) as refusal:
        build()
    assert "\n" not in str(refusal.value)


def nnx_evaluated(rngs):
    net = NnxNet(rngs, deterministic=False)
    net.eval()
    return net


@pytest.mark.parametrize(
    "build",
    [
        lambda: models.from_equinox(equinox_chain(eqx.nn.Dropout(0.0))),
        lambda: models.from_equinox(lambda key: eqx.nn.inference_mode(equinox_chain(eqx.nn.Dropout(0.1))(key))),
        lambda: models.from_linen(linen_chain(deterministic=True), ROWS),
        lambda: models.from_nnx(nnx_evaluated),
    ],
)
def test_dropout_that_is_switched_off_is_welcome(build):
    model = build()
    outputs = model.apply(random_weights(model, np.float32), ROWS)
    assert outputs.shape == (6, 2)
    assert jnp.all(outputs != 0)


@pytest.mark.parametrize("build", [lambda: models.from_linen(None, ROWS), lambda: models.from_nnx(NnxNet)])
def test_a_missing_flax_is_named(build, monkeypatch):
    monkeypatch.setitem(sys.modules, "flax", None)
    with pytest.raises(ImportError, match=r"pip install '\.\[flax\]'"):
        build()


# Frozen parts


def jitted(model: Model) -> Model:
    return Model(model.init, jax.jit(model.apply))


def with_an_unused_layer(model: Model) -> Model:
    return Model(
        lambda key: {"network": model.init(key), "unused": {"bias": jnp.zeros(2)}},
        lambda weights, x: model.apply(weights["network"], x),
    )


class TwoHeads(linen.Module):
    """Names that sort the wrong way, a norm below the heads, and two heads."""

    @linen.compact
    def __call__(self, x):
        x = linen.relu(linen.Dense(8, name="trunk")(x))
        x = linen.LayerNorm(name="znorm")(x)
        return jnp.concatenate([linen.Dense(1, name="mean")(x), linen.Dense(1, name="log_scale")(x)], axis=-1)


TWO_HEADS = {"mean/kernel", "mean/bias", "log_scale/kernel", "log_scale/bias"}


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (models.mlp([3, 8, 8, 2]), {"2/weight", "2/bias"}),
        (models.mlp([3, 8, 8, 2], activation=lambda h: h), {"2/weight", "2/bias"}),  # deep and linear
        (models.mlp([3, 2]), {"0/weight", "0/bias"}),
        (models.from_linen(LinenNet(), ROWS), {"classifier/kernel", "classifier/bias"}),
        (models.from_linen(TwoHeads(), ROWS), TWO_HEADS),
        (jitted(models.from_linen(TwoHeads(), ROWS)), TWO_HEADS),
        (with_an_unused_layer(models.mlp([3, 8, 2])), {"network/1/weight", "network/1/bias"}),
        (models.from_nnx(NnxNet), {"layers/1/kernel", "layers/1/bias"}),
        (models.from_equinox(EquinoxNet), {"layers/1/weight", "layers/1/bias", "extra_bias"}),
        (models.with_log_sigma(models.mlp([3, 8, 2]), targets=2), {"network/1/weight", "network/1/bias", "log_sigma"}),
    ],
)
def test_the_last_layer_is_found_from_the_function(model, expected):
    _, start = models.split(model, random_weights(model, np.float32), "last-layer", ROWS)
    assert chosen_paths(start) == expected


def test_the_last_layer_of_a_resnet():
    model = models.resnet32(blocks=1)
    _, start = models.split(model, random_weights(model), example=normal(1, 2, 4, 4, 3))
    assert chosen_paths(start) == {"head/weight", "head/bias"}


@pytest.mark.parametrize("particles", ["last-layer", lambda path: path.startswith("norm")])
def test_a_split_model_is_the_network_with_part_of_it_replaced(particles):
    whole = models.from_linen(LinenNet(), ROWS)
    trained = random_weights(whole, np.float32)
    model, start = models.split(whole, trained, particles, ROWS)
    np.testing.assert_array_equal(model.apply(start, ROWS), whole.apply(trained, ROWS))

    other = jax.tree.map(lambda w: w + 1, trained)
    part = eqx.filter(other, jax.tree.map(lambda w: w is not None, start, is_leaf=lambda w: w is None))
    name = "classifier" if particles == "last-layer" else "norm"
    merged = {**trained, name: other[name]}
    np.testing.assert_array_equal(model.apply(part, ROWS), whole.apply(merged, ROWS))
    assert not np.allclose(model.apply(part, ROWS), whole.apply(trained, ROWS))


def test_a_split_model_draws_its_part_with_the_initialiser_of_the_whole():
    whole = models.mlp([1, 2, 1])
    model, start = models.split(whole, random_weights(whole), lambda path: path.startswith("1/"))
    drawn, expected = jax.jit(lambda key: (model.init(key), whole.init(key)))(KEY)
    assert jax.tree.structure(drawn) == jax.tree.structure(start)
    assert_close(drawn, expected[1], 1)
    particles = jax.eval_shape(jax.vmap(model.init), jax.random.split(KEY, 3))
    assert [leaf.shape for leaf in jax.tree.leaves(particles)] == [(3, 1, 2), (3, 1)]


def test_the_frozen_trunk_is_evaluated_once():
    whole = models.mlp([64, 128, 128, 2])
    x = normal(1, 32, 64, dtype=jnp.float64)
    last, _ = models.split(whole, random_weights(whole), example=x)

    def flops(model, n):
        particles = jax.eval_shape(jax.vmap(model.init), jax.random.split(KEY, n))
        return jax.jit(jax.vmap(model.apply, (0, None))).lower(particles, x).compile().cost_analysis()["flops"]

    assert flops(last, 8) < 1.2 * flops(last, 1)
    assert flops(whole, 8) > 6 * flops(last, 8)


def softmax_mlp() -> Model:
    model = models.mlp([3, 8, 2])
    return Model(model.init, lambda w, x: jax.nn.softmax(model.apply(w, x)))


@pytest.mark.parametrize(
    ("model", "particles", "example", "message"),
    [
        (softmax_mlp(), "last-layer", ROWS, "affine in no layer.*pass a predicate on the paths '0/weight', '0/bias'"),
        (models.mlp([3, 2]), "last-layer", None, "example: got None"),
        (models.mlp([3, 2]), "head", ROWS, "particles: got 'head'; must be 'last-layer' or a predicate"),
        (models.mlp([3, 2]), lambda path: "head" in path, None, "selects none of '0/weight', '0/bias'$"),
        (models.mlp([3, 2, 2, 2, 2]), lambda path: False, None, r"selects none of '0/weight'.*'2/bias', \.\.\.$"),
    ],
)
def test_a_split_that_cannot_be_made_says_why(model, particles, example, message):
    with pytest.raises(ValueError, match=message):
        models.split(model, random_weights(model, np.float32), particles, example)


def test_a_split_of_stacked_particles_is_refused():
    model = models.mlp([3, 2])
    with pytest.raises(ValueError, match="weights: must be one network's weights"):
        models.split(model, jax.tree.map(lambda w: jnp.stack([w, w]), random_weights(model)), lambda path: True)


# Learned noise


def test_a_learned_noise_is_one_more_output():
    network = models.mlp([3, 8, 1])
    model = models.with_log_sigma(network, initial=-0.5)
    weights = jax.jit(model.init)(KEY)
    assert weights["log_sigma"].shape == ()
    x = normal(1, 5, 3, dtype=jnp.float64)
    particles = jax.tree.map(lambda w: jnp.stack([w, 2 * w, 3 * w]), random_weights(network))
    particles = {"network": particles, "log_sigma": jnp.array([0.1, 0.2, 0.3])}
    outputs = jax.jit(jax.vmap(model.apply, (0, None)))(particles, x)
    np.testing.assert_array_equal(outputs[..., 1], np.repeat([[0.1], [0.2], [0.3]], 5, axis=1))
    assert_close(outputs[..., :1], jax.vmap(network.apply, (0, None))(particles["network"], x), 3 * 8)
    np.testing.assert_array_equal(model.apply(weights, x)[:, 1], np.full(5, -0.5))
    gradient = jax.grad(lambda w: model.apply(w, x)[:, 1].sum())(weights)
    assert gradient["log_sigma"] == 5


def test_every_target_has_its_own_learned_noise():
    """Catches one sigma for all targets, and a wrong number of targets that would be broadcast."""
    model = models.with_log_sigma(models.mlp([3, 8, 2]), targets=2)
    weights = model.init(KEY) | {"log_sigma": jnp.array([0.1, 0.2])}
    x = normal(1, 5, 3, dtype=jnp.float64)
    np.testing.assert_allclose(model.apply(weights, x)[:, 2:], np.tile([0.1, 0.2], (5, 1)), rtol=1e-6)
    wrong = models.with_log_sigma(models.mlp([3, 8, 2]))
    with pytest.raises(ValueError, match=r"targets = 1: the network has outputs \(5, 2\)"):
        wrong.apply(wrong.init(KEY), x)


# In less precision


@pytest.mark.parametrize(
    "model",
    [
        models.mlp([3, 40, 40, 2]),
        pytest.param(models.resnet32(num_classes=2, channels=3, blocks=1), marks=pytest.mark.long),
    ],
)
def test_a_network_in_bfloat16_keeps_its_weights(model):
    """Catches products that stay in full precision, and weights or gradients that lose it. Each of at most eight layers
    rounds weights and results to 8 bits, 2^-9 of their size."""
    narrow = models.in_bfloat16(model)
    weights = random_weights(model, np.float32)
    x = normal(1, 4, 3) if isinstance(weights, tuple) else normal(1, 4, 8, 8, 3)

    def values_and_gradient(network):
        outputs, backward = jax.vjp(lambda w: network.apply(w, x), weights)
        return outputs, backward(jnp.ones_like(outputs))[0]

    rounded, exact = values_and_gradient(narrow), values_and_gradient(model)
    for a, b in zip(jax.tree.leaves(rounded), jax.tree.leaves(exact), strict=True):
        assert a.dtype == b.dtype == jnp.float32
    for a, b in zip(rounded, exact, strict=True):
        flat = [np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(part)]) for part in (a, b)]
        assert 2**-12 < relative_error(*flat) < 2 * 8 * 2**-9
