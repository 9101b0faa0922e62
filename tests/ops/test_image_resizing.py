"""Test which pixels NaN and Inf affect in resized images, forward and backward."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

import meshflow as tf
from helpers import assert_close, combine

pytestmark = pytest.mark.nan_expected

# Windows of the kernels of TensorFlow 2.21 for CPUs, in pixels: the kernel multiplies every pixel of
# the window of an output pixel, also by a weight of 0.
RADII = {"bilinear": 1.0, "bicubic": 2.0, "mitchellcubic": 2.0, "lanczos3": 3.0, "lanczos5": 5.0, "gaussian": 1.5}  # fmt: skip
METHODS = [*RADII, "area", "nearest"]


def find_window(i, new, old, method, antialias):
    """Return the indices that TensorFlow's kernel reads for output pixel i."""
    scale = np.float32(old) / np.float32(new)
    half = np.float32(0.5)
    if method == "nearest":
        return [min(math.floor((i + half) * scale), old - 1)]
    if method == "area":
        return range(math.floor(i * scale), min(math.ceil((i + 1) * scale), old))
    clip = lambda p: min(max(int(p), 0), old - 1)
    if method == "bilinear" and not antialias:
        position = (np.float32(i) + half) * scale - half
        return [clip(math.floor(position)), clip(math.ceil(position))]
    if method == "bicubic" and not antialias:
        first = math.floor((np.float32(i) + half) * scale - half)
        return [clip(first + k) for k in (-1, 0, 1, 2)]
    kernel_scale = max(scale, np.float32(1)) if antialias else np.float32(1)
    reach = np.float32(RADII[method]) * kernel_scale
    start = clip(math.ceil((np.float32(i) + half) * scale - reach - half))
    return range(start, min(start + min(2 * math.ceil(reach) + 1, old), old))


def find_affected(bad, new, old, method, antialias):
    """Return the output pixels that read an input pixel."""
    return [i for i in range(new) if bad in find_window(i, new, old, method, antialias)]


def assert_not_finite(y, rows, columns, count=1):
    expected = np.zeros(y.shape, bool)
    expected[0, np.array(rows, int)[:, None], np.array(columns, int), 0] = True
    np.testing.assert_array_equal(~np.isfinite(y), expected)


@pytest.mark.parametrize(("method", "antialias"), combine(METHODS, [False, True]))
def test_bad_pixels_affect_only_their_windows(method, antialias):
    for value, size in ((np.nan, (18, 20)), (np.inf, (5, 4)), (-np.inf, (9, 27)), (np.nan, (2, 3))):
        x = np.random.default_rng(3).random((2, 9, 10, 2), np.float32)
        x[0, 4, 3, 0] = value
        resize = lambda x, s=size: tf.image.resize(x, s, method, antialias=antialias)
        rows = find_affected(4, size[0], 9, method, antialias)
        columns = find_affected(3, size[1], 10, method, antialias)
        for y in (resize(x), resize(x[0])[None]):
            assert_not_finite(y.numpy(), rows, columns)


@pytest.mark.parametrize("method", ["bilinear", "bicubic", "nearest"])
def test_bad_gradients_affect_only_their_windows(method):
    for size in ((18, 20), (5, 4), (9, 27)):
        x = tf.random.stateless_uniform([1, 9, 10, 2], [1, 2])
        cotangent = np.ones([1, *size, 2], np.float32)
        cotangent[0, 3, 2, 0] = np.nan
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.image.resize(x, size, method)
        gradient = tape.gradient(y, x, output_gradients=tf.constant(cotangent)).numpy()
        windows = [
            find_window(i, n, o, method, False) for i, n, o in ((3, size[0], 9), (2, size[1], 10))
        ]
        # The gradient may read more pixels than the kernel, but no other row or column of windows.
        bad = ~np.isfinite(gradient)
        assert bad[0, windows[0]][:, windows[1], 0].all()
        assert bad.sum() == len(set(windows[0])) * len(set(windows[1]))


@pytest.mark.parametrize(("method", "antialias"), combine(METHODS[:-1], [True, False]))
def test_gradients_are_the_transpose(method, antialias):
    for size in ((18, 20), (5, 4), (2, 3)):
        x = tf.random.stateless_uniform([1, 9, 10, 2], [1, 2])
        cotangent = tf.random.stateless_uniform([1, *size, 2], [3, 4])
        resize = lambda x, s=size: tf.image.resize(x, s, method, antialias=antialias)
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = resize(x)
        gradient = tape.gradient(y, x, output_gradients=cotangent)
        assert_close(tf.reduce_sum(gradient * x), tf.reduce_sum(y * cotangent), rtol=1e-5)
        with tf.autodiff.ForwardAccumulator(x, x) as accumulator:
            y = resize(x)
        assert_close(accumulator.jvp(y), y, atol=1e-5)


def test_gradients_of_omitted_pixels_are_zero():
    x = tf.ones([1, 9, 9, 1])
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.image.resize(x, [2, 2])
    cotangent = tf.constant(np.nan, shape=[1, 2, 2, 1])
    gradient = tape.gradient(y, x, output_gradients=cotangent).numpy()[0, :, :, 0]
    assert np.isnan(gradient).sum() == 16 and np.nansum(gradient) == 0


def test_second_order_gradients():
    x = tf.random.stateless_uniform([1, 4, 4, 1], [1, 2])
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            y = tf.reduce_sum(tf.image.resize(x, [8, 8]) ** 3)
        gradient = inner.gradient(y, x)
    product = outer.gradient(gradient, x, output_gradients=x)
    assert_close(product, 2 * gradient, rtol=1e-5)  # The gradient is homogeneous of degree 2.


def test_layers_with_bad_pixels():
    layers = tf.keras.layers
    x = np.random.default_rng(3).random((2, 9, 9, 3), np.float32)
    x[0, 4, 4, 1] = np.nan
    count = lambda y: int(np.isnan(y.numpy()).sum())
    assert count(layers.UpSampling2D(2, interpolation="bilinear")(x)) == 16
    assert count(layers.UpSampling2D((1, 3), interpolation="bicubic")(x)) == 48
    assert count(layers.Resizing(18, 18)(x)) == 16
    assert count(layers.Resizing(18, 12, crop_to_aspect_ratio=True)(x)) == 16
    assert count(tf.image.resize_with_pad(x, 18, 20)) == 16
    assert count(tf.image.crop_and_resize(x, [[0.0, 0.0, 1.0, 1.0]], [0], [9, 9])) == 1
    assert count(tf.keras.ops.image.resize(x, (18, 18))) == 16
    mapped = tf.vectorized_map(lambda image: tf.image.resize(image, [18, 18]), tf.constant(x))
    assert count(mapped) == 16
    spec = tf.TensorSpec([None, None, None, 3])
    resize = tf.function(lambda x: tf.image.resize(x, [18, 18]), input_signature=[spec])
    assert count(resize(x)) == 16
    images = tf.data.Dataset.from_tensor_slices(x).map(lambda x: tf.image.resize(x, [18, 18]))
    assert sum(map(count, images)) == 16


RESIZED = dict(np.load(Path(__file__).parents[1] / "reference" / "resized_nans.npz"))


@pytest.mark.nan_expected
@pytest.mark.parametrize("name", [n for n in RESIZED if n != "image"])
def test_nan_and_infinity_spread_as_in_tensorflow(name):
    method, height, width, antialias = name.removeprefix("grad_").split("_")
    x = tf.constant(RESIZED["image"])
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.image.resize(x, (int(height), int(width)), method, antialias=antialias == "1")
    result = y
    if name.startswith("grad_"):
        gradient = np.zeros(y.shape, "float32")
        gradient[0, 1, 1, 0], gradient[0, 2, 2, 1] = np.nan, 1
        result = tape.gradient(y, x, tf.constant(gradient))
    # The order of a sum decides between NaN and infinity.
    is_finite = np.isfinite(RESIZED[name])
    np.testing.assert_array_equal(np.isfinite(result), is_finite)
    np.testing.assert_allclose(np.asarray(result)[is_finite], RESIZED[name][is_finite], 1e-4, 1e-5)


# For a NaN in each element of the gradient of a row: the input pixels that receive it in TensorFlow 2.21.
NAN_PATTERNS = {
    "7_5_bicubic_1": "1110000 1110100 1111110 1111111 0001111",
    "14_10_bicubic_1": "11100000000000 11101000000000 11111100000000 11111111000000 00011111100000 00010111110000 "
    "00000011111100 00000000111110 00000000011111 00000000001111",
    "4_4_bicubic_0": "1110 1111 0111 0011",
    "4_4_lanczos3_0": "1111 1111 1111 1111",
    "4_4_gaussian_1": "1100 1110 1111 0011",
    "4_4_mitchellcubic_0": "1100 1110 1111 0011",
}


@pytest.mark.parametrize("name", NAN_PATTERNS)
def test_gradients_skip_weights_that_are_zero_in_tensorflow(name):
    old, new, method, antialias = name.split("_")
    old, new = int(old), int(new)
    x = tf.zeros([new, 1, old, 1])
    gradient = np.zeros((new, new), "float32")
    np.fill_diagonal(gradient, np.nan)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.image.resize(x, (1, new), method, antialias=antialias == "1")
    found = tape.gradient(y, x, tf.constant(gradient[:, None, :, None])).numpy()[:, 0, :, 0]
    expected = [[digit == "1" for digit in row] for row in NAN_PATTERNS[name].split()]
    np.testing.assert_array_equal(np.isnan(found), expected)


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("gaussian", [0.119203, 1.213014, 4.213014, 8.403985]),
        ("mitchellcubic", [0.058824, 1.111111, 4.111112, 8.705881]),
        ("lanczos3", [0, 1, 4, 9]),
        ("bicubic", [0, 1, 4, 9]),
        ("area", [0, 1, 4, 9]),
    ],
)
def test_images_of_the_same_size_are_filtered(method, expected):
    x = tf.constant([0.0, 1.0, 4.0, 9.0])[:, None]
    y = tf.image.resize(x[None], (1, 4), method)
    np.testing.assert_allclose(y[0, :, 0], expected, atol=1e-5)


def test_boxes_in_arrays_of_numpy_are_rounded():
    images, boxes = np.ones([1, 4, 4, 3]), np.array([[0.0, 0.0, 0.5, 0.5]])
    crops = tf.image.crop_and_resize(images, boxes, np.array([0]), [2, 2])
    np.testing.assert_array_equal(crops, np.ones([1, 2, 2, 3]))
    with pytest.raises((TypeError, ValueError)):
        tf.image.crop_and_resize(images, tf.constant(boxes), [0], [2, 2])


@pytest.mark.parametrize("method", ["bilinear", "bicubic", "area", "lanczos5", "nearest"])
def test_float64_images_are_resized_in_float32(method):
    image = np.random.default_rng(0).normal(size=(5, 4, 3))
    for array in (image, image[None]):
        wide = tf.image.resize(array, (3, 3), method)
        narrow = tf.image.resize(array.astype("float32"), (3, 3), method)
        assert np.array_equal(tf.cast(wide, tf.float32), narrow)
        assert wide.dtype.name == ("float64" if method == "nearest" else "float32")


@pytest.mark.parametrize("name", ["flip_left_right", "rot90", "transpose", "central_crop", "crop"])
def test_images_need_three_dimensions_that_are_not_empty(name):
    functions = {
        "central_crop": lambda x: tf.image.central_crop(x, 0.5),
        "crop": lambda x: tf.image.crop_to_bounding_box(x, 0, 0, 1, 1),
    }
    function = functions.get(name) or getattr(tf.image, name)
    for shape in ([3], [3, 3], [1, 2, 3, 3, 3]):
        with pytest.raises(ValueError, match="must have either 3 or 4 dimensions"):
            function(tf.zeros(shape))
    for shape in ([0, 2, 3], [2, 2, 2, 0]):
        with pytest.raises(tf.errors.InvalidArgumentError, match="must be > 0"):
            function(tf.zeros(shape))


def test_factors_of_colors_are_checked():
    image = tf.fill([1, 2, 1], 0.25)
    with pytest.raises(tf.errors.InvalidArgumentError, match="must be scalar"):
        tf.image.adjust_contrast(image, [1.0, 2.0])
    with pytest.raises(ValueError, match="non-negative"):
        tf.image.adjust_gamma(image, tf.constant(-1.0))
    root = tf.function(lambda x, g: tf.image.adjust_gamma(x, g))(image, tf.constant(0.5))
    assert root.numpy().ravel().tolist() == [0.5, 0.5]
    with pytest.raises(ValueError, match="at least two-dimensional"):
        tf.image.grayscale_to_rgb(tf.zeros([1]))


def test_images_are_rotated_by_computed_numbers():
    images = np.arange(2 * 4 * 4 * 3, dtype="float32").reshape(2, 4, 4, 3)
    rotate = tf.function(
        tf.image.rot90,
        input_signature=[tf.TensorSpec([2, 4, 4, 3])] + [tf.TensorSpec([], tf.int32)],
    )
    for k in range(-5, 6):
        assert np.array_equal(rotate(images, k), np.rot90(images, k, (1, 2)))
    turns = tf.data.Dataset.range(5).map(lambda k: tf.image.rot90(tf.constant(images[0]), k))
    assert turns.element_spec.shape == (4, 4, 3)
    assert np.array_equal(list(turns)[3], np.rot90(images[0], 3))
    rotate_any = tf.function(tf.image.rot90)
    for k in range(-1, 6):
        turned = np.rot90(images[:, :2], k, (1, 2))
        assert np.array_equal(rotate_any(images[:, :2], tf.constant(k)), turned)
