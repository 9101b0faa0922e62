"""Train a language model with experts and split sequences on eight virtual devices; compare the
bytes sent for equal losses.

Run it with `python examples/train_experts.py`. Tokens are sent to their experts; weights of experts
are not sent. Only gradients in 8 bits change the losses.
"""

import contextlib

import numpy as np

import meshflow as tf
from meshflow.experimental import dtensor

LAYERS = tf.keras.layers
WIDTH, TOKENS, WORDS = 64, 16, 64
CHOICES = {
    "one device": (None, "", {}),
    "experts over the batch's devices": ({"data": 8}, "batch:data, experts:data", {"zero": 1}),
    "... and sequences in a ring": (
        {"data": 4, "seq": 2},
        "batch:data, experts:data, sequence:seq",
        {"sequence": "ring"},
    ),
    "gradients in 8 bits": ({"data": 8}, "batch:data, experts:data", {"compress": "int8"}),
}


def make_model():
    """Define a model without reference to devices; groups of tokens make the experts' capacity
    equal on every mesh."""
    tokens = tf.keras.Input([TOKENS], dtype="int32")
    x = LAYERS.Embedding(WORDS, WIDTH)(tokens)
    y = LAYERS.LayerNormalization()(x)
    x = x + LAYERS.MultiHeadAttention(4, WIDTH // 4)(y, y, use_causal_mask=True)
    y = LAYERS.LayerNormalization()(x)
    x = x + LAYERS.MixtureOfExperts(16, WIDTH, groups=8, name="experts")(y)
    return tf.keras.Model(tokens, LAYERS.Dense(WORDS)(x))


def train(sizes, rules, options, tokens):
    """Train on a mesh; return the history and the bytes that a step sends."""
    tf.keras.backend.clear_session()
    tf.keras.utils.set_random_seed(1)
    scope = contextlib.nullcontext()
    if sizes:
        mesh = dtensor.create_mesh(sizes, devices=[f"CPU:{i}" for i in range(8)])
        scope = tf.distribute.MeshStrategy(mesh, rules, **options).scope()
    with scope:
        model = make_model()
        loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(tf.keras.optimizers.Adam(1e-2), loss)
    x, y = tokens[:, :-1], tokens[:, 1:]
    history = model.fit(x, y, batch_size=32, epochs=2, shuffle=False, verbose=0).history
    return history, dtensor.explain(model, x[:32], y[:32]) if sizes else None


def main():
    """Print the losses, the number of dropped tokens, and the bytes of each kind of exchange."""
    device = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(device, [tf.config.LogicalDeviceConfiguration()] * 8)
    start = np.random.default_rng(0).integers(0, WORDS, (96, 1))
    tokens = ((start + 5 * np.arange(TOKENS + 1)) % WORDS).astype("int32")
    for name, choice in CHOICES.items():
        history, step = train(*choice, tokens)
        losses = " ".join(f"{value:.5f}" for value in history["loss"])
        print(f"{name:<34}{losses}  dropped {history['experts_dropped'][-1]:.3f}")
        kinds = sorted({c.kind for c in step.collectives}) if step else []
        for kind in kinds:
            print(f"{'':<34}{kind}: {step.sent(kind):,} bytes")


if __name__ == "__main__":
    main()
