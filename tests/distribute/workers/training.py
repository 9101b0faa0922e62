"""Run the program of every worker of `test_multi_worker`; the test also runs it in one process on
one device.

Called as `training.py FOLDER`; writes results to FOLDER/<worker>.npz.
"""

import sys

import numpy as np

import meshflow as tf

LAYERS = tf.keras.layers


def build():
    """Build a CNN with batch statistics (normalization) and random numbers (dropout)."""
    tf.keras.backend.reset_uids()
    tf.random.set_seed(3)
    model = tf.keras.Sequential(
        [
            LAYERS.Reshape((6, 1, 1), input_shape=(6,)),
            LAYERS.Conv2D(4, (3, 1), activation="relu"),
            LAYERS.BatchNormalization(),
            LAYERS.MaxPooling2D((2, 1)),
            LAYERS.Flatten(),
            LAYERS.Dropout(0.25),
            LAYERS.Dense(3),
        ]
    )
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(tf.keras.optimizers.Adam(0.01), loss, metrics=["accuracy"])
    return model


def build_transformer():
    tf.keras.backend.reset_uids()
    tf.random.set_seed(3)
    tokens = tf.keras.Input((6,), dtype="int32")
    x = LAYERS.Embedding(9, 8)(tokens)
    x = LAYERS.LayerNormalization()(x + LAYERS.MultiHeadAttention(2, 4, dropout=0.1)(x, x))
    x = x + LAYERS.Dense(8, "gelu")(x)
    model = tf.keras.Model(tokens, LAYERS.Dense(3)(LAYERS.GlobalAveragePooling1D()(x)))
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(tf.keras.optimizers.SGD(0.1, momentum=0.9), loss)
    return model


def build_small(steps=1):
    tf.keras.backend.reset_uids()
    tf.random.set_seed(3)
    model = tf.keras.Sequential([LAYERS.Dropout(0.25, input_shape=(6,)), LAYERS.Dense(1)])
    model.compile("sgd", "mse", steps_per_execution=steps)
    return model


def data():
    rng = np.random.default_rng(5)
    return rng.normal(size=(54, 6)).astype("float32"), rng.integers(0, 3, size=54)


def keras_results(scope):
    """Train with batches of which the last is not divisible."""
    x, y = data()
    with scope():
        model = build()
    history = model.fit(x, y, batch_size=16, epochs=2, verbose=0)
    return {
        "loss": history.history["loss"],
        "accuracy": history.history["accuracy"],
        "evaluate": model.evaluate(x, y, verbose=0),
        "predict": model.predict(x, verbose=0),
        "kernel": model.get_weights()[0],
    }


def small_results(scope, steps=1, as_dataset=False):
    """As `keras_results`, with several steps a call, or from a `tf.data.Dataset`."""
    x, y = data()
    with scope():
        model = build_small(steps)
    if as_dataset:
        dataset = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(54, seed=1).batch(16)
        history = model.fit(dataset, epochs=2, verbose=0)
    else:
        history = model.fit(x, y, batch_size=16, epochs=2, verbose=0)
    return {"loss": history.history["loss"], "kernel": model.get_weights()[0]}


def transformer_results(scope):
    x, y = data()
    with scope():
        model = build_transformer()
    tokens = (np.abs(x) * 4).astype("int32") % 9
    history = model.fit(tokens[:48], y[:48], batch_size=16, epochs=2, verbose=0)
    return {"loss": history.history["loss"], "kernel": model.get_weights()[0]}


def custom_loop(strategy, distribute):
    """TensorFlow's custom training loop: per-replica losses scaled by the global batch."""
    x, y = data()
    y = y.astype("float32")[:, None]
    with strategy.scope():
        tf.random.set_seed(3)
        model = tf.keras.Sequential([LAYERS.Dense(4, "tanh", input_shape=(6,)), LAYERS.Dense(1)])
        optimizer = tf.keras.optimizers.SGD(0.1)
        seen = tf.keras.metrics.Mean()

    def step(inputs):
        features, labels = inputs
        with tf.GradientTape() as tape:
            errors = tf.reduce_sum((model(features) - labels) ** 2, 1)
            loss = tf.nn.compute_average_loss(errors, global_batch_size=16)
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        seen.update_state(errors)
        return loss

    @tf.function
    def train(inputs):
        return strategy.reduce("sum", strategy.run(step, args=(inputs,)), axis=None)

    losses = [float(train(batch)) for batch in distribute(x, y)]
    return {"losses": losses, "mean": float(seen.result()), "kernel": model.get_weights()[0]}


def make_dataset(strategy):
    def distribute(x, y):
        dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(16)
        return strategy.experimental_distribute_dataset(dataset)

    return distribute


def from_function(strategy):
    """Return batches of replicas whose global batches equal those of `whole_dataset`."""

    def distribute(x, y):
        def make(context):
            size = context.get_per_replica_batch_size(16)
            dataset = tf.data.Dataset.from_tensor_slices((x[:48], y[:48])).batch(size)
            local = context.num_replicas_in_sync // context.num_input_pipelines
            numbers = dataset.enumerate().filter(
                lambda i, _: i // local % context.num_input_pipelines == context.input_pipeline_id
            )
            return numbers.map(lambda _, batch: batch)

        return strategy.distribute_datasets_from_function(make)

    return distribute


def values(strategy):
    """Run collectives, and return the results of each worker."""

    @tf.function
    def ids():
        context = tf.distribute.get_replica_context()
        own = tf.cast(context.replica_id_in_sync_group, tf.float32)
        return own, context.all_reduce("mean", own), context.all_gather(own[None], 0)

    own, mean, gathered = strategy.run(ids)
    made = strategy.experimental_distribute_values_from_function(
        lambda context: tf.constant([float(context.replica_id_in_sync_group)])
    )
    with strategy.scope():
        total = tf.Variable(
            0.0,
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=tf.VariableAggregation.SUM,
        )
        random = tf.Variable(np.random.normal(size=3))
    strategy.run(tf.function(lambda: total.assign_add(2.0)))
    return {
        "own": [float(v) for v in strategy.experimental_local_results(own)],
        "mean": [float(v) for v in strategy.experimental_local_results(mean)],
        "gathered": strategy.experimental_local_results(gathered)[0].numpy(),
        "sum": float(strategy.reduce("sum", own, axis=None)),
        "made": strategy.gather(made, 0).numpy(),
        "made_sum": strategy.reduce(tf.distribute.ReduceOp.SUM, made, axis=0).numpy(),
        "total": float(total),
        "random": random.numpy(),
        "printed": str(random)[:30],
    }


def off(strategy):
    """Give every worker separate data with a different number of batches."""
    own = strategy.cluster_resolver.task_id
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    numbers = np.arange(8 + 4 * own, dtype="float32") + 100 * own
    dataset = tf.data.Dataset.from_tensor_slices(numbers).batch(8).with_options(options)
    sums = []
    for batch in strategy.experimental_distribute_dataset(dataset):
        found = strategy.run(tf.function(lambda v: tf.reduce_sum(v)), args=(batch,))
        sums.append(float(strategy.reduce("sum", found, axis=None)))
    with strategy.scope():
        model = tf.keras.Sequential([LAYERS.Dense(1, input_shape=(1,), kernel_initializer="ones")])
        model.compile("sgd", "mae")
    pairs = dataset.map(lambda v: (v[:, None], v[:, None] + 1.0))
    distributed = strategy.experimental_distribute_dataset(pairs)
    return {
        "sums": sums,
        "mae": model.evaluate(pairs, verbose=0),
        "mae_of_distributed": model.evaluate(distributed, verbose=0),
    }


def files(strategy, folder):
    """Let each worker read one of two files, which is AUTO's choice."""
    numbers = tf.data.TextLineDataset([f"{folder}/{i}.txt" for i in range(2)])
    dataset = numbers.map(lambda line: tf.strings.to_number(line)).batch(4)
    sums = []
    for batch in strategy.experimental_distribute_dataset(dataset):
        found = strategy.run(tf.function(lambda v: tf.reduce_sum(v)), args=(batch,))
        sums.append(float(strategy.reduce("sum", found, axis=None)))
    return {"sums": sums}


def main(folder):
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    resolver = strategy.cluster_resolver
    results = {
        "about": {
            "replicas": strategy.num_replicas_in_sync,
            "devices": list(strategy.extended.worker_devices),
            "chief": strategy.extended.should_checkpoint,
        },
        "fit": keras_results(strategy.scope),
        "fit_transformer": transformer_results(strategy.scope),
        "fit_many_steps": small_results(strategy.scope, steps=2),
        "fit_dataset": small_results(strategy.scope, as_dataset=True),
        "loop": custom_loop(strategy, make_dataset(strategy)),
        "loop_from_function": custom_loop(strategy, from_function(strategy)),
        "values": values(strategy),
        "off": off(strategy),
        "files": files(strategy, folder),
    }
    flat = {f"{part}/{k}": v for part, found in results.items() for k, v in found.items()}
    np.savez(f"{folder}/{resolver.task_id}.npz", **flat)


if __name__ == "__main__":
    main(sys.argv[1])
