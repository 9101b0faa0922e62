"""Manifests of checkpoints."""

import functools
import os
import tempfile

import numpy as np

import meshflow as tf
from fuzz.formats.files import content


@functools.cache
def folder():
    made = os.path.join(tempfile.gettempdir(), f"{os.getpid()}-checkpoint")
    values = {"a": tf.Variable([1.0, 2.0]), "b": tf.Variable(np.zeros([2, 3], np.int32))}
    values |= {"c": tf.Variable(3, dtype=tf.int64)}
    return tf.train.Checkpoint(**values).write(made)


@functools.cache
def seeds():
    return [content(os.path.join(folder(), "manifest.json"))]


def parse(data):
    with open(os.path.join(folder(), "manifest.json"), "wb") as file:
        file.write(data)
    reader = tf.train.load_checkpoint(folder())
    reader.get_variable_to_dtype_map()
    for name in reader.get_variable_to_shape_map():
        reader.get_tensor(name)
    tf.train.Checkpoint(a=tf.Variable([0.0, 0.0])).read(folder())
