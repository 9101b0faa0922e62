"""Define a module that holds its strategy and its model, next to functions without state."""

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
    """Refer to the module only by a method."""

    def read(self):
        return float(total)
