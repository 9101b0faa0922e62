"""Serialized examples, sequence examples and tensors."""

import functools

import meshflow as tf
from fuzz.clear import is_clear


@functools.cache
def seeds():
    train = tf.train
    feature = {
        "i": train.Feature(int64_list=train.Int64List(value=[3, 4])),
        "f": train.Feature(float_list=train.FloatList(value=[0.5])),
        "b": train.Feature(bytes_list=train.BytesList(value=[b"tea", b""])),
    }
    features = train.Features(feature=feature)
    steps = train.FeatureList(feature=[feature["i"], feature["i"]])
    lists = train.FeatureLists(feature_list={"s": steps})
    return [
        train.Example(features=features).SerializeToString(),
        train.SequenceExample(context=features, feature_lists=lists).SerializeToString(),
        tf.io.serialize_tensor(tf.range(6)).numpy(),
        tf.io.serialize_tensor(tf.constant(["a", "bc"])).numpy(),
        tf.make_tensor_proto([1.0, 2.0], shape=[3]).SerializeToString(),
    ]


def tried(*functions):
    """Call all functions; if none succeeds, raise the error of the last one, or any error that is
    not clear."""
    failures = []
    for function in functions:
        try:
            function()
        except Exception as error:
            if not is_clear(error):
                raise
            failures.append(error)
    if len(failures) == len(functions):
        raise failures[-1]


def parse(data):
    io = tf.io
    wanted = {
        "i": io.VarLenFeature(tf.int64),
        "f": io.FixedLenFeature([1], tf.float32, [0.0]),
        "b": io.FixedLenSequenceFeature([], tf.string, allow_missing=True),
    }
    context = {key: wanted[key] for key in "if"}
    steps = {"s": io.VarLenFeature(tf.int64)}
    tried(
        lambda: io.parse_single_example(data, wanted),
        lambda: io.parse_example([data, data], wanted),
        lambda: io.parse_single_sequence_example(data, context, steps),
        lambda: io.parse_sequence_example([data], context, steps),
        lambda: io.parse_tensor(data, tf.int32),
        lambda: io.parse_tensor(data, tf.float32),
        lambda: io.parse_tensor(data, tf.string),
    )
