"""Asynchronous training is as good as synchronous training on images of digits."""

import functools

import numpy as np
import pytest

import meshflow as tf

STEPS = 45


@functools.cache
def load():
    """Return images and labels for training, and for the test."""
    (x, y), (x_test, y_test) = tf.keras.datasets.digits.load_data()
    return (x[..., None].astype("f") / 16, y), (x_test[..., None].astype("f") / 16, y_test)


def make():
    tf.keras.utils.set_random_seed(0)
    model = tf.keras.Sequential(
        [
            tf.keras.Input((8, 8, 1)),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(128, "relu"),
            tf.keras.layers.Dense(10),
        ]
    )
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    # Small steps at the end, or the last few updates decide.
    rate = tf.keras.optimizers.schedules.PiecewiseConstantDecay([10 * STEPS], [2e-3, 2e-4])
    model.compile(tf.keras.optimizers.Adam(rate), loss, metrics=["accuracy"])
    return model


def batches(context):
    train, _ = load()
    data = tf.data.Dataset.from_tensor_slices(train)
    return data.shuffle(len(train[0]), seed=context.input_pipeline_id).repeat().batch(32)


@functools.cache
def compute_synchronous_accuracy():
    model = make()
    model.fit(batches(tf.distribute.InputContext()), epochs=16, steps_per_epoch=STEPS, verbose=0)
    return model.evaluate(*load()[1], verbose=0)[1]


# One of the 359 images is 0.3 %; the more workers, the older the gradients.
@pytest.mark.parametrize(
    ("workers", "less"), [pytest.param(2, 0.01, marks=pytest.mark.soak), (4, 0.02)]
)
def test_accuracy_is_that_of_synchronous_training(workers, less):
    strategy = tf.distribute.ParameterServerStrategy(engine="threads", workers=workers, servers=2)
    with strategy.scope():
        model = make()
    creator = tf.keras.utils.DatasetCreator(batches)
    model.fit(creator, epochs=16, steps_per_epoch=STEPS, verbose=0)
    _, (x, y) = load()
    found, expected = model.evaluate(x, y, verbose=0)[1], compute_synchronous_accuracy()
    assert expected > 0.95
    assert found > expected - less
    accuracy = (np.argmax(model.predict(x, verbose=0), 1) == y).mean()
    assert accuracy == pytest.approx(found)
    strategy.cluster.stop()
