"""Translate the plugins of Colossal-AI's Booster into a mesh, rules and options, for one
transformer on eight virtual devices.

Run it with `python examples/boosted_from_colossal_ai.py`. Model, optimizer and loss are not
wrapped. The losses agree; the table also shows the bytes that a device holds between steps and
sends in one, by kind.
"""

import contextlib

import numpy as np

import meshflow as tf
from meshflow.experimental import dtensor

LAYERS = tf.keras.layers
WIDTH, TOKENS, WORDS, BATCH = 32, 8, 64, 32
TENSORS = "batch:data, heads:model, hidden:model, vocab:model"
# Settings of Colossal-AI: the mesh, the rules and the options here.
CHOICES = {
    "one device": ({}, "", {}),
    "LowLevelZeroPlugin(stage=2)": ({"data": 8}, "batch:data", {"zero": 2}),
    "GeminiPlugin()": ({"data": 8}, "batch:data", {"zero": 3}),
    "HybridParallelPlugin(tp_size=2, pp_size=1, zero_stage=1)": (
        {"data": 4, "model": 2},
        TENSORS,
        {"zero": 1},
    ),
    "... sequence_parallelism_mode='split_gather'": (
        {"data": 4, "model": 2},
        TENSORS + ", sequence:model",
        {"sequence": "split"},
    ),
    "... sequence_parallelism_mode='all_to_all'": (
        {"data": 4, "model": 2},
        "batch:data, sequence:model",
        {"sequence": "ulysses"},
    ),
    "HybridParallelPlugin(tp_size=1, pp_size=2, num_microbatches=4)": (
        {"stage": 2, "data": 4},
        "batch:data",
        {"pipeline": "stage", "micro_batches": 4},
    ),
}


def make_model():
    """Define a model without reference to devices; layers name their heads, their hidden units and
    the vocabulary."""
    tokens = tf.keras.Input([TOKENS], dtype="int32")
    x = LAYERS.Embedding(WORDS, WIDTH)(tokens)
    y = LAYERS.LayerNormalization()(x)
    x = x + LAYERS.MultiHeadAttention(4, WIDTH // 4)(y, y, use_causal_mask=True)
    y = LAYERS.Dense(4 * WIDTH, "gelu")(LAYERS.LayerNormalization()(x))
    x = x + LAYERS.Dense(WIDTH)(y)
    return tf.keras.Model(tokens, LAYERS.Dense(WORDS, dims="out:vocab")(x))


def train(sizes, rules, options, tokens):
    """Train on a mesh; return the losses and the explanation of a step."""
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
    losses = model.fit(x, y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0).history["loss"]
    return losses, dtensor.explain(model, x[:BATCH], y[:BATCH])


def main():
    """Print the losses, the bytes that a device holds, and those that it sends by each kind of
    exchange."""
    device = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(device, [tf.config.LogicalDeviceConfiguration()] * 8)
    start = np.random.default_rng(0).integers(0, WORDS, (2 * BATCH, 1))
    tokens = ((start + 5 * np.arange(TOKENS + 1)) % WORDS).astype("int32")
    for name, choice in CHOICES.items():
        losses, step = train(*choice, tokens)
        shown = " ".join(f"{value:.5f}" for value in losses)
        print(f"{name}\n  losses {shown}, {step.memory['arguments']:,} bytes held")
        kinds = sorted({c.kind for c in step.collectives})
        if kinds:
            print("  sends", ", ".join(f"{step.sent(kind):,} by {kind}" for kind in kinds))


if __name__ == "__main__":
    main()
