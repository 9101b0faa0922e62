"""TensorFlow's articles on DTensor, shortened in their data only. Run by test_articles.py on eight virtual devices."""

import os

os.environ.setdefault("NPROC", "32")
os.environ["MESHFLOW_CACHE_DIR"] = ""
os.environ["JAX_PLATFORMS"] = "cpu"

import tempfile

import numpy as np

import meshflow as tf
from meshflow.experimental import dtensor


def configure_virtual_cpus(ncpu):
    phy_devices = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(
        phy_devices[0], [tf.config.LogicalDeviceConfiguration()] * ncpu
    )


configure_virtual_cpus(8)
DEVICES = [f"CPU:{i}" for i in range(8)]
assert len(tf.config.list_logical_devices("CPU")) == 8
rng = np.random.default_rng(0)


def overview():
    """Concepts: meshes, layouts, tensors, functions, variables."""
    mesh = dtensor.create_mesh([("x", 3), ("y", 2)], devices=DEVICES[:6])
    layout = dtensor.Layout(["x", "y"], mesh)
    my_first_dtensor = dtensor.copy_to_mesh(
        tf.constant([0, 1]), layout=dtensor.Layout([dtensor.UNSHARDED], mesh)
    )
    assert dtensor.fetch_layout(my_first_dtensor).is_fully_replicated()
    tensors = [tf.constant([[i]]) for i in range(6)]
    packed = dtensor.pack(tensors, layout)
    assert packed.numpy().tolist() == [[0, 1], [2, 3], [4, 5]]
    scalar = dtensor.copy_to_mesh(tf.constant(1.0), dtensor.Layout.replicated(mesh, rank=0))
    assert dtensor.fetch_layout(scalar).rank == 0
    a = tf.constant([[1, 2, 3], [4, 5, 6]])
    a = dtensor.copy_to_mesh(a, layout=dtensor.Layout([dtensor.UNSHARDED, dtensor.UNSHARDED], mesh))
    b = tf.constant([[6, 5], [4, 3], [2, 1]])
    b = dtensor.copy_to_mesh(b, layout=dtensor.Layout(["x", dtensor.UNSHARDED], mesh))

    @tf.function
    def add_and_matmul(a, b):
        return tf.matmul(a, b) + 1

    assert add_and_matmul(a, b).numpy().tolist() == [[21, 15], [57, 42]]
    ones = dtensor.call_with_layout(tf.ones, dtensor.Layout(["x", "y"], mesh), shape=(3, 2))
    assert len(dtensor.unpack(ones)) == 6
    layout = dtensor.Layout.batch_sharded(mesh, batch_dim="x", rank=2)
    v = dtensor.DVariable(
        initial_value=dtensor.call_with_layout(
            tf.function(tf.random.stateless_normal),
            layout=layout,
            shape=tf.TensorShape([3, 2]),
            seed=tf.constant([0, 1]),
        ),
        name="variable",
    )
    assert v.layout == layout
    v.assign(v + tf.ones_like(v))


def stateless(shape, layout, seed):
    return dtensor.call_with_layout(
        tf.function(tf.random.stateless_normal), layout=layout, shape=shape, seed=seed
    )


def machine_learning():
    """Train a classifier of tf.Modules with data, model and spatial parallelism."""

    class Dense(tf.Module):
        def __init__(self, input_size, output_size, seed, weight_layout, activation=None):
            super().__init__()
            self.weight = dtensor.DVariable(
                stateless([input_size, output_size], weight_layout, seed)
            )
            if activation is None:
                activation = lambda x: x
            self.activation = activation
            bias_layout = weight_layout.delete([0])
            self.bias = dtensor.DVariable(
                dtensor.call_with_layout(tf.zeros, bias_layout, [output_size])
            )

        def __call__(self, x):
            y = tf.matmul(x, self.weight) + self.bias
            return self.activation(y)

    class BatchNorm(tf.Module):
        def __call__(self, x, training=True):
            if not training:
                pass
            mean, variance = tf.nn.moments(x, axes=[0])
            return tf.nn.batch_normalization(x, mean, variance, 0.0, 1.0, 1e-5)

    class MLP(tf.Module):
        def __init__(self, dense_layouts):
            super().__init__()
            self.dense1 = Dense(24, 48, (1, 2), dense_layouts[0], tf.nn.relu)
            self.bn = BatchNorm()
            self.dense2 = Dense(48, 2, (3, 4), dense_layouts[1])

        def __call__(self, x):
            return self.dense2(self.bn(self.dense1(x)))

    @tf.function
    def train_step(model, x, y, learning_rate=tf.constant(1e-2)):
        with tf.GradientTape() as tape:
            logits = model(x)
            loss = tf.reduce_sum(
                tf.nn.sparse_softmax_cross_entropy_with_logits(logits=logits, labels=y)
            )
        parameters = model.trainable_variables
        gradients = tape.gradient(loss, parameters)
        for parameter, parameter_gradient in zip(parameters, gradients, strict=True):
            parameter.assign_sub(learning_rate * parameter_gradient)
        accuracy = (
            1.0
            - tf.reduce_sum(
                tf.cast(tf.argmax(logits, axis=-1, output_type=tf.int64) != y, tf.float32)
            )
            / x.shape[0]
        )
        return {"loss": loss / tf.cast(x.shape[0], loss.dtype), "accuracy": accuracy}

    def repack_batch(x, y, x_layout, y_layout):
        x = dtensor.copy_to_mesh(x, dtensor.Layout.replicated(x_layout.mesh, 2))
        y = dtensor.copy_to_mesh(y, dtensor.Layout.replicated(y_layout.mesh, 1))
        return dtensor.relayout(x, x_layout), dtensor.relayout(y, y_layout)

    U = dtensor.UNSHARDED
    x = rng.normal(size=(64, 24)).astype("float32")
    y = (x.sum(-1) > 0).astype("int64")
    cases = [
        ([("batch", 8)], lambda m: [(U, U), (U, U)], ["batch", U]),
        ([("batch", 4), ("model", 2)], lambda m: [(U, "model"), ("model", U)], ["batch", U]),
        (
            [("batch", 2), ("feature", 2), ("model", 2)],
            lambda m: [("feature", "model"), ("model", U)],
            ["batch", "feature"],
        ),
    ]
    curves, folder = [], tempfile.mkdtemp()
    for dims, specs, batch in cases:
        mesh = dtensor.create_mesh(dims, devices=DEVICES)
        model = MLP([dtensor.Layout(list(s), mesh) for s in specs(mesh)])
        losses = []
        for _ in range(3):
            images, labels = repack_batch(
                x, y, dtensor.Layout(batch, mesh), dtensor.Layout(batch[:1], mesh)
            )
            results = train_step(model, images, labels)
            losses.append(float(results["loss"].numpy()))
        curves.append(losses)
        manager = tf.train.CheckpointManager(tf.train.Checkpoint(root=model), folder, max_to_keep=3)
        if manager.latest_checkpoint:
            tf.train.Checkpoint(root=model).restore(manager.latest_checkpoint).assert_consumed()
        manager.save()
    # Unlike TensorFlow's, random numbers do not depend on the layout.
    np.testing.assert_allclose(curves[1:], curves[:1] * 2, rtol=1e-5)
    assert curves[0][-1] < curves[0][0]


@tf.function
def train_step(model, x, y, optimizer, metrics):
    with tf.GradientTape() as tape:
        logits = model(x, training=True)
        # tf.reduce_sum sums the batch sharded per-example loss to a replicated global loss (scalar).
        loss = tf.reduce_sum(
            tf.keras.losses.sparse_categorical_crossentropy(y, logits, from_logits=True)
        )
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    for metric in metrics.values():
        metric.update_state(y_true=y, y_pred=logits)
    loss_per_sample = loss / len(x)
    return {"loss": loss_per_sample}


@tf.function
def eval_step(model, x, y, metrics):
    logits = model(x, training=False)
    loss = tf.reduce_sum(
        tf.keras.losses.sparse_categorical_crossentropy(y, logits, from_logits=True)
    )
    for metric in metrics.values():
        metric.update_state(y_true=y, y_pred=logits)
    return {"eval_loss": loss / len(x)}


def pack_dtensor_inputs(images, labels, image_layout, label_layout):
    num_local_devices = image_layout.mesh.num_local_devices()
    images = tf.split(images, num_local_devices)
    labels = tf.split(labels, num_local_devices)
    images = dtensor.pack(images, image_layout)
    labels = dtensor.pack(labels, label_layout)
    return images, labels


def keras():
    """Layers with layouts, optimizers and metrics on a mesh, and layout maps."""
    tf.keras.backend.experimental.enable_tf_random_generator()
    tf.keras.utils.set_random_seed(1337)
    mesh = dtensor.create_mesh([("batch", 8)], devices=DEVICES)
    unsharded_layout_2d = dtensor.Layout.replicated(mesh, 2)
    unsharded_layout_1d = dtensor.Layout.replicated(mesh, 1)
    model = tf.keras.models.Sequential(
        [
            tf.keras.layers.Flatten(input_shape=(28, 28)),
            tf.keras.layers.Dense(
                128,
                activation="relu",
                name="d1",
                kernel_layout=unsharded_layout_2d,
                bias_layout=unsharded_layout_1d,
            ),
            tf.keras.layers.Dense(
                10, name="d2", kernel_layout=unsharded_layout_2d, bias_layout=unsharded_layout_1d
            ),
        ]
    )
    assert [w.name for w in model.weights] == [
        *("d1/kernel:0", "d1/bias:0", "d2/kernel:0", "d2/bias:0")
    ]
    assert all(w.layout.mesh == mesh for w in model.weights)
    optimizer = tf.keras.dtensor.experimental.optimizers.Adam(0.01, mesh=mesh)
    metrics = {"accuracy": tf.keras.metrics.SparseCategoricalAccuracy(mesh=mesh)}
    eval_metrics = {"eval_accuracy": tf.keras.metrics.SparseCategoricalAccuracy(mesh=mesh)}
    image_layout = dtensor.Layout.batch_sharded(mesh, "batch", rank=3)
    label_layout = dtensor.Layout.batch_sharded(mesh, "batch", rank=1)
    labels = rng.integers(0, 10, 64)
    patterns = rng.normal(size=(10, 28, 28))
    images = (patterns[labels] / 4).astype("float32")
    ds_train = tf.data.Dataset.from_tensor_slices((images, labels)).batch(32, drop_remainder=True)
    seen = []
    for epoch in range(4):
        pbar = tf.keras.utils.Progbar(target=None, stateful_metrics=[], verbose=0)
        results = {}
        for metric in metrics.values():
            metric.reset_state()
        step = 0
        for images_, labels_ in ds_train:
            packed = pack_dtensor_inputs(images_, labels_, image_layout, label_layout)
            results.update(train_step(model, *packed, optimizer, metrics))
            for metric_name, metric in metrics.items():
                results[metric_name] = metric.result()
            pbar.update(step, values=results.items(), finalize=False)
            step += 1
        pbar.update(step, values=results.items(), finalize=True)
        for metric in eval_metrics.values():
            metric.reset_state()
        results = eval_step(model, *packed, eval_metrics)
        seen.append(float(results["eval_loss"]))
        assert epoch >= 0 and 0 <= float(eval_metrics["eval_accuracy"].result()) <= 1
    assert seen[-1] < seen[0], seen

    class SubclassedModel(tf.keras.Model):
        def __init__(self, name=None):
            super().__init__(name=name)
            self.feature = tf.keras.layers.Dense(16)
            self.feature_2 = tf.keras.layers.Dense(24)
            self.dropout = tf.keras.layers.Dropout(0.1)

        def call(self, inputs, training=None):
            x = self.feature(inputs)
            x = self.dropout(x, training=training)
            return self.feature_2(x)

    layout_map = tf.keras.dtensor.experimental.LayoutMap(mesh=mesh)
    layout_map["feature.*kernel"] = dtensor.Layout.batch_sharded(mesh, "batch", rank=2)
    layout_map["feature.*bias"] = dtensor.Layout.batch_sharded(mesh, "batch", rank=1)
    with layout_map.scope():
        subclassed_model = SubclassedModel()
    dtensor_input = dtensor.copy_to_mesh(
        tf.zeros((16, 16)), layout=dtensor.Layout.replicated(mesh, rank=2)
    )
    subclassed_model(dtensor_input)
    assert [w.layout.sharding_specs[0] for w in subclassed_model.weights] == ["batch"] * 4
    with layout_map.scope():
        x = tf.keras.Input((16,), batch_size=16)
        y = tf.keras.layers.Dense(16, name="feature")(x)
        y = tf.keras.layers.Dropout(0.1)(y)
        y = tf.keras.layers.Dense(24, name="feature_2")(y)
        functional_model = tf.keras.Model(x, y)
    assert functional_model.weights[0].layout.sharding_specs == ["batch", dtensor.UNSHARDED]
    # Not available in TensorFlow.
    functional_model.compile("sgd", "mse")
    functional_model.fit(np.ones((16, 16)), np.ones((16, 24)), batch_size=16, verbose=0)


if __name__ == "__main__":
    overview()
    machine_learning()
    keras()
    print("done")
