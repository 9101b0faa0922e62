"""Run DTensor with several clients: `clients.py FOLDER`; write results to FOLDER/<client>.npz."""

import sys

import numpy as np

import meshflow as tf

dtensor = tf.experimental.dtensor
LAYERS = tf.keras.layers


def results(make_mesh, folder):
    """Values on a mesh of 2 x 2 devices, and training with data and model parallelism."""
    mesh = make_mesh([("batch", 2), ("model", 2)])
    rows = dtensor.Layout(["batch", dtensor.UNSHARDED], mesh)
    columns = dtensor.Layout([dtensor.UNSHARDED, "model"], mesh)
    a = np.arange(8, dtype="float32").reshape(4, 2)
    product = tf.matmul(
        dtensor.relayout(dtensor.copy_to_mesh(a, dtensor.Layout.replicated(mesh, 2)), rows),
        dtensor.relayout(dtensor.copy_to_mesh(a.T, dtensor.Layout.replicated(mesh, 2)), columns),
    )
    variable = dtensor.DVariable(
        dtensor.call_with_layout(tf.ones, columns, shape=[2, 4], dtype=tf.float32)
    )
    variable.assign_add(tf.ones([2, 4]))
    layouts = tf.keras.dtensor.experimental.LayoutMap(mesh=mesh)
    layouts["first.kernel"] = columns
    layouts["first.bias"] = dtensor.Layout(["model"], mesh)
    tf.random.set_seed(2)
    with tf.keras.dtensor.experimental.layout_map_scope(layouts):
        model = tf.keras.Sequential(
            [LAYERS.Dense(4, "relu", input_shape=(2,), name="first"), LAYERS.Dense(1)]
        )
    model.compile(tf.keras.optimizers.SGD(0.01, momentum=0.9), "mse")
    x = np.linspace(0, 1, 12, dtype="float32").reshape(6, 2)
    backup = tf.keras.callbacks.BackupAndRestore(f"{folder}/backup", save_freq=1)
    history = model.fit(x, x[:, :1], batch_size=4, epochs=2, verbose=0, callbacks=[backup])
    return {
        "product": product.numpy(),
        "variable": variable.numpy(),
        "loss": history.history["loss"],
        "kernel": model.get_weights()[0],
        "predict": model.predict(x, verbose=0),
        "devices": len(mesh.global_devices()),
    }


if __name__ == "__main__":
    dtensor.initialize_accelerator_system("CPU")
    make_mesh = lambda dims: dtensor.create_distributed_mesh(dims, device_type="CPU")
    found = results(make_mesh, sys.argv[1])
    about = {"client": dtensor.client_id(), "clients": dtensor.num_clients()}
    np.savez(f"{sys.argv[1]}/{dtensor.client_id()}.npz", **found, **about)
