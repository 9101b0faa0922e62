"""Train the CIFAR-10 CNN of the mixed-precision article on real images, in float32 and in mixed precision.

The default is a narrower copy of the network on the handwritten digits that ship with scikit-learn;
`--full` is the network at full width (9,123,978 parameters).
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
from report import Row, print_table, write_report

import meshflow as tf
from meshflow.keras import layers

DATASETS = {
    "digits": tf.keras.datasets.digits,
    "mnist": tf.keras.datasets.mnist,
    "fashion_mnist": tf.keras.datasets.fashion_mnist,
    "cifar10": tf.keras.datasets.cifar10,
}


def build_model(divisor: int = 1) -> tf.keras.Sequential:
    """The network, with the width of every hidden layer divided by `divisor`."""
    model = tf.keras.Sequential(name="cnn")
    model.add(tf.keras.Input(shape=(32, 32, 3)))
    for block, pool in (
        ((128, 256, 256, 256), 2),
        ((256, 256, 512, 512), 2),
        ((256, 256, 256, 128), 4),
    ):
        for filters in block:
            model.add(layers.Conv2D(filters // divisor, 3, padding="same", activation="relu"))
        model.add(layers.MaxPooling2D(pool))
    model.add(layers.Flatten())
    model.add(layers.BatchNormalization())
    model.add(layers.Dense(512 // divisor, activation="relu"))
    model.add(layers.Dense(10))
    model.add(layers.Activation("softmax", dtype="float32"))
    return model


def load_images(name: str) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Images as float32 [n, 32, 32, 3] in [0, 1], with integer labels."""
    train, test = DATASETS[name].load_data()
    return tuple((prepare(x), y.reshape(-1).astype(np.int64)) for x, y in (train, test))  # type: ignore[return-value]


def prepare(images: np.ndarray) -> np.ndarray:
    """Images of any size, grey or coloured, as the network's input."""
    x = images[..., None] if images.ndim == 3 else images
    x = tf.image.resize(x.astype(np.float32) / 255, (32, 32))
    return np.asarray(tf.image.grayscale_to_rgb(x) if x.shape[-1] == 1 else x)


class StepTimes(tf.keras.callbacks.Callback):
    """Seconds of every epoch."""

    def on_train_begin(self, logs=None):
        self.seconds = []

    def on_epoch_begin(self, epoch, logs=None):
        self._start = time.perf_counter()

    def on_epoch_end(self, epoch, logs=None):
        self.seconds.append(time.perf_counter() - self._start)


def train(precision: str, data, options: argparse.Namespace) -> Row:
    """Train in one precision and measure."""
    tf.keras.utils.set_random_seed(options.seed)
    tf.keras.mixed_precision.set_global_policy(precision)
    (x, y), test = data
    model = build_model(1 if options.full else 8)
    steps = -(-len(x) // options.batch_size)
    rate = tf.keras.optimizers.schedules.CosineDecay(1e-3, steps * options.epochs)
    model.compile(
        optimizer=tf.keras.optimizers.Adam(rate),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    print(f"\nTraining in {precision} on {len(x)} images ({model.count_params():,} parameters)")
    times = StepTimes()
    history = model.fit(
        x,
        y,
        epochs=options.epochs,
        batch_size=options.batch_size,
        validation_data=test,
        callbacks=[times],
    )
    # The first epoch includes compilation, so the speed is that of the others.
    seconds = float(np.median(times.seconds[1:] or times.seconds))
    return Row(
        precision,
        seconds,
        1e3 * seconds / steps,
        len(x) / seconds,
        history.history["val_accuracy"][-1],
        history.history,
    )


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dataset", choices=DATASETS, default="digits")
    parser.add_argument("--full", action="store_true", help="the network at full width")
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--precisions",
        nargs="+",
        default=["float32", "mixed_bfloat16"],
        metavar="POLICY",
        help="dtype policies to train in, the first being what the others are compared with",
    )
    parser.add_argument(
        "--output", type=Path, default=Path("out/demo"), help="folder of the plot and the report"
    )
    options = parser.parse_args()
    if options.full:
        build_model().summary()
    data = load_images(options.dataset)
    rows = [train(precision, data, options) for precision in options.precisions]
    print_table(rows)
    for path in write_report(rows, options.dataset, options.output):
        print(path)


if __name__ == "__main__":
    main()
