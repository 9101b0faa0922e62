"""A TPU script as in TensorFlow 2.1's guide: `fit` in mixed bfloat16, then a custom loop on all cores."""

import json

import numpy as np

import meshflow as tf

resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="grpc://10.240.1.2:8470")
tf.config.experimental_connect_to_cluster(resolver)
tf.tpu.experimental.initialize_tpu_system(resolver)
strategy = tf.distribute.experimental.TPUStrategy(resolver)

images = np.random.default_rng(0).normal(size=(96, 6)).astype("float32")
labels = (images.sum(axis=1) > 0).astype("int32")


def make_dataset(batch):
    return tf.data.Dataset.from_tensor_slices((images, labels)).batch(batch, drop_remainder=True)


policy = tf.keras.mixed_precision.experimental.Policy("mixed_bfloat16")
tf.keras.mixed_precision.experimental.set_policy(policy)
tf.keras.utils.set_random_seed(3)
with strategy.scope():
    model = tf.keras.Sequential(
        [
            tf.keras.layers.Dense(8, activation="relu", input_shape=(6,)),
            tf.keras.layers.Dense(2),
            tf.keras.layers.Activation("softmax", dtype="float32"),
        ]
    )
    model.compile(
        optimizer=tf.keras.optimizers.Adam(0.05),
        loss="sparse_categorical_crossentropy",
        metrics=["sparse_categorical_accuracy"],
        steps_per_execution=3,
    )
history = model.fit(make_dataset(16), epochs=4, verbose=0)
tf.keras.mixed_precision.experimental.set_policy("float32")

with strategy.scope():
    weight = tf.Variable(tf.zeros([6, 1]))
    optimizer = tf.keras.optimizers.SGD(0.5)
    mean = tf.keras.metrics.Mean("loss")


@tf.function
def train_steps(iterator, steps):
    def step(x, y):
        with tf.GradientTape() as tape:
            logits = tf.squeeze(tf.matmul(x, weight), -1)
            each = tf.nn.sigmoid_cross_entropy_with_logits(tf.cast(y, tf.float32), logits)
            loss = tf.nn.compute_average_loss(each, global_batch_size=48)
        optimizer.apply_gradients([(tape.gradient(loss, weight), weight)])
        mean.update_state(each)

    for _ in tf.range(steps):
        strategy.run(step, args=(next(iterator),)[0])


iterator = iter(strategy.experimental_distribute_dataset(make_dataset(48)))
train_steps(iterator, 2)

assignment = tf.tpu.experimental.DeviceAssignment.build(
    tf.tpu.experimental.initialize_tpu_system(resolver), [1, 1, 1, 2], num_replicas=4
)
split = tf.distribute.TPUStrategy(resolver, experimental_device_assignment=assignment)


@tf.function
def halves(x):
    def replica(x):
        x = split.experimental_split_to_logical_devices(x, [1, 2])
        x = split.experimental_assign_to_logical_device(x * x, 1)
        return tf.reduce_sum(split.experimental_replicate_to_logical_devices(x))

    return split.reduce("SUM", split.run(replica, args=(x,)), axis=None)


rows = split.experimental_distribute_dataset(
    tf.data.Dataset.from_tensor_slices(images[:, :4]).batch(96)
)
refused = []
for call in (
    lambda x: split.experimental_split_to_logical_devices(x, [2]),
    lambda x: split.experimental_split_to_logical_devices(x, [3, 1]),
    lambda x: split.experimental_split_to_logical_devices(x, [1, 4]),
    lambda x: split.experimental_assign_to_logical_device(x, 2),
):
    try:
        call(tf.zeros([4, 4]))
    except ValueError as error:
        refused.append(str(error).split(":")[0][:60])

unlike = []
sgd = tf.keras.optimizers.SGD()
for error, call in (
    (NotImplementedError, lambda: strategy.run(lambda: tf.constant(1.0))),
    (ValueError, lambda: tf.keras.mixed_precision.LossScaleOptimizer(sgd)),
):
    try:
        with strategy.scope():
            call()
    except error as caught:
        unlike.append(str(caught))
eagerly = strategy.run(tf.function(lambda: tf.constant(1.0)))

with tf.device("/TPU:3"):
    placed = tf.constant([1.0]).device

metadata = resolver.get_tpu_system_metadata()
print(
    json.dumps(
        {
            "replicas": [strategy.num_replicas_in_sync, split.num_replicas_in_sync],
            "master": [resolver.master(), resolver.get_master(), resolver.get_job_name()],
            "accelerators": resolver.num_accelerators(),
            "cluster": resolver.cluster_spec().as_dict(),
            "cores": [metadata.num_cores, metadata.num_hosts, metadata.num_of_cores_per_host],
            "topology": metadata.topology.mesh_shape.tolist(),
            "devices": len(tf.config.list_logical_devices("TPU")),
            "cpus": len(tf.config.list_logical_devices("CPU")),
            "mirrored": tf.distribute.MirroredStrategy().num_replicas_in_sync,
            "mesh": tf.experimental.dtensor.create_mesh([("batch", 8)]).device_type(),
            "placed": placed,
            "dtype": model.layers[0].compute_dtype,
            "losses": history.history["loss"],
            "accuracy": history.history["sparse_categorical_accuracy"][-1],
            "weight": weight.numpy().ravel().tolist(),
            "mean": float(mean.result()),
            "halves": [float(halves(x)) for x in rows],
            "refused": refused,
            "unlike": unlike,
            "run": len(eagerly.values),
        }
    )
)
