"""`tf.keras.optimizers.legacy`: the optimizers as they were until TensorFlow 2.10.

Some compute other numbers than those of `tf.keras.optimizers`: `RMSprop` and `Adagrad` add epsilon to the root
instead of under it, and `Nadam` warms its momentum up in thousands instead of tens of steps. By a gradient of some
rows of a table, as of an `Embedding`, `SGD` and `RMSprop` with momentum, `Adadelta`, `Adamax`, `Nadam` and `Ftrl`
change those rows only, where the others let what they remember of all rows decay, and move them. Variables that an
optimizer was not built with get their slots when they first appear, instead of an error. Configurations that do not
say `is_legacy_optimizer`, as those until 2.10, mean these.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from meshflow.keras.optimizers import adam, adaptive, base, ftrl, sgd
from meshflow.keras.optimizers.learning_rate_schedule import LearningRateSchedule

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
    _moves_by_rows = "rows"


class RMSprop(adaptive.RMSprop):
    """`tf.keras.optimizers.RMSprop` with epsilon added to the root, that accepts new variables at any time.

    Formula:
      `w = w - lr * g / (sqrt(r) + epsilon)`; with momentum as `tf.keras.optimizers.RMSprop`, where the symbols are.
    """

    _allow_new_variables = True
    _since_2_11 = False
    _overwrites_every = None
    _moves_by_rows = "rows"

    @staticmethod
    def root(square: Any, epsilon: float) -> Any:
        """What steps are divided by."""
        return jnp.sqrt(square) + epsilon


class Adagrad(adaptive.Adagrad):
    """`tf.keras.optimizers.Adagrad` with epsilon added to the root, that accepts new variables at any time.

    Formula:
      `w = w - lr * g / (sqrt(s) + epsilon)`; symbols as of `tf.keras.optimizers.Adagrad`.
    """

    _allow_new_variables = True
    _since_2_11 = False

    @staticmethod
    def root(total: Any, epsilon: float) -> Any:
        """What steps are divided by."""
        return jnp.sqrt(total) + epsilon


class Adadelta(adaptive.Adadelta):
    """`tf.keras.optimizers.Adadelta` that accepts new variables at any time."""

    _allow_new_variables = True
    _since_2_11 = False
    _by_rows = "rows"


class Adam(adam.Adam):
    """`tf.keras.optimizers.Adam` that accepts new variables at any time."""

    _allow_new_variables = True
    _since_2_11 = False


class Adamax(adam.Adamax):
    """`tf.keras.optimizers.Adamax` that accepts new variables at any time."""

    _allow_new_variables = True
    _since_2_11 = False
    _by_rows = "rows"


class Nadam(adam.Nadam):
    """`tf.keras.optimizers.Nadam` with a slower warm-up, that accepts new variables at any time.

    Formula:
      `c = beta_1 * (1 - 0.5 * 0.96^(0.004 * t))` is the momentum c; the rest as of `tf.keras.optimizers.Nadam`.

    Raises:
      ValueError: when `learning_rate` is a schedule.
    """

    _allow_new_variables = True
    _since_2_11 = False
    _default_decay = 0.004
    _by_rows = "averages, rows"

    def __init__(self, learning_rate: Any = 0.001, *args: Any, **kwargs: Any) -> None:
        if isinstance(kwargs.get("lr", learning_rate), LearningRateSchedule):
            raise ValueError(
                "The Nadam optimizer does not support tf.keras.optimizers.LearningRateSchedules as "
                "the learning rate."
            )
        super().__init__(learning_rate, *args, **kwargs)


class Ftrl(ftrl.Ftrl):
    """`tf.keras.optimizers.Ftrl` that accepts new variables at any time."""

    _allow_new_variables = True
    _since_2_11 = False
    _configured_names = (
        *("initial_accumulator_value", "learning_rate_power", "l1_regularization_strength"),
        *("l2_regularization_strength", "beta", "l2_shrinkage_regularization_strength"),
    )
    _by_rows = "rows"
