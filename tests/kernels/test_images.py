"""Test JPEG images and bilinear resizing, compiled and interpreted, against TensorFlow 2.21."""

import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import meshflow as tf
from meshflow.kernels import jpeg, resize

Image = pytest.importorskip("PIL.Image")
decodes = pytest.mark.skipif(
    jpeg._find_decoder() is None, reason="no decoder, or no libjpeg of Pillow's"
)
loops = pytest.mark.skipif(
    resize._find_compiled_loop() is None, reason="the loops are not built here"
)
WAVES = np.sin(np.arange(37 * 53 * 3).reshape(37, 53, 3) / 41) * 120 + 128


def encode_image(mode="RGB", **options):
    file = io.BytesIO()
    Image.fromarray(WAVES.astype(np.uint8)).convert(mode).save(file, "JPEG", **options)
    return file.getvalue()


KINDS = [
    {},
    {"mode": "L"},
    {"progressive": True},
    {"subsampling": 0},
    {"subsampling": 1, "quality": 30},
]


@decodes
@pytest.mark.parametrize("kind", KINDS)
def test_the_accurate_transform_is_pillows(kind):
    contents = encode_image(**kind)
    wanted = np.asarray(Image.open(io.BytesIO(contents)))
    found = jpeg.decode(contents, 0, 1, fast=False, fancy=True)
    np.testing.assert_array_equal(found, wanted.reshape(*wanted.shape[:2], -1))
    exact = tf.io.decode_jpeg(contents, dct_method="INTEGER_ACCURATE")
    np.testing.assert_array_equal(exact, found)


@decodes
@pytest.mark.parametrize("kind", KINDS)
def test_the_fast_transform_differs_little(kind):
    contents = encode_image(**kind)
    exact = jpeg.decode(contents, 3, 1, fast=False, fancy=True).astype(int)
    found = tf.io.decode_jpeg(contents, channels=3).numpy()
    assert 0 < np.abs(found - exact).max() <= 6
    for other in (tf.io.decode_image, tf.io.decode_png):
        np.testing.assert_array_equal(other(contents, channels=3), found)
    share = tf.io.decode_image(contents, channels=3, dtype=tf.float32)
    np.testing.assert_allclose(share, found / 255, rtol=1e-6)
    np.testing.assert_array_equal(
        tf.io.decode_and_crop_jpeg(contents, [3, 5, 20, 11], 3), found[3:23, 5:16]
    )


@decodes
def test_sizes_and_channels():
    contents = encode_image()
    for ratio in (1, 2, 4, 8):
        size = [-(-37 // ratio), -(-53 // ratio)]
        assert tf.io.decode_jpeg(contents, ratio=ratio).shape == [*size, 3]
    gray = tf.io.decode_jpeg(contents, channels=1).numpy()
    luma = np.asarray(Image.open(io.BytesIO(contents)).convert("YCbCr"))[..., :1].astype(int)
    assert gray.shape == (37, 53, 1) and np.abs(gray - luma).max() <= 6
    plain = tf.io.decode_jpeg(contents, fancy_upscaling=False).numpy()
    assert (plain != tf.io.decode_jpeg(contents).numpy()).any()


def test_images_decoded_by_pillow():
    for other in (b"", b"abc", encode_image()[:20], encode_image("CMYK")):
        assert jpeg.decode(other, 0, 1, True, True) is None
    assert tf.io.decode_jpeg(encode_image("CMYK")).shape == [37, 53, 3]


@pytest.mark.parametrize("decoder", [True, False])
def test_bad_images_and_arguments(monkeypatch, decoder):
    if not decoder:
        monkeypatch.setattr(jpeg, "_find_decoder", lambda: None)
    error = tf.errors.InvalidArgumentError
    contents = encode_image()
    for decode in (tf.io.decode_jpeg, tf.io.decode_image):
        with pytest.raises(error, match="Invalid JPEG data"):
            decode(contents[: len(contents) * 9 // 10])
        with pytest.raises(error, match="channels must be 0, 1, or 3"):
            decode(contents, channels=4)
    with pytest.raises(error, match="dct_method"):
        tf.io.decode_jpeg(contents, dct_method="FLOAT")


@settings(max_examples=60, deadline=None)
@given(
    st.tuples(st.integers(1, 12), st.integers(1, 40), st.integers(1, 4)),
    st.tuples(st.integers(1, 15), st.integers(1, 50)),
    st.sampled_from(["uint8", "float32", "int32", "float16"]),
    st.booleans(),
)
def test_resizing_is_that_of_an_obvious_loop(shape, size, dtype, compiled):
    image = np.random.default_rng(0).integers(0, 255, shape).astype(dtype)
    saved = resize._find_compiled_loop
    if not compiled:
        resize._find_compiled_loop = lambda: None
    try:
        found = resize.resize_bilinear(image[::-1], *size)
    finally:
        resize._find_compiled_loop = saved
    image = image[::-1].astype(np.float32)

    def places(new, old):
        for i in range(new):
            place = (np.float32(i) + np.float32(0.5)) * np.float32(old / new) - np.float32(0.5)
            first = np.floor(place)
            low, high = (int(min(max(p, 0), old - 1)) for p in (first, first + 1))
            yield low, high, place - first

    wanted = np.empty((*size, shape[2]), np.float32)
    for y, (top, bottom, down) in enumerate(places(size[0], shape[0])):
        for x, (left, right, across) in enumerate(places(size[1], shape[1])):
            upper, lower = (
                image[r, left] + (image[r, right] - image[r, left]) * across for r in (top, bottom)
            )
            wanted[y, x] = upper + (lower - upper) * down
    np.testing.assert_array_equal(found, wanted)


# The bits of TensorFlow 2.21's tf.image.resize of the image below.
RESIZED = """
41aaaaaa 41dd5554 41d49249 42095555 420bcf3d 42340000 423d5555 426eaaaa 42736db8 4296f3d0 429cc30d 42be9249 42b2aaaa 42d75555
40a00000 42180000 41ea4927 427edb6f 42884925 42d1b6dc 42de0000 43160000 431b0001 43325b6c 434b0001 42aa6db3 43690000 41d80000
42180002 42c35556 42a2aaad 430e6db8 4316aaac 43560c31 42c50000 43242aab 423de7a5 42cef3ce 42fbe7a1 42b13cf6 432f0000 429eaaae
"""


@pytest.mark.parametrize("compiled", [pytest.param(True, marks=loops), False])
def test_resized_as_by_tensorflow(monkeypatch, compiled):
    if not compiled:
        monkeypatch.setattr(resize, "_find_compiled_loop", lambda: None)
    image = (np.arange(5 * 4 * 2).reshape(5, 4, 2) ** 2 % 251).astype(np.uint8)
    found = resize.resize_bilinear(image, 3, 7)
    assert [f"{bits:08x}" for bits in found.view(np.uint32).ravel()] == RESIZED.split()
