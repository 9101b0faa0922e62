"""A training loop with a tape, mixed precision, checkpoints and summaries."""

import tempfile

import numpy as np

import meshflow as tf

tf.keras.mixed_precision.set_global_policy("mixed_float16")
tf.random.set_seed(7)

model = tf.keras.Sequential(
    [
        tf.keras.layers.Dense(64, activation="gelu", input_shape=(20,)),
        tf.keras.layers.LayerNormalization(epsilon=1e-5),
        tf.keras.layers.Dense(1, dtype="float32"),
    ]
)
base = tf.keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True)
optimizer = tf.keras.mixed_precision.LossScaleOptimizer(base)
loss_object = tf.keras.losses.MeanSquaredError(reduction=tf.keras.losses.Reduction.SUM)
train_loss = tf.keras.metrics.Mean(name="train_loss")
train_error = tf.keras.metrics.MeanAbsoluteError()


@tf.function(jit_compile=True)
def train_step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    with tf.GradientTape() as tape:
        predictions = model(x, training=True)
        loss = loss_object(y, predictions) / tf.cast(tf.shape(x)[0], tf.float32)
        loss += tf.add_n(model.losses) if model.losses else 0.0
        scaled = optimizer.get_scaled_loss(loss)
    scaled_gradients = tape.gradient(scaled, model.trainable_variables)
    gradients = optimizer.get_unscaled_gradients(scaled_gradients)
    gradients, norm = tf.clip_by_global_norm(gradients, 5.0)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    train_loss.update_state(loss)
    train_error(y, predictions)
    return norm


x = np.random.default_rng(0).normal(size=(256, 20)).astype(np.float32)
y = x.sum(axis=1, keepdims=True)
dataset = (
    tf.data.Dataset.from_tensor_slices((x, y)).shuffle(256, seed=1).batch(32, drop_remainder=True)
)
directory = tempfile.mkdtemp()
step = tf.Variable(0, dtype=tf.int64, trainable=False, name="step")
checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer, step=step)
manager = tf.train.CheckpointManager(checkpoint, directory, max_to_keep=3)
checkpoint.restore(manager.latest_checkpoint)
writer = tf.summary.create_file_writer(directory)

norm = tf.zeros(())
for epoch in range(3):
    train_loss.reset_state()
    train_error.reset_state()
    for features, labels in dataset:
        norm = train_step(features, labels)
        step.assign_add(1)
    with writer.as_default(step=epoch):
        tf.summary.scalar("loss", train_loss.result())
        tf.summary.histogram("kernel", model.layers[0].kernel)
    if int(step) % 2 == 0:
        path = manager.save(checkpoint_number=int(step))
        print("saved", path)
    print(
        f"{epoch}: {float(train_loss.result()):.4f} {train_error.result().numpy():.3f} {norm.numpy()}"
    )

point = tf.Variable([1.0, 2.0])
with tf.GradientTape(persistent=True) as outer:
    with tf.GradientTape() as inner:
        value = tf.reduce_sum(point**3)
    first = inner.gradient(value, point)
second = outer.jacobian(first, point)
print(first.numpy().tolist(), second.shape, tf.norm(second).numpy())
del outer
point.assign(point - 0.1 * first)
x_axis, y_axis = tf.unstack(point, num=2)
print(x_axis + y_axis, -x_axis, point[0] > 1.0, point[..., tf.newaxis].shape.as_list())


@tf.custom_gradient
def clip_backward(values: tf.Tensor):
    def grad(upstream: tf.Tensor) -> tf.Tensor:
        return tf.clip_by_norm(upstream, 0.5)

    return tf.identity(values), grad


print(clip_backward(tf.constant([1.0, -1.0])).numpy())
