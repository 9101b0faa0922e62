"""`tf.keras.optimizers.legacy`: the optimizers of TensorFlow until 2.10.

They differ from `tf.keras.optimizers` as follows. `RMSprop` and `Adagrad` add epsilon to the root
instead of under it, and `Nadam` warms up its momentum over thousands instead of tens of steps. For
a gradient of some rows of a table, for example of an `Embedding`, `SGD` and `RMSprop` with
momentum, `Adadelta`, `Adamax`, `Nadam` and `Ftrl` change those rows only, while the new optimizers
also decay the state of the other rows and update them. Variables that were not passed to `build`
get their slots on first use instead of raising an error. Configurations without
`is_legacy_optimizer`, which is how TensorFlow wrote them until 2.10, refer to these classes.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import Array

from meshflow.keras.optimizers import adam, adaptive, base, ftrl, sgd
from meshflow.keras.optimizers.learning_rate_schedule import LearningRateSchedule

__all__ = ["SGD", "Adadelta", "Adagrad", "Adam", "Adamax", "Ftrl", "Nadam", "Optimizer", "RMSprop"]


class Optimizer(base.Optimizer):
    """`tf.keras.optimizers.Optimizer` that accepts new variables at any time.

    Example:
      >>> issubclass(tf.keras.optimizers.legacy.Adam, tf.keras.optimizers.Optimizer)
      True
    """

    _is_keras_2 = True
    _since_2_11 = False


class SGD(sgd.SGD, Optimizer):
    """`tf.keras.optimizers.SGD` that accepts new variables at any time.

    Example:
      >>> a, b = tf.Variable(1.0), tf.Variable(1.0)
      >>> optimizer = tf.keras.optimizers.legacy.SGD(0.5)
      >>> _ = optimizer.apply_gradients([(tf.constant(1.0), a)])
      >>> _ = optimizer.apply_gradients([(tf.constant(2.0), b)])
      >>> float(a), float(b)
      (0.5, 0.0)
    """

    _moves_by_rows = "rows"


class RMSprop(adaptive.RMSprop, Optimizer):
    """`tf.keras.optimizers.RMSprop` with epsilon added to the root, for new variables at any time.

    Formula:
      `w = w - lr * g / (sqrt(r) + epsilon)`; `tf.keras.optimizers.RMSprop` defines the symbols and
      the rule with momentum.
    """

    _default_overwrite_frequency = None
    _moves_by_rows = "rows"

    @staticmethod
    def compute_divisor(square: Array, epsilon: float) -> Array:
        """Compute the divisor of steps."""
        return jnp.sqrt(square) + epsilon


class Adagrad(adaptive.Adagrad, Optimizer):
    """`tf.keras.optimizers.Adagrad` with epsilon added to the root, for new variables at any time.

    Formula:
      `w = w - lr * g / (sqrt(s) + epsilon)`; `tf.keras.optimizers.Adagrad` defines the symbols.
    """

    @staticmethod
    def compute_divisor(total: Array, epsilon: float) -> Array:
        """Compute the divisor of steps."""
        return jnp.sqrt(total) + epsilon


class Adadelta(adaptive.Adadelta, Optimizer):
    """`tf.keras.optimizers.Adadelta` that accepts new variables at any time."""

    _by_rows = "rows"


class Adam(adam.Adam, Optimizer):
    """`tf.keras.optimizers.Adam` that accepts new variables at any time."""


class Adamax(adam.Adamax, Optimizer):
    """`tf.keras.optimizers.Adamax` that accepts new variables at any time."""

    _by_rows = "rows"


class Nadam(adam.Nadam, Optimizer):
    """`tf.keras.optimizers.Nadam` with a slower warm-up, for new variables at any time.

    Formula:
      `c = beta_1 * (1 - 0.5 * 0.96^(0.004 * t))` is the momentum c; otherwise as
      `tf.keras.optimizers.Nadam`.

    Raises:
      ValueError: If `learning_rate` is a schedule.
    """

    _default_decay = 0.004
    _by_rows = "averages, rows"

    def __init__(self, learning_rate: Any = 0.001, *args: Any, **kwargs: Any) -> None:
        if isinstance(kwargs.get("lr", learning_rate), LearningRateSchedule):
            raise ValueError(
                "The Nadam optimizer does not support tf.keras.optimizers.LearningRateSchedules as "
                "the learning rate."
            )
        super().__init__(learning_rate, *args, **kwargs)


class Ftrl(ftrl.Ftrl, Optimizer):
    """`tf.keras.optimizers.Ftrl` that accepts new variables at any time."""

    _configured_names = (
        *("initial_accumulator_value", "learning_rate_power", "l1_regularization_strength"),
        *("l2_regularization_strength", "beta", "l2_shrinkage_regularization_strength"),
    )
    _by_rows = "rows"
