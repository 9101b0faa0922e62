"""JPEG images."""

import functools

import meshflow as tf
from fuzz.formats.images import encoded, loaded


@functools.cache
def seeds():
    kinds = ({}, {"mode": "L"}, {"progressive": True}, {"subsampling": 0}, {"mode": "CMYK"})
    return [encoded("JPEG", **kind) for kind in kinds]


def parse(data):
    loaded(data)
    for decode in (
        tf.io.decode_jpeg,
        tf.io.extract_jpeg_shape,
        lambda d: tf.io.decode_jpeg(d, 3, 2),
    ):
        decode(data)
