"""Fuzz HDF5 files of weights and of complete models."""

import functools
import os
import tempfile

import meshflow as tf
from fuzz.formats.files import content, written
from fuzz.formats.models import model
from fuzz.formats.protos import tried


@functools.cache
def seeds():
    found = []
    for number, save in enumerate((model().save_weights, model().save)):
        path = os.path.join(tempfile.gettempdir(), f"{os.getpid()}-seed-{number}.h5")
        save(path)
        found.append(content(path))
    return found


def parse(data):
    path = written(data, "case.h5")
    tried(
        lambda: model().load_weights(path),
        lambda: tf.keras.models.load_model(path, compile=False),
    )
