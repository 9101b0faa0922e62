"""Test attributes of layers and models built from symbolic tensors against tf-keras."""

import numpy as np
import pytest

import meshflow as tf

keras = tf.keras
layers = keras.layers


def test_losses_of_calls_on_symbolic_tensors_are_counted_before_there_are_others():
    shared = layers.Dense(2, kernel_regularizer="l2", activity_regularizer="l1")
    x = keras.Input((3,))
    inner = keras.Model(x, shared(x))
    a, b = keras.Input((3,)), keras.Input((3,))
    model = keras.Model([a, b], layers.Average()([inner(a), inner(b)]))
    # One of the weights, and one of each of the three calls.
    assert len(model.losses) == 4
    model([tf.ones([1, 3]), tf.ones([1, 3])])
    assert len(model.losses) == 3
    assert all(float(loss) > 0 for loss in model.losses)


def test_regularizers_may_return_plain_numbers():
    layer = layers.Dense(2, kernel_regularizer=lambda w: 2.0, activity_regularizer=lambda y: 3.0)
    layer(tf.ones([4, 3]))
    assert sorted(float(loss) for loss in layer.losses) == [0.75, 2.0]


def test_model_from_intermediate_tensors_has_new_inputs():
    x = keras.Input((3,))
    first, second = layers.Dense(4), layers.Dense(2)
    hidden = first(x)
    output = second(hidden)
    part = keras.Model(hidden, output)
    assert [type(layer).__name__ for layer in part.layers] == ["InputLayer", "Dense"]
    assert part.layers[1] is second and len(second.inbound_nodes) == 2
    again = keras.Model.from_config(part.get_config())
    again.set_weights(part.get_weights())
    values = np.arange(8, dtype="float32").reshape(2, 4)
    np.testing.assert_allclose(again(values), part(values))
    assert keras.Model(x, output).layers[1:] == [first, second]


def test_masks_and_places_of_symbolic_calls():
    x = keras.Input((5, 3), name="x")
    masking, dense = layers.Masking(), layers.Dense(2)
    y = dense(masking(x))
    model = keras.Model(x, y)
    assert masking.output_mask.shape.as_list() == [None, 5]
    assert model.output_mask is dense.get_output_mask_at(0) is not None
    assert model.input_mask is None is masking.get_input_mask_at(0)
    assert model.compute_mask(x).shape.as_list() == [None, 5]
    node = dense.inbound_nodes[0]
    assert node.outbound_layer is dense and node.inbound_layers is masking
    assert (node.input_shapes, node.output_shapes) == ((None, 5, 3), (None, 5, 2))
    begin = x.node
    assert begin.input_tensors == [x] and begin.inbound_layers == []
    assert begin.output_shapes == [(None, 5, 3)]


def test_unused_inputs_precede_the_outputs():
    a, b = keras.Input((4,), name="a"), keras.Input((3,), name="b")
    model = keras.Model([a, b], layers.Dense(1, name="d")(a))
    for one in (model, keras.Model.from_config(model.get_config())):
        assert [layer.name for layer in one.layers] == ["a", "b", "d"]


def test_subclassed_functional_models_cast_their_inputs():
    class Same(keras.Model):
        def call(self, inputs):
            return inputs

    wide = tf.constant([1.0], "float64")
    assert Same()(wide).dtype is tf.float32
    assert Same(dtype="float16")(wide).dtype is tf.float16
    assert Same(autocast=False)(wide).dtype is tf.float64
    assert Same()(tf.constant([1])).dtype is tf.int32


def test_replaced_weight_keeps_its_position():
    layer = layers.Dense(1)
    layer.build([None, 2])
    layer.bias, layer.kernel = tf.Variable([0.0]), tf.Variable([[1.0], [2.0]])
    assert layer.trainable_weights[0] is layer.kernel
    assert layer.trainable_weights[1] is layer.bias


class Plain(keras.Model):
    def __init__(self):
        self.parts = [layers.Dense(1)]


class NoData:
    pass


class Keyword(layers.Layer):
    def call(self, inputs, other=None):
        return inputs


def of_no_data():
    x = keras.Input((2,))
    return keras.Model(x, Keyword(name="k")(x, other=NoData())).get_config()


def on_a_layers_result():
    model = keras.Sequential([layers.Dense(1, input_shape=(2,))])
    return keras.models.clone_model(model, layers.Dense(2)(keras.Input((2,))))


def with_a_dtype():
    x = keras.Input((2,))
    return keras.Model(x, layers.Dense(1)(x), dtype="float64")


@pytest.mark.parametrize(
    "call, kind, text",
    [
        (Plain, RuntimeError, "forgot to call"),
        (of_no_data, TypeError, "Layer k was passed non-JSON-serializable arguments"),
        (on_a_layers_result, ValueError, "Cannot clone a `Sequential`"),
        (with_a_dtype, TypeError, "Keyword argument not understood"),
        (lambda: keras.Sequential([layers.Dense(1)]).weights, ValueError, "not yet been created"),
        (lambda: layers.serialize(keras.metrics.Mean()), ValueError, "since it is a metric"),
        (lambda: layers.Dense(-2), ValueError, "expected a positive integer"),
        (
            lambda: keras.optimizers.Adam().set_weights([1.0]),
            ValueError,
            "You are calling `set_weights`",
        ),
    ],
)
def test_invalid_uses_are_errors(call, kind, text):
    with pytest.raises(kind, match=text):
        call()


def test_names_that_a_model_does_not_have_are_ignored_with_a_warning():
    x = keras.Input((2,), name="x")
    model = keras.Model({"x": x}, x * 2.0)
    with pytest.warns(UserWarning, match="'more'.*ignored by the model"):
        result = model({"x": tf.ones([1, 2]), "more": tf.ones([1])})
    assert result.numpy().tolist() == [[2.0, 2.0]]


def test_embeddings_of_known_words_are_preserved(tmp_path):
    words = tmp_path / "words.txt"
    words.write_text("a\nb\n")
    known = np.array([[1.0, 2.0], [3.0, 4.0]])
    made = keras.utils.warmstart_embedding_matrix(
        str(words), np.array(["b", "c", "a"]), known, keras.initializers.Constant(9.0)
    )
    assert made.tolist() == [[3.0, 4.0], [9.0, 9.0], [1.0, 2.0]]
    with pytest.raises(ValueError, match="a row for each of the 3 words"):
        keras.utils.warmstart_embedding_matrix(["a", "b", "c"], ["a"], known)


@pytest.mark.parametrize(
    "layer, shape, spec",
    [
        (layers.PReLU(shared_axes=[1]), (2, 3, 4), "InputSpec(ndim=3, axes={2: 4})"),
        (layers.GroupNormalization(2), (None, 4), "InputSpec(ndim=2, axes={-1: 4})"),
        (
            layers.Conv2DTranspose(2, 2, data_format="channels_first"),
            (1, 3, 5, 5),
            "InputSpec(ndim=4, axes={-3: 3})",
        ),
        (layers.RNN(layers.LSTMCell(2)), (1, 3, 4), "[InputSpec(shape=(None, None, 4), ndim=3)]"),
        (layers.Bidirectional(layers.LSTM(2)), (1, 3, 4), "[InputSpec(ndim=3)]"),
    ],
)
def test_input_specs_of_built_layers(layer, shape, spec):
    layer.build(shape)
    assert str(layer.input_spec) == spec


def test_weights_of_a_folder_of_a_model(tmp_path):
    model = keras.Sequential([layers.Dense(1, input_shape=(2,))])
    model.save(tmp_path / "model", save_format="tf")
    other = keras.Sequential([layers.Dense(1, input_shape=(2,))])
    other.load_weights(tmp_path / "model")
    assert np.array_equal(*(m.layers[0].kernel for m in (model, other)))


def test_inputs_of_unknown_rank():
    inputs = tf.keras.Input(type_spec=tf.TensorSpec(None, tf.float32))
    doubled = tf.nn.relu(inputs * 2.0)
    total = tf.keras.layers.Lambda(tf.reduce_sum)(doubled)
    assert doubled.shape.rank is None and total.shape == []
    model = tf.keras.Model(inputs, [doubled, tf.shape(doubled), total])
    for shape in ([2, 3], [4]):
        results = model(tf.ones(shape))
        assert results[1].numpy().tolist() == shape and results[2] == 2 * np.prod(shape)
