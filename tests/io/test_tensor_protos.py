"""`tf.make_tensor_proto` and `tf.make_ndarray`, and who needs them."""

import ml_dtypes
import numpy as np
import pytest

import forked
import meshflow as tf

VALUES = {
    "float32": np.array([[1.5, -0.0], [np.nan, np.inf]], np.float32),
    "float64": np.array([1.0 / 3], np.float64),
    "float16": np.array([1.5, 65504], np.float16),
    "half scalar": np.array(0.1, np.float16),
    "bfloat16": np.array([1.0, 3.140625], ml_dtypes.bfloat16),
    "bfloat16 scalar": np.array(3.140625, ml_dtypes.bfloat16),
    "int8": np.array([-128, 127], np.int8),
    "int16": np.array(-32768, np.int16),
    "int64": np.array([2**62, -1], np.int64),
    "uint8": np.array([0, 255], np.uint8),
    "uint16": np.array([65535, 1], np.uint16),
    "uint32": np.array(2**32 - 1, np.uint32),
    "uint64": np.array([2**64 - 1], np.uint64),
    "bool": np.array([True, False]),
    "complex64": np.array([1 + 2j, -3j], np.complex64),
    "complex128": np.array(1 / 3 - 2j),
    "empty": np.zeros([0, 3], np.float32),
}


@pytest.mark.parametrize("name", VALUES)
def test_protos_round_trip_bit_for_bit(name):
    value = VALUES[name]
    read = tf.make_ndarray(
        type(tf.make_tensor_proto(0)).FromString(tf.make_tensor_proto(value).SerializeToString())
    )
    assert read.dtype == value.dtype and read.shape == value.shape
    assert read.tobytes() == value.tobytes()
    parsed = tf.io.parse_tensor(tf.make_tensor_proto(value).SerializeToString(), value.dtype)
    assert parsed.numpy().tobytes() == value.tobytes()


def test_strings_and_python_values():
    assert tf.make_ndarray(tf.make_tensor_proto([["a"], ["b"]])).tolist() == [[b"a"], [b"b"]]
    assert tf.make_ndarray(tf.make_tensor_proto(b"\xff")).tolist() == b"\xff"
    assert list(tf.make_tensor_proto("häß").string_val) == ["häß".encode()]
    assert list(tf.make_tensor_proto(3).int_val) == [3]
    assert list(tf.make_tensor_proto(2.5).float_val) == [2.5]
    assert tf.make_ndarray(tf.make_tensor_proto(tf.constant([1, 2]))).tolist() == [1, 2]
    # Several numbers are packed as bytes where TensorFlow packs them, and in a typed field
    # otherwise.
    assert tf.make_tensor_proto([1, 2]).tensor_content == np.array([1, 2], np.int32).tobytes()
    assert list(tf.make_tensor_proto([True, False]).bool_val) == [True, False]
    assert list(tf.make_tensor_proto([1j]).dcomplex_val) == [0, 1]


def test_values_that_are_repeated():
    proto = tf.make_tensor_proto(1, tf.float32, [2, 2])
    assert list(proto.float_val) == [1] and tf.make_ndarray(proto).tolist() == [[1, 1], [1, 1]]
    proto = tf.make_tensor_proto([1, 2], shape=[4])
    assert list(proto.int_val) == [1, 2] and tf.make_ndarray(proto).tolist() == [1, 2, 2, 2]


def test_errors_describe_invalid_values():
    with pytest.raises(ValueError, match="at most 2, but got 3"):
        tf.make_tensor_proto([1, 2, 3], shape=[2])
    with pytest.raises(TypeError, match=r"shape: \(2, 1\), but got \(2,\)"):
        tf.make_tensor_proto([1, 2], shape=[2, 1], verify_shape=True)
    with pytest.raises(ValueError, match="None"):
        tf.make_tensor_proto(None)
    with pytest.raises(TypeError):
        tf.make_tensor_proto([1.5], dtype=tf.int32)
    proto = tf.make_tensor_proto([1, 2])
    proto.tensor_content = b"12345678abcd"
    with pytest.raises(ValueError, match="3 values"):
        tf.make_ndarray(proto)
    proto.dtype = 999
    with pytest.raises(TypeError, match="999"):
        tf.make_ndarray(proto)


def test_tensorboard_reads_tensor_protos():
    tensor_pb2 = pytest.importorskip("tensorboard.compat.proto.tensor_pb2")
    from tensorboard.util import tensor_util

    for name, value in VALUES.items():
        if name.startswith(("bfloat16", "uint32", "uint64")):
            continue  # TensorBoard has no such arrays without TensorFlow.
        proto = tensor_pb2.TensorProto.FromString(tf.make_tensor_proto(value).SerializeToString())
        assert tensor_util.make_ndarray(proto).tobytes() == value.tobytes()
        assert tf.make_ndarray(tensor_util.make_tensor_proto(value)).tobytes() == value.tobytes()


def test_hparams_plugin_uses_tensor_protos(tmp_path):
    pytest.importorskip("tensorboard")
    code = """
import sys
import meshflow as tf
sys.modules["tensorflow"] = tf
import tensorflow.keras.layers as layers
assert layers is tf.keras.layers
from tensorboard.plugins.hparams import api as hp
folder = sys.argv[1]
units = hp.HParam("units", hp.Discrete([1, 2]))
with tf.summary.create_file_writer(folder).as_default():
    hp.hparams_config(hparams=[units], metrics=[hp.Metric("loss")])
    hp.hparams({units: 2})
model = tf.keras.Sequential([layers.Dense(1)])
model.compile("sgd", "mse")
callback = hp.KerasCallback(folder, {units: 1}, trial_id="a")
model.fit(tf.ones([4, 1]), tf.ones([4, 1]), verbose=0, callbacks=[callback])
"""
    status, output = forked.run(f"import sys; sys.argv = ['', {str(tmp_path)!r}]\n{code}")
    assert status == 0, output
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path))
    events.Reload()
    kinds = ("experiment", "session_start_info", "session_end_info")
    assert set(events.PluginTagToContent("hparams")) == {f"_hparams_/{kind}" for kind in kinds}
