"""Train on parameter servers: workers compute, servers update, and no process waits for another.

    python examples/train_on_parameter_servers.py                        # servers and workers on Ray, on this machine
    python examples/train_on_parameter_servers.py --engine threads       # in this process
    python examples/train_on_parameter_servers.py --address ray://...    # on a Ray cluster

Kill a worker while it runs (`kill -9`): its steps are done by the others, each exactly once.
With `TF_CONFIG` set (jobs "chief", "worker" and "ps") every machine runs this same file.
"""

from __future__ import annotations

import argparse
import os

import meshflow as tf
from meshflow.keras import layers

BATCH = 32


def build_model() -> tf.keras.Sequential:
    """A small network for images of digits."""
    return tf.keras.Sequential(
        [
            layers.Input((8, 8, 1)),
            layers.Conv2D(16, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(2),
            layers.Flatten(),
            layers.Dense(64, activation="relu"),
            layers.Dense(10),
        ]
    )


def images() -> tuple[tuple[tf.Tensor, tf.Tensor], tuple[tf.Tensor, tf.Tensor]]:
    """Images of shape [n, 8, 8, 1] with values in [0, 1], and their digits, for training and for testing."""
    (x, y), (x_test, y_test) = tf.keras.datasets.digits.load_data()
    return (x[..., None] / 16.0, y), (x_test[..., None] / 16.0, y_test)


def batches(context: tf.distribute.InputContext) -> tf.data.Dataset:
    """Yield the batches of one worker: all images, shuffled separately, repeatedly."""
    (x, y), _ = images()
    data = tf.data.Dataset.from_tensor_slices((x.astype("float32"), y))
    data = data.shuffle(2000, seed=context.input_pipeline_id).repeat()
    return data.batch(context.get_per_replica_batch_size(BATCH))


def make_strategy(options: argparse.Namespace) -> tf.distribute.ParameterServerStrategy:
    """The strategy of a cluster that `TF_CONFIG` describes, or of one that is started here."""
    partitioner = tf.distribute.experimental.partitioners.MinSizePartitioner(
        min_shard_bytes=4096, max_shards=options.servers
    )
    if "TF_CONFIG" in os.environ:
        resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
        if resolver.task_type in ("worker", "ps"):
            server = tf.distribute.Server(
                resolver.cluster_spec(), resolver.task_type, resolver.task_id
            )
            server.join()
        return tf.distribute.ParameterServerStrategy(resolver, partitioner)
    return tf.distribute.ParameterServerStrategy(
        variable_partitioner=partitioner,
        engine=options.engine,
        workers=options.workers,
        servers=options.servers,
        address=options.address,
    )


def main() -> None:
    """Trains, and prints the accuracy on images that were not trained on."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--engine", default="ray", choices=["ray", "processes", "threads"])
    parser.add_argument("--address", help="of a Ray cluster; default one of this machine")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--servers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=8)
    options = parser.parse_args()

    strategy = make_strategy(options)
    tf.random.set_seed(0)
    with strategy.scope():
        model = build_model()
        model.compile(
            tf.keras.optimizers.Adam(2e-3),
            tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
    creator = tf.keras.utils.experimental.DatasetCreator(batches)
    model.fit(creator, epochs=options.epochs, steps_per_epoch=45)
    _, (x_test, y_test) = images()
    _, accuracy = model.evaluate(x_test.astype("float32"), y_test, verbose=0)
    print(f"accuracy {accuracy:.4f} after {int(model.optimizer.iterations)} steps")
    strategy.cluster.stop()


if __name__ == "__main__":
    main()
