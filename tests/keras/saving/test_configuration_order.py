"""Compare configurations of objects and models with tf-keras, including the order of keys."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

import meshflow as tf

REFERENCE = Path(__file__).parents[2] / "reference"
sys.path.insert(0, str(REFERENCE))
from sweep_cases import MODELS, SEEDED, made, objects, said_of_model, text_of

keras = tf.keras
STORED = json.loads((REFERENCE / "sweep.json").read_text())


def space_of(name):
    return name.partition("(")[0].rpartition(".")[0]


@pytest.mark.parametrize("space", sorted({space_of(name) for name in objects()}))
def test_objects(space):
    said, again = {}, {}
    for name in filter(lambda name: space_of(name) == space, objects()):
        thing = made(keras, name)
        data = keras.saving.serialize_keras_object(thing)
        said[name] = text_of(data)
        read = keras.saving.deserialize_keras_object(json.loads(json.dumps(data)))
        again[name] = text_of(keras.saving.serialize_keras_object(read))
        assert type(read) is type(thing)
    assert said == {name: STORED[name] for name in said}
    assert again == said


@pytest.mark.parametrize("name", MODELS)
def test_models(name):
    said = said_of_model(keras, name)
    assert said == STORED[name]
    again = keras.models.model_from_json(STORED[name]["json"])
    assert text_of(json.loads(again.to_json())) == said["json"]


def test_seeded_numbers_equal_tensorflow():
    for name in (name for name in objects() if "seed=" in name and name.startswith("initializers")):
        for shape in SEEDED:
            values = made(keras, name)(eval(shape)).numpy().ravel()
            np.testing.assert_allclose(
                values, STORED[f"{name}{shape}"], rtol=1e-5, atol=5e-6, err_msg=name
            )
