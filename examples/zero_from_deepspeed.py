"""Train a Keras model by a DeepSpeed configuration: ZeRO-3, states and activations in files, on
eight virtual devices.

Run it with `python examples/zero_from_deepspeed.py`. The losses equal those of one device; each
device holds an eighth of the weights between steps, and the optimizer's slots and the layers'
activations are on disk.
"""

import json
import tempfile
from pathlib import Path

import numpy as np

import meshflow as tf
from meshflow.experimental import dtensor

LAYERS = tf.keras.layers
WIDTH, BATCH = 128, 64


def configuration(folder):
    """As people have it; `nvme_path` would be a local disk."""
    return {
        "train_batch_size": BATCH,
        "gradient_clipping": 1.0,
        "steps_per_print": 2000,
        "zero_optimization": {
            "stage": 3,
            "overlap_comm": True,
            "stage3_prefetch_bucket_size": 5e8,
            "offload_optimizer": {"device": "nvme", "nvme_path": folder},
        },
        "activation_checkpointing": {"partition_activations": True},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "weight_decay": 0.01}},
        "scheduler": {
            "type": "WarmupDecayLR",
            "params": {"warmup_max_lr": 1e-2, "warmup_num_steps": 4, "total_num_steps": 40},
        },
    }


class Block(LAYERS.Layer):
    """Add two products to the input; the layer is recomputed as a whole."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.norm = LAYERS.LayerNormalization()
        self.up, self.down = LAYERS.Dense(4 * WIDTH, "gelu"), LAYERS.Dense(WIDTH)

    def call(self, x):
        return x + self.down(self.up(self.norm(x)))


def train(strategy, optimizer, batch_size):
    """Train on synthetic data; return the model, its losses and a batch."""
    tf.keras.backend.clear_session()
    tf.keras.utils.set_random_seed(1)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(256, WIDTH)).astype("float32")
    y = np.tanh(x @ rng.normal(size=(WIDTH, WIDTH)).astype("float32") / WIDTH**0.5)
    with strategy.scope():
        model = tf.keras.Sequential([tf.keras.Input([WIDTH]), Block(), Block()])
        model.compile(optimizer, "mse")
    history = model.fit(x, y, batch_size=batch_size, epochs=3, shuffle=False, verbose=0).history
    return model, history["loss"], (x[:batch_size], y[:batch_size])


def show(name, found):
    """A line with the losses."""
    print(f"{name:<34}", " ".join(f"{value:.5f}" for value in found))


def main():
    """Print the translated configuration, the losses, and the location of values."""
    device = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(device, [tf.config.LogicalDeviceConfiguration()] * 8)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "ds.json")
        path.write_text(json.dumps(configuration(folder)))
        settings = tf.distribute.from_deepspeed(path)
        print("strategy  ", settings.strategy)
        print("optimizer ", settings.optimizer["class_name"], "policy", settings.policy)
        print("compiler's", ", ".join(settings.decided), "\nelsewhere ", settings.elsewhere, "\n")

        _, losses, _ = train(tf.distribute.MeshStrategy(), settings.optimizer, settings.batch_size)
        show("one device", losses)
        model, losses, batch = train(settings.strategy, settings.optimizer, settings.batch_size)
        show("from ds.json", losses)
        slots = settings.strategy.files["optimizer"]
        held, weights = dtensor.explain(model, *batch).memory, 4 * model.count_params()
        print(f"  weights {weights:,} bytes, a device's arguments {held['arguments']:,}")
        print(
            f"  slots written to files {slots.written_bytes:,}, read {slots.read_bytes:,} bytes\n"
        )

        # An option without an equivalent in DeepSpeed: activations in files, too.
        strategy = tf.distribute.MeshStrategy(
            settings.strategy.mesh,
            "batch:data",
            zero=3,
            recompute="layer",
            offload="activations",
            offload_to=folder,
        )
        model, losses, batch = train(strategy, settings.optimizer, settings.batch_size)
        show("... and activations in files", losses)
        print(f"  {dtensor.explain(model, *batch).memory['to_files']:,} bytes a device and step")


if __name__ == "__main__":
    main()
