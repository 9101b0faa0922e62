"""Manifests of folders of arrays, as checkpoints were until there were bundles."""

import functools
import os
import pathlib
import tempfile
import zipfile

import meshflow as tf
from fuzz.formats.files import content


class Note(tf.train.experimental.PythonState):
    def serialize(self):
        return b""

    def deserialize(self, string_value):
        pass


@functools.cache
def folder():
    made = os.path.join(tempfile.gettempdir(), f"{os.getpid()}-checkpoint")
    stored = pathlib.Path(__file__).parents[2] / "reference" / "folder_checkpoint.zip"
    with zipfile.ZipFile(stored) as archive:
        archive.extractall(made)
    return f"{made}/older-1"


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
    parts = [tf.Variable(0), {"a/b": tf.Variable(0)}]
    tf.train.Checkpoint(parts=parts, state=Note()).read(folder())
