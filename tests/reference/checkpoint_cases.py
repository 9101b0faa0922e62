"""Build models and optimizers whose checkpoints TensorFlow and Meshflow exchange; run in both."""

import numpy as np

X = np.random.default_rng(0).normal(size=(8, 4)).astype("float32")
Y = (X[:, :1] * X[:, 1:2]).astype("float32")
STEPS = 3

# By layout: the class's name, where it is, and its arguments.
OPTIMIZERS = {
    "legacy": {
        "Adam": dict(learning_rate=0.01, decay=0.01),
        "Nadam": dict(learning_rate=0.01),
        "RMSprop": dict(learning_rate=0.01, momentum=0.5, centered=True),
        "SGD": dict(learning_rate=0.01, momentum=0.9, nesterov=True),
        "Ftrl": dict(learning_rate=0.1),
        "Adagrad": dict(learning_rate=0.1),
        "Adadelta": dict(learning_rate=1.0),
        "Adamax": dict(learning_rate=0.01),
    },
    "new": {
        "Adam": dict(learning_rate=0.01, amsgrad=True),
        "AdamW": dict(learning_rate=0.01, weight_decay=0.1),
        "Nadam": dict(learning_rate=0.01),
        "RMSprop": dict(learning_rate=0.01, momentum=0.5, centered=True),
        "SGD": dict(learning_rate=0.01, momentum=0.9, use_ema=True),
        "Ftrl": dict(learning_rate=0.1),
        "Adagrad": dict(learning_rate=0.1),
        "Adadelta": dict(learning_rate=1.0),
        "Adamax": dict(learning_rate=0.01),
        "Lion": dict(learning_rate=0.001),
        "Adafactor": dict(learning_rate=0.01),
    },
    "keras3": {
        "Adam": dict(learning_rate=0.01),
        "Nadam": dict(learning_rate=0.01),
        "RMSprop": dict(learning_rate=0.01, momentum=0.5, centered=True),
        "SGD": dict(learning_rate=0.01, momentum=0.9),
        "Adagrad": dict(learning_rate=0.1),
        "Adamax": dict(learning_rate=0.01),
        "Lion": dict(learning_rate=0.001),
    },
}


def sequential(keras):
    """A model of layers in a row; Keras 3 names their weights otherwise."""
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((4,)),
            layers.Dense(3, activation="tanh"),
            layers.BatchNormalization(),
            layers.Dense(1),
        ]
    )


def functional(keras):
    """A model of two paths."""
    layers = keras.layers
    inputs = keras.Input((4,))
    shared = layers.Dense(4, activation="tanh")
    a, b = shared(inputs), layers.Dense(4)(inputs)
    return keras.Model(inputs, layers.Dense(1)(shared(layers.Add()([a, b]))))


def optimizer(keras, layout, name):
    """An optimizer of a layout."""
    place = keras.optimizers
    if layout == "legacy":
        place = place.legacy
    elif layout == "new" and hasattr(place, "experimental") and not _is_tensorflow(keras):
        # Some have other numbers there.
        place = place.experimental
    elif layout == "keras3" and hasattr(place, "experimental"):
        place = place.experimental
    return getattr(place, name)(**OPTIMIZERS[layout][name])


def _is_tensorflow(keras):
    return not keras.__name__.startswith("meshflow")


def train(model):
    """A few steps on all data."""
    for _ in range(STEPS):
        model.train_on_batch(X, Y)


def compiled(keras, layout, name, make=sequential):
    """Return a model with an optimizer and deterministic weights."""
    model = make(keras)
    numbers = np.random.default_rng(1)
    model.set_weights(
        [
            (numbers.uniform(0.5, 1.5, w.shape) if i in (4, 5) else numbers.normal(size=w.shape))
            if make is sequential
            else numbers.normal(size=w.shape) * 0.5
            for i, w in enumerate(model.get_weights())
        ]
    )
    model.compile(optimizer(keras, layout, name), "mse")
    return model


def values():
    """Arrays of many dtypes, by name, as pairs of a dtype's name and a list."""
    return {
        "float32": [[1.5, -2.0], [0.0, 3.25]],
        "float64": [1e300, -1.0],
        "float16": [0.5, 6e4],
        "bfloat16": [1.5, -3.0],
        "int8": [-128, 127],
        "uint8": [255],
        "int32": -7,
        "int64": [[2**40, -1]],
        "bool": [True, False],
        "complex64": [1 + 2j],
        "string": [[b"tea", b"\x00\xff"], [b"", b"x" * 300]],
    }


def noting(base):
    """An object with a state that is no variable, of the class that is its base."""

    class State(base):
        value, kept = None, b""

        def serialize(self):
            return self.kept

        def deserialize(self, string_value):
            self.value = string_value

    return State()
