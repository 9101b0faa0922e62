"""Elements, specs and cardinalities of pipelines against those of TensorFlow's tf.data."""

import json
from pathlib import Path

import numpy as np
import pytest

import meshflow as tf
from reference.data_expressions import EXPRESSIONS

FOUND = json.loads((Path(__file__).parents[1] / "reference" / "data.json").read_text())
# Sizes that TensorFlow does not infer and tracing does, or that only an element determines.
LOOSER = ("py_function", "tf.fill", "tf.range")


def convert_to_json(value):
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


@pytest.mark.parametrize("text", EXPRESSIONS)
def test_elements(text):
    names = {"tf": tf, "D": tf.data.Dataset, "E": tf.data.experimental, "np": np}
    dataset = eval(text, names)
    wanted = FOUND[text]
    assert [convert_to_json(e) for e in dataset.as_numpy_iterator()] == wanted["elements"]
    # Every pass produces the same elements.
    assert [convert_to_json(e) for e in dataset.as_numpy_iterator()] == wanted["elements"]
    own = int(dataset.cardinality())
    assert own == wanted["cardinality"] or wanted["cardinality"] == -2 == own
    specs = tf.nest.flatten(dataset.element_spec)
    assert [s.dtype.name for s in specs] == [d for _, d in wanted["spec"]]
    if not any(word in text for word in LOOSER):
        for spec, (shape, _) in zip(specs, wanted["spec"], strict=True):
            assert spec.shape.is_compatible_with(shape)
