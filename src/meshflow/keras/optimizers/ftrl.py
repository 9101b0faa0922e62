"""FTRL: follow the regularized leader."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

import jax.numpy as jnp
from jax import Array

from meshflow.core.variables.variable import Variable
from meshflow.keras.initializers import Constant
from meshflow.keras.optimizers.optimizer_arguments import LearningRate, OptimizerArguments
from meshflow.keras.optimizers.update_rule import RuleOptimizer, Scalars, Slots


class Ftrl(RuleOptimizer):
    """Follow the regularized leader (McMahan et al. 2013), for sparse linear models.

    Formula:
      `n = s + g^2`, `z = z + g + 2 * k * w - (n^-power - s^-power) / lr * w`, `s = n` and
      `w = (clip(z, -l1, l1) - z) / (n^-power / lr + 2 * l2)`. w is the variable, g its gradient, lr
      the learning rate; s and n are the sum of squares before and after the step, initially
      `initial_accumulator_value`, z is the linear term, initially zero, power is
      `learning_rate_power`, k is `l2_shrinkage_regularization_strength`, l1 is
      `l1_regularization_strength` and l2 is `l2_regularization_strength + beta / (2 * lr)`.

    Args:
      learning_rate: Number, schedule, or function without arguments.
      learning_rate_power: Power of the accumulated squares, not positive.
      initial_accumulator_value: Initial sum of squares.
      l1_regularization_strength: L1 penalty.
      l2_regularization_strength: L2 penalty.
      name: Name of the optimizer.
      l2_shrinkage_regularization_strength: L2 penalty on the gradient only.
      beta: Value that increases the L2 penalty, divided by twice the learning rate.
      **kwargs: Arguments of `Optimizer`.

    Raises:
      ValueError: If a strength is negative or the power positive.

    Example:
      >>> w = tf.Variable([1.0, 1.0])
      >>> optimizer = tf.keras.optimizers.Ftrl(1.0, l1_regularization_strength=1.0)
      >>> _ = optimizer.apply_gradients([(tf.constant([0.01, 9.0]), w)])
      >>> float(w[0])
      0.0
    """

    slot_names = ("accumulator", "linear")
    setting_names = (
        "learning_rate_power",
        "l1_regularization_strength",
        "l2_regularization_strength",
        "l2_shrinkage_regularization_strength",
        "beta",
    )
    _configured_names = ("learning_rate_power", "initial_accumulator_value", *setting_names[1:])

    def __init__(
        self,
        learning_rate: LearningRate = 0.001,
        learning_rate_power: float = -0.5,
        initial_accumulator_value: float = 0.1,
        l1_regularization_strength: float = 0.0,
        l2_regularization_strength: float = 0.0,
        name: str = "Ftrl",
        l2_shrinkage_regularization_strength: float = 0.0,
        beta: float = 0.0,
        **kwargs: Unpack[OptimizerArguments],
    ) -> None:
        for key, value in {
            "initial_accumulator_value": initial_accumulator_value,
            "l1_regularization_strength": l1_regularization_strength,
            "l2_regularization_strength": l2_regularization_strength,
            "l2_shrinkage_regularization_strength": l2_shrinkage_regularization_strength,
        }.items():
            if value < 0.0:
                raise ValueError(f"`{key}` needs to be positive or zero. Received: {key}={value}.")
        if learning_rate_power > 0.0:
            raise ValueError(
                f"`learning_rate_power` needs to be negative or zero. Received: learning_rate_power={learning_rate_power}."
            )
        super().__init__(name, learning_rate=kwargs.pop("lr", learning_rate), **kwargs)
        self.learning_rate_power = learning_rate_power
        self.initial_accumulator_value = initial_accumulator_value
        self.l1_regularization_strength = l1_regularization_strength
        self.l2_regularization_strength = l2_regularization_strength
        self.l2_shrinkage_regularization_strength = l2_shrinkage_regularization_strength
        self.beta = beta

    def _create_slots(self, var_list: Sequence[Variable]) -> None:
        # The slots are ordered by variable, then by name: the order in Keras 2's weight lists.
        for var in var_list:
            super()._create_slots([var])

    def _slot_initializer(self, name: str) -> Constant:
        return Constant(self.initial_accumulator_value if name == "accumulator" else 0.0)

    @staticmethod
    def rule(
        var: Array,
        grad: Array,
        slots: Slots,
        values: Scalars,
        power: float = -0.5,
        l1: float = 0.0,
        l2: float = 0.0,
        shrinkage: float = 0.0,
        beta: float = 0.0,
    ) -> list[Array]:
        """Compute the update; see `RuleOptimizer.rule`."""
        lr = values["lr_t"]
        penalty = l2 + beta / (2 * lr)
        gradient = grad + 2 * shrinkage * var
        total = slots[0] + grad * grad
        sigma = (total ** (-power) - slots[0] ** (-power)) / lr
        linear = slots[1] + gradient - sigma * var
        quadratic = total ** (-power) / lr + 2 * penalty
        clipped = jnp.clip(linear, -l1, l1)
        return [(clipped - linear) / quadratic, total, linear]
