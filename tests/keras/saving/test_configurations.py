"""Configurations have tf-keras' keys and values, and tf-keras' are understood."""

import json
import sys
from pathlib import Path

import pytest

import meshflow as tf
from meshflow.keras.engine.saving.model_configuration import make_model_config, to_compile_config

REFERENCE = Path(__file__).parents[2] / "reference"
sys.path.insert(0, str(REFERENCE))
from configuration_cases import made, plain

STORED = json.loads((REFERENCE / "configurations.json").read_text())
# Names that TensorFlow 2.15 lacks, or that describe how its programs run.
LATER = {"rng_type", "optional", "softmax_robust_masking", "jit_compile"}
# Additional attributes of layers, or attributes written only after building.
OWN = {
    "layers.MultiHeadAttention": {"query_shape", "key_shape", "value_shape"},
    "layers.TextVectorization": {"vocabulary_size"},
    # Only the functions have it in TensorFlow.
    "losses.SparseCategoricalCrossentropy": {"axis"},
    "metrics.BinaryCrossentropy": {"axis"},
}


@pytest.mark.parametrize("name", [name for name in STORED if name != "version"])
def test_configuration(name):
    skipped = {"name", "fn", *LATER, *OWN.get(name, ())}
    thing, stored = made(tf.keras, name), STORED[name]
    own = plain(thing.get_config())
    ours, theirs = ({k: v for k, v in c.items() if k not in skipped} for c in (own, stored))
    assert ours == theirs
    again = type(thing).from_config(stored)
    assert {k: v for k, v in plain(again.get_config()).items() if k not in skipped} == ours


def test_files_are_readable_by_keras_2_and_3():
    layers = tf.keras.layers
    model = tf.keras.Sequential(
        [
            tf.keras.Input((4, 8, 2)),
            layers.TimeDistributed(layers.SeparableConv1D(3, 2, name="inner")),
            layers.Conv2DTranspose(2, 2),
        ]
    )
    _, outer, transposed = make_model_config(model)["config"]["layers"]
    inner = outer["config"]["layer"]
    # Keras 3 looks up a class inside another's settings by its module.
    assert (inner["module"], inner["registered_name"]) == ("keras.layers", None)
    assert "module" not in outer
    # TensorFlow refuses inherited arguments that these layers do not use.
    assert "groups" not in {*inner["config"], *transposed["config"]}
    assert "kernel_initializer" not in inner["config"]
    training = {
        "optimizer_config": {"class_name": "Adam", "config": {"jit_compile": True, "beta_1": 0.5}}
    }
    found = to_compile_config(training, {}, is_new_optimizer=True)["optimizer"]["config"]
    assert found == {"beta_1": 0.5}
