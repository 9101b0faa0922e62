"""Adam's steps in proportion to the weights that they change."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from meshflow.keras import settings
from meshflow.keras.optimizers.adam import Adam
from meshflow.keras.optimizers.update_rule import RuleOptimizer

__all__ = ["Lamb"]


class Lamb(RuleOptimizer):
    """Adam's steps, scaled for each variable to the length of its weights, for large batches (arXiv:1904.00962).

    TensorFlow 2.15 has it in its addons, later versions of Keras under this name.

    Formula:
      `m = beta_1 * m + (1 - beta_1) * g`, `v = beta_2 * v + (1 - beta_2) * g^2`,
      `r = m / (1 - beta_1^t) / (sqrt(v / (1 - beta_2^t)) + epsilon)` and `w = w - lr * |w| / |r| * r`. w is the
      variable, g its gradient, lr the learning rate, t the number of the step, from 1, m and v the means of gradients
      and of their squares, zero at first, r Adam's step, and |.| the Euclidean norm of all of a variable; where one
      of the two is 0, their quotient is taken to be 1.

    Args:
      learning_rate: lr: number, function, or schedule.
      beta_1: b1, decay of the mean gradient m.
      beta_2: b2, decay of the mean square v.
      epsilon: added to the root.
      name: the optimizer's name.
      **kwargs: arguments of `Optimizer`.

    Example:
      >>> import meshflow as tf
      >>> w = tf.Variable([3.0, 4.0])
      >>> _ = tf.keras.optimizers.Lamb(0.1).apply_gradients([(tf.constant([2.0, 0.0]), w)])
      >>> [round(x, 3) for x in w.numpy().tolist()]
      [2.5, 4.0]
    """

    slot_names = ("m", "v")
    hyper_names = ("beta_1", "beta_2")
    setting_names = ("epsilon",)

    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        name: str = "Lamb",
        **kwargs: Any,
    ) -> None:
        super().__init__(name, learning_rate=learning_rate, **kwargs)
        self._set_hyper("beta_1", beta_1)
        self._set_hyper("beta_2", beta_2)
        self.epsilon = epsilon or settings.epsilon()

    @staticmethod
    def rule(
        var: Any, grad: Any, slots: Any, values: dict[str, Any], epsilon: float = 1e-7
    ) -> list[Any]:
        """See `RuleOptimizer.rule`."""
        m, v = Adam.averages(grad, slots, values)
        mean = m / (1 - values["beta_1"] ** values["step"])
        square = v / (1 - values["beta_2"] ** values["step"])
        step = mean / (jnp.sqrt(square) + epsilon)
        lengths = jnp.sqrt(jnp.sum(var * var)), jnp.sqrt(jnp.sum(step * step))
        usual = (lengths[0] > 0) & (lengths[1] > 0)
        ratio = jnp.where(usual, lengths[0] / jnp.where(usual, lengths[1], 1), 1)
        return [var - values["lr_t"] * ratio * step, m, v]
