"""Search for the variables and layers among the attributes of a layer, while another thread that calls it sets one."""

from collections import UserDict

import meshflow as tf
from meshflow.keras.engine.layer.tracking import iterate_modules


def test_attributes_are_set_while_weights_are_listed():
    class Table(UserDict):
        def values(self):
            layer.built_by_a_thread = True
            return super().values()

    layer = tf.keras.layers.Layer()
    layer.table = Table(kernel=tf.Variable(1.0))
    layer.inner = tf.keras.layers.Dense(1)
    assert len(layer.weights) == 1
    assert layer.built_by_a_thread


def test_attributes_are_set_while_modules_are_listed():
    layer = tf.keras.layers.Layer()
    layer.first, layer.second = tf.keras.layers.Dense(1), tf.keras.layers.Dense(2)
    modules = iterate_modules(layer)
    found = [next(modules)]
    layer.built_by_a_thread = True
    assert [*found, *modules] == [("first", layer.first), ("second", layer.second)]
