"""Fuzz BMP images, and WebP images, which are decoded by libraries too; others are refused."""

import functools

import meshflow as tf
from fuzz.formats.images import encoded


@functools.cache
def seeds():
    modes = ("RGB", "L", "1", "P")
    return [
        *(encoded("BMP", mode) for mode in modes),
        *(encoded("WEBP", lossless=lossless) for lossless in (False, True)),
    ]


def parse(data):
    tf.io.decode_bmp(data)
    tf.io.decode_image(data)
