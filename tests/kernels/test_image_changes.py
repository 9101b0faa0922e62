"""Color changes and transforms of images by the kernels are those of the equations, alone, in programs and in batches."""

import colorsys
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import meshflow as tf
from kernels.beside_xla import needs
from meshflow.kernels import colors, library, warping
from meshflow.ops.image.warping import warp

RNG = np.random.default_rng(0)


def make_images(count, *sizes):
    images = RNG.uniform(size=(count, *sizes)).astype("float32")
    images[0, 0] = 0.5
    images[-1, 0] = 0
    images[-1, -1, ..., :2] = 1
    return images


def make_forms(function, *operands):
    """Return the results of a compiled program, and mapped over a further axis."""
    twice = [np.stack([a, a]) for a in operands]
    mapped = jax.jit(jax.vmap(function))(*twice)
    return jax.jit(function)(*operands), np.asarray(mapped)[1]


@needs(library.COLORS)
@pytest.mark.parametrize("change", colors._NAMES)
@pytest.mark.parametrize("size", [(1, 1), (3, 7), (19, 31)])
def test_colors_are_those_of_the_equations(change, size):
    images = make_images(3, size[0] * size[1], 3)
    factors = np.array([0.3, -0.2, 0.0], "f4") if change == "hue" else np.array([0.5, 1, 3], "f4")
    expected = jax.jit(functools.partial(colors._compute_change, change=change))(images, factors)
    bind = functools.partial(colors.changed_colors_p.bind, change=change)
    assert "meshflow_colors" in jax.jit(bind).lower(images, factors).as_text()
    found = colors.make_host_call(change)(images, factors)
    np.testing.assert_allclose(found, expected, atol=2e-6)
    for other in make_forms(bind, images, factors):
        np.testing.assert_array_equal(other, found)


def test_colors_are_those_of_python():
    image = make_images(2, 5, 3)
    by_pixel = lambda function: np.apply_along_axis(lambda p: function(*map(float, p)), -1, image)
    hsv = tf.image.rgb_to_hsv(image)
    np.testing.assert_allclose(hsv, by_pixel(colorsys.rgb_to_hsv), atol=1e-6)
    np.testing.assert_allclose(tf.image.hsv_to_rgb(hsv), image, atol=1e-6)

    def rotate(r, g, b):
        h, s, v = colorsys.rgb_to_hsv(r, g, b)
        return colorsys.hsv_to_rgb((h + 0.4) % 1, min(1.5 * s, 1), v)

    found = tf.image.adjust_saturation(tf.image.adjust_hue(image, 0.4), 1.5)
    np.testing.assert_allclose(found, by_pixel(rotate), atol=1e-6)


@pytest.mark.parametrize("channels", [1, 2, 3])
@pytest.mark.parametrize("dtype", ["float32", "float64", "uint8"])
def test_contrast_of_each_image_and_channel(channels, dtype):
    images = (make_images(2, 9, 7, channels) * 200).astype(dtype)
    mean = images.mean((1, 2), keepdims=True, dtype="f8")
    expected = np.clip((images - mean) * 0.5 + mean, 0, 255)
    found = tf.image.adjust_contrast(images, 0.5)
    assert found.dtype == dtype
    np.testing.assert_allclose(found, expected, atol=1 if dtype == "uint8" else 1e-3)


def test_colors_have_gradients():
    image = tf.Variable(make_images(1, 3, 4, 3)[0] * 0.5 + 0.2)
    with tf.GradientTape() as tape:
        total = tf.reduce_sum(tf.image.adjust_contrast(image, 2.0) ** 2)
    mean = tf.reduce_mean(image, [0, 1])
    np.testing.assert_allclose(
        tape.gradient(total, image), 2 * mean + 8 * (image - mean), rtol=1e-4
    )


def test_wrong_channels_raise_errors():
    with pytest.raises(ValueError, match="3 channels"):
        tf.image.adjust_hue(tf.zeros([2, 2, 1]), 0.1)


MAPS = np.array(
    [
        [[1, 0.2, -3], [-0.3, 0.9, 5], [0.01, 0.02, 1]],
        [[1.7, 0.2, -30], [-0.3, 1.9, 50], [0, 0, 1]],
        [[1, 0, -3], [0, 1, 5], [0.1, 0, -1]],
        [[0.5, 0, 0.5], [0, 0.5, 0.5], [0, 0, 0]],
    ],
    "float32",
)


@needs(library.WARPED)
@pytest.mark.parametrize("fill_mode", warping.FILL_MODES)
@pytest.mark.parametrize("interpolation", ["bilinear", "nearest"])
@pytest.mark.parametrize("rows", [2, 3])
def test_transforms_are_those_of_the_equations(fill_mode, interpolation, rows):
    images, maps = make_images(4, 13, 9, 3) * 255, MAPS[:, :rows]
    options = {
        "fill_mode": fill_mode,
        "interpolation": interpolation,
        "fill_value": 7.0,
        "size": (8, 20),
    }
    # Op by op, there are no fused products.
    expected = warping._compute_images(jnp.asarray(images), jnp.asarray(maps), **options)
    bind = functools.partial(warping.warped_images_p.bind, **options)
    assert "meshflow_warped" in jax.jit(bind).lower(images, maps).as_text()
    found = warping.make_host_call([images, maps], options)(images, maps)
    np.testing.assert_allclose(found, expected, atol=1e-4)
    for other in make_forms(bind, images, maps):
        np.testing.assert_array_equal(other, found)
    if rows == 3:
        np.testing.assert_array_equal(found[3], np.full((8, 20, 3), 7))


def test_transforms_have_gradients():
    maps = np.array([[[1, 0, 1], [0, 1, 0]]], "float32")
    image = tf.Variable(make_images(1, 3, 4, 3))
    with tf.GradientTape() as tape:
        total = tf.reduce_sum(warp(image, maps))
    expected = np.ones([1, 3, 4, 3])
    expected[:, :, 0] = 0
    np.testing.assert_array_equal(tape.gradient(total, image), expected)
