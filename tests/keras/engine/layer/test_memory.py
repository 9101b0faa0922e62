"""Test that a process that creates many models frees the unused ones."""

import collections
import ctypes
import gc
import logging
import weakref

import numpy as np
import pytest

import meshflow as tf
from meshflow.core.dispatch import operation
from meshflow.core.dispatch.dispatch import apply
from meshflow.environment.garbage_collection import collect_garbage
from meshflow.kernels import descriptors, library

x = np.arange(32, dtype=np.float32).reshape(8, 4)
y = x[:, :1]


def functional():
    inputs = tf.keras.Input((4,))
    hidden = tf.keras.layers.Dense(3, activation="relu")(inputs)
    model = tf.keras.Model(inputs, tf.keras.layers.Dense(1)(hidden + tf.nn.relu(hidden)))
    model.compile("sgd", "mse", metrics=["mae"])
    model.fit(x, y, verbose=0)
    return [model, *model.layers, *model.variables, model.optimizer]


def subclassed():
    class Scaled(tf.keras.layers.Layer):
        def build(self, shape):
            super().build(shape)
            self.w = self.add_weight(shape=(shape[-1], 1))

        def call(self, x):
            if tf.reduce_sum(x) > 0:
                x = x * 2.0
            return x @ self.w

    class Rule(tf.keras.optimizers.SGD):
        def get_config(self):
            return super().get_config()

    model = tf.keras.Sequential([Scaled()])
    model.compile(Rule(0.1), "mse")
    model.fit(x, y, verbose=0)
    return [Scaled, Rule, model, *model.layers, *model.variables, model.optimizer]


def own_loop():
    layer, optimizer = tf.keras.layers.Dense(1), tf.keras.optimizers.Adam()
    layer.build((None, 4))

    def loss(a):
        if tf.reduce_sum(a) > 0:
            a = a * 2.0
        return tf.reduce_mean(layer(a) ** 2)

    @tf.function
    def step(a):
        with tf.GradientTape() as tape:
            value = loss(a)
        gradients = tape.gradient(value, layer.trainable_variables)
        optimizer.apply_gradients(zip(gradients, layer.trainable_variables, strict=True))

    step(tf.constant(x))
    return [layer, optimizer, step, loss, *layer.variables]


@pytest.mark.parametrize("make", [functional, subclassed, own_loop])
def test_models_end_with_their_last_reference(make, caplog):
    # Handlers may keep records, also those about repeated traces.
    caplog.set_level(logging.INFO, "meshflow")
    ended = [weakref.ref(each) for _ in range(2) for each in make()]
    collect_garbage()
    left = [each() for each in ended]
    assert left == [None] * len(ended) and len(left) > 8


Pair = collections.namedtuple("Pair", "left right")


@pytest.mark.parametrize(
    "pack",
    [
        lambda x: x,
        lambda x: [x, [x]],
        lambda x: {"a": x, "b": (x,)},
        lambda x: Pair(x, x),
        lambda x: tf.RaggedTensor.from_row_lengths(x, [1, 1]),
    ],
)
def test_results_of_functions_need_no_garbage_collection(pack):
    function = tf.function(lambda x: pack(x + 1.0))
    for _ in range(2):
        result = function(tf.constant([1.0, 2.0]))
    first = result.values if isinstance(result, tf.RaggedTensor) else tf.nest.flatten(result)[0]
    ended = weakref.ref(first)
    gc.disable()
    try:
        del result, first
        assert ended() is None
    finally:
        gc.enable()


def test_clear_session_frees_compiled_ops_and_models_continue():
    op = operation.Op("plus", lambda operands, static: operands[0] + static[0])
    kept = [op.get_eager((1,)), op.get_gradient_op((1,), (True,)), op.get_donating((1,), (0,))]
    ended = [weakref.ref(each) for each in kept]
    del kept
    model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    before = model(x).numpy()
    tf.keras.backend.clear_session()
    assert [each() for each in ended] == [None] * 3
    np.testing.assert_array_equal(model(x), before)
    assert op.get_eager((1,))(2) == 3


def test_ops_of_second_gradients_end_with_their_last_reference():
    op = operation.Op("cube", lambda operands, _: operands[0] ** 3)
    a = tf.constant(2.0)
    with tf.GradientTape() as outer:
        outer.watch(a)
        with tf.GradientTape() as inner:
            inner.watch(a)
            cube = apply(op, (a,))
        slope = inner.gradient(cube, a)
    assert outer.gradient(slope, a) == 12.0
    ended = weakref.ref(op)
    del op, inner, outer, cube, slope
    collect_garbage()
    assert ended() is None


def test_kernels_of_ever_new_shapes_are_bounded():
    loaded = library.load()
    kept = getattr(loaded and loaded.compiled, "meshflow_onednn_kept", None)
    if kept is None:
        pytest.skip("no kernels here")
    kept.restype = ctypes.c_int64
    for rows in range(1, library.MAX_CACHED_QUERIES + 10):
        left = descriptors.make_view((rows, 2), (0, 1))
        result = descriptors.make_view((rows, 3), (0, 1))
        descriptor = descriptors.describe_matmul(
            left, descriptors.make_view((2, 3), (0, 1)), result
        )
        assert loaded.count_packed_bytes(descriptor, ("float32",) * 3) >= 0
    assert kept() == library.MAX_CACHED_QUERIES
