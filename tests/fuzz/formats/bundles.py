"""TensorFlow's checkpoints: the index, the data, and the graph of objects behind their checksums."""

import functools
import io
import os
import tempfile

import numpy as np

import meshflow as tf
from fuzz.formats.files import content
from meshflow.checkpoint.bundle import BundleReader
from meshflow.checkpoint.bundle_writer import write_bundle
from meshflow.checkpoint.object_graph_message import GRAPH_KEY, collect_arrays
from meshflow.checkpoint.slices import ArrayParts
from meshflow.checkpoint.sstable import read_table, write_table

INDEX, DATA, OBJECTS = b"I", b"D", b"O"


def objects():
    model = tf.keras.Sequential([tf.keras.Input([2]), tf.keras.layers.Dense(2)])
    model.compile(tf.keras.optimizers.legacy.Adam(), "mse")
    model.optimizer.build(model.trainable_variables)
    return tf.train.Checkpoint(model=model, texts=tf.Variable(["a", "", "b" * 40]))


@functools.cache
def arrays():
    halves = [
        (((0, 2), (0, -1)), np.ones([2, 2], "float32")),
        (((2, 2), (0, -1)), np.ones([2, 2], "float32")),
    ]
    return {
        **collect_arrays(objects()),
        "parts": ArrayParts((4, 2), halves),
        "half": np.float16([1, 2]),
    }


@functools.cache
def whole():
    made = os.path.join(tempfile.gettempdir(), f"{os.getpid()}-bundle")
    write_bundle(made, arrays())
    return made


def index():
    return f"{whole()}.index"


def data():
    return f"{whole()}.data-00000-of-00001"


@functools.cache
def seeds():
    return [INDEX + content(index()), DATA + content(data()), OBJECTS + arrays()[GRAPH_KEY].item()]


@functools.cache
def reader():
    return objects()


def parse(case):
    path = os.path.join(tempfile.gettempdir(), f"{os.getpid()}-bundle-case")
    kind, case = case[:1], case[1:]
    if kind == OBJECTS:
        write_bundle(path, {**arrays(), GRAPH_KEY: np.array(case, object)})
    else:
        for place, own, original in (
            (f"{path}.index", INDEX, index()),
            (f"{path}.data-00000-of-00001", DATA, data()),
        ):
            with open(place, "wb") as file:
                file.write(case if kind == own else content(original))
    try:
        stored = tf.train.load_checkpoint(path)
        stored.get_variable_to_dtype_map()
        for name in stored.get_variable_to_shape_map():
            stored.get_tensor(name)
        BundleReader(path).open("parts")[1:3]
        reader().read(path)
    finally:
        for name in os.listdir(tempfile.gettempdir()):
            if name.startswith(os.path.basename(path)):
                os.unlink(os.path.join(tempfile.gettempdir(), name))


def inside(seed, change, rng):
    """An entry is changed, and the checksums are right."""
    kind, rest = seed[:1], seed[1:]
    if kind != INDEX:
        return kind + change(rest)
    items = list(read_table(rest))
    which = rng.randrange(len(items))
    items[which] = (items[which][0], change(items[which][1]))
    file = io.BytesIO()
    write_table(file, items)
    return INDEX + file.getvalue()
