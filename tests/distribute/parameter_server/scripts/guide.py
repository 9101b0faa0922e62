"""Train, evaluate and save as TensorFlow's guide to parameter servers does; every task of a cluster
runs this file.

With `TF_CONFIG`, the process is the task that it names. Otherwise, the first argument selects the
cluster: "here" for servers started by this program, "alone" for a cluster started by the strategy.
The second argument is a folder for saved files.
"""

import multiprocessing
import os
import random
import socket
import sys

import meshflow as tf

VOCABULARY = ["avenger", "ironman", "batman", "hulk", "spiderman", "kingkong", "wonder_woman"]
LABELS = ["yes", "no"]
BATCH = 32


def free_ports(count):
    held = [socket.socket() for _ in range(count)]
    for one in held:
        one.bind(("localhost", 0))
    ports = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return ports


def in_process_cluster(workers, servers):
    """Start all servers of a small cluster in this process; return them and their resolver."""
    ports = iter(free_ports(workers + servers))
    spec = tf.train.ClusterSpec(
        {
            "worker": [f"localhost:{next(ports)}" for _ in range(workers)],
            "ps": [f"localhost:{next(ports)}" for _ in range(servers)],
        }
    )
    config = tf.compat.v1.ConfigProto()
    if multiprocessing.cpu_count() < workers + 1:
        config.inter_op_parallelism_threads = workers + 1
    started = [
        tf.distribute.Server(spec, job_name=job, task_index=i, config=config, protocol="grpc")
        for job, count in (("worker", workers), ("ps", servers))
        for i in range(count)
    ]
    return started, tf.distribute.cluster_resolver.SimpleClusterResolver(spec, rpc_layer="grpc")


def make_strategy(resolver, servers):
    partitioner = tf.distribute.experimental.partitioners.MinSizePartitioner(
        min_shard_bytes=(256 << 10), max_shards=servers
    )
    return tf.distribute.ParameterServerStrategy(resolver, variable_partitioner=partitioner)


# ---- Keras ---------------------------------------------------------------------------------


def regression_data(context):
    """The batches of one worker."""
    x = tf.random.uniform((10, 10))
    y = tf.reduce_sum(x, axis=1)
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(10).repeat()
    dataset = dataset.shard(context.num_input_pipelines, context.input_pipeline_id)
    return dataset.batch(context.get_per_replica_batch_size(64)).prefetch(2)


def make_regression():
    model = tf.keras.models.Sequential([tf.keras.layers.Dense(1)])
    model.compile(
        tf.keras.optimizers.legacy.SGD(), loss="mse", metrics=["mae"], steps_per_execution=10
    )
    return model


def train_with_fit(strategy, folder):
    with strategy.scope():
        model = make_regression()
    options = tf.distribute.InputOptions(
        experimental_fetch_to_device=True, experimental_per_replica_buffer_size=2
    )
    creator = tf.keras.utils.experimental.DatasetCreator(regression_data, input_options=options)
    callbacks = [
        tf.keras.callbacks.TensorBoard(log_dir=os.path.join(folder, "log")),
        tf.keras.callbacks.ModelCheckpoint(
            filepath=os.path.join(folder, "ckpt", "ckpt-{epoch}"), save_weights_only=True
        ),
        tf.keras.callbacks.BackupAndRestore(backup_dir=os.path.join(folder, "backup")),
    ]
    history = model.fit(creator, epochs=5, steps_per_epoch=20, callbacks=callbacks, verbose=2)
    assert history.history["loss"][-1] < history.history["loss"][0], history.history
    loss, _mae = model.evaluate(creator, steps=10, verbose=0)
    assert loss < history.history["loss"][0]
    print("fit steps", int(model.optimizer.iterations.numpy()), flush=True)
    return model


def evaluate_beside(folder):
    """Run the job "evaluator", which evaluates the checkpoints of training."""
    model = make_regression()
    x = tf.random.uniform((64, 10))
    data = tf.data.Dataset.from_tensor_slices((x, tf.reduce_sum(x, axis=1))).batch(16)
    tf.keras.utils.SidecarEvaluator(
        model=model,
        data=data,
        checkpoint_dir=os.path.join(folder, "ckpt"),
        steps=None,
        max_evaluations=1,
        callbacks=[tf.keras.callbacks.TensorBoard(log_dir=os.path.join(folder, "evaluation"))],
    ).start()
    print("side-car steps", int(model.optimizer.iterations.numpy()), flush=True)


# ---- custom loop ---------------------------------------------------------------------------


def preprocessing(strategy):
    """Models that turn words into numbers; their vocabularies are those of the coordinator."""
    with strategy.scope():
        feature_lookup = tf.keras.layers.StringLookup(vocabulary=VOCABULARY, mask_token=None)
        label_lookup = tf.keras.layers.StringLookup(
            vocabulary=LABELS, num_oov_indices=0, mask_token=None
        )
        raw = tf.keras.layers.Input(shape=(3,), dtype=tf.string, name="feature")
        features = tf.keras.Model({"features": raw}, feature_lookup(raw))
        raw = tf.keras.layers.Input(shape=(1,), dtype=tf.string, name="label")
        labels = tf.keras.Model({"label": raw}, label_lookup(raw))
    return feature_lookup, features, labels


def feature_and_label_gen(num_examples=200):
    examples = {"features": [], "label": []}
    for _ in range(num_examples):
        features = random.sample(VOCABULARY, 3)
        examples["features"].append(features)
        examples["label"].append(["yes"] if "avenger" in features else ["no"])
    return examples


class Job:
    """The model, its data and its optimizer."""

    def __init__(self, strategy):
        self.strategy = strategy
        self.coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        lookup, self.feature_stage, self.label_stage = preprocessing(strategy)
        self.examples = feature_and_label_gen()
        with strategy.scope():
            model_input = tf.keras.layers.Input(shape=(3,), dtype=tf.int64, name="model_input")
            self.table = tf.keras.layers.Embedding(
                input_dim=len(lookup.get_vocabulary()), output_dim=16384
            )
            rows = tf.reduce_mean(self.table(model_input), axis=1)
            output = tf.keras.layers.Dense(units=1, activation="sigmoid")(rows)
            self.model = tf.keras.Model({"features": model_input}, output)
            self.optimizer = tf.keras.optimizers.legacy.RMSprop(learning_rate=0.1)
            self.accuracy = tf.keras.metrics.Accuracy()

    def check_shards(self, servers):
        """The table is cut over the servers."""
        weights = self.table.weights
        assert len(weights) == servers, weights
        if servers == 2:
            assert [w.shape for w in weights] == [(4, 16384), (4, 16384)]
        assert sorted(w.device for w in weights) == [
            f"/job:ps/replica:0/task:{i}/device:CPU:0" for i in range(servers)
        ]

    def preprocessed(self, x):
        return {"features": self.feature_stage(x["features"])}, self.label_stage(x["label"])

    def dataset_fn(self, _):
        raw = tf.data.Dataset.from_tensor_slices(self.examples)
        return raw.map(self.preprocessed).shuffle(200).batch(BATCH).repeat()

    def train(self):
        strategy, model, optimizer, accuracy = (
            self.strategy, self.model, self.optimizer, self.accuracy,
        )  # fmt: skip

        @tf.function
        def step_fn(iterator):
            def replica_fn(batch_data, labels):
                with tf.GradientTape() as tape:
                    pred = model(batch_data, training=True)
                    per_example_loss = tf.keras.losses.BinaryCrossentropy(
                        reduction=tf.keras.losses.Reduction.NONE
                    )(labels, pred)
                    loss = tf.nn.compute_average_loss(per_example_loss)
                    gradients = tape.gradient(loss, model.trainable_variables)
                optimizer.apply_gradients(zip(gradients, model.trainable_variables))
                accuracy.update_state(labels, tf.cast(tf.greater(pred, 0.5), tf.int64))
                return loss

            batch_data, labels = next(iterator)
            losses = strategy.run(replica_fn, args=(batch_data, labels))
            return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)

        @tf.function
        def per_worker_dataset_fn():
            return strategy.distribute_datasets_from_function(self.dataset_fn)

        dataset = self.coordinator.create_per_worker_dataset(per_worker_dataset_fn)
        iterator = iter(dataset)
        found = []
        # The guide has 4 epochs; steps of several workers that cross each other may need some more.
        for epoch in range(12):
            accuracy.reset_states()
            for _ in range(5):
                self.coordinator.schedule(step_fn, args=(iterator,))
            self.coordinator.join()
            found.append(float(accuracy.result().numpy()))
            print(f"Finished epoch {epoch}, accuracy is {found[-1]:f}.", flush=True)
        assert max(found[-4:]) > 0.9, found
        loss = self.coordinator.schedule(step_fn, args=(iterator,))
        print(f"Final loss is {loss.fetch():f}", flush=True)
        assert self.coordinator.done()
        print("loop steps", int(optimizer.iterations.numpy()), flush=True)

    def evaluate_inline(self):
        data = tf.data.Dataset.from_tensor_slices(feature_and_label_gen(num_examples=16))
        accuracy = tf.keras.metrics.Accuracy()
        for batch_data, labels in data.map(self.preprocessed).batch(8):
            pred = self.model(batch_data, training=False)
            accuracy.update_state(labels, tf.cast(tf.greater(pred, 0.5), tf.int64))
        print(f"Evaluation accuracy: {float(accuracy.result()):f}", flush=True)
        assert float(accuracy.result()) > 0.7

    def evaluate_on_workers(self):
        strategy, model = self.strategy, self.model
        with strategy.scope():
            accuracy = tf.keras.metrics.Accuracy()

        @tf.function
        def eval_step(iterator):
            def replica_fn(batch_data, labels):
                pred = model(batch_data, training=False)
                accuracy.update_state(labels, tf.cast(tf.greater(pred, 0.5), tf.int64))

            batch_data, labels = next(iterator)
            strategy.run(replica_fn, args=(batch_data, labels))

        def eval_dataset_fn():
            raw = tf.data.Dataset.from_tensor_slices(feature_and_label_gen(num_examples=16))
            return raw.map(self.preprocessed).shuffle(16).repeat().batch(8)

        iterator = iter(self.coordinator.create_per_worker_dataset(eval_dataset_fn))
        for _ in range(6):
            self.coordinator.schedule(eval_step, args=(iterator,))
        self.coordinator.join()
        print(f"Evaluation accuracy: {float(accuracy.result()):f}", flush=True)
        assert float(accuracy.count) == 48.0 and float(accuracy.result()) > 0.7

    def save_and_begin_again(self, folder):
        """Test that a restarted coordinator restores the saved state."""
        steps = tf.Variable(1, name="steps")
        checkpoint = tf.train.Checkpoint(
            model=self.model, optimizer=self.optimizer, global_step=steps
        )
        manager = tf.train.CheckpointManager(
            checkpoint, os.path.join(folder, "loop"), max_to_keep=3
        )
        path = manager.save()
        before = [w.numpy() for w in self.model.weights]
        for w in self.model.weights:
            w.assign(tf.zeros_like(w))
        checkpoint.restore(path).assert_existing_objects_matched()
        for w, value in zip(self.model.weights, before):
            assert (w.numpy() == value).all()

    def fail(self):
        """Test that exceptions of a function are raised where the program waits."""

        @tf.function
        def wrong(x):
            tf.debugging.assert_equal(x, tf.constant(2), "numbers differ")

        for _ in range(3):
            self.coordinator.schedule(wrong, args=(tf.constant(1),))
        try:
            self.coordinator.join()
        except tf.errors.InvalidArgumentError as error:
            assert "numbers differ" in str(error)
        else:
            raise AssertionError("join() did not raise")
        self.coordinator.join()


def train(resolver, folder, servers):
    strategy = make_strategy(resolver, servers)
    train_with_fit(strategy, folder)
    job = Job(strategy)
    job.check_shards(servers)
    job.train()
    job.evaluate_inline()
    job.evaluate_on_workers()
    job.save_and_begin_again(folder)
    job.fail()
    print("done", flush=True)
    return strategy


def main(kind, folder):
    if kind == "here":
        _servers, resolver = in_process_cluster(workers=3, servers=2)
        train(resolver, folder, servers=2)
        evaluate_beside(folder)
        return
    if kind == "alone":
        train(None, folder, servers=1)
        return
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if resolver.task_type in ("worker", "ps"):
        os.environ["GRPC_FAIL_FAST"] = "use_caller"
        server = tf.distribute.Server(
            resolver.cluster_spec(),
            job_name=resolver.task_type,
            task_index=resolver.task_id,
            protocol=resolver.rpc_layer or "grpc",
            start=True,
        )
        server.join()
    elif resolver.task_type == "evaluator":
        evaluate_beside(folder)
    else:
        train(resolver, folder, servers=resolver.cluster_spec().num_tasks("ps"))


if __name__ == "__main__":
    main(*sys.argv[1:])
