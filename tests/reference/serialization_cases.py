"""Define objects and models whose serialized forms are compared with tf-keras, and the comparison."""

import json


def _build_shared(keras):
    a, b, dense = keras.Input((4,)), keras.Input((4,)), keras.layers.Dense(3)
    joined = keras.layers.Concatenate()([dense(a), dense(b)])
    outputs = [keras.layers.Dense(1, name="one")(joined), keras.layers.Dense(2, name="two")(joined)]
    return keras.Model([a, b], outputs, name="shared")


def _chain(keras):
    first = keras.layers.Dense(3, activation="relu", input_shape=(4,))
    return keras.Sequential([first, keras.layers.Dropout(0.5), keras.layers.Dense(1)])


def _build_nested(keras):
    inner, a, b = _chain(keras), keras.Input((4,)), keras.Input((4,))
    return keras.Model([a, b], keras.layers.Add()([inner(a), inner(b)]))


def _by_name(keras):
    a, b = keras.Input((4,), name="a"), keras.Input((4,), name="b")
    outputs = {"sum": keras.layers.Add()([a, b]), "difference": keras.layers.Subtract()([a, b])}
    return keras.Model({"a": a, "b": b}, outputs)


def _arguments(keras):
    x = keras.Input((4,))
    dropped = keras.layers.Dropout(0.5)(x, training=True)
    return keras.Model(x, keras.layers.BatchNormalization()(dropped, training=False))


def _attention(keras):
    x, query = keras.Input((5, 4)), keras.Input((3, 4))
    return keras.Model([x, query], keras.layers.Attention()([query, x]))


def _build_compiled(keras):
    model = _build_shared(keras)
    losses = {"one": "mse", "two": keras.losses.Huber(0.5)}
    metrics = {"one": [keras.metrics.MeanAbsoluteError(name="error"), "mse"]}
    rate = keras.optimizers.schedules.CosineDecay(0.5, 10)
    model.compile(keras.optimizers.SGD(rate, 0.75), losses, metrics, {"one": 1.0, "two": 0.5})
    return model


def _build_model(keras):
    layer = keras.layers.Dense(3, kernel_regularizer="l2")
    layer.build((None, 4))
    return layer


CASES = {
    "chain": _chain,
    "shared": _build_shared,
    "nested": _build_nested,
    "by_name": _by_name,
    "arguments": _arguments,
    "attention": _attention,
    "compiled": _build_compiled,
    "built": _build_model,
    "unbuilt": lambda keras: keras.Sequential([keras.layers.Dense(3)]),
    "both_ways": lambda keras: keras.layers.Bidirectional(keras.layers.LSTM(3)),
    "cells": lambda keras: keras.layers.RNN([keras.layers.LSTMCell(3), keras.layers.GRUCell(2)]),
    "in_time": lambda keras: keras.layers.TimeDistributed(keras.layers.Dense(3)),
    "inner_layer": lambda keras: keras.layers.Dense(3, activation=keras.layers.LeakyReLU(0.2)),
    "policy": lambda keras: keras.layers.Dense(
        3, dtype=keras.mixed_precision.Policy("mixed_float16")
    ),
    "equation": lambda keras: keras.layers.EinsumDense("abc,cd->abd", (None, 4), bias_axes="d"),
    "loss": lambda keras: keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    "metric": lambda keras: keras.metrics.AUC(num_thresholds=5, name="auc"),
    "adam": lambda keras: keras.optimizers.Adam(0.1, clipnorm=1.0, use_ema=True),
    "old_adam": lambda keras: keras.optimizers.legacy.Adam(0.1, decay=0.01),
    "schedule": lambda keras: keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.5),
    "initializer": lambda keras: keras.initializers.VarianceScaling(
        2.0, "fan_out", "uniform", seed=3
    ),
    "regularizer": lambda keras: keras.regularizers.l1_l2(0.1, 0.2),
    "constraint": lambda keras: keras.constraints.MinMaxNorm(0.1, 0.9, axis=[0, 1]),
    "function": lambda keras: keras.losses.mean_squared_error,
    "structure": lambda keras: {"a": [1, (2.5, None)], "b": keras.activations.relu, "c": b"text"},
}
# Keys that TensorFlow 2.15 lacks or that depend on the machine.
_SKIPPED = {"jit_compile", "optional", "rng_type"}


def serialized(keras, name):
    """Return the serialized form of a case as JSON, without parts that depend on versions and
    machines."""
    keras.backend.reset_uids()
    found = keras.saving.serialize_keras_object(CASES[name](keras))
    return _common(json.loads(json.dumps(found).replace("tf_keras.src", "keras.src")))


def _common(value):
    if isinstance(value, dict):
        return {key: _common(item) for key, item in value.items() if key not in _SKIPPED}
    return [_common(item) for item in value] if isinstance(value, list) else value
