"""Models with metrics in their calls, trained on replicas, saved, and called on one device."""

import numpy as np
import pytest

import meshflow as tf

layers = tf.keras.layers
X = np.random.RandomState(0).rand(16, 4).astype("float32")
Y = X[:, :1]


class Reporting(layers.Layer):
    """Product that reports its mean by `add_metric`, elementwise or as a scalar."""

    def __init__(self, reduces=True, **kwargs):
        super().__init__(**kwargs)
        self.reduces = reduces

    def build(self, input_shape):
        self.kernel = self.add_weight(name="kernel", shape=(input_shape[-1], 3))

    def call(self, inputs):
        outputs = inputs @ self.kernel
        self.add_metric(tf.reduce_mean(outputs) if self.reduces else outputs, name="level")
        return outputs


class Elementwise(Reporting):
    """As `Reporting`, with the metric of all elements."""

    def __init__(self, **kwargs):
        super().__init__(reduces=False, **kwargs)


class Counting(layers.Layer):
    """Define a layer that updates a metric and a variable with layouts in a separate function."""

    def build(self, input_shape):
        self.calls = tf.Variable(
            0.0, trainable=False, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA
        )
        self.level = tf.keras.metrics.Mean(name="level")

    @tf.function
    def count(self, inputs):
        self.calls.assign_add(1.0)
        self.level.update_state(inputs)
        return inputs

    def call(self, inputs):
        return self.count(inputs)


class Root(layers.Layer):
    """Define a layer with a metric of squares, which it calls."""

    def build(self, input_shape):
        self.size = tf.keras.metrics.MeanTensor(shape=input_shape[1:])

    def call(self, inputs):
        self.size.update_state(tf.reduce_mean(inputs, 0))
        return inputs


@pytest.fixture
def strategy():
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


@pytest.mark.parametrize(
    "layer", [Reporting, pytest.param(Elementwise, marks=pytest.mark.soak), Counting, Root]
)
def test_saved_models_run_on_one_device(strategy, layer, tmp_path):
    with strategy.scope():
        model = tf.keras.Sequential(
            [tf.keras.Input((4,)), layer(), layers.BatchNormalization(), layers.Dense(1)]
        )
        model.compile("sgd", "mse")
    model.fit(X, Y, batch_size=8, verbose=0)
    expected = model.predict(X, verbose=0)
    tf.function(lambda x: model(x))(X)
    model.save(tmp_path / "saved", save_format="tf")
    loaded = tf.saved_model.load(tmp_path / "saved")
    (output,) = loaded.signatures["serving_default"](tf.constant(X)).values()
    np.testing.assert_allclose(output, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(loaded(X, training=False), expected, rtol=1e-5, atol=1e-6)
    assert loaded(X[:3], training=True).shape == (3, 1)
    # Without the class of the layer.
    restored = tf.keras.models.load_model(tmp_path / "saved")
    np.testing.assert_allclose(restored.predict(X, verbose=0), expected, rtol=1e-5, atol=1e-6)
    with strategy.scope():
        again = tf.saved_model.load(tmp_path / "saved")
        np.testing.assert_allclose(again(X, training=False), expected, rtol=1e-5, atol=1e-6)
    model.export(tmp_path / "exported", verbose=False)
    served = tf.saved_model.load(tmp_path / "exported").serve(X)
    np.testing.assert_allclose(served, expected, rtol=1e-5, atol=1e-6)


def test_symbolic_metrics_on_replicas(strategy, tmp_path):
    with strategy.scope():
        inputs = tf.keras.Input((4,))
        hidden = layers.Dense(3)(inputs)
        model = tf.keras.Model(inputs, layers.Dense(1)(hidden))
        model.add_metric(tf.reduce_mean(hidden), name="level")
        model.add_loss(tf.reduce_mean(hidden**2))
        model.compile("sgd", "mse")
    model.fit(X, Y, batch_size=8, verbose=0)
    expected = model.evaluate(X, Y, batch_size=8, verbose=0, return_dict=True)
    model.save(tmp_path / "saved", save_format="tf")
    loaded = tf.keras.models.load_model(tmp_path / "saved")
    logs = loaded.evaluate(X, Y, batch_size=8, verbose=0, return_dict=True)
    assert logs == pytest.approx(expected, rel=1e-5)
    (output,) = tf.saved_model.load(tmp_path / "saved").signatures["serving_default"](X).values()
    np.testing.assert_allclose(output, model.predict(X, verbose=0), rtol=1e-5, atol=1e-6)
