"""Graphs of SavedModels of TensorFlow's."""

import functools
import os
import pathlib
import tarfile
import tempfile

import meshflow as tf
from fuzz.formats.files import content

STORED = pathlib.Path(__file__).parents[2] / "reference" / "saved_models.tar.xz"


@functools.cache
def folder():
    made = os.path.join(tempfile.gettempdir(), f"{os.getpid()}-saved-models")
    with tarfile.open(STORED) as archive:
        archive.extractall(made, filter="data")
    return os.path.join(made, "module")


@functools.cache
def seeds():
    return [content(os.path.join(folder(), "saved_model.pb"))]


def parse(data):
    with open(os.path.join(folder(), "saved_model.pb"), "wb") as file:
        file.write(data)
    loaded = tf.saved_model.load(folder())
    if "serving_default" in loaded.signatures:
        signature = loaded.signatures["serving_default"]
        inputs = {name: tf.ones([1, 2]) for name in signature.structured_input_signature[1]}
        # Tracing interprets the graph; a compilation would take ten times as long.
        tf.function(lambda: signature(**inputs)).get_concrete_function()


def inside(seed, change, rng):
    """A node is changed, in a message that can be read."""
    from meshflow.saved_model.graph.format.messages import DecodeError, SavedModel

    content = SavedModel.FromString(seed)
    meta = content.meta_graphs[0]
    places = [
        [n for f in meta.graph_def.library.function for n in f.node_def],
        meta.object_graph_def.nodes,
        meta.graph_def.library.function,
    ]
    chosen = rng.choice(rng.choice(places))
    try:
        chosen.ParseFromString(change(chosen.SerializeToString()))
    except DecodeError:
        chosen.Clear()
    return content.SerializeToString()
