"""Lamb: Adam's steps in proportion to the norm of the weights."""

from __future__ import annotations

from typing import Unpack

import jax.numpy as jnp
from jax import Array

from meshflow.keras import settings
from meshflow.keras.optimizers.adam import Adam
from meshflow.keras.optimizers.optimizer_arguments import LearningRate, OptimizerArguments
from meshflow.keras.optimizers.update_rule import RuleOptimizer, Scalars, Slots


class Lamb(RuleOptimizer):
    """Adam's steps, scaled by the norm of each variable, for large batches (arXiv:1904.00962).

    TensorFlow 2.15 has this optimizer in its addons, later versions of Keras under this name.

    Formula:
      `m = beta_1 * m + (1 - beta_1) * g`, `v = beta_2 * v + (1 - beta_2) * g^2`,
      `r = m / (1 - beta_1^t) / (sqrt(v / (1 - beta_2^t)) + epsilon)` and
      `w = w - lr * |w| / |r| * r`. w is the variable, g its gradient, lr the learning rate, t the
      step count from 1, m and v the initially zero averages of gradients and of their squares, r
      Adam's step, and |.| the Euclidean norm of a variable. If either norm is 0, their quotient is
      1.

    Args:
      learning_rate: Number, schedule, or function without arguments.
      beta_1: Decay of the mean gradient m.
      beta_2: Decay of the mean square v.
      epsilon: Value that is added to the root.
      name: Name of the optimizer.
      **kwargs: Arguments of `Optimizer`.

    Example:
      >>> w = tf.Variable([3.0, 4.0])
      >>> _ = tf.keras.optimizers.Lamb(0.1).apply_gradients([(tf.constant([2.0, 0.0]), w)])
      >>> [round(x, 3) for x in w.numpy().tolist()]
      [2.5, 4.0]
    """

    _is_elementwise = False
    slot_names = ("m", "v")
    hyper_names = ("beta_1", "beta_2")
    setting_names = ("epsilon",)

    def __init__(
        self,
        learning_rate: LearningRate = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        name: str = "Lamb",
        **kwargs: Unpack[OptimizerArguments],
    ) -> None:
        super().__init__(name, learning_rate=learning_rate, **kwargs)
        self._set_hyper("beta_1", beta_1)
        self._set_hyper("beta_2", beta_2)
        self.epsilon = epsilon or settings.epsilon()

    @staticmethod
    def rule(
        var: Array, grad: Array, slots: Slots, values: Scalars, epsilon: float = 1e-7
    ) -> list[Array]:
        """Compute the update; see `RuleOptimizer.rule`."""
        m, v = Adam.update_slots(grad, slots, values)
        mean = m / (1 - values["beta_1"] ** values["step"])
        square = v / (1 - values["beta_2"] ** values["step"])
        step = mean / (jnp.sqrt(square) + epsilon)
        norms = jnp.sqrt(jnp.sum(var * var)), jnp.sqrt(jnp.sum(step * step))
        is_nonzero = (norms[0] > 0) & (norms[1] > 0)
        ratio = jnp.where(is_nonzero, norms[0] / jnp.where(is_nonzero, norms[1], 1), 1)
        return [var - values["lr_t"] * ratio * step, m, v]
