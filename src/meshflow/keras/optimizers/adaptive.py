"""Optimizers that divide steps by a measure of past gradients: `RMSprop`, `Adagrad`, `Adadelta`."""

from __future__ import annotations

from typing import Unpack

import jax.numpy as jnp
from jax import Array

from meshflow.keras import settings
from meshflow.keras.initializers import Constant
from meshflow.keras.optimizers.hyperparameters import check_number
from meshflow.keras.optimizers.optimizer_arguments import LearningRate, OptimizerArguments
from meshflow.keras.optimizers.update_rule import RuleOptimizer, Scalars, Slots


class RMSprop(RuleOptimizer):
    """Steps divided by a running root mean square of gradients (Tieleman and Hinton 2012).

    Formula:
      `r = rho * r + (1 - rho) * g^2` and `w = w - lr * g / sqrt(r + epsilon)`. w is the variable, g
      its gradient, lr the learning rate, r the mean square, initially zero. With `centered`,
      `r - a^2` replaces r, where `a = rho * a + (1 - rho) * g` is the mean a. With momentum
      `v = momentum * v + lr * g / sqrt(r + epsilon)` and `w = w - v`, where v is the velocity.
      `tf.keras.optimizers.legacy.RMSprop` adds epsilon to the root unless there is momentum, as
      TensorFlow did until 2.10.

    Args:
      learning_rate: Number, schedule, or function without arguments.
      rho: Decay of the mean square.
      momentum: Momentum, from 0 to 1; 0 for none.
      epsilon: Value that is added under the root.
      centered: Whether to subtract the squared mean, so that the divisor is a standard deviation.
      name: Name of the optimizer.
      **kwargs: Arguments of `Optimizer`; the default of `ema_overwrite_frequency` is 100.

    Raises:
      ValueError: If the momentum is outside [0, 1].

    Example:
      >>> w = tf.Variable(1.0)
      >>> optimizer = tf.keras.optimizers.RMSprop(0.5, rho=0.75, epsilon=9.0)
      >>> _ = optimizer.apply_gradients([(tf.constant(8.0), w)])
      >>> round(float(w), 3)
      0.2
    """

    _list_names = {"momentum": "_momentums"}
    _separate_slots = ("rms", "momentum", "mg")
    _default_overwrite_frequency: int | None = 100
    # The velocities of all rows decay and change the rows.
    _moves_by_rows = "all"
    hyper_names = ("rho", "momentum")
    setting_names = ("epsilon", "centered")

    def __init__(
        self,
        learning_rate: LearningRate = 0.001,
        rho: float = 0.9,
        momentum: float = 0.0,
        epsilon: float = 1e-7,
        centered: bool = False,
        name: str = "RMSprop",
        **kwargs: Unpack[OptimizerArguments],
    ) -> None:
        kwargs.setdefault("ema_overwrite_frequency", self._default_overwrite_frequency)
        super().__init__(name, learning_rate=kwargs.pop("lr", learning_rate), **kwargs)
        if isinstance(momentum, (int, float)) and not 0 <= momentum <= 1:
            raise ValueError(f"`momentum` must be between [0, 1]. Received: momentum={momentum}.")
        self._set_hyper("rho", rho)
        self._set_hyper("momentum", momentum)
        self.epsilon = epsilon or settings.epsilon()
        self.centered = centered
        has_momentum = callable(momentum) or hasattr(momentum, "dtype") or momentum > 0
        self._by_rows = self._moves_by_rows if has_momentum else "averages, rows"
        self.slot_names = (
            "rms",
            *(("momentum",) if has_momentum else ()),
            *(("mg",) if centered else ()),
        )

    @classmethod
    def rule(
        cls,
        var: Array,
        grad: Array,
        slots: Slots,
        values: Scalars,
        epsilon: float = 1e-7,
        centered: bool = False,
    ) -> list[Array]:
        """Compute the update; see `RuleOptimizer.rule`."""
        # The slots have the order of `slot_names`: rms, momentum, mg.
        has_momentum = len(slots) > 1 + centered
        means = [slots[0], *slots[1 + has_momentum :]]
        averages = cls.update_slots(grad, means, values, epsilon, centered)
        if not has_momentum:
            return [cls.update_variable(var, grad, averages, values, epsilon, centered), *averages]
        square = averages[0] - averages[1] * averages[1] if centered else averages[0]
        step = values["lr_t"] * grad / jnp.sqrt(square + epsilon)
        velocity = values["momentum"] * slots[1] + step
        return [var - velocity, averages[0], velocity, *averages[1:]]

    @staticmethod
    def update_slots(
        grad: Array, slots: Slots, values: Scalars, epsilon: float = 1e-7, centered: bool = False
    ) -> list[Array]:
        """Compute new rms and, when centered, mg; see `RuleOptimizer.update_slots`."""
        rho = values["rho"]
        rms = rho * slots[0] + (1 - rho) * grad * grad
        return [rms, rho * slots[1] + (1 - rho) * grad] if centered else [rms]

    @classmethod
    def update_variable(
        cls,
        var: Array,
        grad: Array,
        slots: Slots,
        values: Scalars,
        epsilon: float = 1e-7,
        centered: bool = False,
    ) -> Array:
        """Compute the new variable from the slots of `update_slots`."""
        square = slots[0] - slots[1] * slots[1] if centered else slots[0]
        return var - values["lr_t"] * grad / cls.compute_divisor(square, epsilon)

    @staticmethod
    def compute_divisor(square: Array, epsilon: float) -> Array:
        """Compute the divisor of steps."""
        return jnp.sqrt(square + epsilon)


class Adagrad(RuleOptimizer):
    """Steps divided by the root of the sum of squared gradients (Duchi et al. 2011).

    Formula:
      `s = s + g^2` and `w = w - lr * g / sqrt(s + epsilon)`. w is the variable, g its gradient, lr
      the learning rate, s the sum of squares, initially `initial_accumulator_value`.
      `tf.keras.optimizers.legacy.Adagrad` adds epsilon to the root, as TensorFlow did until 2.10.

    Args:
      learning_rate: Number, schedule, or function without arguments.
      initial_accumulator_value: Initial sum of squares.
      epsilon: Value that is added under the root.
      name: Name of the optimizer.
      **kwargs: Arguments of `Optimizer`.

    Raises:
      ValueError: If the initial sum is negative.

    Example:
      >>> w = tf.Variable(1.0)
      >>> optimizer = tf.keras.optimizers.Adagrad(0.5, initial_accumulator_value=0.0)
      >>> for gradient in (3.0, 4.0):
      ...     _ = optimizer.apply_gradients([(tf.constant(gradient), w)])
      ...     print(round(float(w), 3))
      0.5
      0.1
    """

    slot_names = ("accumulator",)
    setting_names = ("epsilon",)
    _configured_names = ("initial_accumulator_value", "epsilon")
    _by_rows = "rows"

    def __init__(
        self,
        learning_rate: LearningRate = 0.001,
        initial_accumulator_value: float = 0.1,
        epsilon: float = 1e-7,
        name: str = "Adagrad",
        **kwargs: Unpack[OptimizerArguments],
    ) -> None:
        check_number(type(self).__name__, "initial_accumulator_value", initial_accumulator_value)
        if initial_accumulator_value < 0:
            raise ValueError(
                f"initial_accumulator_value must be non-negative: {initial_accumulator_value}"
            )
        super().__init__(name, learning_rate=kwargs.pop("lr", learning_rate), **kwargs)
        self.initial_accumulator_value = initial_accumulator_value
        self.epsilon = epsilon or settings.epsilon()

    def _slot_initializer(self, name: str) -> Constant:
        return Constant(self.initial_accumulator_value)

    @classmethod
    def rule(
        cls, var: Array, grad: Array, slots: Slots, values: Scalars, epsilon: float = 1e-7
    ) -> list[Array]:
        """Compute the update; see `RuleOptimizer.rule`."""
        total = slots[0] + grad * grad
        return [var - values["lr_t"] * grad / cls.compute_divisor(total, epsilon), total]

    @staticmethod
    def compute_divisor(total: Array, epsilon: float) -> Array:
        """Compute the divisor of steps."""
        return jnp.sqrt(total + epsilon)


class Adadelta(RuleOptimizer):
    """Steps scaled by the ratio of past steps and past gradients (arXiv:1212.5701).

    Formula:
      `s = rho * s + (1 - rho) * g^2`, `d = sqrt(u + epsilon) / sqrt(s + epsilon) * g`,
      `u = rho * u + (1 - rho) * d^2` and `w = w - lr * d`. w is the variable, g its gradient, lr
      the learning rate, d the step, s and u the mean squares of gradients and steps, initially
      zero.

    Args:
      learning_rate: Number, schedule, or function without arguments.
      rho: Decay of both means.
      epsilon: Value that is added under both roots.
      name: Name of the optimizer.
      **kwargs: Arguments of `Optimizer`.

    Example:
      >>> w = tf.Variable(1.0)
      >>> _ = tf.keras.optimizers.Adadelta(1.0, epsilon=1.0).apply_gradients([(tf.constant(3.0), w)])
      >>> round(float(w), 3)
      -1.491
    """

    slot_names = ("accum_grad", "accum_var")
    hyper_names = ("rho",)
    setting_names = ("epsilon",)

    def __init__(
        self,
        learning_rate: LearningRate = 0.001,
        rho: float = 0.95,
        epsilon: float = 1e-7,
        name: str = "Adadelta",
        **kwargs: Unpack[OptimizerArguments],
    ) -> None:
        super().__init__(name, learning_rate=kwargs.pop("lr", learning_rate), **kwargs)
        self._set_hyper("rho", rho)
        self.epsilon = epsilon or settings.epsilon()

    @staticmethod
    def rule(
        var: Array, grad: Array, slots: Slots, values: Scalars, epsilon: float = 1e-7
    ) -> list[Array]:
        """Compute the update; see `RuleOptimizer.rule`."""
        rho = values["rho"]
        squares = rho * slots[0] + (1 - rho) * grad * grad
        step = jnp.sqrt(slots[1] + epsilon) / jnp.sqrt(squares + epsilon) * grad
        steps = rho * slots[1] + (1 - rho) * step * step
        return [var - values["lr_t"] * step, squares, steps]
