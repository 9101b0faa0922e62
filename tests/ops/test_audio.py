"""WAV files: TensorFlow's bytes and samples."""

import pytest

import meshflow as tf
from helpers import assert_close


def test_wav_files():
    file = tf.audio.encode_wav([[0.0], [0.5], [-1.0], [1.0], [-3.0]], 8000)
    # What TensorFlow writes.
    head = b"RIFF.\0\0\0WAVEfmt \x10\0\0\0\x01\0\x01\0@\x1f\0\0\x80>\0\0\x02\0\x10\0data\n\0\0\0"
    assert file.numpy() == head + b"\0\0\0@\0\x80\xff\x7f\0\x80"
    audio, rate = tf.audio.decode_wav(file)
    assert audio.dtype is tf.float32 and rate.dtype is tf.int32 and rate.numpy() == 8000
    assert_close(audio, [[0], [0.5], [-1], [0.9999695], [-1]])
    wide = tf.audio.decode_wav(file, desired_channels=2, desired_samples=7).audio
    assert wide.shape == [7, 2] and wide.numpy()[1].tolist() == [0.5, 0.5]
    assert not wide.numpy()[5:].any()
    two = tf.audio.encode_wav([[0.25, -0.5]], 8000)
    assert tf.audio.decode_wav(two, desired_channels=1).audio.numpy().tolist() == [[0.25]]


@pytest.mark.parametrize("content", [b"xx", b"RIFF\0\0\0\0WAVE", b"RIFF\0\0\0\0AVI "])
def test_what_is_no_wav_file(content):
    with pytest.raises(tf.errors.InvalidArgumentError, match="decode_wav"):
        tf.audio.decode_wav(content)


def test_arguments():
    with pytest.raises(tf.errors.InvalidArgumentError, match="2-dimensional"):
        tf.audio.encode_wav([0.0], 8000)
    with pytest.raises(tf.errors.InvalidArgumentError, match="sample_rate"):
        tf.audio.encode_wav([[0.0]], 0)


def test_a_file_that_is_cut_off():
    whole = tf.audio.encode_wav([[0.0], [0.5]], 8000).numpy()
    with pytest.raises(tf.errors.InvalidArgumentError, match="too short"):
        tf.audio.decode_wav(whole[:-1])
