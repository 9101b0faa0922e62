"""Train two small models on one device and on meshes of eight; print the results as JSON. This is a
separate program because the number of devices of a process is fixed.

Run by test_parallelism.py.
"""

import json
import os

os.environ.setdefault("NPROC", "32")
os.environ["MESHFLOW_CACHE_DIR"] = ""

import jax

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)

import numpy as np

import meshflow as tf
from meshflow.experimental import dtensor
from meshflow.experimental.dtensor import UNSHARDED, Layout

U = UNSHARDED
BATCH, EPOCHS = 16, 2
LAYERS = tf.keras.layers


def cnn():
    """The demo's network with few channels."""
    model = tf.keras.Sequential([tf.keras.Input((16, 16, 3))])
    for filters, pool in ((8, 2), (16, 2)):
        model.add(LAYERS.Conv2D(filters, 3, padding="same", activation="relu"))
        model.add(LAYERS.MaxPooling2D(pool))
    model.add(LAYERS.Flatten())
    model.add(LAYERS.BatchNormalization())
    model.add(LAYERS.Dropout(0.25))
    model.add(LAYERS.Dense(32, activation="relu"))
    model.add(LAYERS.Dense(10, activation="softmax"))
    return model


def transformer():
    """One block with attention, dropout, and a layer for positions."""

    class Positions(LAYERS.Layer):
        def build(self, shape):
            self.table = self.add_weight(name="table", shape=shape[1:], initializer="random_normal")
            super().build(shape)

        def call(self, x):
            return x + self.table

    tokens = tf.keras.Input((8,), dtype="int32")
    x = Positions()(LAYERS.Embedding(32, 16)(tokens))
    y = LAYERS.LayerNormalization()(x)
    y = LAYERS.MultiHeadAttention(4, 4, dropout=0.1)(y, y, use_causal_mask=True)
    x = LAYERS.Add()([x, y])
    y = LAYERS.LayerNormalization()(x)
    y = LAYERS.Dropout(0.1)(LAYERS.Dense(64, activation="relu")(y))
    x = LAYERS.Add()([x, LAYERS.Dense(16)(y)])
    return tf.keras.Model(tokens, LAYERS.Dense(32, activation="softmax")(x))


MODELS = {"cnn": cnn, "transformer": transformer}
# How weights are split where a mesh has a dimension "model"; the same for both networks.
MODEL_PARALLEL = {
    "cnn": {
        "conv2d.*kernel": [U, U, U, "model"],
        "conv2d.*bias": ["model"],
        "dense.kernel": [U, "model"],
        "dense.bias": ["model"],
        "dense_1.kernel": ["model", U],
        "batch_normalization.*": ["model"],
    },
    "transformer": {
        "embedding.embeddings": ["model", U],
        "(query|key|value).kernel": [U, "model", U],
        "(query|key|value).bias": ["model", U],
        "attention_output.kernel": ["model", U, U],
        "dense.kernel": [U, "model"],
        "dense.bias": ["model"],
        "dense_1.kernel": ["model", U],
        "dense_2.kernel": [U, "model"],
    },
}
MESHES = {
    "data": {"batch": 8},
    "model": {"batch": 2, "model": 4},
    "spatial": {"batch": 2, "height": 2, "width": 2},
    "combined": {"batch": 2, "model": 2, "height": 2},
}


def dataset(name):
    rng = np.random.default_rng(0)
    if name == "cnn":
        x = rng.normal(size=(64, 16, 16, 3)).astype("float32")
        y = rng.integers(0, 10, 64)
    else:
        x = rng.integers(0, 32, (64, 8)).astype("int32")
        y = np.roll(x, -1, 1)
    return tf.data.Dataset.from_tensor_slices((x, y)).shuffle(64, seed=7)


def on_mesh(name, mesh):
    """The dataset's batches: height and width of images, or positions of texts, are split too."""

    def layout(rank):
        specs = ["batch", *(n if n in mesh else U for n in ("height", "width"))]
        return Layout([*specs[:rank], *[U] * (rank - len(specs))], mesh)

    ranks = (4, 1) if name == "cnn" else (2, 2)
    return dtensor.DTensorDataset(
        dataset(name),
        mesh=mesh,
        layouts=tuple(layout(rank) for rank in ranks),
        global_batch_size=BATCH,
        batch_dim="batch",
    )


def train(name, batches):
    model = MODELS[name]()
    optimizer = tf.keras.optimizers.SGD(0.02, 0.9) if name == "cnn" else "adam"
    model.compile(optimizer, "sparse_categorical_crossentropy")
    losses = []
    note = tf.keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda _, logs: losses.append(float(logs["loss"]))
    )
    model.fit(batches, epochs=EPOCHS, verbose=0, callbacks=[note])
    return model, losses


def start():
    tf.keras.backend.reset_uids()
    tf.random.set_seed(5)


def curves(name):
    found = {}
    start()
    found["one"] = train(name, dataset(name).batch(BATCH))[1]
    for count in (2, 8):
        start()
        with tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(count)]).scope():
            found[f"mirrored {count}"] = train(name, dataset(name).batch(BATCH))[1]
    for kind, sizes in MESHES.items():
        start()
        mesh = dtensor.create_mesh(sizes)
        layouts = tf.keras.dtensor.experimental.LayoutMap(mesh=mesh)
        if "model" in sizes:
            for key, specs in MODEL_PARALLEL[name].items():
                layouts[key] = Layout(specs, mesh)
        with layouts.scope():
            model, found[kind] = train(name, on_mesh(name, mesh))
        kernel = next(v for v in model.weights if "dense/kernel" in v.name)
        found[f"{kind}: kernel's part"] = list(kernel._value.addressable_shards[0].data.shape)
    return found


def forward():
    """Convolutions and pools with height and width split, against one device."""
    mesh = dtensor.create_mesh({"batch": 2, "height": 2, "width": 2})
    rng = np.random.default_rng(1)
    found = []
    cases = [
        (16, 16, 8, 3, 1, "same"),
        (16, 24, 8, 3, 2, "same"),
        (12, 12, 4, 5, 1, "valid"),
        (32, 32, 32, 3, 1, "same"),
    ]
    for height, width, channels, size, stride, padding in cases:
        x = rng.normal(size=(2, height, width, 3)).astype("float32")
        layers = [
            LAYERS.Conv2D(channels, size, stride, padding),
            LAYERS.Conv2D(channels, size, padding=padding, dilation_rate=2),
            LAYERS.Conv2DTranspose(channels, size, stride, padding),
            LAYERS.DepthwiseConv2D(size, stride, padding),
            LAYERS.MaxPooling2D(2, stride, padding),
            LAYERS.AveragePooling2D(3, 2, padding),
        ]
        layout = Layout(["batch", "height", "width", U], mesh)
        split = dtensor.copy_to_mesh(x, layout)
        whole = tf.constant(x)
        for layer in layers:
            expected, result = layer(whole), layer(split)
            found.append(
                {
                    "layer": f"{layer.name} {height}x{width}",
                    "equal": bool(np.array_equal(result.numpy(), expected.numpy())),
                    "layout": dtensor.fetch_layout(result).sharding_specs,
                }
            )
    x = tf.ones([16, 32])
    split = dtensor.copy_to_mesh(x, Layout(["batch", "width"], mesh))
    masks = []
    for given in (x, split):
        # Eager layers with the same seed advance one random stream.
        tf.random.set_seed(1)
        masks.append(tf.keras.layers.Dropout(0.5, seed=3)(given, training=True).numpy())
    return {"layers": found, "equal dropout masks": bool(np.array_equal(*masks))}


if __name__ == "__main__":
    found = {"forward": forward(), **{name: curves(name) for name in MODELS}}
    print(json.dumps(found))
