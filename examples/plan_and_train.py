"""A language model planned for machines that are not here, and a small one trained as planned, on eight virtual devices.

Run it with `python examples/plan_and_train.py`; `meshflow plan examples/plan_and_train.py --devices 64 --memory 1MB --batch 512`
stops before it trains and plans the small model for 64 devices.
"""

import numpy as np

import meshflow as tf

LAYERS = tf.keras.layers


class Block(LAYERS.Layer):
    """Build causal attention, and two products."""

    def __init__(self, width, heads, **kwargs):
        super().__init__(**kwargs)
        self.first, self.second = LAYERS.LayerNormalization(), LAYERS.LayerNormalization()
        self.attention = LAYERS.MultiHeadAttention(heads, width // heads)
        self.up, self.down = LAYERS.Dense(4 * width, "gelu"), LAYERS.Dense(width)

    def call(self, x):
        y = self.first(x)
        x = x + self.attention(y, y, use_causal_mask=True)
        return x + self.down(self.up(self.second(x)))


def make_model(layers, width, heads, tokens, words):
    """Define a model without reference to devices."""
    inputs = tf.keras.Input([tokens], dtype="int32")
    x = LAYERS.Embedding(words, width)(inputs)
    for _ in range(layers):
        x = Block(width, heads)(x)
    scores = LAYERS.Dense(words, dims="out:vocab")(LAYERS.LayerNormalization()(x))
    model = tf.keras.Model(inputs, scores, name=f"gpt_of_{layers}_layers")
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(tf.keras.optimizers.Adam(1e-2), loss)
    return model


def plan_large():
    """Plans a model that does not fit this machine, for two that it fits."""
    with tf.distribute.shapes_only():
        model = make_model(24, 2048, 16, 1024, 50304)
        batch = [tf.TensorSpec([64, 1024], "int32")] * 2
        for hardware in (
            tf.distribute.Hardware(8, "16GB"),
            tf.distribute.Hardware(64, "8GB", link=5e9),
        ):
            print(tf.distribute.plan(model, *batch, hardware=hardware), end="\n\n")


def main():
    """Print two plans of the large model, then one of a small model, and train the small model by
    it."""
    device = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(device, [tf.config.LogicalDeviceConfiguration()] * 8)
    plan_large()
    start = np.random.default_rng(0).integers(0, 96, (96, 1))
    tokens = ((start + 5 * np.arange(9)) % 96).astype("int32")
    x, y = tokens[:, :-1], tokens[:, 1:]
    with tf.distribute.shapes_only():
        model = make_model(2, 64, 4, 8, 96)
        # Too little for copies of the weights, and a slow link: states have to be divided, and little may be sent.
        hardware = tf.distribute.Hardware(8, "1MB", products=1e10, link=1e8)
        found = tf.distribute.plan(model, x[:32], y[:32], hardware=hardware)
    print(found)
    with found.strategy().scope():
        model = make_model(2, 64, 4, 8, 96)
    losses = model.fit(x, y, batch_size=32, epochs=2, shuffle=False, verbose=0).history["loss"]
    print("losses", " ".join(f"{value:.4f}" for value in losses))


if __name__ == "__main__":
    main()
