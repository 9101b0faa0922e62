"""Requests to model servers: bodies of REST, and messages of gRPC behind one byte."""

import functools
import json

import meshflow as tf
from fuzz.formats.protos import tried
from meshflow.io.protos import DecodeError
from meshflow.serving import messages
from meshflow.serving.examples import parse_json_examples
from meshflow.serving.protocol import parse_inputs, parse_request

SPECS = {
    "x": tf.TensorSpec([None, 2], tf.float32),
    "s": tf.TensorSpec([None], tf.string),
    "n": tf.TensorSpec([None], tf.int32),
}
SINGLE = {"x": SPECS["x"]}
REST, RPC = b"R", b"G"


@functools.cache
def seeds():
    bodies = [
        {"instances": [[1.0, 2.5]]},
        {
            "instances": [
                {"x": [1, 2], "s": "a", "n": 3},
                {"x": [1, 2], "s": {"b64": "YQ=="}, "n": 4},
            ]
        },
        {"inputs": {"x": [[1, 2]], "s": ["a"], "n": [1]}, "signature_name": "serving_default"},
        {"examples": [{"a": 1, "b": [1.5, 2.0], "c": {"b64": "YQ=="}}], "context": {"d": "x"}},
    ]
    predict = messages.PredictRequest()
    predict.model_spec.name = "m"
    for name, value in (("x", [[1.0, 2.0]]), ("s", ["a"]), ("n", [3])):
        proto = tf.make_tensor_proto(value, SPECS[name].dtype)
        predict.inputs[name].ParseFromString(proto.SerializeToString())
    return [
        *(REST + json.dumps(body).encode() for body in bodies),
        RPC + predict.SerializeToString(),
    ]


def parse(data):
    kind, data = data[:1], data[1:]
    if kind == RPC:
        try:
            request = messages.PredictRequest.FromString(data)
        except DecodeError:
            return
        arrays = messages.decode_inputs(request.inputs, 1 << 24)
        messages.check_inputs(request.inputs, arrays, SPECS)
        return
    body, _ = parse_request(data)
    tried(
        lambda: parse_inputs(body, SPECS),
        lambda: parse_inputs(body, SINGLE),
        lambda: parse_json_examples(body),
    )


def inside(seed, change, rng):
    return seed[:1] + change(seed[1:])
