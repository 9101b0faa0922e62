"""Fuzz manifests of our SavedModels, and call their functions."""

import functools
import json
import os
import pathlib
import tempfile

import meshflow as tf
from helpers import read_manifest


@functools.cache
def folder():
    made = os.path.join(tempfile.gettempdir(), f"{os.getpid()}-saved")
    module = tf.Module()
    module.weight, module.parts = tf.Variable([1.0, 2.0]), [tf.Variable(3)]
    run = tf.function(lambda x: {"y": x * module.weight}, input_signature=[tf.TensorSpec([2])])
    module.run = run
    tf.saved_model.save(module, made, signatures=run)
    return made


@functools.cache
def seeds():
    return [json.dumps(read_manifest(pathlib.Path(folder()))).encode()]


def parse(data):
    with open(os.path.join(folder(), "manifest.json"), "wb") as file:
        file.write(data)
    loaded = tf.saved_model.load(folder())
    for signature in loaded.signatures.values():
        signature(**{name: tf.ones([2]) for name in signature.structured_input_signature[1]})
    if hasattr(loaded, "run"):
        loaded.run(tf.ones([2]))
