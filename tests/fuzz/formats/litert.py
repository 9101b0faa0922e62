"""LiteRT files, as the profiler reads them."""

import functools

import meshflow as tf
from fuzz.formats.files import written
from fuzz.formats.models import model
from meshflow.profiler.litert import _resize_model


@functools.cache
def seeds():
    return [tf.lite.TFLiteConverter.from_keras_model(model()).convert()]


def parse(data):
    _resize_model(written(data, "case.tflite"), None, 1)
