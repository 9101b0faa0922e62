"""Subclasses of `tf.Variable` that wrap a variable and change its reads, as quantizers of libraries do."""

import numpy as np
import pytest

import meshflow as tf

layers = tf.keras.layers
RNG = np.random.default_rng(0)
# Gradient of the sign of a weight, so that gradients show whether they pass through the wrapper.
SLOPE = 3.0


@tf.custom_gradient
def binarize(x):
    return tf.sign(x), lambda dy: SLOPE * dy


class Binarized(tf.Variable):
    """A variable whose reads return signs, written as libraries for TensorFlow write it."""

    def __init__(self, variable):
        self.latent = variable

    def __getattr__(self, name):
        return getattr(self.latent, name)

    def value(self):
        return binarize(self.latent.value())

    read_value = value

    def sparse_read(self, *args, **kwargs):
        return binarize(self.latent.sparse_read(*args, **kwargs))

    def _dense_var_to_tensor(self, *args, **kwargs):
        return binarize(self.latent._dense_var_to_tensor(*args, **kwargs))

    def __tf_tensor__(self, dtype=None, name=None):
        return self._dense_var_to_tensor(dtype=dtype, name=name)

    def assign(self, *args, **kwargs):
        return self.latent.assign(*args, **kwargs)

    name, dtype, shape, trainable, handle = (
        property(lambda self, attribute=attribute: getattr(self.latent, attribute))
        for attribute in ("name", "dtype", "shape", "trainable", "handle")
    )


def binarize_weights(layer_class):
    """Return a subclass of a layer class whose weights of rank 2 and more are binarized."""

    class Binary(layer_class):
        def _add_variable_with_custom_getter(self, name, getter, **kwargs):
            def create(*args, **options):
                variable = getter(*args, **options)
                return Binarized(variable) if variable.shape.rank > 1 else variable

            return super()._add_variable_with_custom_getter(name, getter=create, **kwargs)

    return Binary


def compute_gradients(layer, inputs):
    with tf.GradientTape() as tape:
        outputs = layer(inputs)
        loss = tf.reduce_sum(outputs * tf.cos(outputs))
    return outputs, tape.gradient(loss, layer.trainable_weights)


def wrap_cell(cell_class):
    return lambda c: layers.RNN(c(cell_class)(3))


@pytest.mark.parametrize(
    ("create", "shape"),
    [
        (lambda c: c(layers.Dense)(3), (2, 4)),
        (lambda c: c(layers.EinsumDense)("ab,bc->ac", 3), (2, 4)),
        (lambda c: c(layers.Conv1D)(3, 2), (2, 5, 4)),
        (lambda c: c(layers.Conv2D)(3, 2), (2, 3, 3, 2)),
        (lambda c: c(layers.Conv3D)(3, 2), (1, 3, 3, 3, 2)),
        (lambda c: c(layers.Conv1DTranspose)(3, 2), (2, 5, 4)),
        (lambda c: c(layers.Conv2DTranspose)(3, 2), (2, 3, 3, 2)),
        (lambda c: c(layers.Conv3DTranspose)(3, 2), (1, 3, 3, 3, 2)),
        (lambda c: c(layers.SeparableConv1D)(3, 2), (2, 5, 4)),
        (lambda c: c(layers.SeparableConv2D)(3, 2), (2, 3, 3, 2)),
        (lambda c: c(layers.DepthwiseConv1D)(2), (2, 5, 4)),
        (lambda c: c(layers.DepthwiseConv2D)(2), (2, 3, 3, 2)),
        (lambda c: c(layers.LocallyConnected1D)(3, 2), (2, 5, 4)),
        (lambda c: c(layers.LocallyConnected2D)(3, 2), (2, 3, 3, 2)),
        (lambda c: c(layers.LocallyConnected2D)(3, 2, implementation=2), (2, 3, 3, 2)),
        (lambda c: c(layers.PReLU)(), (2, 3, 4)),
        (wrap_cell(layers.SimpleRNNCell), (2, 3, 4)),
        (wrap_cell(layers.LSTMCell), (2, 3, 4)),
        (wrap_cell(layers.GRUCell), (2, 3, 4)),
    ],
)  # fmt: skip
@pytest.mark.parametrize("compiled", [False, True])
def test_layers_read_weights_through_their_wrapper(create, shape, compiled):
    inputs = tf.constant(RNG.normal(size=shape), tf.float32)
    layer, reference = create(binarize_weights), create(lambda c: c)
    layer(inputs), reference(inputs)
    reference.set_weights([tf.convert_to_tensor(w).numpy() for w in layer.weights])
    run = tf.function(compute_gradients) if compiled else compute_gradients
    outputs, gradients = run(layer, inputs)
    expected_outputs, expected = compute_gradients(reference, inputs)
    np.testing.assert_allclose(outputs, expected_outputs, atol=1e-5)
    scales = [SLOPE if isinstance(w, Binarized) else 1.0 for w in layer.trainable_weights]
    assert SLOPE in scales
    for gradient, scale, unscaled in zip(gradients, scales, expected, strict=True):
        np.testing.assert_allclose(gradient, scale * unscaled, rtol=1e-4, atol=1e-4)


def test_embeddings_are_read_by_rows_through_the_wrapper():
    layer = binarize_weights(layers.Embedding)(7, 3)
    with tf.GradientTape() as tape:
        rows = layer(tf.constant([[1, 6]]))
    assert set(np.abs(rows.numpy().ravel())) == {1.0}
    (gradient,) = tape.gradient(rows, layer.trainable_weights)
    assert isinstance(gradient, tf.IndexedSlices)
    expected = np.zeros([7, 3])
    expected[[1, 6]] = SLOPE
    np.testing.assert_allclose(tf.convert_to_tensor(gradient), expected)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_training_updates_the_wrapped_variable(optimizer, policy, tmp_path):
    inputs, targets = RNG.normal(size=(8, 4)).astype("float32"), np.ones([8, 2])
    results = []
    for run_eagerly in (False, True):
        tf.keras.utils.set_random_seed(1)
        model = tf.keras.Sequential([binarize_weights(layers.Dense)(2, dtype=policy)])
        model.compile(optimizer, "mse", run_eagerly=run_eagerly)
        history = model.fit(inputs, targets, epochs=2, shuffle=False, verbose=0)
        results.append([history.history["loss"], model.layers[0].kernel.latent.numpy()])
    np.testing.assert_allclose(results[0][0], results[1][0], rtol=1e-2)
    np.testing.assert_allclose(results[0][1], results[1][1], atol=1e-2)
    assert len(np.unique(np.abs(results[0][1]))) > 1
    assert model(inputs).dtype == ("bfloat16" if "bfloat16" in policy else "float32")
    model.save_weights(tmp_path / "weights")
    restored = tf.keras.Sequential([binarize_weights(layers.Dense)(2, dtype=policy)])
    restored(inputs)
    restored.load_weights(tmp_path / "weights")
    np.testing.assert_array_equal(restored.layers[0].kernel.latent, results[1][1])


def test_overridden_values_and_registered_conversions():
    class Doubled(tf.Variable):
        def value(self):
            return super().value() * 2.0

    variable = Doubled([1.0, 2.0])
    assert tf.add(variable, 1.0).numpy().tolist() == [3.0, 5.0]
    assert variable.read_value().numpy().tolist() == [1.0, 2.0]

    class Registered(tf.Variable):
        pass

    convert = lambda value, dtype=None, name=None, as_ref=False: value.value() + 10.0
    tf.register_tensor_conversion_function(Registered, convert)
    assert (1.0 + Registered([1.0])).numpy().tolist() == [12.0]


def test_objects_with_a_conversion_method_are_operands():
    class Pair:
        def __tf_tensor__(self, dtype=None, name=None):
            return tf.constant([1.0, 2.0], dtype)

    assert tf.add(Pair(), 1.0).numpy().tolist() == [2.0, 3.0]
    assert tf.convert_to_tensor(Pair(), tf.float64).dtype == tf.float64
