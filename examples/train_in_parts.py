"""Train one language model with options of `MeshStrategy`; compare the bytes that eight virtual
devices send and hold.

Run it with `python examples/train_in_parts.py`. The losses agree; the options differ in the
location of states, gradients and weights.
"""

import numpy as np

import meshflow as tf
from meshflow.experimental import dtensor

LAYERS = tf.keras.layers
WIDTH, TOKENS, WORDS = 64, 8, 96
CHOICES = {
    "copies on all devices": ({"data": 8}, "batch:data", {}),
    "zero=1": ({"data": 8}, "batch:data", {"zero": 1}),
    "zero=3, layers again": ({"data": 8}, "batch:data", {"zero": 3, "recompute": "layer"}),
    "heads and hidden split": (
        {"data": 2, "model": 4},
        "batch:data, heads:model, hidden:model, vocab:model",
        {"zero": 1},
    ),
}


class Block(LAYERS.Layer):
    """Build causal attention, and two products."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.first, self.second = LAYERS.LayerNormalization(), LAYERS.LayerNormalization()
        self.attention = LAYERS.MultiHeadAttention(4, WIDTH // 4)
        self.up, self.down = LAYERS.Dense(4 * WIDTH, "gelu"), LAYERS.Dense(WIDTH)

    def call(self, x):
        y = self.first(x)
        x = x + self.attention(y, y, use_causal_mask=True)
        return x + self.down(self.up(self.second(x)))


def make_model():
    """Define a model without reference to devices."""
    tokens = tf.keras.Input([TOKENS], dtype="int32")
    x = LAYERS.Embedding(WORDS, WIDTH)(tokens)
    x = Block()(x)
    return tf.keras.Model(tokens, LAYERS.Dense(WORDS, dims="out:vocab")(x))


def train(sizes, rules, options, tokens):
    """Train on a mesh; return the losses, and the bytes that a step sends and holds."""
    tf.keras.backend.clear_session()
    tf.keras.utils.set_random_seed(1)
    mesh = dtensor.create_mesh(sizes, devices=[f"CPU:{i}" for i in range(8)])
    with tf.distribute.MeshStrategy(mesh, rules, **options).scope():
        model = make_model()
        loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(tf.keras.optimizers.Adam(1e-2), loss)
    x, y = tokens[:, :-1], tokens[:, 1:]
    losses = model.fit(x, y, batch_size=32, epochs=2, shuffle=False, verbose=0).history["loss"]
    return losses, dtensor.explain(model, x[:32], y[:32]), 4 * model.count_params()


def main():
    """Print the losses and the table."""
    device = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(device, [tf.config.LogicalDeviceConfiguration()] * 8)
    start = np.random.default_rng(0).integers(0, WORDS, (96, 1))
    tokens = ((start + 5 * np.arange(TOKENS + 1)) % WORDS).astype("int32")
    print(
        f"{'choice':<26}{'losses':<20}{'sent':>8}{'arguments':>11}{'temporaries':>13}  in sizes of the weights"
    )
    for name, choice in CHOICES.items():
        losses, step, weights = train(*choice, tokens)
        shown = " ".join(f"{value:.5f}" for value in losses)
        parts = [
            n / weights for n in (step.sent(), step.memory["arguments"], step.memory["temporaries"])
        ]
        print(f"{name:<26}{shown:<20}{parts[0]:>8.2f}{parts[1]:>11.2f}{parts[2]:>13.2f}")


if __name__ == "__main__":
    main()
