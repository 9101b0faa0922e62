"""`Model.add_loss` with symbolic tensors and functions; the values are those of TensorFlow."""

import numpy as np
import pytest

import meshflow as tf

keras, layers = tf.keras, tf.keras.layers
X = np.array([[0.0], [1.0], [2.0]], "float32")
Y = np.array([[0.5], [2.0], [3.5]], "float32")
W = np.array([[1.25], [0.5], [1.25]], "float32")


class Bias(layers.Layer):
    def build(self, input_shape):
        self.bias = self.add_weight(name="bias", shape=(1,), initializer="zeros")

    def call(self, inputs):
        return inputs + self.bias


class SumLoss(layers.Layer):
    def call(self, inputs):
        self.add_loss(tf.reduce_sum(inputs))
        return inputs * 2


def make_model(weighted=False, factor=1):
    inputs = [keras.Input((1,)) for _ in range(3 if weighted else 2)]
    outputs = Bias()(inputs[0])
    weights = inputs[2] if weighted else None
    model = keras.Model(inputs, outputs)
    model.add_loss(keras.losses.MeanAbsoluteError()(inputs[1], outputs, weights))
    errors = keras.losses.mean_absolute_error(inputs[1], outputs)
    model.add_loss(factor * tf.reduce_mean(weights * errors if weighted else errors))
    return model


@pytest.mark.parametrize("run_eagerly", [False, True])
def test_fit(run_eagerly):
    model = make_model()
    model.compile(keras.optimizers.SGD(0.05), run_eagerly=run_eagerly)
    losses = model.fit([X, Y], batch_size=3, epochs=5, verbose=0).history["loss"]
    np.testing.assert_allclose(losses, [2.0, 1.8, 1.6, 1.4, 1.2], rtol=1e-3)
    model = make_model(weighted=True, factor=3)
    model.compile(keras.optimizers.SGD(0.025), run_eagerly=run_eagerly)
    losses = model.fit([X, Y, W], batch_size=3, epochs=5, verbose=0).history["loss"]
    np.testing.assert_allclose(losses, [4.0, 3.6, 3.2, 2.8, 2.4], rtol=1e-3)


@pytest.mark.parametrize("compiles", [False, True])
def test_loops_of_users(compiles):
    model, optimizer = make_model(), keras.optimizers.SGD(0.05)

    def step(x, y):
        with tf.GradientTape() as tape:
            model([x, y])
            loss = tf.reduce_sum(model.losses)
        gradients = tape.gradient(loss, model.trainable_weights)
        optimizer.apply_gradients(zip(gradients, model.trainable_weights, strict=True))
        return loss

    run = tf.function(step) if compiles else step
    losses = [run(X, Y).numpy() for _ in range(5)]
    np.testing.assert_allclose(losses, [2.0, 1.8, 1.6, 1.4, 1.2], rtol=1e-3)


def test_shared_layers():
    layer = SumLoss()
    model = keras.Sequential([layer, keras.Sequential([layer])])
    model(tf.constant([1, 2, 3]))
    assert [loss.numpy() for loss in model.losses] == [6, 12]


@pytest.mark.parametrize("run_eagerly", [False, True])
def test_first_evaluation_of_a_deferred_model(run_eagerly):
    dense = layers.Dense(1, None, True, "zeros", "ones", activity_regularizer="l2")
    model = keras.Sequential([dense])
    model.compile("rmsprop", run_eagerly=run_eagerly)
    assert model.test_on_batch(np.ones((10, 10))) == pytest.approx(0.01)


def test_values_are_refused_outside_of_calls():
    model = make_model()
    for loss in (1.0, model.weights[0]):
        with pytest.raises(ValueError, match="Expected a symbolic Tensors or a callable"):
            model.add_loss(loss)


def test_graph_networks_list_their_input_layer():
    declared = keras.Sequential([layers.InputLayer((4,)), layers.Dense(4)])
    deferred = keras.Sequential([layers.Dense(4)])
    for model, is_graph in ((declared, True), (deferred, False)):
        for copied in (model, keras.models.clone_model(model)):
            first = next(iter(copied._flatten_layers(recursive=False, include_self=False)))
            assert isinstance(first, layers.InputLayer) == is_graph == copied._is_graph_network
