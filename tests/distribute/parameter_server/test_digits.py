"""Asynchronous training is as good as synchronous training on images of digits."""

import numpy as np
import pytest

import meshflow as tf

(X, Y), (X_TEST, Y_TEST) = tf.keras.datasets.digits.load_data()
X, X_TEST = (a[..., None].astype("f") / 16 for a in (X, X_TEST))
STEPS = 45


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
    data = tf.data.Dataset.from_tensor_slices((X, Y))
    return data.shuffle(len(X), seed=context.input_pipeline_id).repeat().batch(32)


# One of the 359 images is 0.3 %; the more workers, the older the gradients.
@pytest.mark.parametrize(("workers", "less"), [(2, 0.01), (4, 0.02)])
def test_accuracy_is_that_of_synchronous_training(workers, less):
    strategy = tf.distribute.ParameterServerStrategy(engine="threads", workers=workers, servers=2)
    with strategy.scope():
        model = make()
    creator = tf.keras.utils.DatasetCreator(batches)
    model.fit(creator, epochs=16, steps_per_epoch=STEPS, verbose=0)
    found = model.evaluate(X_TEST, Y_TEST, verbose=0)[1]
    alone = make()
    alone.fit(batches(tf.distribute.InputContext()), epochs=16, steps_per_epoch=STEPS, verbose=0)
    expected = alone.evaluate(X_TEST, Y_TEST, verbose=0)[1]
    assert expected > 0.95
    assert found > expected - less
    accuracy = (np.argmax(model.predict(X_TEST, verbose=0), 1) == Y_TEST).mean()
    assert accuracy == pytest.approx(found)
    strategy.cluster.stop()
