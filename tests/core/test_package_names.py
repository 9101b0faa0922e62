"""Test names of the package: dtypes, specs, devices, scopes, and deprecated names."""

import logging
import time

import numpy as np
import pytest

import forked
import meshflow as tf
from helpers import assert_close


def test_dtypes():
    assert isinstance(tf.float32, tf.DType) and tf.as_dtype("float32") is tf.float32
    assert tf.float32 == np.float32 and tf.float32 == "float32" and tf.float32 != tf.int32
    assert (tf.float32.name, tf.float32.size, tf.float32.as_datatype_enum) == ("float32", 4, 1)
    assert tf.float32.as_numpy_dtype is np.float32
    assert repr(tf.float32) == "tf.float32" and str(tf.float32) == "<dtype: 'float32'>"
    assert (tf.int8.min, tf.int8.max, tf.float16.max) == (-128, 127, np.float16(65504))
    assert tf.bfloat16.is_floating and tf.complex64.is_complex and tf.bool.is_bool
    assert tf.uint8.is_unsigned and tf.int8.is_integer and not tf.string.is_numeric
    assert tf.complex64.real_dtype is tf.float32 and tf.complex128.real_dtype is tf.float64
    assert tf.float32.limits == (0, 1) and tf.uint8.limits == (0, 255)
    assert tf.int8.limits == (0, 127) and tf.bool.limits == (0, True)
    with pytest.raises(ValueError, match="limits"):
        _ = tf.complex64.limits
    with pytest.raises(TypeError, match="string"):
        _ = tf.string.min
    assert tf.int32.is_compatible_with(tf.int32) and tf.float32.base_dtype is tf.float32


def test_specs():
    spec = tf.TensorSpec([2, None])
    assert isinstance(spec, tf.TypeSpec)
    assert spec.is_compatible_with(tf.ones([2, 3])) and not spec.is_compatible_with(tf.ones([3, 3]))
    wider = spec.most_specific_compatible_type(tf.TensorSpec([3, 4]))
    assert wider.shape.as_list() == [None, None]
    for value, dtype, shape in (
        (np.ones(2), tf.float64, [2]),
        ("a", tf.string, []),
        (1, tf.int32, []),
        (tf.Variable([1.0]), tf.float32, [1]),
    ):
        found = tf.type_spec_from_value(value)
        assert found.dtype is dtype and found.shape.as_list() == shape
    with pytest.raises(TypeError):
        tf.type_spec_from_value(object())


def test_device_specs():
    spec = tf.DeviceSpec(job="w", replica=0, task=1, device_type="GPU", device_index=2)
    assert spec.to_string() == "/job:w/replica:0/task:1/device:GPU:2"
    assert tf.DeviceSpec.from_string("/gpu:0").device_type == "GPU"
    assert tf.DeviceSpec.from_string("/job:w/task:1/device:GPU:3").device_index == 3
    merged = tf.DeviceSpec(device_type="CPU").make_merged_spec(tf.DeviceSpec(device_index=3))
    assert merged.to_string() == "/device:CPU:3" == merged.replace().to_string()
    assert merged.replace(device_index=1) == tf.DeviceSpec(device_type="CPU", device_index=1)


def test_devices():
    with tf.device("/CPU:1"):
        x = tf.ones([2])
        assert x.device.endswith("CPU:1") and (x + 1).device.endswith("CPU:1")
        assert tf.Variable([1.0]).device.endswith("CPU:1")
    for spec in (tf.config.list_logical_devices("CPU")[1], tf.DeviceSpec.from_string("/CPU:1")):
        with tf.device(spec):
            assert tf.ones([2]).device.endswith("CPU:1")
            with tf.device(tf.DeviceSpec()):
                assert tf.ones([2]).device.endswith("CPU:1")
    assert tf.ones([2]).device.endswith("CPU:0")


def test_soft_placement_replaces_a_missing_device():
    assert tf.config.get_soft_device_placement()
    with tf.device("/GPU:7"):
        assert tf.constant([1.0]).device == tf.Variable(1.0).device == (tf.ones([2]) + 1).device
        assert_close(tf.function(lambda x: x + 1)(tf.ones([2])), [2, 2])
    with tf.device("/job:localhost/replica:0/task:0/device:CPU:99"):
        assert tf.ones([2]).device.endswith("CPU:0")
    with pytest.raises(ValueError, match="rubbish"), tf.device("rubbish"):
        pass
    tf.config.set_soft_device_placement(False)
    try:
        wanted = pytest.raises(tf.errors.InvalidArgumentError, match=r"satisfy.*GPU:7.*CPU:0")
        with wanted, tf.device("/GPU:7"):
            pass
    finally:
        tf.config.set_soft_device_placement(True)


def test_cpus_are_divided_while_no_device_is_in_use():
    code = """
import meshflow as tf
cpu = tf.config.list_physical_devices()[0]
tf.function(lambda x: x + 1)(tf.constant([1.0]))
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
assert strategy.num_replicas_in_sync == len(tf.config.list_logical_devices("CPU")) == 2
try:
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()])
except RuntimeError as error:
    assert "cannot be modified after being initialized" in str(error)
else:
    raise AssertionError("set while devices are in use")
"""
    assert forked.run(code) == [0, ""]


def test_threads_are_set_after_devices_were_listed():
    code = """
import os
import meshflow as tf
names = [d.name for d in tf.config.list_physical_devices()]
tf.config.threading.set_intra_op_parallelism_threads(3)
tf.config.threading.set_inter_op_parallelism_threads(2)
assert os.environ["NPROC"] == "3"
assert names == [d.name for d in tf.config.list_physical_devices()]
assert tf.reduce_sum(tf.ones([10_000])).numpy() == 10_000
x = tf.zeros([100_000])
try:
    tf.config.threading.set_intra_op_parallelism_threads(2)
except RuntimeError as error:
    assert "cannot be modified after initialization" in str(error)
else:
    raise AssertionError("set after the first op")
"""
    assert forked.run(code) == [0, ""]


def test_code_location_predicates():
    assert tf.executing_eagerly() and not tf.inside_function()

    @tf.function(autograph=False)
    def inside():
        with tf.init_scope():
            outside = tf.executing_eagerly()
        return outside, tf.executing_eagerly(), tf.inside_function()

    assert [bool(v) for v in inside()] == [True, False, True]


def test_scopes():
    with tf.name_scope("a") as a:
        assert (a, tf.get_current_name_scope()) == ("a/", "a")
        with tf.name_scope("b") as b:
            assert (b, tf.get_current_name_scope()) == ("a/b/", "a/b")
    assert tf.get_current_name_scope() == ""
    x = tf.constant(1.0)
    with tf.control_dependencies([x]):
        assert_close(x + 1, 2)


def test_variable_creators():
    made = []

    def creator(next_creator, **kwargs):
        made.append(kwargs["name"])
        kwargs["initial_value"] = 5.0
        return next_creator(**kwargs)

    with tf.variable_creator_scope(creator):
        v = tf.Variable(1.0, name="q", aggregation=tf.VariableAggregation.MEAN)
    assert made == ["q"] and v.numpy() == 5
    assert tf.Variable(1.0).numpy() == 1
    assert [s.value for s in tf.VariableSynchronization] == [0, 1, 2, 3]
    assert [tf.VariableAggregation[n].value for n in ("NONE", "SUM", "MEAN")] == [0, 1, 2]
    assert v.synchronization in tf.VariableSynchronization


def test_conversion_functions():
    class Pair:
        def __init__(self, a, b):
            self.parts = [a, b]

    def convert(value, dtype=None, name=None, as_ref=False):
        return tf.constant(value.parts, dtype=dtype)

    tf.register_tensor_conversion_function(Pair, convert)
    assert_close(tf.convert_to_tensor(Pair(1.0, 2.0)), [1, 2])
    assert_close(tf.constant([1.0, 1.0]) + Pair(1.0, 2.0), [2, 3])
    assert_close(tf.reduce_sum(Pair(1.0, 2.0)), 3)


def test_small_ops(rng):
    a, b = rng.normal(size=(2, 3)), rng.normal(size=(2, 3))
    assert_close(tf.parallel_stack([a, b]), np.stack([a, b]))
    assert tf.math.approximate_equal(a, a + 1e-6).numpy().all()
    found = tf.math.approximate_equal([1.0, 1.0], [1.2, 1.6], tolerance=0.5)
    assert found.numpy().tolist() == [True, False]
    before = time.time()
    now = tf.timestamp()
    assert now.dtype is tf.float64 and before <= now.numpy() <= time.time()
    assert isinstance(tf.get_logger(), logging.Logger)


def test_graph_only_names_suggest_an_alternative():
    x = tf.constant(1.0)
    for use, instead in (
        (lambda: tf.gradients(x, x), "GradientTape"),
        (lambda: tf.hessians(x, x), "GradientTape"),
    ):
        with pytest.raises((RuntimeError, NotImplementedError), match=instead):
            use()
    assert not isinstance(x, (tf.Graph, tf.Operation, tf.RaggedTensor))
    methods = tf.AggregationMethod
    assert (methods.ADD_N, methods.DEFAULT, methods.EXPERIMENTAL_TREE) == (0, 0, 1)


def test_registered_gradients():
    @tf.RegisterGradient("CustomOpOfATest")
    def compute(op, gradient):
        return gradient

    assert compute(None, 2) == 2
    with pytest.raises(KeyError, match="two gradient"):
        tf.RegisterGradient("CustomOpOfATest")(compute)
    with pytest.raises(TypeError, match="must be a string"):
        tf.RegisterGradient(3)
    tf.no_gradient("OtherOpOfATest")
    tf.compat.v1.NotDifferentiable("OtherOpOfATest")
