"""A module of a program that holds its strategy and its model, beside functions without state."""

import meshflow as tf

strategy = tf.distribute.ParameterServerStrategy(engine="processes", workers=1)
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
with strategy.scope():
    total = tf.Variable(0.0)
    optimizer = tf.keras.optimizers.SGD(1.0)


def gradient():
    return tf.constant(2.0) + 0.0 * total


@tf.function
def step():
    optimizer.apply_gradients([(gradient(), total)])


class Counting:
    """What refers to the module by a method alone."""

    def read(self):
        return float(total)
