"""What TensorFlow's guide to parameter servers does, from end to end, in its order and with its calls."""

import multiprocessing
import os
import random

import numpy as np
import pytest

import meshflow as tf
from distribute.launching import free_ports

WORKERS, SERVERS = 3, 2


def cluster_in_this_process():
    """Servers of all workers and parameter servers, and the resolver that knows them."""
    ports = free_ports(WORKERS + SERVERS)
    addresses = {
        "worker": [f"localhost:{port}" for port in ports[:WORKERS]],
        "ps": [f"localhost:{port}" for port in ports[WORKERS:]],
        "chief": ["localhost:1"],
    }
    spec = tf.train.ClusterSpec(addresses)
    config = tf.compat.v1.ConfigProto()
    if multiprocessing.cpu_count() < WORKERS + 1:
        config.inter_op_parallelism_threads = WORKERS + 1
    servers = [
        tf.distribute.Server(spec, job_name=job, task_index=i, config=config, protocol="grpc")
        for job, count in (("worker", WORKERS), ("ps", SERVERS))
        for i in range(count)
    ]
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(spec, rpc_layer="grpc")
    return servers, resolver


@pytest.fixture(scope="module")
def strategy():
    servers, resolver = cluster_in_this_process()
    partitioner = tf.distribute.experimental.partitioners.MinSizePartitioner(
        min_shard_bytes=(256 << 10), max_shards=SERVERS
    )
    strategy = tf.distribute.ParameterServerStrategy(resolver, variable_partitioner=partitioner)
    yield strategy
    strategy.cluster.stop()
    for server in servers:
        server._serving.stop()


def test_training_with_fit(strategy, tmp_path):
    global_batch_size = 64
    x, y = tf.random.uniform((10, 10)), tf.random.uniform((10,))
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(10).repeat()
    dataset = dataset.batch(global_batch_size).prefetch(2)

    with strategy.scope():
        model = tf.keras.models.Sequential([tf.keras.layers.Dense(10)])
        model.compile(tf.keras.optimizers.legacy.SGD(), loss="mse", steps_per_execution=10)

    working = str(tmp_path)
    callbacks = [
        tf.keras.callbacks.TensorBoard(log_dir=os.path.join(working, "log")),
        tf.keras.callbacks.ModelCheckpoint(filepath=os.path.join(working, "ckpt", "{epoch}")),
        tf.keras.callbacks.BackupAndRestore(backup_dir=os.path.join(working, "backup")),
    ]
    history = model.fit(dataset, epochs=5, steps_per_epoch=20, callbacks=callbacks, verbose=0)
    assert history.history["loss"][-1] < history.history["loss"][0]
    assert sorted(os.listdir(os.path.join(working, "ckpt")))[:2] == ["1", "2"]


FEATURES = ["avenger", "ironman", "batman", "hulk", "spiderman", "kingkong", "wonder_woman"]
LABELS = ["yes", "no"]


def preprocessing(strategy):
    """Models that turn words into numbers; vocabularies are those of the coordinator."""
    with strategy.scope():
        features = tf.keras.layers.StringLookup(vocabulary=FEATURES, mask_token=None)
        labels = tf.keras.layers.StringLookup(num_oov_indices=0, mask_token=None)
        labels.adapt(tf.constant([*LABELS, "yes"]))
        raw = tf.keras.layers.Input(shape=(3,), dtype=tf.string, name="feature")
        of_features = tf.keras.Model({"features": raw}, features(raw))
        raw = tf.keras.layers.Input(shape=(1,), dtype=tf.string, name="label")
        of_labels = tf.keras.Model({"label": raw}, labels(raw))
    return features, of_features, of_labels


def test_a_training_loop(strategy):
    lookup, feature_stage, label_stage = preprocessing(strategy)

    def examples(count=200):
        chosen, answers = [], []
        generator = random.Random(0)
        for _ in range(count):
            features = generator.sample(FEATURES, 3)
            chosen.append(features)
            answers.append(["yes"] if "avenger" in features else ["no"])
        return {"features": chosen, "label": answers}

    def dataset_fn(context):
        raw = tf.data.Dataset.from_tensor_slices(examples())
        data = raw.batch(200, drop_remainder=True).map(
            lambda x: (
                {"features": feature_stage(x["features"])},
                label_stage(x["label"]),
            )
        )
        return data.unbatch().shuffle(200).batch(32).repeat()

    with strategy.scope():
        inputs = tf.keras.layers.Input(shape=(3,), dtype=tf.int64, name="features")
        layer = tf.keras.layers.Embedding(input_dim=len(lookup.get_vocabulary()), output_dim=16384)
        rows = tf.reduce_mean(layer(inputs), axis=1)
        output = tf.keras.layers.Dense(units=1, activation="sigmoid")(rows)
        model = tf.keras.Model({"features": inputs}, output)
        optimizer = tf.keras.optimizers.legacy.RMSprop(learning_rate=0.1)
        accuracy = tf.keras.metrics.Accuracy()

    # The table lies on both servers.
    assert [w.shape for w in layer.weights] == [(4, 16384), (4, 16384)]
    assert [w.device for w in layer.weights] == [
        f"/job:ps/replica:0/task:{i}/device:CPU:0" for i in range(2)
    ]

    @tf.function
    def step_fn(iterator):
        def replica_fn(batch, labels):
            with tf.GradientTape() as tape:
                pred = model(batch, training=True)
                per_example = tf.keras.losses.BinaryCrossentropy(
                    reduction=tf.keras.losses.Reduction.NONE
                )(labels, pred)
                loss = tf.nn.compute_average_loss(per_example)
                gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables))
            accuracy.update_state(labels, tf.cast(tf.greater(pred, 0.5), tf.int64))
            return loss

        batch, labels = next(iterator)
        losses = strategy.run(replica_fn, args=(batch, labels))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)

    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)

    @tf.function
    def per_worker_dataset_fn():
        return strategy.distribute_datasets_from_function(dataset_fn)

    per_worker_dataset = coordinator.create_per_worker_dataset(per_worker_dataset_fn)
    per_worker_iterator = iter(per_worker_dataset)

    found = []
    # The guide has 4 epochs; updates of three workers that cross each other may need some more.
    for _ in range(16):
        accuracy.reset_states()
        for _ in range(5):
            coordinator.schedule(step_fn, args=(per_worker_iterator,))
        coordinator.join()
        found.append(float(accuracy.result().numpy()))
    assert max(found[-4:]) > 0.9, found
    loss = coordinator.schedule(step_fn, args=(per_worker_iterator,))
    assert np.isfinite(loss.fetch()) and coordinator.done()

    evaluated(strategy, coordinator, model, dataset_fn, feature_stage, label_stage, examples)
    an_error(coordinator, per_worker_iterator)


def evaluated(strategy, coordinator, model, dataset_fn, feature_stage, label_stage, examples):
    """Evaluation by the coordinator, and by the workers."""
    data = tf.data.Dataset.from_tensor_slices(examples(64)).batch(16)
    accuracy = tf.keras.metrics.Accuracy()
    for batch in data:
        labels = label_stage(batch["label"])
        pred = model({"features": feature_stage(batch["features"])}, training=False)
        accuracy.update_state(labels, tf.cast(tf.greater(pred, 0.5), tf.int64))
    assert float(accuracy.result()) > 0.8

    with strategy.scope():
        of_workers = tf.keras.metrics.Accuracy()

    @tf.function
    def eval_step(iterator):
        def replica_fn(batch, labels):
            pred = model(batch, training=False)
            of_workers.update_state(labels, tf.cast(tf.greater(pred, 0.5), tf.int64))

        batch, labels = next(iterator)
        strategy.run(replica_fn, args=(batch, labels))

    iterator = iter(
        coordinator.create_per_worker_dataset(
            lambda: strategy.distribute_datasets_from_function(dataset_fn)
        )
    )
    for _ in range(6):
        coordinator.schedule(eval_step, args=(iterator,))
    coordinator.join()
    assert float(of_workers.result()) > 0.8 and float(of_workers.count) == 6 * 32


def an_error(coordinator, iterator):
    """An error of a closure is raised where the program waits."""

    @tf.function
    def worker_fn(iterator):
        tf.debugging.assert_equal(tf.constant(1), tf.constant(2), "numbers differ")

    for _ in range(3):
        result = coordinator.schedule(worker_fn, args=(iterator,))
    with pytest.raises(tf.errors.InvalidArgumentError, match="numbers differ"):
        coordinator.join()
    with pytest.raises(Exception):
        result.fetch()
    coordinator.join()


def test_side_car_evaluation(strategy, tmp_path):
    x = np.random.default_rng(0).normal(size=(32, 2)).astype("f")
    y = x @ np.array([[1.0], [-1.0]], "f")
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(8)

    def make():
        model = tf.keras.Sequential([tf.keras.Input([2]), tf.keras.layers.Dense(1)])
        model.compile(tf.keras.optimizers.SGD(0.1), "mse", metrics=["mae"])
        return model

    with strategy.scope():
        model = make()
    directory = str(tmp_path / "ckpt")
    saving = tf.keras.callbacks.ModelCheckpoint(
        os.path.join(directory, "ckpt-{epoch}"), save_weights_only=True
    )
    model.fit(data.repeat(), epochs=2, steps_per_epoch=8, callbacks=[saving], verbose=0)
    seen = []

    class Report(tf.keras.callbacks.Callback):
        def on_test_end(self, logs=None):
            seen.append((int(self.model.optimizer.iterations), logs["loss"]))

    tf.keras.utils.SidecarEvaluator(
        model=make(), data=data, checkpoint_dir=directory, steps=None, max_evaluations=2,
        callbacks=[Report()],
    ).start()  # fmt: skip
    assert seen[0][0] == 16
    assert seen[0][1] == pytest.approx(model.evaluate(data, verbose=0)[0], rel=1e-4)
