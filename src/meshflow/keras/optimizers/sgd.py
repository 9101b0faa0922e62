"""Stochastic gradient descent."""

from __future__ import annotations

from typing import Unpack

from jax import Array

from meshflow.keras.optimizers.optimizer_arguments import LearningRate, OptimizerArguments
from meshflow.keras.optimizers.update_rule import RuleOptimizer, Scalars, Slots


class SGD(RuleOptimizer):
    """Gradient descent, optionally with momentum.

    Formula:
      `w = w - lr * g`. w is the variable, g its gradient, lr the learning rate. With momentum
      `v = momentum * v - lr * g` and `w = w + v`, where v is the velocity, initially zero (Polyak
      1964). With `nesterov`, `w = w + momentum * v - lr * g` (Nesterov 1983).

    Args:
      learning_rate: Number, schedule, or function without arguments.
      momentum: Momentum, from 0 to 1; 0 for none.
      nesterov: Whether to use Nesterov momentum.
      name: Name of the optimizer.
      **kwargs: Arguments of `Optimizer`.

    Raises:
      ValueError: If the momentum is outside [0, 1].

    Example:
      >>> v = tf.Variable(1.0)
      >>> _ = tf.keras.optimizers.SGD(0.1).apply_gradients([(tf.constant(1.0), v)])
      >>> round(float(v), 4)
      0.9
    """

    hyper_names = ("momentum",)
    _variable_names = {"momentum": "m"}
    setting_names = ("nesterov",)
    _default_learning_rate = 0.01
    _by_rows = "sum"
    # The velocities of all rows decay and change the rows.
    _moves_by_rows = "all"

    def __init__(
        self,
        learning_rate: LearningRate = 0.01,
        momentum: float = 0.0,
        nesterov: bool = False,
        name: str = "SGD",
        **kwargs: Unpack[OptimizerArguments],
    ) -> None:
        super().__init__(name, learning_rate=kwargs.pop("lr", learning_rate), **kwargs)
        if isinstance(momentum, (int, float)) and not 0 <= momentum <= 1:
            raise ValueError(
                f"`momentum` must be between [0, 1]. Received: momentum={momentum} (of type {type(momentum)})."
            )
        self._set_hyper("momentum", momentum)
        self.nesterov = nesterov
        if callable(momentum) or hasattr(momentum, "dtype") or momentum > 0:
            self.slot_names = ("momentum",)
            self._by_rows = self._moves_by_rows

    @staticmethod
    def rule(
        var: Array, grad: Array, slots: Slots, values: Scalars, nesterov: bool = False
    ) -> list[Array]:
        """Compute the update; see `RuleOptimizer.rule`."""
        step = values["lr_t"] * grad
        if not slots:
            return [var - step]
        velocity = values["momentum"] * slots[0] - step
        return [var + (values["momentum"] * velocity - step if nesterov else velocity), velocity]
