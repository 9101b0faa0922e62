"""Gradient descent."""

from __future__ import annotations

from typing import Any

from meshflow.keras.optimizers.update_rule import RuleOptimizer

__all__ = ["SGD"]


class SGD(RuleOptimizer):
    """Gradient descent, with momentum.

    Formula:
      `w = w - lr * g`. w is the variable, g its gradient, lr the learning rate. With momentum
      `v = momentum * v - lr * g` and `w = w + v`, v being the velocity, zero at first (Polyak 1964); with `nesterov`
      `w = w + momentum * v - lr * g` (Nesterov 1983).

    Args:
      learning_rate: number, function, or schedule.
      momentum: 0 for none.
      nesterov: whether the step looks ahead: `w = w + m * v - lr * g`.
      name: the optimizer's name.
      **kwargs: arguments of `Optimizer`.

    Raises:
      ValueError: for a momentum outside [0, 1].

    Example:
      >>> import meshflow as tf
      >>> v = tf.Variable(1.0)
      >>> _ = tf.keras.optimizers.SGD(0.1).apply_gradients([(tf.constant(1.0), v)])
      >>> round(float(v), 4)
      0.9
    """

    hyper_names = ("momentum",)
    setting_names = ("nesterov",)
    _default_learning_rate = 0.01
    _by_rows = "sum"
    # Velocities of all rows decay and move them.
    _moves_by_rows = "all"

    def __init__(
        self,
        learning_rate: Any = 0.01,
        momentum: float = 0.0,
        nesterov: bool = False,
        name: str = "SGD",
        **kwargs: Any,
    ) -> None:
        super().__init__(name, learning_rate=kwargs.pop("lr", learning_rate), **kwargs)
        if isinstance(momentum, (int, float)) and not 0 <= momentum <= 1:
            raise ValueError(
                f"`momentum` must be between [0, 1]. Received: momentum={momentum} (of type {type(momentum)})."
            )
        self._set_hyper("momentum", momentum)
        self.nesterov = nesterov
        if callable(momentum) or hasattr(momentum, "numpy") or momentum > 0:
            self.slot_names = ("momentum",)
            self._by_rows = self._moves_by_rows

    @staticmethod
    def rule(
        var: Any, grad: Any, slots: Any, values: dict[str, Any], nesterov: bool = False
    ) -> list[Any]:
        """See `RuleOptimizer.rule`."""
        step = values["lr_t"] * grad
        if not slots:
            return [var - step]
        velocity = values["momentum"] * slots[0] - step
        return [var + (values["momentum"] * velocity - step if nesterov else velocity), velocity]
