"""What functional kernels compare besides outputs: the features, the way back to the weights, and their names."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.ad_checkpoint import checkpoint_name

import twin
from problems import assert_refused, close, flatten, relative_error, tanh_model, unflatten
from stein import features, kernels, likelihoods, methods, models, priors, rules, targets, train
from stein.ensembles import build, ensemble
from stein.runs import configs
from stein.runs.build import assemble
from stein.targets import Measurement
from stein.types import Batch, Model

NETWORK = twin.Network(3, 4, 2)
RANDOM = np.random.default_rng(3)
X, Y = RANDOM.normal(size=(5, 3)), np.array([0, 1, 1, 0, 1])
W = RANDOM.normal(size=(3, sum(NETWORK.sizes())))
SGD = optax.sgd(1e-3)
AXES = RANDOM.normal(size=(3, 2))


def named_hidden(net):
    """The twin's network with a name for its hidden layer."""

    def apply(w, x):
        z = jnp.tanh(x @ w["hidden"][:, :-1].T + w["hidden"][None, :, -1])
        return checkpoint_name(z, "middle") @ w["out"][:, :-1].T + w["out"][None, :, -1]

    return Model(tanh_model(net).init, apply)


def by_label(w, x, y):
    problem = twin.Problem(NETWORK, twin.Categorical(), None, 5)
    return twin.label_direction(problem, w, x, y)


def all_gradients(w, x, y):
    both = [NETWORK.input_gradient(w, x, e) for e in np.eye(2)]
    return np.concatenate([g for g, _ in both]), np.concatenate([jacobian for _, jacobian in both])


def middle(w, x, y):
    U, V = NETWORK.layers(w)
    z = np.tanh(U @ np.append(x, 1))
    rows = [np.concatenate([np.outer((1 - z**2) * e, np.append(x, 1)).ravel(), 0 * V.ravel()]) for e in np.eye(4)]
    return z, np.array(rows)


def squares(w, x, y):
    f = NETWORK.f(w, [x])[0]
    return f**2, 2 * f[:, None] * NETWORK.jacobian(w, [x])


def on_axes(w, x, y):
    a, jacobian = by_label(w, x, y)
    return AXES.T @ a, AXES.T @ jacobian


MAPS = {
    "label-gradients": ("label-gradients", by_label),
    "label-gradients on axes": (features.label_gradients(AXES), on_axes),
    "input-gradients": ("input-gradients", all_gradients),
    "hidden layer": ("middle", middle),
    "function": (lambda apply, weights, x: apply(weights, x) ** 2, squares),
}


def view_of(space, likelihood, y, where=Measurement()):
    target = targets.posterior(named_hidden(NETWORK), likelihood, priors.normal(), 5, measurement=where)
    look = jax.jit(target.view, static_argnums=(6, 7))
    batch = Batch(jnp.asarray(X), jnp.asarray(y))
    key, everyone = jax.random.key(0), jnp.ones(3, bool)
    return look(key, unflatten(NETWORK, W), batch, jnp.arange(3), everyone, jnp.ones(()), space, False)


@pytest.mark.parametrize("name", MAPS)
def test_features_and_the_way_back_are_those_of_the_formula(name):
    """Against derivatives by hand. Catches a wrong label, points that mix, a norm that is constant in the gradient, a
    missing second derivative, and axes that are not transposed.

    The shortest input gradient here is 4e-5 long, and its direction has as many digits less.
    """
    space, formula = MAPS[name]
    view = view_of(space, likelihoods.categorical(), Y)
    each = [[formula(w, x, y) for x, y in zip(X, Y, strict=True)] for w in W]
    assert relative_error(view.features, [[value for value, _ in one] for one in each]) < 1e-10
    u = RANDOM.normal(size=view.features.shape)
    expected = [sum(jacobian.T @ u[i, b] for b, (_, jacobian) in enumerate(one)) for i, one in enumerate(each)]
    assert relative_error(flatten(view.pullback(jnp.asarray(u))), expected) < 1e-10


@pytest.mark.long
def test_labels_of_weighted_classes_and_of_part_of_a_batch():
    """Catches a weight taken for a class, and labels of other points than those that are measured."""
    whole = view_of("label-gradients", likelihoods.categorical(), Y)
    weighted = np.column_stack([Y, np.full(5, 2.0)])
    close(view_of("label-gradients", likelihoods.weighted(likelihoods.categorical()), weighted).features,
          whole.features, 1e-12)  # fmt: skip
    part = view_of("label-gradients", likelihoods.categorical(), Y, Measurement(subset=2))
    close(part.features, whole.features[:, :2], 1e-12)


@pytest.mark.parametrize("jitted", [False, True])
def test_hidden_layers_by_number(jitted):
    """Catches layers before their activation, numbered from zero, or with points as columns; names lost under jit."""
    model = models.mlp([3, 4, 6, 2], jnp.tanh)
    weights = model.init(jax.random.key(0))
    apply, x, h = jax.jit(model.apply) if jitted else model.apply, jnp.asarray(X, jnp.float32), X.T
    for number, layer in enumerate(weights[:-1], 1):
        h = np.tanh(np.asarray(layer.weight) @ h + np.asarray(layer.bias)[:, None])
        found = features.hidden(f"hidden-{number}")(apply, weights, x)
        np.testing.assert_allclose(found, h.T, rtol=1e-5, atol=1e-6)


@pytest.mark.long
def test_the_layers_of_a_resnet():
    """Catches a layer without a name, and one more than the configs know."""
    model = models.resnet32(3, 1, blocks=1)
    weights, x = model.init(jax.random.key(0)), jnp.ones((2, 8, 8, 1))
    layers = [features.hidden(f"hidden-{number}")(model.apply, weights, x) for number in range(1, 6)]
    assert [layer.shape[1:] for layer in layers] == [(8, 8, 16), (8, 8, 16), (4, 4, 32), (2, 2, 64), (64,)]
    close(layers[-1], layers[-2].mean((1, 2)), 1e-6)
    assert_refused(lambda: features.hidden("hidden-6")(model.apply, weights, x), "hidden-4, hidden-5")


def test_principal_axes_are_the_covariance():
    """Catches eigenvalues in place of their roots, and rows for columns."""
    axes = features.principal_axes(X)
    np.testing.assert_allclose(axes @ axes.T, np.cov(X, rowvar=False), rtol=1e-12)


def test_a_pointwise_kernel_of_one_point_is_the_kernel():
    """Catches a factor of the number of points in the value or the gradient."""
    x, alive = jnp.asarray(RANDOM.normal(size=(4, 1, 3))), jnp.array([True, True, False, True])
    plain, _ = kernels.rbf()(x, alive, ())
    pointwise, _ = kernels.pointwise(kernels.rbf())(x, alive, ())
    close(pointwise.matrix, plain.matrix, 1e-14)
    close(pointwise.bandwidth, plain.bandwidth, 1e-14)
    close(pointwise.repulsion(x), plain.repulsion(x), 1e-14)
    twice = pointwise.weighted(jnp.full((4, 4), 2.0)).seen_through(3.0)
    close(twice.repulsion(x), 18 * plain.repulsion(x), 1e-14)


def target(likelihood=likelihoods.categorical(), **options):
    return targets.posterior(named_hidden(NETWORK), likelihood, priors.normal(), 5, **options)


def step_of(rule):
    algorithm = ensemble(target(), rule, SGD)
    return algorithm.step(algorithm.init(jax.random.key(0), 3), Batch(jnp.asarray(X), jnp.asarray(Y)))


EXTRA = Measurement(extra=X)
REFUSED = {
    "no layer of this name; must be one of outputs, input-gradients, label-gradients, middle": lambda: step_of(
        rules.fw_svgd(space="nowhere")
    ),
    "the features of 5 points are (2, 5); must be a row for each": lambda: step_of(
        rules.fw_svgd(space=lambda apply, weights, x: apply(weights, x).T)
    ),
    "what needs labels; must be the batch without extra points": lambda: build("forde", target(measurement=EXTRA)),
    "repels at unlabelled points only; use Measurement('extra', extra=...)": lambda: build("rde", target()),
    "the points are those of measurement.extra": lambda: target(measurement=Measurement("extra")),
    "this target has only outputs": lambda: build(
        "forde", targets.density(lambda w: -jnp.sum(w**2), lambda key: jax.random.normal(key, (2,)))
    ),
    "a functional rule moves outputs; must be outputs": lambda: ensemble(
        target(), rules.f_svgd()._replace(space="middle"), SGD
    ),
    "so a bandwidth cannot be frozen": lambda: kernels.pointwise(kernels.rbf(kernels.frozen(kernels.median(), 3))),
    "needs a kernel in closed form, such as rbf": lambda: step_of(
        rules.fw_svgd(kernels.pointwise(kernels.from_function(lambda a, b: jnp.exp(-jnp.sum((a - b) ** 2)))))
    ),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_cannot_be_compared_is_refused(message):
    """Catches a name, a shape or points that would be compared as something else."""
    assert_refused(REFUSED[message], message)


CONFIG = """
[data]
name = "classification-2d"
[method]
particles = 3
{method}
[model]
hidden = [4, 4]
[train]
steps = 10
batch_size = 16
"""


def trained(method):
    parts = assemble(configs.parse(CONFIG.format(method=method)))
    state = parts.algorithm.init(jax.random.key(0), 3)
    state, info = train.run(parts.algorithm, state, parts.batches, 3)
    assert bool(jnp.all(info.alive))
    return np.concatenate([np.asarray(leaf).ravel() for leaf in jax.tree.leaves(state.particles)])


@pytest.mark.long
def test_every_name_of_a_config_changes_the_result(monkeypatch):
    """Catches a name that is read and forgotten or taken for another; also one that a user has added."""
    monkeypatch.setitem(methods.FEATURES, "mine", lambda apply, weights, x: apply(weights, x) ** 3)
    names = ("outputs", "probabilities", "hidden-1", "hidden-2", "input-gradients", "mine")
    settings = [f'name = "fw-svgd"\ncompares = "{name}"' for name in names]
    settings += [f'name = "rde"\nextra_points = 2\ncompares = "{name}"' for name in ("outputs", "hidden-2")]
    # With the median, axes of one length change nothing, and these inputs spread alike in all directions.
    settings += [f'name = "forde"\nbandwidth = 0.5\nprincipal_axes = {on}' for on in ("false", "true")]
    settings += ['name = "fw-svgd"\nmeasurement = "extra"\nextra_points = 2']
    results = [trained(setting) for setting in settings]
    for i, one in enumerate(results):
        assert np.isfinite(one).all(), settings[i]
        assert all(np.abs(one - other).max() > 1e-6 for other in results[:i]), settings[i]
    assert (trained('name = "fw-svgd"') == results[0]).all()


@pytest.mark.parametrize(
    ("method", "complaint"),
    [
        ('name = "rde"', "method.extra_points: got 0; must be at least 1"),
        ('name = "rde"\nextra_points = 1\nmeasurement = "independent"', "method.measurement: got 'independent'"),
        ('name = "fw-svgd"\nmeasurement = "extra"', "method.extra_points: got 0; must be at least 1"),
        ('name = "fw-svgd"\ncompares = "hidden-3"', "method.compares: got 'hidden-3'; must be auto, outputs"),
        ('name = "fw-svgd"\ncompares = "hiden-1"', "method.compares: got 'hiden-1'; must be auto, outputs"),
        ('name = "f-svgd"\ncompares = "hidden-1"', "method.compares: f-svgd compares outputs only; must be auto"),
        ('name = "de"\ncompares = "outputs"', "method.compares: de compares no functions; must be auto"),
        ('name = "forde"\nextra_points = 1', "method.extra_points: label-gradients need labels; must be left out"),
        ('name = "forde"\nmeasurement = "independent"', "method.measurement: label-gradients need labels"),
        ('name = "forde"\nfreeze_bandwidth_after = 3', "forde has a bandwidth per point; must be 0"),
        ('name = "rde"\nextra_points = 1\nprincipal_axes = true', "method.principal_axes: rde has no gradients"),
        (
            'name = "fw-svgd"\nmeasurement = "extra"\nextra_points = 1\nmeasurement_subset = 2',
            "method.measurement_subset: is of the batch, which is not measured; must be 0",
        ),
    ],
)
def test_settings_without_effect_are_refused(method, complaint):
    """Catches a key that would be ignored."""
    with pytest.raises(configs.ConfigError) as caught:
        configs.parse(CONFIG.format(method=method))
    assert complaint in str(caught.value)
