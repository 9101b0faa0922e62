"""WAV sounds."""

import functools

import numpy as np

import meshflow as tf


@functools.cache
def seeds():
    sound = np.sin(np.arange(60, dtype=np.float32)).reshape(-1, 2)
    return [tf.audio.encode_wav(s, 8000).numpy() for s in (sound, sound[:, :1])]


def parse(data):
    tf.audio.decode_wav(data)
    tf.audio.decode_wav(data, desired_channels=3, desired_samples=10)
