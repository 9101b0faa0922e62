"""Use the flags of a Mesh-TensorFlow script: one model, and `mesh_shape` and `layout` determine the
division of work, on eight virtual devices.

Run it with `python examples/layouts_from_mesh_tensorflow.py`, or with other flags: `python
examples/layouts_from_mesh_tensorflow.py "rows:4;cols:2" "batch:rows;d_ff:cols"`. The losses agree
for every layout; the layouts differ in the part of a weight on each device, and in the bytes sent.
"""

import sys

import numpy as np

import meshflow as tf
from meshflow.experimental import dtensor

LAYERS = tf.keras.layers
D_MODEL, D_FF, WORDS, LENGTH, BATCH = 32, 128, 64, 8, 32
# --mesh_shape and --layout, as its scripts have them.
FLAGS = [
    ("", ""),
    ("all:8", "batch:all"),
    ("all:8", "d_ff:all;vocab:all"),
    ("rows:2;cols:4", "batch:rows;d_ff:cols;vocab:cols"),
    # Weights that are not divided on rows are divided there, too.
    ("rows:2;cols:4", "batch:rows;d_ff:cols;vocab:cols;d_model:rows"),
]


def make_model():
    """Define a model without reference to devices.

    Dense layers name their wider side "hidden" (d_ff in Mesh-TensorFlow), the other "embed"
    (d_model).
    """
    tokens = tf.keras.Input([LENGTH], dtype="int32")
    x = LAYERS.Embedding(WORDS, D_MODEL, name="embedding")(tokens)
    y = LAYERS.Dense(D_FF, "relu", name="wi")(LAYERS.LayerNormalization()(x))
    x = x + LAYERS.Dense(D_MODEL, name="wo")(y)
    scores = LAYERS.Dense(WORDS, dims="out:vocab", name="logits")(x)
    return tf.keras.Model(tokens, scores)


def train(mesh_shape, layout, tokens):
    """Train by the flags; return the losses, a device's part of three weights, and the explanation
    of a step."""
    tf.keras.backend.clear_session()
    tf.keras.utils.set_random_seed(1)
    with tf.distribute.from_mesh_tensorflow(mesh_shape, layout).scope():
        model = make_model()
        loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(tf.keras.optimizers.Adam(1e-2), loss)
    x, y = tokens[:, :-1], tokens[:, 1:]
    losses = model.fit(x, y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0).history["loss"]
    parts = [
        dtensor.fetch_layout(weight).local_shape(weight.shape)
        for weight in (model.get_layer(n).weights[0] for n in ("embedding", "wi", "wo"))
    ]
    return losses, parts, dtensor.explain(model, x[:BATCH], y[:BATCH])


def main():
    """Print losses, parts of weights, and the bytes of each kind of exchange."""
    device = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(device, [tf.config.LogicalDeviceConfiguration()] * 8)
    start = np.random.default_rng(0).integers(0, WORDS, (2 * BATCH, 1))
    tokens = ((start + 5 * np.arange(LENGTH + 1)) % WORDS).astype("int32")
    for mesh_shape, layout in [tuple(sys.argv[1:3])] if len(sys.argv) > 2 else FLAGS:
        losses, parts, step = train(mesh_shape, layout, tokens)
        print(f'--mesh_shape="{mesh_shape}" --layout="{layout}"')
        print("  losses    ", " ".join(f"{value:.5f}" for value in losses))
        names = ("embedding", "wi", "wo")
        shown = (f"{n} {list(map(int, part))}" for n, part in zip(names, parts, strict=True))
        print("  a device's", ", ".join(shown))
        for kind in sorted({c.kind for c in step.collectives}):
            print(f"  sends      {step.sent(kind):,} bytes by {kind}")


if __name__ == "__main__":
    main()
