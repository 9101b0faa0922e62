"""`.keras` archives."""

import functools
import io
import os
import tempfile
import zipfile

import meshflow as tf
from fuzz.formats.files import content, written


@functools.cache
def model():
    return tf.keras.Sequential(
        [tf.keras.Input([2]), tf.keras.layers.Dense(2), tf.keras.layers.ReLU()]
    )


@functools.cache
def seeds():
    inputs = tf.keras.Input([2], name="x")
    functional = tf.keras.Model(inputs, tf.reduce_sum(tf.nn.relu(inputs) + 1.0, -1))
    found = []
    for number, one in enumerate((model(), functional)):
        path = os.path.join(tempfile.gettempdir(), f"{os.getpid()}-seed-{number}.keras")
        one.save(path)
        found.append(content(path))
    return found


def parse(data):
    tf.keras.models.load_model(written(data, "case.keras"), compile=False)


def inside(seed, change, rng):
    """A member is changed, and has the right checksum."""
    with zipfile.ZipFile(io.BytesIO(seed)) as archive:
        members = [(i.filename, archive.read(i)) for i in archive.infolist()]
    number = rng.randrange(len(members))
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for i, (name, member) in enumerate(members):
            archive.writestr(name, change(member) if i == number else member)
    return file.getvalue()
