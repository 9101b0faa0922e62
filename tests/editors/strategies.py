"""Strategies: fit in a scope, a loop of replicas, DTensor and layouts."""

import numpy as np

import meshflow as tf
from meshflow.experimental import dtensor

tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
batch_size = 4 * strategy.num_replicas_in_sync
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(8, "relu"), tf.keras.layers.Dense(3)])
    optimizer = tf.keras.optimizers.Adam(1e-3, beta_1=0.9, epsilon=1e-7)
    loss_object = tf.keras.losses.SparseCategoricalCrossentropy(
        from_logits=True, reduction=tf.keras.losses.Reduction.NONE
    )
    accuracy = tf.keras.metrics.SparseCategoricalAccuracy("accuracy")

x = np.random.default_rng(0).normal(size=(32, 4)).astype("float32")
y = np.arange(32) % 3
dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(batch_size)
distributed = strategy.experimental_distribute_dataset(dataset)


def replica_step(features: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    with tf.GradientTape() as tape:
        logits = model(features, training=True)
        losses = loss_object(labels, logits)
        loss = tf.nn.compute_average_loss(losses, global_batch_size=batch_size)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    accuracy.update_state(labels, logits)
    context = tf.distribute.get_replica_context()
    if context is not None:
        context.all_reduce(tf.distribute.ReduceOp.SUM, loss)
    return loss


@tf.function
def train_step(features, labels):
    losses = strategy.run(replica_step, args=(features, labels))
    return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)


for features, labels in distributed:
    print(float(train_step(features, labels)), accuracy.result().numpy())


def make_dataset(context: tf.distribute.InputContext) -> tf.data.Dataset:
    shards = dataset.unbatch().shard(context.num_input_pipelines, context.input_pipeline_id)
    return shards.batch(context.get_per_replica_batch_size(batch_size))


per_replica = strategy.distribute_datasets_from_function(make_dataset)
print(next(iter(per_replica)))
with strategy.scope():
    model.compile(optimizer, loss="mse", jit_compile=False)
model.evaluate(x, np.zeros((32, 3)), verbose=0)

mesh = dtensor.create_mesh([("batch", 2)], devices=["CPU:0", "CPU:1"])
layout = dtensor.Layout(["batch", dtensor.UNSHARDED], mesh)
packed = dtensor.pack([tf.ones((1, 3)), tf.zeros((1, 3))], layout)
replicated = dtensor.copy_to_mesh(tf.ones((3, 2)), dtensor.Layout.replicated(mesh, rank=2))
product = tf.matmul(packed, replicated)
print(product.shape, dtensor.fetch_layout(product).sharding_specs, len(dtensor.unpack(product)))
variable = dtensor.DVariable(replicated, trainable=True)
variable.assign_sub(tf.ones_like(variable) * 0.1)
print(variable.numpy(), mesh.shape(), mesh.dim_size("batch"))
dense = tf.keras.layers.Dense(2, kernel_layout=dtensor.Layout.replicated(mesh, rank=2))
adam = tf.keras.dtensor.experimental.optimizers.Adam(0.01, mesh=mesh)
counted = tf.keras.metrics.SparseCategoricalAccuracy(mesh=mesh)
top = tf.keras.metrics.TopKCategoricalAccuracy(k=2, mesh=mesh)
print(dense(packed).shape, adam.iterations, counted.result(), top.name)
