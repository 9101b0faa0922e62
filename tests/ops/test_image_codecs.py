"""Test encoded images against TensorFlow's decoders (tests/reference/generate_images.py), and round
trips."""

import zlib
from pathlib import Path

import numpy as np
import pytest

import meshflow as tf
from meshflow.ops.image import codecs

STORED = dict(np.load(Path(__file__).parent.parent / "reference" / "images.npz"))
CASES = [tuple(str(e).split("|")) for e in STORED["expressions"]]
RGB = STORED["rgb.png_0"]


@pytest.mark.parametrize(("name", "expression"), CASES, ids=[f"{n} {e}" for n, e in CASES])
def test_decoding(name, expression):
    number = [e for n, e in CASES if n == name].index(expression)
    expected = STORED[f"{name}_{number}"]
    found = eval(expression, {"tf": tf, "c": tf.constant(STORED[name].tobytes())}).numpy()
    assert found.dtype == expected.dtype and found.shape == expected.shape
    if "jpg" not in name or found.size < 4:
        np.testing.assert_array_equal(found, expected)
        return
    # Decoders of JPEG differ in rounding, and in how they enlarge the colours.
    unit = 1 if found.dtype == np.uint8 else 1 / 255
    difference = np.abs(found.astype(np.float64) - expected) / unit
    assert difference.max() <= 6 and difference.mean() < 1.5


@pytest.mark.parametrize("quality", [20, 80])
def test_adjust_jpeg_quality(quality):
    found = tf.image.adjust_jpeg_quality(RGB, quality).numpy()
    assert found.dtype == np.uint8
    expected = STORED[f"quality_{quality}"].astype(int)
    assert np.abs(found.astype(int) - expected).mean() < 1.5
    share = tf.image.convert_image_dtype(RGB, tf.float32)
    found = tf.image.adjust_jpeg_quality(share, quality)
    assert found.dtype is tf.float32
    assert np.abs(found.numpy() - STORED[f"quality_float_{quality}"]).mean() < 1.5 / 255


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_png_is_exact(channels):
    image = STORED["rgba.png_0"][..., :channels]
    coded = tf.io.encode_png(image)
    np.testing.assert_array_equal(tf.io.decode_png(coded), image)
    np.testing.assert_array_equal(tf.image.decode_image(tf.image.encode_png(image, 9)), image)
    deep = STORED["deep.png_0"]
    np.testing.assert_array_equal(tf.io.decode_png(tf.io.encode_png(deep), dtype=tf.uint16), deep)


def test_jpeg_is_close():
    rough, fine = (tf.io.encode_jpeg(RGB, quality=q, chroma_downsampling=False) for q in (10, 98))
    assert len(rough.numpy()) < len(fine.numpy())
    assert bool(tf.io.is_jpeg(fine)) and not bool(tf.io.is_jpeg(tf.io.encode_png(RGB)))
    exact = [tf.io.decode_jpeg(c, dct_method="INTEGER_ACCURATE").numpy() for c in (rough, fine)]
    error = [np.abs(pixels.astype(int) - RGB).mean() for pixels in exact]
    assert error[1] < 2 < error[0]
    gray = tf.io.encode_jpeg(RGB[..., :1], format="grayscale", progressive=True)
    assert tf.io.extract_jpeg_shape(gray).numpy().tolist() == [16, 20, 1]
    assert tf.image.extract_jpeg_shape(fine, tf.int64).dtype is tf.int64


def test_random_jpeg_quality():
    wide = tf.image.stateless_random_jpeg_quality(RGB, 60, 95, seed=[1, 2]).numpy()
    np.testing.assert_array_equal(
        tf.image.stateless_random_jpeg_quality(RGB, 60, 95, seed=[1, 2]), wide
    )
    one = tf.image.adjust_jpeg_quality(RGB, 75).numpy()
    # From 75 to 76 there is only one quality.
    np.testing.assert_array_equal(tf.image.random_jpeg_quality(RGB, 75, 76), one)
    np.testing.assert_array_equal(tf.image.stateless_random_jpeg_quality(RGB, 75, 76, [3, 4]), one)
    with pytest.raises(ValueError, match="min"):
        tf.image.random_jpeg_quality(RGB, 80, 20)
    with pytest.raises(ValueError, match="min"):
        tf.image.stateless_random_jpeg_quality(RGB, -1, 20, [1, 2])


def test_errors():
    for decode in (
        tf.io.decode_jpeg,
        tf.io.decode_png,
        tf.io.decode_bmp,
        tf.io.decode_gif,
        tf.io.decode_image,
        tf.io.extract_jpeg_shape,
    ):
        with pytest.raises(tf.errors.InvalidArgumentError):
            decode(b"no image")
    with pytest.raises(tf.errors.InvalidArgumentError, match="uint8"):
        tf.io.encode_jpeg(tf.zeros([2, 2, 3]))
    with pytest.raises(tf.errors.InvalidArgumentError, match="format"):
        tf.io.encode_jpeg(RGB, format="grayscale")
    with pytest.raises(tf.errors.InvalidArgumentError, match="channels"):
        tf.io.encode_png(tf.zeros([2, 2, 5], tf.uint8))
    with pytest.raises(ValueError, match="ratio"):
        tf.io.decode_jpeg(STORED["rgb.jpg"].tobytes(), ratio=3)
    with pytest.raises(ValueError, match="must be >= target"):
        tf.image.decode_and_crop_jpeg(STORED["rgb.jpg"].tobytes(), [10, 0, 10, 5])


def test_images_of_all_sizes_need_no_compiling():
    for height in (11, 12, 13):
        pixels = np.random.default_rng(height).integers(0, 256, (height, 9, 3)).astype(np.uint8)
        image = tf.io.decode_png(tf.io.encode_png(pixels))
        np.testing.assert_array_equal(image, pixels)
        floats = tf.image.convert_image_dtype(image, tf.float32)
        compiled = tf.image.convert_image_dtype(pixels, tf.float32)
        np.testing.assert_array_equal(floats, compiled)
        # NumPy created them: XLA would compile for each size and return arrays of its own.
        for tensor in (image, floats, tf.image.resize(floats, (4, 4))):
            assert type(tensor._value) is np.ndarray
    with tf.GradientTape() as tape:
        tape.watch(floats)
        total = tf.reduce_sum(tf.image.resize(floats, (4, 4)))
    assert tape.gradient(total, floats).shape == floats.shape


@pytest.mark.parametrize("height, width", [(1, 1), (1, 100), (3, 9)])
def test_images_thinner_than_a_block_are_scaled_by_pillow(monkeypatch, height, width):
    monkeypatch.setattr(codecs, "_decode_jpeg_pixels", lambda *_: None)
    data = tf.io.encode_jpeg(np.full((height, width, 3), 100, np.uint8))
    for ratio in (2, 4, 8):
        image = tf.io.decode_jpeg(data, ratio=ratio)
        assert image.shape == (-(-height // ratio), -(-width // ratio), 3)
        np.testing.assert_allclose(image, 100, atol=2)


@pytest.mark.filterwarnings("ignore")
def test_quality_of_a_traced_function():
    image = tf.constant(np.random.default_rng(0).uniform(size=(16, 16, 3)), tf.float32)
    expected = tf.image.adjust_jpeg_quality(image, 30)
    adjust = tf.function(tf.image.adjust_jpeg_quality)
    assert np.array_equal(adjust(image, tf.constant(30)), expected)
    draw = tf.function(lambda x: tf.image.random_jpeg_quality(x, 30, 31))
    assert np.array_equal(draw(image), expected)


def test_chunks_before_the_header_of_png_files_do_not_change_its_size():
    image = np.full((300, 300, 3), 7, np.uint8)
    contents = tf.io.encode_png(image).numpy()
    # A chunk that decoders skip, with the contents of a header of a smaller image.
    chunk = b"aaAa" + b"\0\0\0\2" * 2 + b"\x08\2\0\0\0"
    chunk = b"\0\0\0\x0d" + chunk + zlib.crc32(chunk).to_bytes(4, "big")
    try:
        found = tf.io.decode_png(contents[:8] + chunk + contents[8:], channels=3)
    except tf.errors.InvalidArgumentError:
        return
    np.testing.assert_array_equal(found, image)
