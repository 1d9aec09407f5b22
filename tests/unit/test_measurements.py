"""Points without a label where functional kernels look too: where they are, and that configs say the same."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from problems import rounding
from stein import measurements, train
from stein.runs import configs, dataset
from stein.runs.build import assemble
from stein.runs.named import extra_points

X = np.random.default_rng(0).normal(size=(40, 3)) * [1.0, 10.0, 100.0]
BATCH = jnp.asarray(X[:8], jnp.float32)


def drawn(source, draws=200):
    """Many steps' points, in the precision of the batch."""
    points = [source(jax.random.key(i), BATCH) for i in range(draws)]
    assert {point.dtype for point in points} == {jnp.dtype("float32")}
    return np.stack(points)


def test_a_box_is_that_of_all_inputs():
    """Catches the box of the batch, of one column for all, or of a wider region; and the same points in every step."""
    points = drawn(measurements.box(X, 5))
    assert points.shape == (200, 5, 3)
    flat, low, high = points.reshape(-1, 3), X.min(axis=0), X.max(axis=0)
    slack = rounding(1, "float32") * np.abs(X).max(axis=0)
    assert ((flat >= low - slack) & (flat <= high + slack)).all()
    # The extremes of 1000 uniform points are within 2 % of the ends, but for a chance of 2e-9 each.
    np.testing.assert_allclose([flat.min(axis=0), flat.max(axis=0)], [low, high], atol=0.02 * (high - low).max())
    assert (np.ptp(flat, axis=0) > 0.96 * (high - low)).all()
    assert not (points[0] == points[1]).any()


def test_noise_is_around_inputs_of_the_batch():
    """Half a standard deviation of each column. Catches the noise of one column for all, and inputs that are left out.

    The relative error of a standard deviation from 4000 numbers is 1.1 %; six of them are allowed.
    """
    random_rows = drawn(measurements.noise(20, scale=1e-6))
    nearest = np.abs(random_rows.reshape(-1, 1, 3) - np.asarray(BATCH)).sum(axis=2).argmin(axis=1)
    assert set(nearest.tolist()) == set(range(8))
    points = drawn(measurements.noise(20))
    expected = np.sqrt(1.25) * np.asarray(BATCH).std(axis=0)
    np.testing.assert_allclose(points.reshape(-1, 3).std(axis=0), expected, rtol=0.07)


def test_a_mixture_is_between_two_inputs():
    """Catches three inputs, weights beyond them, and a weight for each column."""
    points = drawn(measurements.mixture(4), 50).reshape(-1, 3)
    rows = np.asarray(BATCH, float)
    slack = rounding(2, "float32") * np.abs(rows).max()
    for point in points:
        pairs = [(a, b) for a in rows for b in rows]
        shares = [0.5 if (a == b).all() else float((point - b) @ (a - b) / ((a - b) @ (a - b))) for a, b in pairs]
        left = [np.abs(point - s * a - (1 - s) * b).max() for s, (a, b) in zip(shares, pairs, strict=True)]
        best = int(np.argmin(left))
        assert left[best] < slack
        assert -1e-6 <= shares[best] <= 1 + 1e-6


def test_rows_of_a_set_are_its_rows():
    points = drawn(measurements.rows_of(X, 3)).reshape(-1, 3)
    distance = np.abs(points[:, None] - X.astype(np.float32)).max(axis=2).min(axis=1)
    assert distance.max() == 0
    assert len(np.unique(points, axis=0)) == 40


IMAGES = np.random.default_rng(1).uniform(1, 2, size=(6, 8, 4, 2)).astype(np.float32)  # no pixel is zero


def test_augmented_images_are_shifted_and_flipped_images_of_the_batch():
    """Catches wrapped borders, a shift beyond the limit, one shift or flip for all, and channels or axes that mix."""
    points = np.asarray(measurements.augmented(60, shift=0.25)(jax.random.key(0), jnp.asarray(IMAGES)))
    expected = {}
    for number, image in enumerate(IMAGES):
        for flip in (False, True):
            wide = np.pad(image, ((2, 2), (1, 1), (0, 0)))
            for dy, dx in np.ndindex(5, 3):
                part = wide[dy : dy + 8, dx : dx + 4]
                expected[(part[:, ::-1] if flip else part).tobytes()] = (number, flip, dy, dx)
    found = np.array([expected[np.ascontiguousarray(point).tobytes()] for point in points])
    assert [len(set(column)) for column in found.T] == [6, 2, 5, 3]


def test_shuffled_patches_are_those_of_one_image():
    """Catches patches of several images, torn or turned patches, and one order for all."""
    points = np.asarray(measurements.patches(20, parts=2)(jax.random.key(0), jnp.asarray(IMAGES)))

    def cut(image):
        return [image[y : y + 4, x : x + 2].tobytes() for y in (0, 4) for x in (0, 2)]

    whole = {frozenset(cut(image)): cut(image) for image in IMAGES}
    orders = {tuple(whole[frozenset(cut(point))].index(patch) for patch in cut(point)) for point in points}
    assert len(orders) > 5


@pytest.mark.parametrize("make", [measurements.augmented, measurements.patches])
def test_flat_images_are_images(make):
    """Catches rows that are taken apart in another order than the images were flattened."""
    flat = make(5, (8, 4, 2), **{"parts": 2} if make is measurements.patches else {})
    images = make(5, None, **{"parts": 2} if make is measurements.patches else {})
    key = jax.random.key(3)
    np.testing.assert_array_equal(
        flat(key, jnp.asarray(IMAGES.reshape(6, -1))), images(key, jnp.asarray(IMAGES)).reshape(5, -1)
    )
    with pytest.raises(ValueError, match=r"shape = None: the rows are \(64,\); must be height, width and channels"):
        make(5)(key, jnp.asarray(IMAGES.reshape(6, -1)))


def test_patches_that_do_not_fit_are_refused():
    """Catches images whose last rows would be lost."""
    with pytest.raises(ValueError, match="parts = 3: must divide the height and width of the images, 8 and 4"):
        measurements.patches(1, parts=3)(jax.random.key(0), jnp.asarray(IMAGES))


@pytest.mark.parametrize(("model", "size"), [("mlp", (64,)), ("resnet32", (8, 8, 1))])
def test_images_of_a_config_have_their_shape(model, size):
    """Catches a flat row that a config shuffles as a table, and a source that is not the one named."""
    for source in ("augmented", "patches"):
        text = f'[data]\nname = "digits"\n[model]\nname = "{model}"\n[method]\nname = "rde"\n'
        chosen = configs.parse(text + f'extra_points = 3\nextra_source = "{source}"\n')
        loaded = dataset.load(chosen)
        batch = jnp.asarray(loaded.train.x[:5])
        expected = getattr(measurements, source)(3, (8, 8, 1))(jax.random.key(0), batch)
        points = extra_points(chosen, loaded)(jax.random.key(0), batch)
        assert points.shape == (3, *size)
        np.testing.assert_array_equal(points, expected)


def test_a_table_has_no_patches():
    """Catches columns of a table that are taken for pixels."""
    chosen = configs.parse(CONFIG.format(method='extra_points = 1\nextra_source = "patches"'))
    with pytest.raises(ValueError, match=r"method.extra_source = 'patches': needs images, not rows of \(1,\)"):
        assemble(chosen)


CONFIG = """
[data]
name = "regression-1d"
[method]
name = "fw-svgd"
particles = 3
{method}
[model]
hidden = [4]
[train]
steps = 10
batch_size = 16
"""


def trained(method):
    parts = assemble(configs.parse(CONFIG.format(method=method)))
    state = parts.algorithm.init(jax.random.key(0), 3)
    state, _ = train.run(parts.algorithm, state, parts.batches, 5)
    return np.concatenate([np.asarray(leaf).ravel() for leaf in jax.tree.leaves(state.particles)])


@pytest.mark.long
def test_every_source_of_a_config_changes_the_result(tmp_path):
    """Catches a source that is read and forgotten, or taken for another."""
    np.save(tmp_path / "pool.npy", np.full((1, 1), 9.0))
    sources = ["box", "noise", "mixture", str(tmp_path / "pool.npy")]
    results = [trained("")] + [trained(f'extra_points = 2\nextra_source = "{source}"') for source in sources]
    for i, one in enumerate(results):
        assert np.isfinite(one).all()
        assert all(np.abs(one - other).max() > 1e-6 for other in results[:i])


def test_a_file_is_standardised_as_the_data(tmp_path):
    """Columns by name, scaled by the mean and deviation of training. Catches raw numbers beside standardised ones."""
    rows = "\n".join(f"{1000 + i},{i},{3 * i + 0.5}" for i in range(40))
    (tmp_path / "own.csv").write_text(f"a,b,y\n{rows}\n")
    (tmp_path / "pool.csv").write_text("b,a\n7,1007\n")
    text = '[data]\nfile = "own.csv"\ntarget = "y"\n[method]\nname = "fw-svgd"\nextra_points = 4\n'
    (tmp_path / "run.toml").write_text(text + 'extra_source = "pool.csv"\n')
    chosen = configs.load(tmp_path / "run.toml")
    assert chosen.method.extra_source == str(tmp_path / "pool.csv")
    loaded = dataset.load(chosen)
    points = extra_points(chosen, loaded)(jax.random.key(0), jnp.asarray(loaded.train.x))
    expected = loaded.standardiser(np.array([[1007.0, 7.0]]))
    np.testing.assert_allclose(points, np.repeat(expected, 4, axis=0), rtol=rounding(1, "float32"))


@pytest.mark.parametrize(
    ("method", "complaint"),
    [
        ('name = "w-svgd"\nextra_points = 1', "method.extra_points: w-svgd compares no functions; must be 0"),
        ('name = "f-svgd"\nextra_points = 1', "method.extra_points: nothing holds f-svgd where there is no label"),
        ('extra_source = "noise"', "method.extra_source: is for method.extra_points above 0"),
        ('extra_points = 1\nextra_source = "boxx"', "method.extra_source: got 'boxx'; must be box, noise, mixture"),
    ],
)
def test_points_that_would_do_nothing_or_harm_are_refused(method, complaint):
    with pytest.raises(configs.ConfigError) as caught:
        configs.parse(
            CONFIG.replace('name = "fw-svgd"\n', "" if "name" in method else 'name = "fw-svgd"\n').format(method=method)
        )
    assert complaint in str(caught.value)
