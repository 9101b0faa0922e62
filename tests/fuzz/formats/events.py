"""Event files, as `summary_iterator` reads them."""

import functools

import meshflow as tf
from fuzz.formats import tfrecord
from fuzz.formats.files import written
from meshflow.io.protos import DecodeError, Event, Summary
from meshflow.io.records import read_records


def events():
    value = Summary.Value(tag="loss", tensor=tf.make_tensor_proto([1.0, 2.0]))
    return [
        Event(wall_time=1.0, file_version="brain.Event:2"),
        Event(step=3, summary=Summary(value=[value, Summary.Value(tag="a", simple_value=1.0)])),
    ]


@functools.cache
def seeds():
    return [b"".join(tfrecord.framed(e.SerializeToString()) for e in events())]


def parse(data):
    for record in read_records(written(data), ""):
        try:
            event = Event.FromString(record)
        except DecodeError:
            continue
        for value in event.summary.value:
            if value.WhichOneof("value") == "tensor":
                try:
                    tf.make_ndarray(value.tensor)
                except TypeError:
                    continue  # an invalid dtype, as documented


def inside(seed, change, rng):
    return tfrecord.framed(change(events()[1].SerializeToString()))
