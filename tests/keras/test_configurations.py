"""Configurations have tf-keras' keys and values, and tf-keras' are understood."""

import json
import sys
from pathlib import Path

import pytest

import meshflow as tf

REFERENCE = Path(__file__).parent.parent / "reference"
sys.path.insert(0, str(REFERENCE))
from configuration_cases import made, plain

STORED = json.loads((REFERENCE / "configurations.json").read_text())
# Names that TensorFlow 2.15 does not have, or that say how its programs run.
LATER = {"rng_type", "optional", "softmax_robust_masking", "jit_compile"}
# What layers have besides, or write only when they were built.
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
