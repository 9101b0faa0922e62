"""Write data.json: elements and specs of the pipelines in data_expressions.py, by TensorFlow.

Run with the peers' Python from this folder: `python generate_data.py`.
"""

import json
import os

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import numpy as np
import tensorflow as tf
from data_expressions import EXPRESSIONS


def convert_to_json(value):
    """An element as JSON."""
    if isinstance(value, dict):
        return {k: convert_to_json(v) for k, v in value.items()}
    if isinstance(value, tuple):
        return [convert_to_json(v) for v in value]
    if isinstance(value, bytes):
        return value.decode()
    array = np.asarray(value)
    if array.dtype == object:
        return [array.dtype.str, np.vectorize(lambda b: b.decode())(array).tolist()]
    return [array.dtype.str, array.tolist()]


def main():
    found = {}
    names = {"tf": tf, "D": tf.data.Dataset, "E": tf.data.experimental, "np": np}
    for text in EXPRESSIONS:
        dataset = eval(text, dict(names))
        specs = [
            [None if s.shape.rank is None else s.shape.as_list(), s.dtype.name]
            for s in tf.nest.flatten(dataset.element_spec)
        ]
        found[text] = {
            "elements": [convert_to_json(e) for e in dataset.as_numpy_iterator()],
            "spec": specs,
            "cardinality": int(dataset.cardinality()),
        }
    with open("data.json", "w") as file:
        json.dump(found, file, indent=0)


if __name__ == "__main__":
    main()
