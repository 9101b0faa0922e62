"""`OneBitAdam`: Adam whose variance stops moving, so that devices may exchange its momentum in few bits."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from meshflow.core.values.convert import convert_to_tensor
from meshflow.keras.optimizers.adam import Adam

__all__ = ["OneBitAdam"]


class OneBitAdam(Adam):
    """1-bit Adam (Tang et al. 2021, arXiv:2102.02888): Adam for a while, then momentum over a frozen variance.

    Under `tf.distribute.MeshStrategy(compress="1bit")` devices sum gradients whole for the first `freeze_step`
    updates. After that each sends its share of the momentum in few bits, with what rounding took away added to the
    next one. Elsewhere it is Adam with a variance that stops. The paper freezes it after 15 to 25 % of all steps.

    Formula:
      `m = beta_1 * m + (1 - beta_1) * g`, `v = beta_2 * v + (1 - beta_2) * g^2` while `t <= freeze_step` and v as it
      is after that, `s = min(t, freeze_step)`, and
      `w = w - lr * sqrt(1 - beta_2^s) / (1 - beta_1^t) * m / (sqrt(v) + epsilon)`. w is the variable, g its gradient,
      lr the learning rate, t the number of the step, from 1, m and v the means of gradients and of their squares,
      zero at first, s the last step at which v moved.

    Args:
      learning_rate: number, function, or schedule.
      freeze_step: after how many updates the variance stops.
      beta_1: decay of the mean gradient.
      beta_2: decay of the mean square.
      epsilon: added to the root.
      name: the optimizer's name.
      **kwargs: arguments of `Optimizer`; clipping is not among them, since gradients are not known any more.

    Raises:
      ValueError: for a `freeze_step` below 1, and for clipping.

    Example:
      >>> import meshflow as tf
      >>> w, optimizer = tf.Variable(0.0), tf.keras.optimizers.OneBitAdam(0.5, freeze_step=1)
      >>> for gradient in (1.0, 100.0):
      ...     _ = optimizer.apply_gradients([(tf.constant(gradient), w)])
      >>> float(optimizer.get_slot(w, "v")) < 0.0011
      True
    """

    setting_names = ("epsilon", "freeze_step")

    def __init__(
        self,
        learning_rate: Any = 0.001,
        freeze_step: int = 100_000,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        name: str = "OneBitAdam",
        **kwargs: Any,
    ) -> None:
        if isinstance(freeze_step, bool) or not isinstance(freeze_step, int) or freeze_step < 1:
            raise ValueError(
                f"OneBitAdam: `freeze_step` must be an integer of at least 1: the variance is divided by. Received: "
                f"freeze_step={freeze_step!r}"
            )
        clips = [k for k in ("clipnorm", "clipvalue", "global_clipnorm") if kwargs.get(k)]
        if clips:
            raise ValueError(
                f"OneBitAdam: {clips} need gradients, of which nothing is known once momentum is exchanged. Leave them "
                "out, or use Adam."
            )
        super().__init__(learning_rate, beta_1, beta_2, epsilon, name=name, **kwargs)
        self.freeze_step = freeze_step

    @staticmethod
    def rule(
        var: Any,
        grad: Any,
        slots: Any,
        values: dict[str, Any],
        epsilon: float = 1e-7,
        freeze_step: Any = 100_000,
    ) -> list[Any]:
        """See `RuleOptimizer.rule`."""
        m, v = OneBitAdam.averages(grad, slots, values, epsilon, freeze_step)
        return [OneBitAdam.moved(var, grad, [m, v], values, epsilon, freeze_step), m, v]

    @staticmethod
    def averages(
        grad: Any,
        slots: Any,
        values: dict[str, Any],
        epsilon: float = 1e-7,
        freeze_step: Any = 100_000,
    ) -> list[Any]:
        """See `RuleOptimizer.averages`; slots m and v."""
        m, v = Adam.averages(grad, slots, values, epsilon)
        return [m, jnp.where(values["step"] <= freeze_step, v, slots[1])]

    @staticmethod
    def moved(
        var: Any,
        grad: Any,
        slots: Any,
        values: dict[str, Any],
        epsilon: float = 1e-7,
        freeze_step: Any = 100_000,
    ) -> Any:
        """See `RuleOptimizer.moved`; slots m and v."""
        b1, b2, t = values["beta_1"], values["beta_2"], values["step"]
        rate = values["lr_t"] * jnp.sqrt(1 - b2 ** jnp.minimum(t, freeze_step)) / (1 - b1**t)
        return var - rate * slots[0] / (jnp.sqrt(slots[1]) + epsilon)

    def _sending(self) -> dict[str, Any]:
        """What strategies that send gradients in few bits are to know: momentum takes their place."""
        return {
            "warm_up": self.freeze_step,
            "decay": convert_to_tensor(self._get_hyper("beta_1", "float32")),
            "momentum": lambda var: self.get_slot(var, "m"),
        }
