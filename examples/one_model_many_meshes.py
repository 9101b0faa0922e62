"""Train one model on four meshes: data, model and spatial parallelism by layouts, on eight virtual
devices.

Run it with `python examples/one_model_many_meshes.py`. The losses agree up to rounding; the meshes
differ in the values that each device holds and the bytes sent.
"""

import numpy as np

import meshflow as tf
from meshflow.experimental import dtensor
from meshflow.experimental.dtensor import UNSHARDED, Layout

MESHES = {
    "one device": {"batch": 1},
    "data": {"batch": 8},
    "data x model": {"batch": 2, "model": 4},
    "data x height x width": {"batch": 2, "height": 2, "width": 2},
    "data x model x height": {"batch": 2, "model": 2, "height": 2},
}
BATCH = 16


def make_model():
    """Define a model without reference to devices."""
    layers = tf.keras.layers
    return tf.keras.Sequential(
        [
            tf.keras.Input((16, 16, 1)),
            layers.Conv2D(8, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(2),
            layers.Flatten(),
            layers.Dense(32, activation="relu"),
            layers.Dense(10),
        ]
    )


def train(sizes, images, labels):
    """Train on a mesh; return the model and its losses."""
    tf.keras.backend.clear_session()
    tf.keras.utils.set_random_seed(1)
    count = int(np.prod(list(sizes.values())))
    mesh = dtensor.create_mesh(sizes, devices=[f"CPU:{i}" for i in range(count)])
    split = lambda *names: [n if n in mesh else UNSHARDED for n in names]
    layouts = tf.keras.dtensor.experimental.LayoutMap(mesh=mesh)
    layouts["conv2d.kernel"] = Layout(split("", "", "", "model"), mesh)
    layouts["dense.kernel"] = Layout(split("", "model"), mesh)
    layouts["dense_1.kernel"] = Layout(split("model", ""), mesh)
    with layouts.scope():
        model = make_model()
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(tf.keras.optimizers.SGD(0.1), loss)
    batches = dtensor.DTensorDataset(
        tf.data.Dataset.from_tensor_slices((images, labels)),
        mesh=mesh,
        layouts=(
            Layout(split("batch", "height", "width", ""), mesh),
            Layout(split("batch"), mesh),
        ),
        global_batch_size=BATCH,
        batch_dim="batch",
    )
    losses = model.fit(batches, epochs=3, verbose=0).history["loss"]
    return model, losses, next(iter(batches))


def main():
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 8
    )
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 10, 128)
    images = rng.normal(labels[:, None, None, None] / 5, size=(128, 16, 16, 1)).astype("float32")
    for name, sizes in MESHES.items():
        model, losses, batch = train(sizes, images, labels)
        print(f"\n{name}: losses {', '.join(f'{loss:.5f}' for loss in losses)}")
        print(dtensor.explain(model, *batch))
    dtensor.visualize(batch[0])
    dtensor.visualize(model)


if __name__ == "__main__":
    main()
