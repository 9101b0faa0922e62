"""What public programs for TensorFlow rely on; the expected values are those of TensorFlow 2.15."""

import numpy as np
import pytest

import forked
import meshflow as tf

keras, layers, backend = tf.keras, tf.keras.layers, tf.keras.backend

PRIVATE_NAMES = [
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
    "from tensorflow.python.eager import context; assert context.context().executing_eagerly() and context.context().num_gpus() == context.num_gpus()",
    "from tensorflow.python.platform import build_info; assert build_info.build_info['is_rocm_build'] is False",
    "from tensorflow.python.autograph.impl import api; assert api.do_not_convert(lambda: 2)() == 2",
    "from tensorflow.python.ops.numpy_ops import np_config; np_config.enable_numpy_behavior(); assert tf.ones((2, 1)).T.shape == (1, 2)",
]  # fmt: skip


def test_private_names():
    code, output = forked.run(f"""
from meshflow.shims import activate; activate()
import traceback
import numpy as np, tensorflow as tf
for program in {PRIVATE_NAMES!r}:
    try:
        exec(program, dict(globals()))
    except BaseException:
        print(program, traceback.format_exc())
""")
    assert (code, output) == (0, "")


def test_sessions_for_options():
    v1 = tf.compat.v1
    config = v1.ConfigProto()
    config.gpu_options.allow_growth = True
    v1.keras.backend.set_session(v1.Session(config=config))
    assert v1.get_default_session() is None
    with v1.Session() as session:
        assert v1.get_default_session() is v1.keras.backend.get_session() is session
        assert session.run({"a": tf.constant([1]), "b": None}) == {"a": 1, "b": None}
        with pytest.raises(NotImplementedError, match="placeholders"):
            session.run(tf.constant(1), feed_dict={"x": 1})
    v1.InteractiveSession(config=config).close()


@pytest.mark.parametrize(
    "combine, shape",
    [
        (lambda x: x + backend.random_normal(shape=(4, 2)), [4, 2]),
        (lambda x: tf.concat([x, np.ones((4, 3), np.float32)], 1), [4, 5]),
        (lambda x: tf.stack([x, tf.ones((4, 2))], 1), [4, 2, 2]),
        (lambda x: tf.where(x > 0, x, tf.ones((4, 2))), [4, 2]),
        (lambda x: tf.einsum("bi,bj->bij", tf.ones((4, 3)), x), [4, 3, 2]),
        (lambda x: keras.losses.mse(tf.zeros((4, 2)), x), [4]),
    ],
)
def test_constants_for_one_batch_size(combine, shape):
    inputs = keras.Input((2,))
    assert combine(inputs).shape == shape
    outputs = layers.Lambda(combine)(inputs)
    assert outputs.shape == shape
    assert keras.Model(inputs, outputs)(np.ones((4, 2))).shape == shape
    with pytest.raises(ValueError, match=r"\(None, 3\), \(4, 2\)"):
        _ = keras.Input((3,)) + tf.ones((4, 2))


def test_weights_replaced_by_tensors():
    class Normalized(layers.Wrapper):
        def build(self, input_shape):
            super().build(input_shape)
            self.raw = self.layer.kernel
            self.norm = self.add_weight(
                name="norm", shape=(self.raw.shape[-1],), initializer="ones"
            )

        def call(self, inputs):
            self.layer.kernel = tf.nn.l2_normalize(self.raw, -1) * self.norm
            return self.layer(inputs)

    convolutions = (layers.Conv2D(2, 2), layers.Conv2DTranspose(2, 2), layers.EinsumDense("abcd,de->abce", (4, 4, 2)))  # fmt: skip
    for layer in (*convolutions, layers.Dense(2)):
        model = keras.Sequential([keras.Input((4, 4, 2)), Normalized(layer), layers.Flatten()])
        model.compile("sgd", lambda y, p: p)
        model.fit(np.ones((2, 4, 4, 2)), np.ones((2, 1)), verbose=0)
        assert len(model.trainable_weights) == (2 if isinstance(layer, layers.EinsumDense) else 3)

    class Bare(layers.Wrapper):
        def build(self, input_shape):
            self.layer.build(input_shape)
            super().build()

        def call(self, inputs):
            return self.layer(inputs)

    assert Bare(layers.Dense(3))(tf.ones((1, 2))).shape == [1, 3]
    assert layers.TimeDistributed(layers.Dense(3))(tf.ones((1, 2, 4))).shape == [1, 2, 3]


def test_cells_without_output_size():
    class Cell(layers.AbstractRNNCell):
        state_size = [4, 4]

        def build(self, input_shape):
            self.inner, self.dense = layers.LSTMCell(4), layers.Dense(3)
            self.built = True

        def call(self, inputs, states):
            outputs, states = self.inner(inputs, states)
            return self.dense(outputs), states

    assert layers.RNN(Cell(), return_sequences=True)(keras.Input((5, 2))).shape == [None, 5, 3]


def test_merge_functions():
    class Average(layers.Add.__base__):
        def _merge_function(self, inputs):
            weight = backend.random_uniform((4, 1))
            return weight * inputs[0] + (1 - weight) * inputs[1]

    inputs = [keras.Input((2,)), keras.Input((2,))]
    model = keras.Model(inputs, Average()(inputs))
    assert model([tf.ones((4, 2)), tf.ones((4, 2))]).numpy() == pytest.approx(1.0)


def test_clones_of_unregistered_layers():
    class Scaled(layers.Layer):
        def __init__(self, units, **kwargs):
            super().__init__(**kwargs)
            self.units, self.dense = units, layers.Dense(units)

        def call(self, inputs, scale=1.0):
            return self.dense(inputs) * scale

        def get_config(self):
            return {**super().get_config(), "units": self.units}

    inputs = keras.Input((3,))
    functional = keras.Model(inputs, Scaled(4)(inputs, scale=2.0))
    sequential = keras.Sequential([keras.Input((3,)), functional, Scaled(2)])
    for model in (functional, sequential):
        clone = keras.models.clone_model(model)
        clone.set_weights(model.get_weights())
        x = np.ones((2, 3), np.float32)
        np.testing.assert_array_equal(clone(x), model(x))
        assert type(clone.layers[-1]) is Scaled and clone.layers[-1] is not model.layers[-1]
    lines: list[str] = []
    functional.summary(line_length=60, positions=[0.5, 0.7, 0.9, 1.0], print_fn=lines.append)
    assert any(line.startswith(" scaled") for line in lines)
