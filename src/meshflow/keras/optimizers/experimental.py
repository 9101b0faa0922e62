"""`tf.keras.optimizers.experimental`: the optimizers as they are since TensorFlow 2.11.

Three differ in their numbers from those of `tf.keras.optimizers`: `RMSprop` and `Adagrad` add epsilon
under the root, and `Nadam` warms its momentum up in tens instead of thousands of steps. The others are
the same classes.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from meshflow.keras.optimizers import adam, adaptive
from meshflow.keras.optimizers.adafactor import Adafactor
from meshflow.keras.optimizers.adam import Adam, Adamax, AdamW, Lion
from meshflow.keras.optimizers.adaptive import Adadelta
from meshflow.keras.optimizers.base import Optimizer
from meshflow.keras.optimizers.ftrl import Ftrl
from meshflow.keras.optimizers.sgd import SGD

__all__ = [
    "SGD",
    "Adadelta",
    "Adafactor",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "Ftrl",
    "Lion",
    "Nadam",
    "Optimizer",
    "RMSprop",
]


class RMSprop(adaptive.RMSprop):
    """RMSprop with epsilon under the root; arguments as `tf.keras.optimizers.RMSprop`.

    Example:
      >>> import meshflow as tf
      >>> w = tf.Variable(1.0)
      >>> optimizer = tf.keras.optimizers.experimental.RMSprop(0.5, rho=0.75, epsilon=9.0)
      >>> _ = optimizer.apply_gradients([(tf.constant(8.0), w)])
      >>> round(float(w), 3)
      0.2
    """

    _since_2_11 = True

    @staticmethod
    def rule(
        var: Any,
        grad: Any,
        slots: Any,
        values: dict[str, Any],
        epsilon: float = 1e-7,
        centered: bool = False,
    ) -> list[Any]:
        """See `RuleOptimizer.rule`."""
        rho, moving = values["rho"], len(slots) > 1 + centered
        rms = rho * slots[0] + (1 - rho) * grad * grad
        means = [rho * slots[-1] + (1 - rho) * grad] if centered else []
        square = rms - means[0] * means[0] if centered else rms
        step = values["lr_t"] * grad / jnp.sqrt(square + epsilon)
        if moving:
            velocity = values["momentum"] * slots[1] + step
            return [var - velocity, rms, velocity, *means]
        return [var - step, rms, *means]


class Adagrad(adaptive.Adagrad):
    """Adagrad with epsilon under the root; arguments as `tf.keras.optimizers.Adagrad`.

    Example:
      >>> import meshflow as tf
      >>> w = tf.Variable(1.0)
      >>> optimizer = tf.keras.optimizers.experimental.Adagrad(0.5, 0.0, epsilon=7.0)
      >>> _ = optimizer.apply_gradients([(tf.constant(3.0), w)])
      >>> float(w)
      0.625
    """

    _since_2_11 = True

    @staticmethod
    def rule(
        var: Any, grad: Any, slots: Any, values: dict[str, Any], epsilon: float = 1e-7
    ) -> list[Any]:
        """See `RuleOptimizer.rule`."""
        total = slots[0] + grad * grad
        return [var - values["lr_t"] * grad / jnp.sqrt(total + epsilon), total]


class Nadam(adam.Nadam):
    """Nadam whose momentum warms up as `b1 * (1 - 0.5 * 0.96^t)`.

    Args:
      learning_rate: number, function, or schedule.
      beta_1: decay of the mean gradient.
      beta_2: decay of the mean square.
      epsilon: added to the root.
      name: the optimizer's name.
      **kwargs: arguments of `Optimizer`.

    Example:
      >>> import meshflow as tf
      >>> w = tf.Variable(1.0)
      >>> _ = tf.keras.optimizers.experimental.Nadam(0.25).apply_gradients([(tf.constant(8.0), w)])
      >>> float(w) < 1.0
      True
    """

    _since_2_11 = True
    _default_decay = 1.0
    _schedules_allowed = True

    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        name: str = "Nadam",
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("schedule_decay", kwargs.pop("decay", 1.0))
        super().__init__(learning_rate, beta_1, beta_2, epsilon, name, **kwargs)
