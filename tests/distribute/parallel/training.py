"""Small models trained on one device and on meshes, for comparison."""

import contextlib

import numpy as np

import meshflow as tf
from meshflow.experimental import dtensor

LAYERS = tf.keras.layers
KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")


def mesh(**sizes):
    count = int(np.prod(list(sizes.values())))
    return dtensor.create_mesh(sizes, devices=[f"CPU:{i}" for i in range(count)])


def data(rows=32, inputs=16, outputs=8):
    rng = np.random.default_rng(3)
    x = rng.normal(size=(rows, inputs)).astype("float32")
    return x, np.tanh(x @ rng.normal(size=(inputs, outputs))).astype("float32")


def mlp():
    """Sizes that four and two devices divide, but for the scale of one layer."""
    return tf.keras.Sequential(
        [
            tf.keras.Input([16]),
            LAYERS.Dense(32, "relu"),
            LAYERS.LayerNormalization(),
            LAYERS.Dense(24, "tanh"),
            LAYERS.Dense(8),
        ]
    )


def trained(make, strategy=None, batch=None, steps=6, fit=None, **compiled):
    """Train a model by `fit`, and return its reported curves."""
    tf.keras.backend.reset_uids()
    tf.keras.utils.set_random_seed(1)
    x, y, *weights = batch or data()
    compiled = {"optimizer": lambda: tf.keras.optimizers.Adam(1e-2), "loss": "mse", **compiled}
    with strategy.scope() if strategy is not None else contextlib.nullcontext():
        model = make()
        made = {
            k: v() if k in ("optimizer", "loss", "metrics") and callable(v) else v
            for k, v in compiled.items()
        }
        model.compile(**made)
    if weights:
        fit = {"sample_weight": weights[0], **(fit or {})}
    fit = {"batch_size": 16, "epochs": steps // 2, "shuffle": False, "verbose": 0, **(fit or {})}
    return model, model.fit(x, y, **fit).history


def in_few_bits(over):
    """Return the curve and gains of a model with compressed gradients of 8,192 weights and
    uncompressed small ones."""
    strategy = tf.distribute.MeshStrategy(over, "batch:node+data", compress="int8")
    x, y = data(inputs=64, outputs=128)
    layer = lambda: tf.keras.Sequential([tf.keras.Input([64]), LAYERS.Dense(128)])
    sgd = lambda: tf.keras.optimizers.AdaScale(tf.keras.optimizers.SGD(0.05, 0.9))
    return trained(layer, strategy, (x, y), optimizer=sgd)[1]


def same_curves(got, wanted, rtol=1e-5):
    assert got.keys() == wanted.keys()
    for name, values in wanted.items():
        np.testing.assert_allclose(got[name], values, rtol=rtol, err_msg=name)


def same_weights(got, wanted, rtol=1e-4, atol=1e-5):
    for a, b in zip(got.get_weights(), wanted.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=atol)


def sent(model, *batch):
    """Bytes that each device sends in one step, by kind, and the explanation."""
    found = dtensor.explain(model, *batch)
    return {kind: found.sent(kind) for kind in KINDS if found.count(kind)}, found
