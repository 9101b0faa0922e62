"""Test products by rules: values of one device, bytes of the formulas, and no other collectives."""

import contextlib
import json
from pathlib import Path

import numpy as np
import pytest

import forked
import meshflow as tf
from meshflow.experimental import dtensor

PROGRAM = Path(__file__).with_name("products_on_eight_devices.py")
B, T, I, O = 32, 16, 16, 48
# Bytes of the input, the kernel and the output of the products in two or three dimensions, q = d = 2.
X, W, Y = 4 * B * I, 4 * I * O, 4 * B * O
# Bytes of the rows that enter and leave a pair of products; N = 8.
ROWS = 4 * 2 * T * I
SHARE = 7 / 8
THEORY = {
    "2d": ((X + W) / 4, 2 * (X + W) / 4),
    "2.5d": ((X / 2 + W) / 4, 2 * (X / 2 + W) / 4 + W / 4),
    "3d": ((X + W + Y) / 8, (2 * X + 2 * W + Y) / 8),
    "1d": (2 * SHARE * ROWS, 2 * SHARE * ROWS),
    "heads": (2 * SHARE * ROWS, 2 * SHARE * ROWS),
    # By itself the backward pass brings the input together again.
    "split": (2 * SHARE * ROWS, 3 * SHARE * ROWS),
    "split heads": (2 * SHARE * ROWS, 3 * SHARE * ROWS),
}


def test_every_division_sends_the_bytes_of_its_formula():
    code, text = forked.run(PROGRAM.read_text(), after="import jax")
    assert code == 0, text
    found = {case.pop("name"): case for case in json.loads(text.splitlines()[-1])}
    assert list(found) == ["2d", "2.5d", "3d", "1d", "split", "heads", "split heads"]
    for name, case in found.items():
        assert case["error"] < 2e-6, name
        forward, backward = THEORY[name]
        assert sum(case["forward"].values()) == forward, name
        assert sum(case["backward"].values()) == backward, name
    for name in ("1d", "heads"):
        assert found[name]["step"] == {"all-reduce": 4 * SHARE * ROWS}
    for name in ("split", "split heads"):
        # As many bytes as with unsplit sequences.
        both = {"all-gather": 2 * SHARE * ROWS, "reduce-scatter": 2 * SHARE * ROWS}
        assert found[name]["step"] == both


def train_model(scope, x):
    tf.keras.backend.reset_uids()
    tf.keras.utils.set_random_seed(3)
    layers = tf.keras.layers
    with scope:
        inputs = tf.keras.Input((8,), dtype="int32")
        h = layers.Embedding(20, 8)(inputs)
        y = layers.LayerNormalization()(h)
        h = layers.Add()([h, layers.MultiHeadAttention(4, 4)(y, y, use_causal_mask=True)])
        y = layers.Dense(16, "relu")(layers.LayerNormalization()(h))
        h = layers.Add()([h, layers.Dense(8)(y)])
        model = tf.keras.Model(inputs, layers.Dense(20)(h))
        loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("adam", loss)
    return model.fit(x, np.roll(x, -1, 1), batch_size=8, epochs=2, verbose=0, shuffle=False)


@pytest.mark.soak
def test_fit_with_sequences_split_between_blocks_and_states_split(rng):
    x = rng.integers(0, 20, (20, 8))
    expected = train_model(contextlib.nullcontext(), x).history["loss"]
    mesh = dtensor.create_mesh({"data": 2, "model": 2})
    rules = "batch:data, vocab:model, heads:model, hidden:model, sequence:model"
    strategy = tf.distribute.MeshStrategy(mesh, rules, sequence="split", zero=1)
    found = train_model(strategy.scope(), x).history["loss"]
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("rows", [8, 5])
def test_indivisible_products_use_layouts(rows, rng):
    mesh = dtensor.create_mesh({"rows": 2, "cols": 2})
    with tf.distribute.MeshStrategy(mesh, "batch:rows, in:rows, out:cols").scope():
        layer = tf.keras.layers.Dense(6)
        x = rng.normal(size=(rows, 4)).astype("float32")
        y = layer(x)
        expected = x @ layer.kernel.numpy() + layer.bias.numpy()
    np.testing.assert_allclose(y.numpy(), expected, rtol=1e-5, atol=1e-6)
