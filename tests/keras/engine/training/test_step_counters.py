"""Counters of steps, and losses after training, like TensorFlow's."""

import numpy as np
import pytest

import meshflow as tf

X, Y = np.ones((10, 3), np.float32), np.ones((10, 1), np.float32)


class Adding(tf.keras.layers.Layer):
    def call(self, inputs):
        self.add_loss(tf.reduce_sum(inputs))
        return inputs


class Counted(tf.keras.Sequential):
    def train_step(self, data):
        return {**super().train_step(data), "before": tf.cast(self._train_counter, tf.float32)}


def make_model(model_class=tf.keras.Sequential, **options):
    model = model_class([Adding(), tf.keras.layers.Dense(1, kernel_regularizer="l2")])
    model.compile("sgd", "mse", **options)
    return model


@pytest.mark.parametrize("options", [{}, {"run_eagerly": True}, {"steps_per_execution": 5}])
def test_counters(options):
    model = make_model(**options)

    def count(run):
        run()
        counters = model._train_counter, model._test_counter, model._predict_counter
        return [int(counter) for counter in counters]

    fit = lambda epochs, data=None: model.fit(X, Y, 2, epochs, 0, validation_data=data)
    assert count(lambda: fit(2, (X, Y))) == [10, 5, 0]
    assert count(lambda: fit(1)) == [5, 5, 0]
    assert count(lambda: model.train_on_batch(X, Y)) == [6, 5, 0]
    assert count(lambda: model.evaluate(X, Y, 5, verbose=0)) == [6, 2, 0]
    assert count(lambda: model.predict(X, 2, verbose=0)) == [6, 2, 5]
    assert count(lambda: model.compile("sgd", "mse")) == [6, 2, 5]
    assert model._train_counter.dtype == tf.int64 and len(model.variables) == 2


def test_steps_read_the_counter():
    history = make_model(Counted).fit(X, Y, 2, epochs=2, verbose=0).history
    assert history["before"] == [4.0, 9.0]


def test_losses_after_training():
    model = make_model()
    model.fit(X, Y, verbose=0)
    added, penalty = model.losses
    assert tf.keras.backend.is_keras_tensor(added) and float(penalty) > 0
    model(X)
    assert float(model.losses[0]) == 30
    assert np.isfinite(model.evaluate(X, Y, verbose=0))


def test_new_step_functions_are_traced_again():
    class Scaled(tf.keras.Model):
        scale = 2.0

        def call(self, x):
            return x * self.scale

        def test_step(self, data):
            return {"scale": tf.constant(self.scale)}

        def train_step(self, data):
            return {"scale": tf.constant(self.scale)}

    model = Scaled()
    model.compile("sgd", "mse")
    x = np.ones((2, 1), "float32")

    def read_scales():
        scales = [model.predict(x, verbose=0)[0, 0], model.predict_on_batch(x)[0, 0]]
        scales += [model.fit(x, x, verbose=0).history["scale"][0]]
        scales += [model.evaluate(x, x, verbose=0, return_dict=True)["scale"]]
        scales += [model.train_on_batch(x, x, return_dict=True)["scale"]]
        return set(scales)

    assert read_scales() == {2}
    model.scale = 3.0
    # As in Keras, a change of Python state has no effect on traced steps.
    assert read_scales() == {2}
    for kind in ("train", "test", "predict"):
        getattr(model, f"make_{kind}_function")(force=True)
    assert read_scales() == {3}
    model.scale = 4.0
    model.train_function = model.test_function = model.predict_function = None
    assert read_scales() == {4}
