"""`tf.keras.optimizers.legacy`: the optimizers as they were until TensorFlow 2.10.

They compute the same as those of `tf.keras.optimizers`; but variables that an optimizer was not built
with get their slots when they first appear, instead of an error.
"""

from __future__ import annotations

from meshflow.keras.optimizers import adam, adaptive, base, ftrl, sgd

__all__ = [
    "SGD",
    "Adadelta",
    "Adagrad",
    "Adam",
    "Adamax",
    "Ftrl",
    "Nadam",
    "Optimizer",
    "RMSprop",
]


class Optimizer(base.Optimizer):
    """`tf.keras.optimizers.Optimizer` that accepts new variables at any time.

    Example:
      >>> import meshflow as tf
      >>> issubclass(tf.keras.optimizers.legacy.Adam, tf.keras.optimizers.Optimizer)
      True
    """

    _allow_new_variables = True
    _since_2_11 = False


class SGD(sgd.SGD):
    """`tf.keras.optimizers.SGD` that accepts new variables at any time.

    Example:
      >>> import meshflow as tf
      >>> a, b = tf.Variable(1.0), tf.Variable(1.0)
      >>> optimizer = tf.keras.optimizers.legacy.SGD(0.5)
      >>> _ = optimizer.apply_gradients([(tf.constant(1.0), a)])
      >>> _ = optimizer.apply_gradients([(tf.constant(2.0), b)])
      >>> float(a), float(b)
      (0.5, 0.0)
    """

    _allow_new_variables = True
    _since_2_11 = False


class RMSprop(adaptive.RMSprop):
    """`tf.keras.optimizers.RMSprop` that accepts new variables at any time."""

    _allow_new_variables = True
    _since_2_11 = False


class Adagrad(adaptive.Adagrad):
    """`tf.keras.optimizers.Adagrad` that accepts new variables at any time."""

    _allow_new_variables = True
    _since_2_11 = False


class Adadelta(adaptive.Adadelta):
    """`tf.keras.optimizers.Adadelta` that accepts new variables at any time."""

    _allow_new_variables = True
    _since_2_11 = False


class Adam(adam.Adam):
    """`tf.keras.optimizers.Adam` that accepts new variables at any time."""

    _allow_new_variables = True
    _since_2_11 = False


class Adamax(adam.Adamax):
    """`tf.keras.optimizers.Adamax` that accepts new variables at any time."""

    _allow_new_variables = True
    _since_2_11 = False


class Nadam(adam.Nadam):
    """`tf.keras.optimizers.Nadam` that accepts new variables at any time."""

    _allow_new_variables = True
    _since_2_11 = False


class Ftrl(ftrl.Ftrl):
    """`tf.keras.optimizers.Ftrl` that accepts new variables at any time."""

    _allow_new_variables = True
    _since_2_11 = False
