"""Test idioms of Keras add-ons: projective transforms, wrapped optimizers, cells, test helpers.

Values are TensorFlow's.
"""

import numpy as np
import pytest
from absl.testing import parameterized

import meshflow as tf
from meshflow.shims import keras_test_helpers as helpers

keras = tf.keras


@pytest.mark.parametrize(
    ("mode", "interpolation", "expected"),
    [
        ("CONSTANT", "BILINEAR", [0.1, 1.8812, 3.0392, 4.1748, 2.7589, 2.7067, 5.8252, 6.9231, 8.0, 4.8327]),
        ("CONSTANT", "NEAREST", [-1, 0, 1, 2, 3, 4, 5, 6, 6, 7]),
        ("REFLECT", "BILINEAR", [1.2, 1.8812, 3.0392, 4.1748, 4.9231, 5.098, 5.8252, 6.9231, 8.0, 8.6604]),
        ("WRAP", "BILINEAR", [4.2, 1.8812, 3.0392, 4.1748, 1.9231, 8.098, 5.8252, 6.9231, 8.0, 5.6604]),
        ("WRAP", "NEAREST", [3, 0, 1, 2, 0, 7, 5, 6, 6, 4]),
        ("NEAREST", "NEAREST", [0, 0, 1, 2, 3, 4, 5, 6, 6, 7]),
    ],
)  # fmt: skip
def test_projective_transforms(mode, interpolation, expected):
    images = tf.reshape(tf.range(16.0), [1, 4, 4, 1])
    transform = tf.constant([[1, 0.1, -0.5, 0.05, 1, 0.3, 0.01, 0.02]])
    result = tf.raw_ops.ImageProjectiveTransformV3(
        images=images, transforms=transform, output_shape=[2, 5], fill_value=-1.0, interpolation=interpolation,
        fill_mode=mode,
    )  # fmt: skip
    np.testing.assert_allclose(result.numpy().ravel(), expected, atol=1e-4)


def test_projective_transforms_of_integers_and_infinite_positions():
    images = tf.cast(tf.reshape(tf.range(16) * 10, [1, 4, 4, 1]), tf.uint8)
    parameters = {"images": images, "interpolation": "BILINEAR", "output_shape": [1, 4]}
    transform = [[1, 0.1, -0.5, 0.05, 1, 0.3, 0.01, 0.02]]
    result = tf.raw_ops.ImageProjectiveTransformV2(transforms=transform, **parameters)
    assert result.dtype == "uint8" and result.numpy().ravel().tolist() == [6, 18, 30, 41]
    result = tf.raw_ops.ImageProjectiveTransformV2(
        transforms=[[1, 0, 0, 0, 1, 0, -1, 0]], **parameters
    )
    assert result.numpy().ravel().tolist() == [0, 0, 0, 0]


class Averages(keras.optimizers.legacy.Optimizer):
    """Optimizer that wraps another one, as libraries write it: it averages the variables."""

    def __init__(self, optimizer, is_active=True, period=2, rate=0.5):
        super().__init__("averages")
        self._optimizer = optimizer
        for name, value in {"is_active": is_active, "period": period, "rate": rate}.items():
            self._set_hyper(name, value)

    def _create_slots(self, var_list):
        self._optimizer._create_slots(var_list=var_list)
        for variable in var_list:
            self.add_slot(variable, "average", variable.read_value())

    def _resource_apply_dense(self, grad, var, apply_state=None):
        assert "apply_state" in self._optimizer._dense_apply_args
        self._optimizer._resource_apply_dense(grad, var, apply_state=None)
        return self.get_slot(var, "average").assign((self.get_slot(var, "average") + var) / 2)

    def _resource_apply_sparse(self, grad, var, indices, apply_state=None):
        assert "apply_state" in self._optimizer._sparse_apply_args
        return self._optimizer._resource_apply_sparse(grad, var, indices, apply_state=None)

    def get_config(self):
        return {
            name: self._serialize_hyperparameter(name) for name in ("is_active", "period", "rate")
        }


def test_optimizers_that_wrap_another_one():
    optimizer = Averages(keras.optimizers.legacy.SGD(1.0))
    variable = tf.Variable([1.0, 2.0])

    @tf.function
    def step():
        optimizer.apply_gradients([(tf.constant([1.0, 0.0]), variable)])

    step()
    rows = tf.IndexedSlices(tf.constant([2.0]), tf.constant([1]), tf.constant([2]))
    optimizer.apply_gradients([(rows, variable)])
    assert variable.numpy().tolist() == [0, 0]
    assert optimizer.get_slot(variable, "average").numpy().tolist() == [0.5, 2]
    assert optimizer._get_hyper("is_active").dtype == "bool"
    assert str(optimizer.get_config()) == "{'is_active': True, 'period': 2, 'rate': 0.5}"
    assert variable._unique_id != tf.Variable(1.0)._unique_id


def test_cells_and_variables_of_metrics():
    cell, x, h, c = keras.layers.LSTMCell(2), tf.ones([1, 3]), tf.ones([1, 2]), tf.ones([1, 2])
    output, (_, memory) = cell(x, [h, c])
    gates = tf.split(x @ cell.kernel + cell.bias, 4, axis=1)
    carry, opening = cell._compute_carry_and_output(gates, [h] * 4, c)
    np.testing.assert_allclose(carry, memory, rtol=1e-6)
    np.testing.assert_allclose(opening * tf.tanh(carry), output, rtol=1e-6)
    module = tf.Module()
    module.metric = keras.metrics.Mean()
    assert [v.name for v in module.variables] == ["total:0", "count:0"]


def test_weights_that_libraries_append():
    class Appending(keras.layers.Layer):
        def build(self, input_shape):
            self._trainable_weights.append(tf.Variable(1.0, name="w"))
            self._non_trainable_weights += [tf.Variable(2.0, trainable=False, name="n")]

    layer = Appending()
    layer.build(None)
    assert [v.name for v in layer.weights] == ["w:0", "n:0"]
    assert layer._dedup_weights(layer.weights * 2) == layer.weights
    layer._trainable_weights = []
    assert [v.name for v in layer.weights] == ["n:0"]


def test_inputs_of_sequential_models_have_the_dtype_of_the_first_layer():
    layer = keras.layers.Lambda(tf.strings.length, input_shape=[], dtype=tf.string)
    model = keras.Sequential([layer])
    assert model.inputs[0].dtype == "string"
    assert model.predict(np.array(["ab", "c"]), verbose=0).tolist() == [2, 1]


def test_losses_containers_are_copied():
    model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
    model.compile("sgd", "mse", loss_weights=[2.0])
    container, mean = model.compiled_loss, keras.metrics.Mean(name="other")
    weights = container._user_loss_weights
    copy = type(container)(container._user_losses, weights, ["dense"], total_loss_mean=mean)
    assert float(copy(tf.zeros([1, 1]), tf.ones([1, 1]))) == 2
    assert copy.metrics[0] is mean


def test_sessions_of_a_graph():
    with tf.Graph().as_default() as graph:
        assert tf.compat.v1.get_default_graph() is graph
        with tf.compat.v1.Session(graph=graph) as session:
            assert session.run(tf.constant(1) + 1) == 2
    assert tf.compat.v1.get_default_graph() is not graph
    variable = tf.compat.v1.Variable(1.0, use_resource=True, collections=[], name="v")
    assert type(variable) is tf.Variable and variable.name == "v:0"
    assert isinstance(tf.Variable(1.0), tf.compat.v1.Variable)
    assert issubclass(tf.Variable, tf.compat.v1.Variable)

    class Own(tf.compat.v1.Variable):
        pass

    assert type(Own(1.0)) is Own and isinstance(Own(1.0), tf.compat.v1.Variable)
    assert not isinstance(variable, Own)


def test_helpers_of_tests_of_layers():
    class Untrue(keras.layers.Dense):
        def compute_output_shape(self, input_shape):
            return input_shape

    options = {"kwargs": {"units": 3}, "input_shape": (None, 4)}
    assert helpers.layer_test(keras.layers.Dense, **options).shape[1] == 3
    with pytest.raises(AssertionError, match="not the expected shape"):
        helpers.layer_test(Untrue, **options)
    for kind in ("functional", "sequential", "subclass"):
        with helpers.model_type_scope(kind), helpers.run_eagerly_scope(True):
            assert helpers.get_small_mlp(2, 3, 4)(tf.ones([1, 4])).shape == (1, 3)
            assert helpers.should_run_eagerly()
    assert helpers.get_model_type() == "functional"


@pytest.mark.parametrize("base", [keras.layers.Dense, keras.layers.Conv1D, keras.layers.GRUCell])
def test_properties_with_the_names_of_weights(base):
    class WithoutBias(base):
        @property
        def bias(self):
            return None

    options = {"kernel_size": 1} if base is keras.layers.Conv1D else {}
    assert WithoutBias(2, use_bias=False, **options).bias is None


def test_dictionaries_in_cases_with_parameters_of_absl():
    class Case(tf.test.TestCase, parameterized.TestCase):
        pass

    Case().assertEqual({"a": 1}, {"a": 1})
    with pytest.raises(AssertionError, match="'a': 2"):
        Case().assertEqual({"a": 1}, {"a": 2})


def test_input_layers_have_a_list_of_shapes_and_reject_other_keywords():
    inputs = keras.Input([3])
    model = keras.Model(inputs, keras.layers.Dense(2)(inputs))
    first, last = model.layers
    assert first.input_shape == first.output_shape == [(None, 3)]
    assert model.input_shape == last.input_shape == (None, 3)
    assert model._feed_inputs[0].shape == (None, 3)
    with pytest.raises(ValueError, match=r"Unrecognized keyword arguments: \['trainable'\]"):
        keras.layers.InputLayer(input_shape=(3,), trainable=False)


@pytest.mark.parametrize(
    "layer_class", [keras.layers.LSTM, keras.layers.GRU, keras.layers.SimpleRNN]
)
def test_recurrent_layers_reset_the_masks_of_their_cell_in_call(layer_class):
    class Own(layer_class):
        def call(self, inputs, mask=None, training=None, initial_state=None):
            self._maybe_reset_cell_dropout_mask(self.cell)
            self.reset_recurrent_dropout_mask()
            _, states, _ = self._process_inputs(inputs, initial_state, None)
            return super().call(inputs, mask=mask, training=training, initial_state=states)

    layer, reference = Own(2), layer_class(2)
    inputs = tf.random.stateless_normal([2, 3, 4], [1, 2])
    assert layer(inputs).shape == reference(inputs).shape
    reference.set_weights(layer.get_weights())
    np.testing.assert_allclose(layer(inputs), reference(inputs), atol=1e-6)


def test_normalization_uses_the_overridden_statistics_of_a_batch():
    class Shifted(keras.layers.BatchNormalization):
        def _calculate_mean_and_var(self, inputs, reduction_axes, keep_dims, mask=None):
            mean, variance = super()._calculate_mean_and_var(
                inputs, reduction_axes, keep_dims, mask
            )
            return mean + 1.0, variance

    layer, inputs = Shifted(epsilon=0.0), tf.constant([[1.0], [3.0]])
    np.testing.assert_allclose(layer(inputs, training=True), [[-2.0], [0.0]])
    np.testing.assert_allclose(layer.moving_mean, [0.03])
    mask = tf.constant([True, False])
    mean, variance = layer._moments(inputs, [0], False, mask)
    assert (mean.numpy(), variance.numpy()) == ([2.0], [0.0])
    assert [layer._get_training_value(t) for t in (None, 1, False)] == [False, True, False]
    layer.trainable = False
    assert layer._get_training_value(True) is False


VALUE = tf.compat.v1.SparseTensorValue([[0, 0], [1, 2]], [1.0, 2.0], [2, 3])


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda s: s.to_dense(VALUE), [[1, 0, 0], [0, 0, 2]]),
        (lambda s: s.to_dense(s.concat(0, [VALUE, VALUE])), [[1, 0, 0], [0, 0, 2]] * 2),
        (lambda s: s.to_dense(s.slice(VALUE, [0, 0], [1, 2])), [[1, 0]]),
        (lambda s: s.sparse_dense_matmul(VALUE, tf.ones([3, 1])), [[1], [2]]),
        (lambda s: s.reduce_sum(sp_input=VALUE, axis=1), [1, 2]),
        (lambda s: s.to_dense(s.maximum(VALUE, VALUE)), [[1, 0, 0], [0, 0, 2]]),
        (lambda s: s.reorder(VALUE).values, [1, 2]),
    ],
)  # fmt: skip
def test_values_of_sparse_tensors_are_operands(function, expected):
    assert function(tf.sparse).numpy().tolist() == expected


@pytest.mark.parametrize(
    ("function", "shape"),
    [
        (lambda x, w: tf.matmul(x, w, transpose_b=True), [None, 6]),
        (lambda x, w: tf.tensordot(w, x, [[-1], [-1]]), [6, None]),
        (lambda x, w: tf.linalg.matvec(x, w[0]), [None]),
        (lambda x, w: tf.concat([x, w], 0), [None, 1]),
        (lambda x, w: x + w[0], [None, None]),
    ],
)  # fmt: skip
def test_unknown_numbers_of_features_may_be_one(function, shape):
    class Product(keras.layers.Layer):
        def call(self, inputs):
            return function(inputs, tf.ones([6, 1]))

    inputs = keras.Input([None])
    model = keras.Model(inputs, Product()(inputs))
    assert model.output.shape.as_list() == shape
    np.testing.assert_allclose(model(tf.ones([3, 1])), function(tf.ones([3, 1]), tf.ones([6, 1])))


def test_sobol_points_of_a_number_of_dimensions_in_a_tensor():
    points = tf.math.sobol_sample(tf.constant(2), tf.constant(2), skip=tf.constant(1))
    assert points.numpy().tolist() == [[0.75, 0.25], [0.25, 0.75]]


def test_sequential_models_return_values_without_a_shape():
    class Point(tf.experimental.ExtensionType):
        mean: tf.Tensor

    class ToPoint(keras.layers.Layer):
        def call(self, inputs):
            return Point(inputs * 2.0)

    dense = keras.layers.Dense(1, kernel_initializer="ones")
    model = keras.Sequential([dense, ToPoint()])
    for _ in range(2):
        assert model(tf.ones([2, 3])).mean.numpy().tolist() == [[6.0], [6.0]]
    assert len(model.weights) == 2
    inputs = keras.Input([1])
    with pytest.raises(ValueError, match="only supports specs with a shape"):
        ToPoint()(inputs)
    # Distributions have no shape, but a conversion to a tensor.
    tf.register_tensor_conversion_function(Point, lambda p, **_: p.mean)
    model = keras.Model(inputs, ToPoint()(inputs))
    assert model.output.shape.as_list() == [None, 1]
    assert model(tf.ones([2, 1])).mean.numpy().tolist() == [[2.0], [2.0]]
