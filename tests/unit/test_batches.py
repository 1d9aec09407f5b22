"""Minibatches outside of any jit: compiled once, and the same as inside; crops and flips of images."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import runs
import stein
from problems import relative_error, rounding
from stein import data, likelihoods, priors, rules, sharding, train
from stein.runs import build, configs, images
from stein.types import Model

X = np.arange(10.0)[:, None]


def compilations(function):
    """How many programs XLA compiles while ``function`` runs."""
    seen = []
    listener = lambda event, seconds, **_: seen.append(event)  # noqa: E731
    jax.monitoring.register_event_duration_secs_listener(listener)
    try:
        function()
    finally:
        jax.monitoring.unregister_event_duration_listener(listener)
    return sum("backend_compile" in event for event in seen)


def test_one_batch_after_the_other_compiles_once():
    """Catches a fresh program at every call: slow, and its memory is never given back."""
    batches = data.Batches(X, X, 3, jax.random.key(0), independent=True)
    assert compilations(lambda: batches.at(0)) > 0
    assert compilations(lambda: [batches.at(step) for step in range(1, 20)]) == 0
    again = data.Batches(X + 1, X, 3, jax.random.key(1), independent=True)
    assert compilations(lambda: again.at(5)) == 0


def test_batches_are_the_same_inside_and_outside_of_jit():
    """And go through every row once in an epoch."""
    batches = data.Batches(X, X, 3, jax.random.key(0))
    outside = np.stack([batches.at(step).x for step in range(20)])
    rows = jax.jit(lambda batches: batches.indices((0, 0), 20))(batches)
    inside = np.stack([batches.take(jax.tree.map(lambda leaf, t=t: leaf[t], rows)).x for t in range(20)])
    np.testing.assert_array_equal(outside, inside)
    np.testing.assert_array_equal(np.sort(outside.reshape(6, 10), axis=1), np.tile(np.arange(10.0), (6, 1)))
    np.testing.assert_array_equal(batches.at(jnp.asarray(7)).x, outside[7])


# Crops and flips. Every pixel of every image is another number, so that a window is known by its pixels.

IMAGES = 1 + np.arange(40.0 * 4 * 5 * 2).reshape(40, 4, 5, 2)
NUMBERS = np.arange(40)


def augmented(size=16, independent=False, crop=2, flip=True):
    return data.Batches(IMAGES, NUMBERS, size, jax.random.key(0), independent, crop, flip)


@jax.jit
def take(batches, rows):
    return jax.vmap(batches.take)(rows)


def taken(batches, first, steps):
    """The batches of some steps, compiled as a chunk is."""
    return take(batches, batches.indices(batches.cursor(first), steps))


def windows(image, crop):
    """Every window of an image with a border of zeros, and each mirrored, by its bytes."""
    padded = np.pad(image, ((crop, crop), (crop, crop), (0, 0)))
    corners = np.ndindex(2 * crop + 1, 2 * crop + 1)
    found = {corner: padded[corner[0] : corner[0] + 4, corner[1] : corner[1] + 5] for corner in corners}
    return {
        np.ascontiguousarray(seen).tobytes(): (corner, mirrored)
        for corner, window in found.items()
        for mirrored, seen in ((False, window), (True, window[:, ::-1]))
    }


@pytest.mark.parametrize(("crop", "flip"), [(2, True), (1, False), (0, True)])
def test_every_crop_is_a_window_of_its_own_image_and_half_are_mirrored(crop, flip):
    """Catches windows over the border's end, of another image, upside down or all alike, labels that move, and a rate
    of flips other than 1/2 (within four standard deviations of a fair coin)."""
    x, y, _ = taken(augmented(crop=crop, flip=flip), 0, 50)
    rows = [(image, int(number)) for image, number in zip(np.concatenate(x), y.ravel(), strict=True)]
    drawn = [windows(IMAGES[number], crop)[image.tobytes()] for image, number in rows]
    corners, mirrored = zip(*drawn, strict=True)
    assert len(set(corners)) == (2 * crop + 1) ** 2
    assert abs(sum(mirrored) - flip * len(rows) / 2) <= 4 * np.sqrt(len(rows) / 4) * flip
    np.testing.assert_array_equal(y, taken(augmented(crop=0, flip=False), 0, 50).y)


@pytest.mark.parametrize("size", [16, None])
def test_crops_depend_on_the_step_alone(size):
    """Over the ends of epochs. Catches draws by the place in a chunk, the same draws in every step or epoch, and the
    same for the independent batch."""
    batches = augmented(size, independent=True)
    whole = taken(batches, 0, 12)
    parts = [taken(batches, first, 4) for first in (0, 4, 8)]
    jax.tree.map(np.testing.assert_array_equal, jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts), whole)
    plain = taken(augmented(size, independent=True, crop=0, flip=False), 0, 12)
    draws = [
        [windows(image, 2)[cropped.tobytes()] for image, cropped in zip(*map(np.asarray, step), strict=True)]
        for step in [*zip(plain.x, whole.x, strict=True), *zip(plain.measure, whole.measure, strict=True)]
    ]
    assert len(set(map(tuple, draws))) == 2 * 12


@pytest.mark.long
def test_training_on_crops_has_the_same_bytes_in_other_chunks_and_on_devices():
    """Catches draws that the compiled loop makes by its own counter, or that differ from device to device."""

    def apply(weights, x):
        return x.reshape(len(x), -1) @ weights

    model = Model(lambda key: jax.random.normal(key, (40, 1)), apply)
    target = stein.posterior(model, likelihoods.gaussian(1.0), priors.normal(1.0), num_data=40)
    algorithm = stein.ensemble(target, rules.w_svgd(), optax.sgd(1e-4))
    x, y, key = IMAGES / IMAGES.max(), NUMBERS[:, None] / 40, jax.random.key(0)
    batches = data.Batches(x, y, 16, key, crop=2, flip=True)
    start = algorithm.init(jax.random.key(1), 4)
    whole, _ = train.run(algorithm, start, batches, 7)
    half, _ = train.run(algorithm, start, batches, 4, chunk=3)
    resumed, _ = train.run(algorithm, half, batches, 3, chunk=1)
    np.testing.assert_array_equal(resumed.particles, whole.particles)
    spread = sharding.Spread(sharding.mesh(data=2), start)
    together, _ = train.run(spread.algorithm(algorithm), spread.place(start), spread.everywhere(batches), 7)
    assert relative_error(spread.mine(together).particles, whole.particles) <= rounding(7 * 40 * 16)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: data.Batches(X, X, 3, jax.random.key(0), crop=1), r"crop: is for images .*, but x is \(10, 1\)"),
        (lambda: data.Batches(X, X, 3, jax.random.key(0), flip=True), "flip: is for images"),
        (lambda: augmented(crop=4), r"crop = 4: must be below height and width of the images, \(4, 5\)"),
        (lambda: augmented(crop=-1), "crop = -1"),
        (lambda: data.Batches(IMAGES, NUMBERS, flip=True), "key = None: .* crops and flips are drawn at random"),
    ],
    ids=["a table cropped", "a table flipped", "larger than the image", "negative", "no key"],
)
def test_what_cannot_be_cropped_is_refused(make, message):
    """Catches columns of a table that are taken for pixels, and crops that would be of the border alone."""
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('data.name = "digits"\ntrain.crop = 1', "train.crop: is for images; .* an mlp sees rows"),
        ('data.name = "digits"\ntrain.flip = true', "train.flip: is for images"),
        (
            'data.inputs = "x.npy"\ndata.targets = "y.npy"\ndata.stream = true\ntrain.batch_size = 8\n'
            'train.flip = true\nmodel.name = "resnet32"',
            "train.flip: is for images in memory; must be left out, or data.stream false",
        ),
        ('data.name = "digits"\nmodel.filters = 8', "model.filters: is for model.name = 'resnet32'"),
    ],
    ids=["rows cropped", "rows flipped", "a stream", "filters of an mlp"],
)
def test_a_config_that_would_ignore_its_images_is_refused(text, message):
    """Catches a key without effect."""
    with pytest.raises(configs.ConfigError, match=message):
        configs.parse(text)


CROPPED = """
data = {name = "digits", standardise = true}
model = {name = "resnet32", blocks = 1, filters = 2, stride = 2}
method = {name = "de", particles = 2, start = "model"}
train = {steps = 6, batch_size = 16, log_every = 2, crop = 2, flip = true}
evaluation.every = 2
checkpoints.every = 2
tracking = {diagnostics = false, tensorboard = false}
"""


def test_a_config_crops_what_is_learned_and_not_what_is_held_out():
    """Catches keys that the batches or the network never see, and test images that are cropped as well."""
    whole = CROPPED.replace("crop = 2, flip = true", "crop = 0")
    cropped, plain = (build.assemble(configs.parse(text)) for text in (CROPPED, whole))
    with_crops, without = (taken(parts.batches, 0, 1) for parts in (cropped, plain))
    np.testing.assert_array_equal(with_crops.y, without.y)
    assert not np.array_equal(with_crops.x, without.x)
    np.testing.assert_array_equal(cropped.data.test.x, plain.data.test.x)
    weights = jax.eval_shape(cropped.model.init, jax.random.key(0))
    assert (weights.stem.weight.shape, weights.stem.stride, weights.stages[2].rest) == ((3, 3, 1, 2), 2, None)


@pytest.mark.long
def test_a_resumed_run_sees_the_same_crops_and_is_evaluated_on_whole_images(tmp_path):
    """With standardised pixels. Catches crops that depend on where a run was stopped, metrics of cropped test images,
    and scales of images that are written but cannot be read again."""
    config = runs.write_config(tmp_path, CROPPED)
    assert runs.here("train", config, "--out", tmp_path / "whole", "--quiet").code == 0
    assert runs.here("train", config, "--out", tmp_path / "more", "--set", "train.steps=2", "--quiet").code == 0
    assert runs.here("resume", tmp_path / "more", "--steps", "6", "--quiet").code == 0
    whole, more = (stein.load(tmp_path / name) for name in ("whole", "more"))
    jax.tree.map(np.testing.assert_array_equal, whole.members, more.members)
    _, test = images.load(whole.config.data, flat=False)
    accuracy = np.mean(whole.predict(test.x).probabilities.argmax(-1) == test.y)
    assert json.loads((tmp_path / "whole/metrics.json").read_text())["test_accuracy"] == pytest.approx(accuracy)
