"""Translate the wrappers of a FairScale script into options: OSS, ShardedDDP, FSDP,
checkpoint_wrapper, Pipe, AdaScale, on eight virtual devices.

Run it with `python examples/sharded_from_fairscale.py`. The model is not wrapped, and the losses
equal those of one device; the table also shows the bytes that a device holds between steps and
sends in one.
"""

import contextlib

import numpy as np

import meshflow as tf
from meshflow.experimental import dtensor

LAYERS = tf.keras.layers
WIDTH, BATCH = 64, 64
PIPE = tf.distribute.Pipeline("stage", "gpipe", balance=[3, 3])
# Settings of FairScale: the mesh and the options here.
CHOICES = {
    "one device": ({}, {}),
    "DistributedDataParallel(model)": ({"data": 8}, {}),
    "OSS(params, optim=Adam)": ({"data": 8}, {"zero": 1}),
    "ShardedDataParallel(model, oss)": ({"data": 8}, {"zero": 2}),
    "FSDP(model, reshard_after_forward=False)": ({"data": 8}, {"zero": 3}),
    "FSDP(model)": ({"data": 8}, {"zero": 3}),
    "FSDP(checkpoint_wrapper(block))": ({"data": 8}, {"zero": 3, "recompute": "layer"}),
    "Pipe(model, balance=[3, 3], chunks=4)": (
        {"stage": 2, "data": 4},
        {"pipeline": PIPE, "micro_batches": 4},
    ),
}


class Block(LAYERS.Layer):
    """Add two products to the input."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.up, self.down = LAYERS.Dense(2 * WIDTH, "gelu"), LAYERS.Dense(WIDTH)

    def call(self, x):
        return x + self.down(self.up(x))


def train(sizes, options, optimizer):
    """Train on synthetic data; return the history and the explanation of a step."""
    tf.keras.backend.clear_session()
    tf.keras.utils.set_random_seed(1)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4 * BATCH, WIDTH)).astype("float32")
    y = np.tanh(x @ rng.normal(size=(WIDTH, WIDTH)).astype("float32") / WIDTH**0.5)
    scope = contextlib.nullcontext()
    if sizes:
        count = int(np.prod([*sizes.values()]))
        mesh = dtensor.create_mesh(sizes, devices=[f"CPU:{i}" for i in range(count)])
        scope = tf.distribute.MeshStrategy(mesh, "batch:data", **options).scope()
    with scope:
        layers = [Block(), LAYERS.LayerNormalization(), Block(), LAYERS.LayerNormalization()]
        model = tf.keras.Sequential(
            [tf.keras.Input([WIDTH]), *layers, Block(), LAYERS.Dense(WIDTH)]
        )
        model.compile(optimizer, "mse")
    history = model.fit(x, y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0).history
    return history, dtensor.explain(model, x[:BATCH], y[:BATCH])


def main():
    """Print a line for each choice, then how AdaScale's gain grows with the batch's devices."""
    device = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(device, [tf.config.LogicalDeviceConfiguration()] * 8)
    print(f"{'':<42}{'losses':<18}{'held':>9}{'sent':>9}")
    for name, (sizes, options) in CHOICES.items():
        history, step = train(sizes, options, tf.keras.optimizers.Adam(1e-3))
        losses = " ".join(f"{value:.5f}" for value in history["loss"])
        print(f"{name:<42}{losses:<18}{step.memory['arguments']:>9,}{step.sent():>9,}")
    scaled = tf.keras.optimizers.AdaScale(tf.keras.optimizers.SGD(0.05))
    history, _ = train({"data": 8}, {"zero": 2}, scaled)
    gains = " ".join(f"{value:.2f}" for value in history["gain"])
    print(f"AdaScale(SGD(0.05)) over eight devices: the gain after each epoch {gains}")


if __name__ == "__main__":
    main()
