"""Test models with layers and losses of value-dependent sizes."""

import numpy as np

import meshflow as tf


def _model():
    inputs = tf.keras.Input((4,))
    return tf.keras.Model(inputs, tf.keras.layers.Dense(2, kernel_initializer="ones")(inputs))


def _of_marked(y_true, y_pred):
    places = tf.where(y_true[:, 0] > 0)
    return tf.reduce_mean(tf.square(tf.gather_nd(y_pred, places)))


def test_loss_of_selected_positions_equals_weighted_positions():
    x = np.arange(24, dtype="float32").reshape(6, 4) / 10
    y = np.array([[1, 0], [0, 0], [1, 0], [1, 0], [0, 1], [1, 0]], "float32")
    weights = []
    for loss in (
        _of_marked,
        lambda t, p: tf.reduce_sum(t[:, :1] * tf.square(p)) / (2 * tf.reduce_sum(t[:, 0])),
    ):
        model = _model()
        model.compile(tf.keras.optimizers.SGD(0.01, momentum=0.9), loss)
        model.fit(x, y, batch_size=3, epochs=2, shuffle=False, verbose=0)
        weights.append(model.get_weights())
    np.testing.assert_allclose(weights[0][0], weights[1][0], rtol=1e-5)


def test_layers_that_choose_rows_have_an_unknown_size():
    inputs = tf.keras.Input((4,), batch_size=6)
    kept = tf.keras.layers.Lambda(lambda t: tf.boolean_mask(t, t[:, 0] > 0))(inputs)
    assert kept.shape.as_list() == [None, 4]
    assert tf.keras.layers.Lambda(lambda t: tf.where(t > 0))(inputs).shape.as_list() == [None, 2]
    known = tf.boolean_mask(inputs, [True, False, False, True], axis=1)
    assert known.shape.as_list() == [6, 2]
    assert tf.boolean_mask(inputs, inputs > 0).shape.as_list() == [None]
    first = tf.keras.layers.Lambda(lambda t: t[: tf.cast(tf.reduce_max(t), tf.int32)])(inputs)
    assert first.shape.as_list() == [None, 4]
    model = tf.keras.Model(inputs, tf.keras.layers.Dense(3)(kept))
    assert model.predict(np.eye(6, 4), verbose=0).shape == (1, 3)


def test_trainable_weights_of_listed_layers_come_first():
    class Two(tf.keras.Model):
        def __init__(self):
            super().__init__()
            self.norms = [tf.keras.layers.BatchNormalization() for _ in range(2)]
            self.last = tf.keras.layers.BatchNormalization()

        def call(self, inputs):
            for norm in self.norms:
                inputs = norm(inputs)
            return self.last(inputs)

    model = Two()
    model(tf.ones([1, 2]))
    kinds = [w.name.split("/")[-1][:-2] for w in model.weights]
    scales, means = ["gamma", "beta"], ["moving_mean", "moving_variance"]
    assert kinds == [*scales, *scales, *means, *means, *scales, *means]


def test_compute_output_shape_is_used_if_placeholders_fail():
    class Sorted(tf.keras.layers.Layer):
        def call(self, inputs):
            low = tf.boolean_mask(inputs, inputs[:, 0] < 0)
            high = tf.boolean_mask(inputs, inputs[:, 0] >= 0)
            return tf.reshape(tf.concat([low, low, high], 0)[tf.shape(low)[0] :], [5, 3])

        def compute_output_shape(self, input_shape):
            return input_shape

    inputs = tf.keras.Input((3,), batch_size=5)
    model = tf.keras.Model(inputs, Sorted()(inputs))
    assert model.output_shape == (5, 3)
    x = np.array([[1], [-1], [2], [-2], [3]], "float32") * np.ones(3, "float32")
    assert model(x)[:, 0].numpy().tolist() == [-1, -2, 1, 2, 3]
