"""Run the program of every worker of `test_composite_batches`; the test also runs it in one process on one device.

Called as `composites.py FOLDER`; writes results to FOLDER/<worker>.npz.
"""

import sys

import numpy as np

import meshflow as tf


class Graph(tf.experimental.BatchableExtensionType):
    weights: tf.Tensor
    nodes: tf.RaggedTensor


ROWS = [[1.0, 2.0], [], [3.0], [4.0, 5.0, 6.0], [7.0, 8.0], [], [9.0]]


def make_value(kind):
    ragged = tf.ragged.constant(ROWS)
    if kind == "sparse":
        return tf.sparse.from_dense(np.arange(28.0, dtype=np.float32).reshape(7, 4) % 5)
    return ragged if kind == "ragged" else Graph(tf.reshape(tf.range(14.0), [7, 2]), ragged)


def make_batches(kind, size):
    targets = np.arange(7, dtype=np.float32) / 7
    return tf.data.Dataset.from_tensor_slices((make_value(kind), targets)).batch(size)


def select_values(x):
    """Return values whose number depends on their values."""
    values = x.nodes.flat_values if isinstance(x, Graph) else x.values
    return tf.boolean_mask(values, values > 2.0)


def run_loop(strategy, kind, selects):
    """Return the losses and the table after two epochs; the last batch has empty replicas."""
    with strategy.scope():
        table = tf.Variable(np.arange(20.0, dtype=np.float32).reshape(10, 2) / 20)
        seen = tf.Variable(
            0,
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=tf.VariableAggregation.SUM,
        )
        optimizer = tf.keras.optimizers.Adam(0.1)

    def step(x, y):
        values = select_values(x) if selects else x.nodes.values if kind == "graph" else x.values
        with tf.GradientTape() as tape:
            rows = tf.gather(table, tf.cast(values, tf.int32) % 10)
            loss = tf.reduce_sum(rows**2) + tf.reduce_sum(y) * tf.reduce_sum(table)
        optimizer.apply_gradients([(tape.gradient(loss, table), table)])
        seen.assign_add(tf.size(values))
        return loss

    run = tf.function(
        lambda x, y: strategy.reduce("SUM", strategy.run(step, args=(x, y)), axis=None)
    )
    data = strategy.experimental_distribute_dataset(make_batches(kind, 4))
    losses = [float(run(x, y)) for _ in range(2) for x, y in data]
    return {"losses": losses, "table": table.numpy(), "seen": int(seen)}


def merge_values(strategy, kind):
    """Exchange composite values between the replicas, and list those that each received."""
    data = strategy.experimental_distribute_dataset(make_batches(kind, 4))

    def count(x):
        context = tf.distribute.get_replica_context()
        first = context.merge_call(
            lambda s, y: y.values[0] if s.num_replicas_in_sync > 1 else y, (x,)
        )
        return context.all_gather(select_values(first), 0)

    results = [strategy.run(count, args=(x,)) for x, _ in data]
    return {
        str(i): strategy.experimental_local_results(r)[0].numpy() for i, r in enumerate(results)
    }


def fit(scope):
    """Train a model of ragged and sparse inputs, evaluate it and predict with it."""
    tf.keras.utils.set_random_seed(1)
    with scope():
        words = tf.keras.Input([None], ragged=True, dtype="int64")
        profile = tf.keras.Input([4], sparse=True)
        pooled = tf.keras.layers.GlobalAveragePooling1D()(tf.keras.layers.Embedding(10, 3)(words))
        hidden = pooled + tf.keras.layers.Dense(3)(profile)
        model = tf.keras.Model([words, profile], tf.keras.layers.Dense(1)(hidden))
        model.compile(tf.keras.optimizers.SGD(0.01), "mse")
    inputs = tf.cast(make_value("ragged"), tf.int64), make_value("sparse")
    data = tf.data.Dataset.from_tensor_slices((inputs, np.arange(7, dtype=np.float32))).batch(4)
    history = model.fit(data, epochs=2, verbose=0)
    return {
        "loss": history.history["loss"],
        "evaluate": model.evaluate(data, verbose=0),
        "predict": model.predict(data, verbose=0),
        "kernel": model.get_weights()[0],
    }


KINDS = ["ragged", "sparse", "graph"]


def list_results(strategy, scope):
    found = {"fit": fit(scope)}
    for kind in KINDS:
        found[f"loop_{kind}"] = run_loop(strategy, kind, selects=False)
    found["selecting_loop"] = run_loop(strategy, "ragged", selects=True)
    return {f"{n}/{k}": np.asarray(v) for n, part in found.items() for k, v in part.items()}


def main(folder):
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    number = strategy.cluster_resolver.task_id
    found = list_results(strategy, strategy.scope)
    for kind in ("graph", "sparse"):
        for key, value in merge_values(strategy, kind).items():
            found[f"merged_{kind}/{key}"] = value
    np.savez(f"{folder}/{number}.npz", **found)


if __name__ == "__main__":
    main(sys.argv[1])
