"""Random changes of images: each is one of the fixed changes, by a number from the right range."""

import numpy as np
import pytest

import meshflow as tf
from helpers import assert_close

RNG = np.random.default_rng(0)
IMAGE = RNG.uniform(size=(5, 6, 3)).astype("float32")
BATCH = RNG.uniform(size=(40, 4, 5, 3)).astype("float32")
SEEDS = [[n, 7] for n in range(25)]
# For each adjustment: its effect, its limits, and invalid arguments.
CHANGES = {
    "brightness": (tf.image.adjust_brightness, (0.3,), (-0.3, 0.3), [(-0.1,)]),
    "contrast": (tf.image.adjust_contrast, (0.5, 1.8), (0.5, 1.8), [(2.0, 1.0), (-1.0, 1.0)]),
    "saturation": (tf.image.adjust_saturation, (0.5, 1.8), (0.5, 1.8), [(2.0, 1.0), (-1.0, 1.0)]),
    "hue": (tf.image.adjust_hue, (0.4,), (-0.4, 0.4), [(-0.1,), (0.6,)]),
}
STATEFUL = {
    "brightness": tf.image.random_brightness,
    "contrast": tf.image.random_contrast,
    "saturation": tf.image.random_saturation,
    "hue": tf.image.random_hue,
    "left_right": tf.image.random_flip_left_right,
    "up_down": tf.image.random_flip_up_down,
}
STATELESS = {
    "brightness": tf.image.stateless_random_brightness,
    "contrast": tf.image.stateless_random_contrast,
    "saturation": tf.image.stateless_random_saturation,
    "hue": tf.image.stateless_random_hue,
    "left_right": tf.image.stateless_random_flip_left_right,
    "up_down": tf.image.stateless_random_flip_up_down,
}


def number(name, changed):
    """Return the number by which an image was adjusted."""
    if name == "brightness":
        return float(np.mean(changed - IMAGE))
    if name == "contrast":
        centred = [x - x.mean((0, 1)) for x in (changed, IMAGE)]
        return float(np.sum(centred[0] * centred[1]) / np.sum(centred[1] ** 2))
    if name == "saturation":
        ratio = tf.image.rgb_to_hsv(changed)[..., 1] / tf.image.rgb_to_hsv(IMAGE)[..., 1]
        # Saturation ends at 1, so the largest ratio is the number.
        return float(np.max(ratio))
    moved = (tf.image.rgb_to_hsv(changed)[..., 0] - tf.image.rgb_to_hsv(IMAGE)[..., 0]).numpy()
    return float(np.median((moved + 0.5) % 1.0 - 0.5))


@pytest.mark.parametrize("name", CHANGES)
def test_changes_by_a_random_number(name):
    adjust, arguments, (low, high), wrong = CHANGES[name]
    stateful, stateless = STATEFUL[name], STATELESS[name]
    found = []
    for seed in SEEDS:
        changed = stateless(IMAGE, *arguments, seed=seed)
        assert changed.shape == IMAGE.shape and changed.dtype is tf.float32
        n = number(name, changed.numpy())
        assert low - 1e-3 <= n <= high + 1e-3
        assert_close(changed, adjust(IMAGE, n).numpy(), 1e-3, 2e-4)
        found.append(n)
    # The numbers spread over the range.
    assert max(found) - min(found) > 0.6 * (high - low) and len(set(found)) == len(found)
    np.testing.assert_array_equal(
        stateless(IMAGE, *arguments, seed=[1, 2]), stateless(IMAGE, *arguments, seed=[1, 2])
    )
    tf.random.set_seed(3)
    draws = [stateful(IMAGE, *arguments).numpy() for _ in range(2)]
    assert not np.allclose(*draws)
    tf.random.set_seed(3)
    np.testing.assert_array_equal(stateful(IMAGE, *arguments), draws[0])
    n = number(name, draws[0])
    assert_close(draws[0], adjust(IMAGE, n).numpy(), 1e-3, 2e-4)
    for bad in wrong:
        with pytest.raises(ValueError):
            stateful(IMAGE, *bad)
        with pytest.raises(ValueError):
            stateless(IMAGE, *bad, seed=[1, 2])


@pytest.mark.parametrize("name", CHANGES)
def test_integer_images_keep_their_dtype(name):
    image = (IMAGE * 255).astype("uint8")
    changed = STATELESS[name](image, *CHANGES[name][1], seed=[1, 2])
    assert changed.dtype is tf.uint8
    as_floats = STATELESS[name](image.astype("float32") / 255, *CHANGES[name][1], seed=[1, 2])
    expected = np.clip(as_floats.numpy() * 255, 0, 255)
    assert np.abs(changed.numpy() - expected).max() <= 1.01


@pytest.mark.parametrize("side", ["left_right", "up_down"])
def test_flips_half_of_the_images(side):
    flip = getattr(tf.image, f"flip_{side}")
    stateful, stateless = STATEFUL[side], STATELESS[side]
    tf.random.set_seed(2)
    for changed in (stateful(BATCH).numpy(), stateless(BATCH, [1, 2]).numpy()):
        flipped = [np.array_equal(c, x) for c, x in zip(changed, flip(BATCH).numpy(), strict=True)]
        kept = [np.array_equal(c, x) for c, x in zip(changed, BATCH, strict=True)]
        assert [not f for f in flipped] == kept
        assert 8 < sum(kept) < 32
    np.testing.assert_array_equal(stateless(BATCH, [1, 2]), stateless(BATCH, [1, 2]))
    alone = [np.array_equal(stateless(IMAGE, s), IMAGE) for s in SEEDS]
    assert 3 < sum(alone) < 22
    compiled = tf.function(lambda x: stateless(x, [1, 2]))
    np.testing.assert_array_equal(compiled(BATCH), stateless(BATCH, [1, 2]))


def test_crops_at_every_place():
    rows = np.arange(20).reshape(4, 5, 1)
    corners = set()
    for n in range(60):
        part = tf.image.stateless_random_crop(rows, [3, 4, 1], seed=[n, 0]).numpy()
        top, left = divmod(int(part[0, 0, 0]), 5)
        np.testing.assert_array_equal(part, rows[top : top + 3, left : left + 4])
        corners.add((top, left))
    assert corners == {(0, 0), (0, 1), (1, 0), (1, 1)}
    part = tf.image.random_crop(rows, [2, 5, 1], seed=1).numpy()
    np.testing.assert_array_equal(part, rows[part[0, 0, 0] // 5 :][:2])
    np.testing.assert_array_equal(
        tf.image.stateless_random_crop(BATCH, BATCH.shape, seed=[1, 2]), BATCH
    )
    for crop in (
        lambda size: tf.image.random_crop(rows, size),
        lambda size: tf.image.stateless_random_crop(rows, size, seed=[1, 2]),
    ):
        with pytest.raises(tf.errors.InvalidArgumentError, match="size"):
            crop([5, 5, 1])


def test_resize_methods():
    assert {m: getattr(tf.image.ResizeMethod, m) for m in ("BILINEAR", "NEAREST_NEIGHBOR")} == {
        "BILINEAR": "bilinear",
        "NEAREST_NEIGHBOR": "nearest",
    }
    for name in ("AREA", "BICUBIC", "GAUSSIAN", "LANCZOS3", "LANCZOS5", "MITCHELLCUBIC"):
        method = getattr(tf.image.ResizeMethod, name)
        assert method == name.lower()
        assert tf.image.resize(IMAGE, [3, 4], method).shape == [3, 4, 3]


@pytest.mark.parametrize("size", [(2, 2), (3, 5)])
def test_interpolated_images_are_float32(size):
    images = tf.reshape(tf.range(4, dtype=tf.float64), (1, 2, 2, 1))
    assert tf.image.resize(images, size).dtype == tf.float32
    assert tf.image.resize(images, size, method="nearest").dtype == tf.float64


def test_saturation_checks_channels_and_negative_values():
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="3 channels but instead has 1 channels"
    ):
        tf.image.adjust_saturation(np.ones([2, 2, 1], np.float32), 0.5)
    negative = np.array([[[-3, -1, -2]]], np.float32)
    assert tf.image.rgb_to_hsv(negative)[0, 0, 1] == 0
    np.testing.assert_array_equal(tf.image.adjust_saturation(negative, -0.5), [[[-1, -1, -1]]])
