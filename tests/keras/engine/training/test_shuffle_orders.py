"""Test the orders in which `fit` reads examples."""

import numpy as np

import meshflow as tf
from meshflow.keras.engine.training.shuffle_orders import ShuffleOrders


class Told(tf.keras.Model):
    """Keep the examples of each step."""

    def __init__(self, found):
        super().__init__()
        self.dense, self.found = tf.keras.layers.Dense(1), found

    def call(self, x):
        return self.dense(x)

    def train_step(self, data):
        self.found.append(data[0].numpy().reshape(-1).astype(int).tolist())
        return super().train_step(data)


def test_fit_shuffles_like_keras():
    """Stored from tf-keras 2.21."""
    x = np.arange(10, dtype=np.float32)[:, None]
    tf.keras.utils.set_random_seed(42)
    found = []
    model = Told(found)
    model.compile("sgd", "mse", run_eagerly=True)
    first = [[3, 8, 7, 5], [2, 0, 1, 6], [9, 4], [1, 9, 5, 3], [4, 7, 0, 2], [6, 8]]
    for epochs in (2, 1):
        # Each call starts a new sequence.
        model.fit(x, x, batch_size=4, epochs=epochs, verbose=0)
    assert found == [*first, *first[:3]]


def test_shuffle_orders_resume_from_a_state():
    orders = ShuffleOrders([0, 1, 7])
    tf.random.set_seed(7)
    wanted = [tf.random.shuffle(np.arange(100), seed=1).numpy() for _ in range(2)]
    np.testing.assert_array_equal(orders.draw_permutation(100), wanted[0])
    later = ShuffleOrders([0, 0, 0])
    later.state = orders.state
    np.testing.assert_array_equal(later.draw_permutation(100), wanted[1])
    assert later.draw_permutation(1).tolist() == [0] and later.draw_permutation(0).tolist() == []
