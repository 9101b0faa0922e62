"""`tf.audio`: numbers and bytes are TensorFlow's."""

import numpy as np
import pytest

import meshflow as tf

SOUND = np.array([[0.0, 0.5], [1.0, -1.0], [1.5, -2.0], [0.00001525, 0.000046]], "float32")
FILE = (
    b"RIFF4\x00\x00\x00WAVEfmt \x10\x00\x00\x00\x01\x00\x02\x00@\x1f\x00\x00\x00}\x00\x00\x04\x00\x10\x00"
    b"data\x10\x00\x00\x00\x00\x00\x00@\xff\x7f\x00\x80\xff\x7f\x00\x80\x00\x00\x02\x00"
)
BACK = np.array([[0, 0.5], [0.99996948, -1], [0.99996948, -1], [0, 6.1035156e-05]], "float32")


def test_encoded_bytes():
    assert tf.audio.encode_wav(SOUND, 8000).numpy() == FILE


@pytest.mark.parametrize(
    ("channels", "samples", "expected"),
    [
        (-1, -1, BACK),
        (1, -1, BACK[:, :1]),
        (3, -1, BACK[:, [0, 1, 1]]),
        (-1, 2, BACK[:2]),
        (-1, 6, np.pad(BACK, [(0, 2), (0, 0)])),
    ],
)
def test_decoded(channels, samples, expected):
    audio, rate = tf.audio.decode_wav(FILE, channels, samples)
    np.testing.assert_allclose(audio, expected, atol=1e-8)
    assert audio.dtype == tf.float32 and rate.dtype == tf.int32 and int(rate) == 8000


def test_in_a_pipeline(tmp_path):
    (tmp_path / "a.wav").write_bytes(FILE)
    files = tf.data.Dataset.list_files(str(tmp_path / "*.wav"))
    sounds = files.map(
        lambda f: tf.squeeze(tf.audio.decode_wav(tf.io.read_file(f), 1).audio, axis=-1)
    )
    np.testing.assert_allclose(next(iter(sounds)), BACK[:, 0], atol=1e-8)


@pytest.mark.parametrize("bad", [b"abc", FILE[:50], b""])
def test_other_bytes(bad):
    with pytest.raises(tf.errors.InvalidArgumentError, match="decode_wav"):
        tf.audio.decode_wav(bad)


def test_other_shapes():
    with pytest.raises(tf.errors.InvalidArgumentError, match="2-dimensional"):
        tf.audio.encode_wav(np.zeros(3, "float32"), 8000)
    with pytest.raises(tf.errors.InvalidArgumentError, match="scalar"):
        tf.audio.decode_wav([FILE])
