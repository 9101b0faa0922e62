"""Test idioms of libraries and of code copied from TensorFlow; the expected values are those of
TensorFlow 2.15."""

import collections
import contextlib
import importlib
import sys
import types
import unittest

import numpy as np
import pytest

import forked
import meshflow as tf
from meshflow.core.values.composite import (
    BatchableSpec,
    CompositeSpec,
    CompositeTensor,
    named_spec_classes,
)
from meshflow.environment.protobuf_messages import declare_messages
from meshflow.keras.engine.graph import instance_layers
from meshflow.keras.engine.symbolic.keras_tensor import _specializations
from meshflow.shims import test_combinations as combinations

keras, v1 = tf.keras, tf.compat.v1

PRIVATE_NAMES = [
    "import functools; from tensorflow.python.util import tf_inspect, tf_decorator\ndef f(a, b): pass\ng = functools.wraps(f)(lambda *c: 0)\nassert tf_inspect.getfullargspec(g)[:2] == ([], 'c') and tf_inspect.getfullargspec(tf_decorator.make_decorator(f, lambda *c: 0)).args == ['a', 'b']",
    "from unittest import mock; from tensorflow.python.platform import tf_logging; import logging; log = logging.getLogger(tf.get_logger().name)\nwith mock.patch.object(tf_logging, 'warning') as m: log.warning('a')\nassert m.call_args[0] == ('a',) and tf.compat.v1.test.mock is mock; tf_logging.warning('b')",
    "from keras.src.saving import saving_lib as l; m = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(2,))]); p = f'{tf.compat.v1.test.get_temp_dir()}/a.weights.h5'; l.save_weights_only(m, p); w = m.get_weights()[0]; m.layers[0].kernel.assign([[3], [3]]); l.load_weights_only(m, p); np.testing.assert_array_equal(m.get_weights()[0], w); assert (l._CONFIG_FILENAME, l._METADATA_FILENAME) == ('config.json', 'metadata.json')",
    "from keras.src.saving import object_registration as o; from keras.src.saving.legacy.saved_model import json_utils; from keras.src import callbacks; o._GLOBAL_CUSTOM_OBJECTS['a'] = 1; assert tf.keras.utils.get_custom_objects().pop('a') == 1 and json_utils.decode('[1]') == [1]; assert callbacks.BackupAndRestoreExperimental is tf.keras.callbacks.experimental.BackupAndRestore",
    "from keras.src import models as m; s = m.Sequential([tf.keras.layers.Dense(1, input_shape=(2,))]); c = m._clone_sequential_model(s, layer_fn=m.share_weights); assert c.layers[0] is s.layers[0]\ntry: m._clone_functional_model(s); assert False\nexcept ValueError: pass",
    "from keras.layers import wrappers; assert wrappers.Bidirectional is tf.keras.layers.Bidirectional",
    "from tensorflow.python.keras.utils import conv_utils as c\nfor v in (None, [1, 2, 3], ['a', 'b']):\n    try: c.normalize_tuple(v, 2, 'x'); assert False\n    except ValueError: pass",
    "assert tf.function(abs)._python_function is abs; from tensorflow.python.keras.saving.hdf5_format import preprocess_weights_for_loading as p; assert p(None, [1]) == [1]",
    "from tensorflow.compat.v1.python.framework import ops; assert ops.Tensor is tf.Tensor",
    "from tensorflow.python.util.all_util import remove_undocumented; remove_undocumented(__name__)",
    "from tensorflow.python.trackable.base import no_automatic_dependency_tracking_scope as scope\nwith scope(tf.Module()): pass",
    "from tensorflow.python.util import nest; assert nest._is_namedtuple(collections.namedtuple('A', 'b')(1)); assert nest.map_structure_with_paths(lambda p, x: f'{p}={x}', {'a': [1]}) == {'a': ['a/0=1']}",
    "from tensorflow.python.util import tf_inspect\nclass A:\n    def f(self, a, b=2, **kwargs): pass\na = A(); assert tf_inspect.getcallargs(a.f, 1, c=3) == {'self': a, 'a': 1, 'b': 2, 'c': 3}",
    "from tensorflow.python.framework.tensor_spec import BoundedTensorSpec as B; b = B([2], tf.int32, 0, [1, 2], 'x'); assert B.from_spec(b) == b != B([2], tf.int32, 0, 1, 'x'); assert pickle.loads(pickle.dumps(b)) == b; assert B.from_spec(tf.TensorSpec([], tf.int8)).maximum == 127",
    "from tensorflow.python.distribute import strategy_combinations as s; s.set_virtual_cpus_to_at_least(1)",
    "from tensorflow.python.eager import context, def_function\nwith tf.name_scope('a'): assert context.context().scope_name == 'a/' and context.context().executing_eagerly()\nassert context.context().num_gpus() == context.num_gpus()\nassert isinstance(tf.function(abs), def_function.Function)",
    "from tensorflow.python.ops.parallel_for import control_flow_ops as c; assert c.pfor(lambda i: 2 * i, 3).numpy().tolist() == [0, 2, 4]",
    "from tensorflow.python.trackable import data_structures as d; assert d.NoDependency([1]) == d.ListWrapper([1]) == d.wrap_or_unwrap([1]) == [1]",
    "from tensorflow.python.util import function_utils as u; assert u.fn_args(lambda a, b=1: 0) == ('a', 'b')",
    "from tensorflow.python.lib.io import file_io; p = f'{tf.compat.v1.test.get_temp_dir()}/a'; file_io.atomic_write_string_to_file(p, 'x'); assert open(p).read() == 'x'",
    "from tensorflow.python.framework import ops, tensor_util\n@ops.RegisterStatistics('Einsum', 'flops')\ndef f(): return 3\nassert f() == 3 and ops.numpy_text(tf.constant(2)) == '2' and tensor_util.try_evaluate_constant(tf.constant(2)) == 2",
    "from tensorflow.python.util import object_identity as o; x = tf.constant(1); assert o.Reference(x) == x.ref()",
    "from tensorflow.python.ops import nn_ops; c = nn_ops.Convolution([1, 4, 4, 1], [2, 2, 1, 3], 'VALID', strides=(2, 2)); assert c(tf.ones([1, 4, 4, 1]), tf.ones([2, 2, 1, 3])).shape == [1, 2, 2, 3]",
    "from tensorflow.python.keras import combinations as c; assert c.combine(mode=['eager'])[0]['mode'] == 'eager'; assert c.generate(c.keras_model_type_combinations())",
    "from tensorflow.python.keras import testing_utils; (x, y), (z, _) = testing_utils.get_test_data(4, 2, (3,), 2); assert x.shape == (4, 3) and z.shape == (2, 3) and y.max() < 2",
    "from tensorflow.python.keras.utils import conv_utils as c; assert [c.deconv_output_length(7, 3, 'same', stride=2), c.deconv_output_length(7, 3, 'valid', 0, 2), c.deconv_output_length(7, 5, 'full', stride=2), c.conv_input_length(4, 3, 'same', 2), c.convert_data_format('channels_first', 5)] == [14, 15, 9, 7, 'NCDHW']",
    "from tensorflow.python.keras.engine import data_adapter as d; assert [x.shape[1] for x in d.expand_1d((tf.zeros(3), tf.zeros((3, 2))))] == [1, 2]",
    "from tensorflow.python.keras.utils import tf_utils as t; assert t.to_numpy_or_python_type({'a': tf.constant(1.0)}) == {'a': 1.0}; assert isinstance(t.shape_type_conversion(lambda self, s: s)(None, (None, 2)), tf.TensorShape)",
    "from tensorflow.python.keras.utils import generic_utils as g; assert [g.to_snake_case('AbcDef'), g.has_arg(lambda a, **b: 1, 'b'), g.has_arg(lambda a, **b: 1, 'b', True), g.make_batches(5, 2), g.slice_arrays([np.arange(3), None], 1), g.unpack_singleton([3]), g.is_all_none([None])][1:4] == [False, True, [(0, 2), (2, 4), (4, 5)]]",
    "from tensorflow.python.keras.utils import losses_utils as l; assert l.compute_weighted_loss(tf.constant([1.0, 2.0]), [1.0, 0.0]) == 0.5; assert [x.shape.rank for x in l.squeeze_or_expand_dimensions(tf.zeros((2, 1)), tf.zeros(2), tf.zeros((2, 1)))] == [1, 1, 1]",
    "from tensorflow.python.keras.layers import recurrent as r; cell = tf.keras.layers.LSTMCell(2); assert [s.shape for s in r._generate_zero_filled_state_for_cell(cell, None, 3, tf.float32)] == [(3, 2), (3, 2)]; assert r._config_for_enable_caching_device(cell) == {}",
    "from tensorflow.python.keras.saving import hdf5_format as h; import h5py; m = tf.keras.Sequential([tf.keras.layers.Dense(2, input_shape=(3,), name='a')])\nwith h5py.File('a.h5', 'w', driver='core', backing_store=False) as f:\n    h.save_weights_to_hdf5_group(f, m.layers); assert h.load_attributes_from_hdf5_group(f, 'layer_names') == ['a']\n    w = m.get_weights(); m.layers[0].bias.assign([1, 1]); h.load_weights_from_hdf5_group_by_name(f, m.layers); h.load_weights_from_hdf5_group(f, m); np.testing.assert_array_equal(w[1], m.get_weights()[1])",
    "from tensorflow.python.ops import gen_nn_ops as n; assert n.relu_grad(tf.ones(2), tf.constant([1.0, -1.0])).numpy().tolist() == [1.0, 0.0]",
    "from tensorflow.python.ops import init_ops; assert init_ops._compute_fans((2, 3)) == (2, 3)",
    "from tensorflow.python.ops import control_flow_ops as c; assert c.with_dependencies([], tf.constant(2)) == 2",
    "from tensorflow.python.framework import tensor_shape; assert tensor_shape.unknown_shape().rank is None",
    "from tensorflow.python.platform import build_info; assert build_info.build_info['is_rocm_build'] is False",
    "from tensorflow.python.autograph.impl import api; assert api.do_not_convert(lambda: 2)() == 2",
    "from tensorflow.python.util import tf_inspect; assert tf_inspect.getcallargs(lambda a, b=2: 0, 1, training=True) == {'a': 1, 'b': 2, 'training': True}",
    "from tensorflow.python.util import nest\ntry: nest.assert_shallow_structure([1], {'a': 1}); assert False\nexcept TypeError: nest.assert_shallow_structure([1], ({'a': 1},), check_types=False); nest.assert_shallow_structure({'a': [1]}, {'a': [(2,)]})",
    "from tensorflow.python.framework import type_spec_registry as r\nclass S(tf.TypeSpec): pass\nassert r.register('a.S')(S) is S and r.lookup('a.S') is S and r.get_name(S) == 'a.S' and r._TYPE_SPEC_TO_NAME[S] == 'a.S'",
    "from tensorflow.python.eager import context\nwith tf.Graph().as_default() as graph, context.graph_mode(): assert tf.add(1, 2).op.type == 'AddV2'\nassert hasattr(graph, 'as_graph_def')",
    "from tensorflow.python.saved_model import nested_structure_coder as c; from tensorflow.python.framework.tensor_spec import BoundedTensorSpec as B; v = {'a': (B([2], tf.int32, [0, 1], 9, 'x'), tf.TensorSpec([None]), 3)}; assert c.decode_proto(c.encode_structure(v)) == v",
    "import tensorflow.compat.v2 as v2; v2.enable_v2_behavior(); assert not hasattr(tf, 'enable_v2_behavior')",
    "from tf_keras.src import backend as b; assert [b.unique_object_name('n') for _ in range(2)] == ['n_1', 'n_2'] and b.unique_object_name('m', zero_based=True) == 'm'",
    "layers = tf.compat.v1.keras.layers; assert tf.keras.layers.DenseFeatures is not layers.DenseFeatures and issubclass(layers.DenseFeatures, tf.keras.layers.DenseFeatures)",
    # Files of libraries depend on those of TensorFlow, and share its messages.
    "from google.protobuf import descriptor_pb2 as d, descriptor_pool, message_factory\nfrom tensorflow.core.framework import tensor_shape_pb2, types_pb2\nassert types_pb2.DataType.Name(types_pb2.DT_INT32) == 'DT_INT32' and types_pb2.DT_FLOAT_REF == 101\nfile = d.FileDescriptorProto(name='own.proto', package='own', syntax='proto3', dependency=[f'tensorflow/core/framework/{n}.proto' for n in ('tensor_shape', 'types')])\nfile.message_type.add(name='M').field.add(name='shape', number=1, label=1, type=11, type_name='.tensorflow.TensorShapeProto')\nfile.message_type[0].field.add(name='dtype', number=2, label=1, type=14, type_name='.tensorflow.DataType')\npool = descriptor_pool.Default(); pool.AddSerializedFile(file.SerializeToString())\nm = message_factory.GetMessageClass(pool.FindMessageTypeByName('own.M'))(dtype=types_pb2.DT_BOOL)\nfor shape in ([2, None], None): m.shape.CopyFrom(tf.TensorShape(shape).as_proto()); assert tf.TensorShape(m.shape).as_proto() == m.shape == tensor_shape_pb2.TensorShapeProto.FromString(m.shape.SerializeToString())",
    # Names without a version are those of version 1 in modules of neural networks.
    "from tensorflow.python.ops import nn_ops as n, nn_impl as m\nx = tf.ones([1, 4, 4, 3])\nassert n.pool(x, [2, 2], 'AVG', 'VALID', dilation_rate=[1, 1]).shape == (1, 3, 3, 3) and m.l2_normalize(x, dim=1).shape == x.shape\nassert n.softmax_v2 is tf.nn.softmax and n.max_pool_v2 is tf.nn.max_pool and n.relu is tf.nn.relu",
    "from tensorflow.python.layers import convolutional, pooling\nlayer = convolutional.Convolution2D(2, 3, kernel_initializer=None, name='c', _scope='c', _reuse=None)\nassert isinstance(layer, tf.keras.layers.Conv2D) and pooling.MaxPooling2D(2, 2, _scope='p').apply(layer.apply(tf.ones([1, 6, 6, 1]))).shape == (1, 2, 2, 2) and layer.kernel.name == 'c/kernel:0'",
    "from keras.src.layers.rnn.dropout_rnn_cell_mixin import DropoutRNNCellMixin as M; from keras.layers.recurrent import DropoutRNNCellMixin as N; assert M is N and issubclass(tf.keras.layers.LSTMCell, M)",
    "from tensorflow.python.ops.numpy_ops import np_config; np_config.enable_numpy_behavior(); assert tf.ones((2, 1)).T.shape == (1, 2)",
]  # fmt: skip


def test_names_of_dtypes_in_messages():
    message = tf.make_tensor_proto([1.5])
    assert message.dtype == 1 and "dtype: DT_FLOAT" in str(message)
    text = "dtype: DT_FLOAT tensor_shape { dim { size: 1 } } float_val: 1.5"
    tf.test.TestCase().assertProtoEquals(text, message)


def test_combinations_of_arguments_of_tests():
    product = combinations.combine(b=[1, 2], a="x")
    assert [dict(c) for c in product] == [{"a": "x", "b": 1}, {"a": "x", "b": 2}]
    assert combinations.times(product[:1], combinations.combine(c=3)) == [
        collections.OrderedDict(a="x", b=1, c=3)
    ]
    named = combinations.generate_combinations_with_testcase_name(a=["x-1"], b=2)
    assert [list(c.items()) for c in named] == [
        [("a", "x-1"), ("b", 2), ("testcase_name", "_test_a_x1_b_2")]
    ]
    seen = []
    names = ("default_strategy", "one_device_strategy", "one_device_strategy_gpu", "tpu_strategy")
    strategies = [getattr(combinations, name) for name in names]
    arguments = combinations.combine(strategy=strategies, mode=["eager", "graph"])

    @combinations.generate(arguments)
    class Tests(tf.test.TestCase):
        def test_one(self, strategy):
            seen.append((type(strategy).__name__, tf.executing_eagerly()))

    suite = unittest.defaultTestLoader.loadTestsFromTestCase(Tests)
    assert suite.countTestCases() == 9  # with test_session
    result = suite.run(unittest.TestResult())
    assert result.wasSuccessful() and len(result.skipped) == 5
    assert {name for name, is_eager in seen if is_eager} == {"Strategy", "OneDeviceStrategy"}
    assert len(seen) == 4
    assert hasattr(Tests, "test_one_test_mode_eager_strategy_OneDeviceCPU")


def test_tensors_and_variables_are_keys_in_a_graph():
    with tf.Graph().as_default():
        x, v = tf.constant(1), tf.Variable(1)
        table = {x: "x", v: "v"}
        assert [table[x], table[v]] == ["x", "v"] and tf.constant(1) not in table
        with pytest.raises(TypeError, match="unhashable"):
            tf.function(lambda t: {t: 1})(x)
        assert hash(x) != hash(v)
    for value in (tf.constant(1), tf.Variable(1)):
        with pytest.raises(TypeError, match="unhashable"):
            hash(value)


def test_conditions_of_tests():
    names = tf.__internal__.test.combinations
    events = []

    class Condition(names.TestCombination):
        def should_execute_combination(self, kwargs):
            return kwargs["size"] != 3, "too large"

        def parameter_modifiers(self):
            return [
                names.OptionalParameter("kind"),
                names.OptionalParameter("size"),
                Doubled("size"),
            ]

        def context_managers(self, kwargs):
            return [contextlib.nullcontext(events.append(kwargs["kind"]))]

    class Doubled(names.ParameterModifier):
        def modified_arguments(self, kwargs, requested_parameters):
            return {self._parameter_name: 2 * kwargs[self._parameter_name]}

    @names.generate(names.combine(kind="a", size=[1, 2, 3]), [Condition()])
    class Tests(unittest.TestCase):
        def test_one(self, size):
            events.append(size)

    result = unittest.defaultTestLoader.loadTestsFromTestCase(Tests).run(unittest.TestResult())
    assert result.wasSuccessful() and [reason for _, reason in result.skipped] == ["too large"]
    assert events == ["a", 2, "a", 4]
    assert names.OptionalParameter("a") == names.OptionalParameter("a") != Doubled("a")


def test_private_names():
    code, output = forked.run(f"""
from meshflow.shims import activate; activate()
import collections, pickle, traceback
import numpy as np, tensorflow as tf
for program in {PRIVATE_NAMES!r}:
    try:
        exec(program, dict(globals()))
    except BaseException:
        print(program, traceback.format_exc())
""")
    assert (code, output) == (0, "")


def test_messages_beside_a_mock_of_tensorflow(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow", types.ModuleType("tensorflow"))
    message = declare_messages("point.proto", {"Point": {"x": (1, "int64")}})["Point"]
    assert message(x=3).x == 3


def test_dimensions_and_names_of_version_1():
    shape = tf.TensorShape([None, 3])
    assert [d.value for d in shape.dims] == [None, 3] and shape.dims[1] == 3
    assert tf.compat.dimension_at_index(shape, 1).value == 3
    assert tf.TensorShape(np.int32(4)) == [4] and tf.TensorShape(None).dims is None
    with v1.name_scope(None, "default", [1.0]) as scope:
        assert scope == "default/"
    v1.reset_default_graph()
    unique_name = v1.get_default_graph().unique_name
    names = [unique_name(n) for n in ("a", "a", "a", "A", "a_1", "b")]
    assert names == ["a", "a_1", "a_2", "A_3", "a_1_1", "b"]
    assert keras.layers.Dense(1).name == "dense"
    v1.summary.scalar("loss", tf.constant(1.0))
    assert v1.get_variable_scope().caching_device is None
    with tf.test.TestCase().session() as session:
        assert session.run({"a": tf.constant(1)}) == {"a": 1}


def test_tensors():
    tensor = tf.constant(1.0)
    tensor.note = "kept"
    assert tensor.note == "kept"
    packed = tf.convert_to_tensor([tf.constant(4.7), tf.constant(2.0)], tf.int32)
    assert packed.numpy().tolist() == [4, 2]
    assert tf.linalg.qr(tf.eye(2)).r.shape == [2, 2]
    text = tf.Variable(["a", "b"])
    text.scatter_update(tf.IndexedSlices(tf.constant(["x"]), [1]))
    text[0].assign("y")
    assert text.numpy().tolist() == [b"y", b"x"]
    with tf.GradientTape() as tape:
        tape.watch(tensor)
        target = (tensor, 2 * tensor)
    assert tape.gradient(target, tensor, output_gradients=[1.0, 3.0]).numpy() == 7.0
    with pytest.raises(ValueError, match="2 targets, got 1"):
        tf.function(lambda x: tf.gradients([x, 2 * x], x, grad_ys=[x]))(tensor)
    assert tf.raw_ops.FusedBatchNormV2(
        x=tf.ones([1, 2, 2, 1]), scale=[1.0], offset=[0.0], mean=[0.0], variance=[1.0], is_training=False
    )._fields[-1] == "reserve_space_2"  # fmt: skip


class PairSpec(CompositeSpec):
    """Spec that describes two tensors."""

    value_type = property(lambda self: Pair)
    _component_specs = property(lambda self: [tf.TensorSpec([2]), tf.TensorSpec([])])

    def _to_components(self, value):
        return [value.first, value.second]

    def _from_components(self, components):
        return Pair(*components)

    def _serialize(self):
        return ()


class Pair(CompositeTensor):
    """Composite tensor with only a spec."""

    def __init__(self, first, second):
        self.first, self.second = first, second

    _type_spec = property(lambda self: PairSpec())


def test_shapes_of_composite_tensors(monkeypatch):
    tf.register_tensor_conversion_function(Pair, lambda pair, *_, **__: tf.stack(pair.first))
    monkeypatch.setattr(Pair, "shape", tf.TensorShape([None]), raising=False)
    assert tf.shape(Pair(tf.ones([2]), tf.constant(1.0))).numpy().tolist() == [2]


def test_composite_tensors_with_only_a_spec():
    double = tf.function(lambda pair: Pair(2 * pair.first, pair.second + 1))
    result = double(Pair(tf.ones([2]), tf.constant(1.0)))
    assert isinstance(result, Pair) and result.first.numpy().tolist() == [2, 2]
    assert result.second.numpy() == 2


@pytest.mark.parametrize(("shape", "size"), [([3], 3), ([4, 5], 5), ([1, 5], 5), ([1], 5), ([2, 1], 5)])  # fmt: skip
def test_sizes_that_depend_on_values_broadcast(shape, size):
    w = tf.Variable(tf.range(1.0, size + 1.0))

    @tf.function
    def compute(shape):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((tf.zeros(shape) + w) * w)
        return loss, tape.gradient(loss, w)

    loss, gradient = compute(tf.constant(shape))
    rows = np.broadcast_shapes(shape, (size,))[0] if len(shape) == 2 else 1
    assert loss.numpy() == rows * (w.numpy() ** 2).sum()
    np.testing.assert_array_equal(gradient, 2 * rows * w.numpy())


def test_functions_of_keras_tensors():
    lengths, text = keras.Input((), dtype="int32"), keras.Input((2,), dtype="string")
    mask, unique = tf.sequence_mask(lengths), tf.unique(lengths).y
    assert (mask.shape, unique.shape) == (tf.TensorShape([None, None]), tf.TensorShape([None]))
    model = keras.Model([lengths, text], [mask, unique, tf.strings.to_number(text)])
    outputs = model([tf.constant([1, 3]), tf.constant([["1", "2"], ["3", "4"]])])
    assert [o.shape.as_list() for o in outputs] == [[2, 3], [2], [2, 2]]
    for compute in (tf.range, tf.eye):
        assert compute(tf.shape(lengths)[0]).shape[0] is None
    assert [t.shape[0] for t in tf.meshgrid(lengths, lengths)] == [None, None]


class Described:
    """Object that is not a tensor, such as a distribution."""

    def __init__(self, value):
        self.value, self.shape, self.dtype = value, value.shape, value.dtype


tf.register_tensor_conversion_function(
    Described, lambda value, dtype=None, name=None, as_ref=False: tf.identity(value.value)
)


class Describing(keras.layers.Lambda):
    """Layer with a custom `__call__`, which returns a part of the outputs."""

    def __call__(self, inputs, *args, **kwargs):
        return super().__call__(inputs, *args, **kwargs)[0]


@pytest.mark.parametrize("functional", [False, True])
def test_models_with_outputs_that_are_no_tensors(functional):
    layers = [keras.layers.Dense(1), Describing(lambda x: (Described(x), x))]
    if functional:
        inputs = keras.Input((2,))
        model = keras.Model(inputs, layers[1](layers[0](inputs)))
    else:
        model = keras.Sequential(layers)
    model.compile("sgd", loss=lambda y, described: tf.square(y - described.value))
    x, y = np.ones((4, 2), "float32"), np.ones((4, 1), "float32")
    assert np.isfinite(model.fit(x, y, verbose=0).history["loss"][0])
    assert isinstance(model(x), Described) and model.predict(x, verbose=0).shape == (4, 1)


def test_weights_of_libraries():
    created = collections.Counter()

    class Scale(keras.layers.Layer):
        def build(self, shape):
            self.factor = self.add_weight("factor", initializer="ones")

        def call(self, inputs):
            return self.factor * inputs

        def _add_variable_with_custom_getter(self, name, **kwargs):
            inner = kwargs.pop("getter")

            def getter(*args, **kwargs):
                created[kwargs["name"]] += 1
                return inner(*args, **kwargs)

            return super()._add_variable_with_custom_getter(name, getter=getter, **kwargs)

    layer = Scale()
    layer.mean = keras.metrics.Mean()
    assert layer(tf.ones([1])).numpy() == 1 and created == {"factor": 1}
    assert layer._metrics == [layer.mean]
    for name in ("SGD", "Adam", "Ftrl", "Nadam"):
        optimizer = getattr(keras.optimizers.legacy, name)()
        assert isinstance(optimizer, keras.optimizers.legacy.Optimizer)
        assert not isinstance(getattr(keras.optimizers, name)(), keras.optimizers.legacy.Optimizer)


class BatchSpec(BatchableSpec):
    """Spec of `Batch`, with the specs of its parts."""

    def __init__(self, parts):
        self.parts = dict(parts)

    value_type = property(lambda self: Batch)
    shape = property(lambda self: tf.TensorShape([]))
    _component_specs = property(lambda self: self.parts)

    def _to_components(self, value):
        return value.parts

    def _from_components(self, components):
        return Batch(components)

    def _serialize(self):
        return (self.parts,)

    def _batch(self, batch_size):
        return BatchSpec({k: s._batch(batch_size) for k, s in self.parts.items()})

    def _unbatch(self):
        return BatchSpec({k: s._unbatch() for k, s in self.parts.items()})


class Batch(CompositeTensor):
    """Type of a library, like a graph: a dictionary of tensors of unknown sizes."""

    def __init__(self, parts):
        self.parts = parts

    @property
    def _type_spec(self):
        return BatchSpec({k: tf.type_spec_from_value(v) for k, v in self.parts.items()})

    def total(self):
        tf.debugging.assert_equal(tf.shape(self.parts["x"])[0], 2)
        return tf.reduce_sum(self.parts["x"], axis=0)


def test_types_of_libraries(monkeypatch, tmp_path):
    monkeypatch.setitem(named_spec_classes, "own.BatchSpec", BatchSpec)
    value = Batch({"x": tf.constant([[1.0, 2.0], [3.0, 4.0]]), "text": tf.constant(["a", "b"])})
    assert tf.identity(value).parts["text"].numpy().tolist() == [b"a", b"b"]
    value = Batch({"x": value.parts["x"]})
    dataset = tf.data.Dataset.from_tensors(value).repeat(4).batch(2)
    assert dataset.element_spec.is_compatible_with(BatchSpec({"x": tf.TensorSpec([2, 2, 2])}))
    rows = [row.parts["x"].shape for row in dataset.unbatch()]
    assert rows == [(2, 2)] * 4
    # Keras tensors have a class and members of the library; assertions about unknown sizes are ignored.
    symbolic = type("BatchKerasTensor", (keras.__internal__.KerasTensor,), {})
    instance_layers.delegate_method(symbolic, "total")
    instance_layers.delegate_property(symbolic, "parts")
    symbolic._overload_operator(dict, "get")
    monkeypatch.setitem(_specializations, Batch, symbolic)
    spec = BatchSpec({"x": tf.TensorSpec([None, 2])})
    inputs = keras.Input(type_spec=spec)
    assert type(inputs) is symbolic and type(symbolic.from_tensor(value)) is symbolic
    assert inputs.parts["x"].shape == (None, 2) and inputs.total().shape == (2,)
    model = keras.Model(inputs, inputs.total() + 1.0)
    assert model(value).numpy().tolist() == [5.0, 7.0]
    copy = keras.models.model_from_json(model.to_json())
    assert copy.inputs[0].type_spec == spec and copy(value).numpy().tolist() == [5.0, 7.0]
    assert isinstance(keras.Input([None], ragged=True), keras.__internal__.RaggedKerasTensor)
    sequential = keras.Sequential([keras.layers.Lambda(lambda batch: batch.total())])
    assert sequential(value).numpy().tolist() == [4.0, 6.0]
    dense = keras.Input([3])
    assert not isinstance(dense, keras.__internal__.SparseKerasTensor)


@keras.utils.register_keras_serializable("libraries")
class Holding(keras.layers.Layer):
    """Layer whose configuration contains unserialized objects."""

    def __init__(self, inner, start="ones", loss=None, **kwargs):
        super().__init__(**kwargs)
        self.inner, self.loss = inner, loss
        self.start = keras.initializers.get(start)

    def call(self, inputs):
        return self.inner(inputs) * self.start([2])

    def get_config(self):
        own = {"inner": self.inner, "start": self.start, "loss": self.loss}
        return own | super().get_config()


@keras.utils.register_keras_serializable("libraries")
class Deserializing(Holding):
    @classmethod
    def from_config(cls, config):
        restore = keras.saving.deserialize_keras_object
        return cls(restore(config.pop("inner")), restore(config.pop("start")), **config)


@pytest.mark.parametrize("kind", [Holding, Deserializing])
@pytest.mark.parametrize("file", ["m.keras", "m.h5", None])
def test_objects_in_configurations(kind, file, tmp_path):
    inputs = keras.Input([3])
    loss = keras.losses.MeanSquaredError()
    model = keras.Model(inputs, kind(keras.layers.Dense(2), "zeros", loss)(inputs))
    if file:
        model.save(tmp_path / file)
        copy = keras.models.load_model(tmp_path / file)
    else:
        copy = keras.models.model_from_json(model.to_json())
        copy.set_weights(model.get_weights())
    holding = copy.layers[1]
    assert isinstance(holding.start, keras.initializers.Zeros)
    assert type(holding.loss) is keras.losses.MeanSquaredError
    x = tf.ones([1, 3])
    assert holding.inner(x).numpy().tolist() == model.layers[1].inner(x).numpy().tolist()


def test_sums_and_errors_that_libraries_expect():
    sparse = tf.SparseTensor([[0, 1]], [2.0], [2, 2])
    product = tf.constant([[1.0, 3.0], [1.0, 1.0]]) * sparse
    assert tf.sparse.to_dense(product).numpy().tolist() == [[0.0, 6.0], [0.0, 0.0]]
    counter = tf.Variable(0)
    assert [counter.count_up_to(2).numpy() for _ in range(2)] == [0, 1]
    with pytest.raises(tf.errors.OutOfRangeError):
        counter.count_up_to(2)
    loss = keras.losses.MeanSquaredError()
    assert loss._get_reduction() == keras.losses.Reduction.SUM_OVER_BATCH_SIZE
    for other in (tf.ones([1, 5]), tf.ones([2])):
        with pytest.raises(
            tf.errors.InvalidArgumentError, match=r"Incompatible shapes: \[1, 4\] vs. \["
        ):
            tf.ones([1, 4]) + other
    assert tf.reduce_max(tf.nn.dropout(tf.ones([100]), 1 / 3)).numpy() == 1.5
    assert tf.eye(tf.constant(2.0), 3.0).shape == (2, 3)
    module = tf.Module()
    module.inner = tf.Module()
    assert module._unconditional_checkpoint_dependencies == [("inner", module.inner)]
    assert module._lookup_dependency("inner") is module.inner
    one, two = tf.compat.v1.Dimension(1), tf.compat.v1.Dimension(2)
    assert one < 2 and one <= two and two > one and (two >= tf.compat.v1.Dimension(None)) is None


def test_elements_are_read_after_assertions():
    count = tf.Variable(0)

    def make(_):
        tf.debugging.assert_less(0, count)
        return tf.data.Dataset.range(2)

    dataset = tf.data.Dataset.range(1).flat_map(make).map(lambda x: x + 1)
    with pytest.raises(tf.errors.InvalidArgumentError):
        list(dataset)
    count.assign(1)
    assert list(dataset.as_numpy_iterator()) == [1, 2]


def test_random_generator_of_keras_backend():
    module = importlib.import_module("meshflow.legacy.internal.keras_functions")
    generator = module.RandomGenerator(3, force_generator=True)
    assert [generator.make_legacy_seed() for _ in range(2)] == [3, 4]
    seeds = [generator.make_seed_for_stateless_op().numpy().tolist() for _ in range(2)]
    assert seeds[0] != seeds[1] and len(seeds[0]) == 2
    again = module.RandomGenerator(3).make_seed_for_stateless_op().numpy().tolist()
    assert again == seeds[0]
    drawn = generator.random_uniform([2], 1, 5, "int32", nonce=1)
    assert drawn.dtype is tf.int32 and drawn.shape == (2,)
    fixed = module.RandomGenerator(3, "stateless").make_seed_for_stateless_op()
    assert fixed.numpy().tolist() == [3, 0]


def test_byte_strings_are_joined_as_paths():
    assert tf.io.gfile.join(b"a", "b") == b"a/b" and tf.io.gfile.join("a", b"b") == "a/b"
