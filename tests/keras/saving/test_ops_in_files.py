"""Test that ops between layers are written as Keras 2 writes them, which reads no other form."""

import json

import h5py
import numpy as np
import pytest

import meshflow as tf

A, B = ["a", 0, 0], ["b", 0, 0]
ALL = {"start": None, "stop": None, "step": None}
# tf-keras 2.21's output for the last op: its function, and the call without default arguments.
CASES = {
    "a dtype": (lambda a, b: tf.cast(a, tf.float16), "cast", [*A, {"dtype": "float16"}]),
    "a tensor as argument": (lambda a, b: a - b, "math.subtract", [*A, {"y": B, "name": None}]),
    "a number first": (lambda a, b: 1 - a, "math.subtract", ["_CONSTANT_VALUE", -1, 1.0, {"y": A, "name": None}]),
    "a constant": (lambda a, b: a * np.float32([1, 2, 3]), "math.multiply", [*A, {"y": [1.0, 2.0, 3.0], "name": None}]),
    "a list of tensors": (lambda a, b: tf.concat([a, b], -1), "concat", [[*A, {"axis": -1}], [*B, {"axis": -1}]]),
    "one tensor": (lambda a, b: tf.reduce_mean(a, axis=1), "math.reduce_mean", [*A, {"axis": 1}]),
    "by another name": (lambda a, b: tf.split(a, 3, -1)[0], "split", [*A, {"num_or_size_splits": 3, "axis": -1}]),
    "an operator of two meanings": (lambda a, b: (a > 0) & (b > 0), "math.logical_and", ["tf.math.greater", 0, 0, {"y": ["tf.math.greater_1", 0, 0], "name": None}]),
    "a choice": (lambda a, b: tf.where(a > 0, a, b), "where", ["tf.math.greater", 0, 0, {"x": A, "y": B}]),
    "sums of rows": (lambda a, b: tf.math.unsorted_segment_sum(a, tf.cast(b, tf.int32)[:, 0], 5), "math.unsorted_segment_sum", [*A, {"segment_ids": ["tf.__operators__.getitem", 0, 0], "num_segments": 5}]),
    "places": (lambda a, b: tf.where(a > 0), "where", ["tf.math.greater", 0, 0, {}]),
    "sizes": (lambda a, b: tf.image.resize(a[:, None, None], [2, 2]), "image.resize", ["tf.__operators__.getitem", 0, 0, {"size": [2, 2], "method": "bilinear", "antialias": False}]),
    "a slice": (lambda a, b: a[..., 1:], "__operators__.getitem", [*A, {"slice_spec": [ALL, {**ALL, "start": 1}]}]),
    "a size": (lambda a, b: tf.reshape(a, [tf.shape(a)[0], 3, 1]), "reshape", [*A, {"shape": [["tf.__operators__.getitem", 0, 0], 3, 1]}]),
}  # fmt: skip


def made(function):
    tf.keras.backend.reset_uids()
    inputs = [tf.keras.Input([3], name=name) for name in "ab"]
    return tf.keras.Model(inputs, function(*inputs))


@pytest.mark.parametrize("case", CASES)
def test_a_call_is_written_as_keras_2_does(case, tmp_path):
    function, symbol, call = CASES[case]
    model = made(function)
    path = str(tmp_path / "model.h5")
    model.save(path)
    with h5py.File(path) as file:
        layers = json.loads(file.attrs["model_config"])["config"]["layers"]
    found = [entry for entry in layers if entry["config"].get("function") == symbol]
    assert [entry["inbound_nodes"] for entry in found] == [[call]]
    x = [np.float32([[1, -2, 3], [0.5, 0, -1]]), np.float32([[0, 4, -1], [2, 2, 2]])]
    loaded = tf.keras.models.load_model(path)
    np.testing.assert_array_equal(loaded(x), model(x))
    # A loaded model is written in the same form again.
    loaded.save(path)
    with h5py.File(path) as file:
        assert json.loads(file.attrs["model_config"])["config"]["layers"] == layers


def test_initial_states_follow_the_input(tmp_path):
    x, state = tf.keras.Input([4, 2], name="x"), tf.keras.Input([3], name="state")
    layer = tf.keras.layers.LSTM(3, name="lstm")
    model = tf.keras.Model([x, state], layer(x, initial_state=[state, state]))
    path = str(tmp_path / "model.h5")
    model.save(path)
    with h5py.File(path) as file:
        layers = json.loads(file.attrs["model_config"])["config"]["layers"]
    calls = next(entry["inbound_nodes"] for entry in layers if entry["name"] == "lstm")
    assert calls == [[["x", 0, 0, {}], ["state", 0, 0, {}], ["state", 0, 0, {}]]]
    given = [np.ones((2, 4, 2), "float32"), np.full((2, 3), 0.5, "float32")]
    np.testing.assert_array_equal(tf.keras.models.load_model(path)(given), model(given))


def call_of(function, *args, **kwargs):
    config = {"name": "z", "function": function, "trainable": True, "dtype": "float32"}
    entry = {"class_name": "TFOpLambda", "config": config, "name": "z", "inbound_nodes": [*args]}
    shape = {"batch_input_shape": [None, 4, 4, 2], "dtype": "float32", "name": "x"}
    source = {"class_name": "InputLayer", "config": shape, "name": "x", "inbound_nodes": []}
    ends = {"input_layers": [["x", 0, 0]], "output_layers": [["z", 0, 0]]}
    config = {"name": "m", "layers": [source, entry], **ends}
    return tf.keras.models.model_from_config({"class_name": "Functional", "config": config})


def test_ops_of_version_1_that_keras_2_writes():
    x = tf.random.stateless_normal([1, 4, 4, 2], [1, 2])
    older = {"strides": 1, "padding": "SAME", "use_cudnn_on_gpu": True, "dilations": None}
    ones = np.ones([3, 3, 2, 1]).tolist()
    model = call_of("compat.v1.nn.conv2d", ["x", 0, 0, {"filter": ones, **older}])
    wanted = tf.nn.conv2d(x, tf.ones([3, 3, 2, 1]), 1, "SAME")
    np.testing.assert_allclose(model(x), wanted, rtol=1e-5)
    model = call_of("compat.v1.floor_div", ["x", 0, 0, {"y": 2, "name": None}])
    np.testing.assert_array_equal(model(x), x // 2)


def test_earlier_files_name_the_op_inside():
    call = {"args": [{"keras_tensor": ["x", 0, 0]}], "kwargs": {"dtype": {"dtype": "int32"}}}
    assert call_of("ops.casting._cast", call)(tf.ones([1, 4, 4, 2])).dtype == tf.int32


REDUCTIONS = sorted(
    {"argmax", "argmin", "cumprod", "cumsum", "max", "mean", "median", "min", "prod", "ptp", "std", "sum", "var"}
    | {f"nan{name}" for name in ("argmax", "argmin", "cumsum", "max", "mean", "min", "prod", "std", "sum", "var")}
)  # fmt: skip


@pytest.mark.parametrize("form", ["keras", "h5"])
def test_functions_of_keras_ops_are_distinguished(form, tmp_path):
    x = tf.keras.Input([3], name="x")
    model = tf.keras.Model(x, [getattr(tf.keras.ops, name)(x, axis=-1) for name in REDUCTIONS])
    path = str(tmp_path / f"model.{form}")
    model.save(path)
    given = np.float32([[1, 2, 7], [0.5, 4, -3]])
    for name, found, wanted in zip(
        REDUCTIONS, tf.keras.models.load_model(path)(given), model(given), strict=True
    ):
        np.testing.assert_array_equal(found, wanted, err_msg=name)
