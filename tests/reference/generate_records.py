"""Write records.json: record files, serialized examples and tensors that TensorFlow wrote.

Run with the peers' Python from this folder: `python generate_records.py`.
"""

import base64
import json
import os
import tempfile

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import numpy as np
import tensorflow as tf
from record_expressions import EXPRESSIONS, examples, tensors


def convert_to_json(value):
    """A parsed feature as JSON: dtype and numbers, or the parts of a sparse tensor."""
    if isinstance(value, dict):
        return {k: convert_to_json(v) for k, v in value.items()}
    if isinstance(value, tuple):
        return [convert_to_json(v) for v in value]
    if isinstance(value, tf.SparseTensor):
        return [convert_to_json(p) for p in (value.indices, value.values, value.dense_shape)]
    array = np.asarray(value)
    if array.dtype == object:
        return ["O", list(array.shape), [b.decode() for b in array.reshape(-1)]]
    return [array.dtype.str, list(array.shape), array.reshape(-1).tolist()]


def encode_text(data):
    """Bytes as text."""
    return base64.b64encode(data).decode()


def main():
    single, sequence = examples(tf)
    texts = [e.SerializeToString(deterministic=True) for e in single]
    found = {
        "examples": [encode_text(t) for t in texts],
        "sequences": [encode_text(e.SerializeToString(deterministic=True)) for e in sequence],
        "files": {},
        "parsed": {},
        "errors": {},
        "tensors": [encode_text(tf.io.serialize_tensor(t).numpy()) for t in tensors(tf)],
        "protos": [encode_text(tf.make_tensor_proto(t).SerializeToString()) for t in tensors(tf)],
    }
    for kind in ("", "GZIP", "ZLIB"):
        path = tempfile.mktemp()
        with tf.io.TFRecordWriter(path, kind) as writer:
            for text in texts:
                writer.write(text)
        with open(path, "rb") as file:
            found["files"][kind] = encode_text(file.read())
    names = {
        "tf": tf,
        "examples": tf.constant(texts),
        "sequences": tf.constant([e.SerializeToString() for e in sequence]),
    }
    for text in EXPRESSIONS:
        try:
            found["parsed"][text] = convert_to_json(eval(text, dict(names)))
        except Exception as error:
            found["errors"][text] = [c.__name__ for c in type(error).__mro__[:-3]]
    with open("records.json", "w") as file:
        json.dump(found, file, indent=0)


if __name__ == "__main__":
    main()
