"""A model with losses and a metric between its layers, for TensorFlow and for Meshflow."""

import numpy as np

X = np.random.RandomState(0).rand(16, 6).astype("float32")


def fill_weights(model):
    arrays = [(np.arange(w.size) % 7 - 3).reshape(w.shape) * 0.1 for w in model.get_weights()]
    model.set_weights(arrays)


def make_model(tf):
    layers = tf.keras.layers
    inputs = tf.keras.Input((6,))
    hidden = layers.Dense(5, activation="relu", name="hidden")(inputs)
    outputs = layers.Dense(6, kernel_regularizer="l2", name="out")(hidden)
    model = tf.keras.Model(inputs, outputs, name="extra")
    model.add_loss(0.1 * tf.reduce_mean(tf.square(hidden)))
    model.add_metric(tf.reduce_max(hidden), name="largest")
    model.add_loss(tf.reduce_sum(outputs) * 1e-3)
    model.compile(tf.keras.optimizers.SGD(0.1), "mse")
    fill_weights(model)
    return model
