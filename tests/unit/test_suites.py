"""The suites: which numbers there are, under which names, and what is refused."""

import json

import jax
import numpy as np
import pytest
from scipy import ndimage
from scipy.special import softmax

from stein import evaluate
from stein.data import corruptions
from stein.metrics import ood, uncertainty

RANDOM = np.random.default_rng(0)
Y = RANDOM.integers(0, 3, 60)
P = RANDOM.dirichlet(np.ones(3), size=(5, 60))
P[:, np.arange(60), Y] += 1.0
P /= P.sum(axis=2, keepdims=True)
FAR = RANDOM.dirichlet(np.full(3, 5.0), size=(5, 40))
NEAR = RANDOM.dirichlet(np.full(3, 0.1), size=(5, 30))
LOG_P, LOG_FAR, LOG_NEAR = np.log(P), np.log(FAR), np.log(NEAR)


def test_one_set_has_plain_names_several_have_both():
    """Catches the last set as the primary one, names that are lost, and scores of another set."""
    alone = evaluate.classification(LOG_P, Y, {"far": LOG_FAR})
    two = evaluate.classification(LOG_P, Y, {"far": LOG_FAR, "near": LOG_NEAR})
    assert not any(name.startswith("far_") for name in alone)
    assert {name: two[name] for name in alone} == alone
    assert two["far_auroc_h"] == alone["auroc_h"]
    assert two["near_auroc_h"] == evaluate.classification(LOG_P, Y, {"near": LOG_NEAR})["auroc_h"] != alone["auroc_h"]
    assert all(isinstance(value, float) for value in two.values())


def test_each_number_is_by_its_own_uncertainty():
    """Catches scores mixed up, inside for outside, and a ratio the wrong way round."""
    found = evaluate.classification(LOG_P, Y, {"far": LOG_FAR})
    scores = {
        "h": [uncertainty.entropy(p.mean(axis=0)) for p in (FAR, P)],
        "md": [uncertainty.disagreement(p) for p in (FAR, P)],
        "mi": [uncertainty.mutual_information(p) for p in (FAR, P)],
    }
    for key, (outside, inside) in scores.items():
        assert found[f"auroc_{key}"] == pytest.approx(ood.auroc(outside, inside), abs=1e-12)
        assert found[f"{key}_ratio"] == pytest.approx(outside.mean() / inside.mean(), abs=1e-12)
    assert found["auroc_h"] > 0.9
    assert found["h_ratio"] > 1


def test_curves_agree_with_the_numbers():
    """By loops over a pool with outside points among the sure ones. Catches outside points that count as right, a pool
    cut at the wrong end, and a curve that is longer than the test points."""
    found = evaluate.classification(LOG_P, Y, {"near": LOG_NEAR})
    entropies = np.concatenate([uncertainty.entropy(p.mean(axis=0)) for p in (P, NEAR)])
    right = [*(P.mean(axis=0).argmax(axis=1) == Y), *[False] * 30]
    ranked = [right[i] for i in np.argsort(entropies)]
    accuracies = [np.mean(ranked[: k + 1]) for k in range(60)]
    assert any(i >= 60 for i in np.argsort(entropies)[:60])
    assert found["calibration_area"] == pytest.approx(np.mean(accuracies), abs=1e-12)
    curve = evaluate.classification_curves(LOG_P, Y, {"near": LOG_NEAR})["calibration"]["near"]
    assert curve["accuracy"] == pytest.approx(accuracies, abs=1e-12)
    assert (curve["points"], curve["outside_points"]) == (list(range(1, 61)), 30)
    assert found["calibration_area"] <= found["calibration_area_perfect"]
    assert found["calibration_coverage97_perfect"] >= sum(right)


def test_a_temperature_is_that_of_the_ensemble():
    """As one member that predicts the tempered mean, but for the numbers of the members. Catches a number, or a curve,
    of the probabilities before."""
    at_two = [np.log(p.mean(axis=0)[None] ** 0.5) for p in (P, FAR)]
    alone, far = (logs - np.log(np.exp(logs).sum(axis=2, keepdims=True)) for logs in at_two)
    found = evaluate.classification(LOG_P, Y, {"far": LOG_FAR}, temperature=2.0)
    expected = evaluate.classification(alone, Y, {"far": far})
    plain = evaluate.classification(LOG_P, Y, {"far": LOG_FAR})
    of_members = [name for name in found if "member" in name or "_m" in name or name[:2] in ("md", "mi", "mo", "mu")]
    assert {name: found[name] for name in of_members} == {name: plain[name] for name in of_members}
    assert {"nll_members", "auroc_md", "auroc_mi", "mutual_information"} < set(of_members)
    for name in set(found) - set(of_members):
        assert found[name] == pytest.approx(expected[name], rel=1e-9), name
    for name in ("nll", "nll_paper", "brier", "ece", "entropy", "h_ratio"):
        assert found[name] != pytest.approx(plain[name], rel=1e-3), name
    curves = evaluate.classification_curves(LOG_P, Y, {"far": LOG_FAR}, temperature=2.0)
    assert curves["reliability"]["points"] == evaluate.classification_curves(alone, Y)["reliability"]["points"]


def test_rounding_does_not_rank_sure_answers():
    """Errors of about 1e-7, and the answers of the larger entropies wrong. Catches probabilities of float32, whose
    distance next to one is as large."""
    random = np.random.default_rng(3)
    logits = np.stack([random.uniform(15, 16.6, 400), np.zeros(400), random.uniform(-3, 0, 400)], axis=1)
    logits = logits.astype(np.float32)
    exact = uncertainty.entropy(softmax(logits.astype(float), axis=1))
    found = evaluate.classification(np.array(jax.nn.log_softmax(logits))[None], (exact > np.median(exact)).astype(int))
    assert found["calibration_area"] == pytest.approx(found["calibration_area_perfect"], abs=1e-12)


def test_curves_are_thinned_to_both_ends_and_fit_into_json():
    """Catches a curve of thousands of points, and one that loses its first or last."""
    p = np.repeat(LOG_P, 20, axis=1)
    curves = evaluate.classification_curves(p, np.repeat(Y, 20))
    points = curves["calibration"]["test"]["points"]
    assert (points[0], points[-1], len(points)) == (1, 1200, 500)
    assert json.loads(json.dumps(curves)) == curves
    assert sum(curves["reliability"]["points"]) == 1200


def test_a_single_member_and_no_other_points():
    """Catches a division by n - 1 = 0."""
    found = evaluate.classification(LOG_P[:1], Y, {"far": LOG_FAR[:1]})
    assert (found["model_disagreement"], found["auroc_md"], found["member_disagreement"]) == (0, 0.5, 0)
    assert np.isnan(found["md_ratio"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((LOG_P, Y + 1), "y holds 1 to 3: classes are 0 to 2"),
        ((LOG_P, Y, {"far": LOG_FAR[:2]}), r"far is \(2, 40, 3\): must have 5 members and 3 classes"),
        ((LOG_P, Y, {"far": np.full((5, 4, 3), np.nan)}), "far: a log-probability is not a number"),
        ((P, Y), "log_probabilities: the exponentials do not sum to one"),
    ],
)
def test_what_cannot_be_judged_is_told(arguments, message):
    with pytest.raises(ValueError, match=message):
        evaluate.classification(*arguments)


# -- blur ---------------------------------------------------------------------------------------------------


def test_blur_is_scipys_mirrored_gaussian():
    """Every channel on its own, borders mirrored without their last pixel. Catches channels mixed, height for width,
    edges repeated, and a kernel that is cut elsewhere or does not sum to one."""
    images = RANDOM.uniform(size=(2, 9, 6, 3))
    offsets = np.arange(-3, 4)
    for sigma in corruptions.SIGMAS:
        weights = np.exp(-(offsets**2) / (2 * sigma**2))
        weights /= weights.sum()
        for image, blurred in zip(images, corruptions.gaussian_blur(images, sigma), strict=True):
            for c in range(3):
                both = ndimage.correlate(image[:, :, c], np.outer(weights, weights), mode="mirror")
                np.testing.assert_allclose(blurred[:, :, c], both, atol=1e-12)


def test_blur_by_hand_and_the_identity():
    """One white pixel of 255 spreads as the outer product, rounded once. Sigma 0.1 changes nothing."""
    image = np.zeros((1, 9, 9, 1), np.uint8)
    image[0, 4, 4] = 255
    weights = np.exp(-0.5 * np.arange(-3, 4) ** 2.0)
    weights /= weights.sum()
    blurred = corruptions.gaussian_blur(image, 1.0)
    assert blurred.dtype == np.uint8
    np.testing.assert_array_equal(blurred[0, 1:8, 1:8, 0], np.rint(255 * np.outer(weights, weights)))
    np.testing.assert_array_equal(corruptions.gaussian_blur(image, 0.1), image)
    floats = RANDOM.uniform(size=(1, 8, 8, 1)).astype(np.float32)
    assert corruptions.gaussian_blur(floats, 2.0).dtype == np.float32


def test_flat_rows_are_pixels_with_their_channels_side_by_side():
    """Catches height x width x channels read as channels x height x width: the published mistake."""
    images = RANDOM.uniform(size=(2, 5, 5, 3))
    np.testing.assert_array_equal(corruptions.as_images(images.reshape(2, -1)), images)
    assert corruptions.as_images(np.zeros((3, 784))).shape == (3, 28, 28, 1)
    assert corruptions.as_images(images) is images


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: corruptions.gaussian_blur(np.zeros((1, 3, 9, 1)), 1.0),
            "images of 3 x 9 pixels: a side must be above 3",
        ),
        (lambda: corruptions.gaussian_blur(np.zeros((1, 9, 9, 1)), 0.0), "sigma = 0.0: must be positive"),
        (lambda: corruptions.gaussian_blur(np.zeros((1, 9, 9, 1)), 1.0, 6), "size = 6: must be odd"),
        (lambda: corruptions.as_images(np.zeros((2, 17))), r"inputs of shape \(17,\): neither"),
    ],
)
def test_what_cannot_be_blurred_is_told(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_corruption_judges_the_blurred_images():
    """Two patterns of stripes that a blur wipes out, and members that see their contrast. Catches the clean ECE in
    every row (the published mistake), AUROC with the sets exchanged, and labels of another order."""
    y = np.tile([0, 1], 30)
    rows, columns = np.indices((8, 8))
    patterns = np.stack([rows % 2, columns % 2])[y, :, :, None] + 0.0
    patterns += np.random.default_rng(2).normal(size=patterns.shape) * 0.05

    def members(images):
        contrast = images.std(axis=1).mean(axis=(1, 2)) - images.std(axis=2).mean(axis=(1, 2))
        logit = np.stack([4 * scale * contrast for scale in (0.8, 1.2)])
        return -np.logaddexp(0, np.stack([-logit, logit], axis=2))

    found = evaluate.corruption(members, patterns, y)
    assert [row["sigma"] for row in found] == [0.1, 0.5, 1.0, 1.5, 2.0, 3.0]
    assert found[0]["accuracy"] == 1
    assert found[0]["auroc_h"] == pytest.approx(0.5, abs=1e-12)
    assert found[-1]["auroc_h"] == 1
    assert found[-1]["ece"] > found[0]["ece"] + 0.1
