"""Train one language model in pipeline stages, by several schedules; compare losses, bubbles and
bytes, on eight virtual devices.

Run it with `python examples/train_in_stages.py`. The losses agree; the schedules differ in idle
time, and in the bytes stored and sent.
"""

import numpy as np

import meshflow as tf
from meshflow.experimental import dtensor

LAYERS = tf.keras.layers
WIDTH, TOKENS, WORDS = 32, 16, 96
# The mesh, and the pipeline over its dimension "stage".
CHOICES = {
    "one stage": ({"data": 8}, None),
    "1f1b": ({"stage": 4, "data": 2}, tf.distribute.Pipeline("stage")),
    "interleaved:2": ({"stage": 2, "data": 4}, tf.distribute.Pipeline("stage", "interleaved:2")),
    "zero_bubble": ({"stage": 2, "data": 4}, tf.distribute.Pipeline("stage", "zero_bubble")),
}


class Words(LAYERS.Layer):
    """Compute scores of words by the embedding's weights, which the first stage also uses."""

    def __init__(self, embedding, **kwargs):
        super().__init__(**kwargs)
        self.embedding = embedding

    def call(self, x):
        return tf.matmul(x, self.embedding.embeddings, transpose_b=True)


def make_model():
    """Define a model without reference to devices."""
    tokens = tf.keras.Input([TOKENS], dtype="int32")
    embedding = LAYERS.Embedding(WORDS, WIDTH)
    x = embedding(tokens)
    for _ in range(2):
        y = LAYERS.LayerNormalization()(x)
        x = x + LAYERS.MultiHeadAttention(4, WIDTH // 4)(y, y, use_causal_mask=True)
        y = LAYERS.Dense(4 * WIDTH, "gelu")(LAYERS.LayerNormalization()(x))
        x = x + LAYERS.Dense(WIDTH)(y)
    return tf.keras.Model(tokens, Words(embedding)(x))


def train(sizes, pipeline, tokens):
    """Train on a mesh; return the losses and the explanation of a step."""
    tf.keras.backend.clear_session()
    tf.keras.utils.set_random_seed(1)
    mesh = dtensor.create_mesh(sizes, devices=[f"CPU:{i}" for i in range(8)])
    micro_batches = 1 if pipeline is None else 8
    strategy = tf.distribute.MeshStrategy(
        mesh, "batch:data", pipeline=pipeline, micro_batches=micro_batches
    )
    with strategy.scope():
        model = make_model()
        loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(tf.keras.optimizers.Adam(1e-2), loss)
    x, y = tokens[:, :-1], tokens[:, 1:]
    losses = model.fit(x, y, batch_size=32, epochs=2, shuffle=False, verbose=0).history["loss"]
    return losses, strategy.explain(model, x[:32], y[:32])


def main():
    """Print the losses, and the stages of the first pipeline."""
    device = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(device, [tf.config.LogicalDeviceConfiguration()] * 8)
    start = np.random.default_rng(0).integers(0, WORDS, (64, 1))
    tokens = ((start + 5 * np.arange(TOKENS + 1)) % WORDS).astype("int32")
    print(
        f"{'schedule':<16}{'losses':<20}{'ticks':>6}{'bubble':>8}{'held':>6}{'to neighbours':>15}"
    )
    stages = None
    for name, choice in CHOICES.items():
        losses, report = train(*choice, tokens)
        shown, line = " ".join(f"{value:.5f}" for value in losses), ""
        if report.pipeline is not None:
            found = report.pipeline
            line = f"{found.ticks:>6}{found.bubble:>8.3f}{found.held:>6}{found.sent:>15,}"
            stages = stages or found
        print(f"{name:<16}{shown:<20}{line}")
    print(f"\n{stages}")


if __name__ == "__main__":
    main()
