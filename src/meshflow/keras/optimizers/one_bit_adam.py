"""`OneBitAdam`: Adam with a frozen variance, so that devices exchange momentum in few bits."""

from __future__ import annotations

from typing import Any, Unpack

import jax.numpy as jnp
from jax import Array

from meshflow.core.values.convert import convert_to_tensor
from meshflow.keras.optimizers.adam import Adam
from meshflow.keras.optimizers.optimizer_arguments import LearningRate, OptimizerArguments
from meshflow.keras.optimizers.update_rule import Scalars, Slots


class OneBitAdam(Adam):
    """1-bit Adam (Tang et al. 2021, arXiv:2102.02888): Adam, then a frozen variance.

    Under `tf.distribute.MeshStrategy(compress="1bit")`, devices sum uncompressed gradients in the
    first `freeze_step` updates. After that, each device sends its part of the momentum in few bits
    and adds the rounding error to the next one. Under other strategies this is Adam with a variance
    that freezes. The paper freezes it after 15 to 25 % of all steps.

    Formula:
      `m = beta_1 * m + (1 - beta_1) * g`, `v = beta_2 * v + (1 - beta_2) * g^2` while
      `t <= freeze_step` and a constant v after that, `s = min(t, freeze_step)`, and `w = w - lr *
      sqrt(1
      - beta_2^s) / (1 - beta_1^t) * m / (sqrt(v) + epsilon)`. w is the variable, g its gradient, lr
      the learning rate, t the step count from 1, m and v the initially zero averages of gradients
      and of their squares, s the last step that changed v.

    Args:
      learning_rate: Number, schedule, or function without arguments.
      freeze_step: Number of updates after which the variance is constant.
      beta_1: Decay of the mean gradient.
      beta_2: Decay of the mean square.
      epsilon: Value that is added to the root.
      name: Name of the optimizer.
      **kwargs: Arguments of `Optimizer`, except clipping, since summed gradients are unknown after
        the freeze.

    Raises:
      ValueError: If `freeze_step` is below 1, or clipping is set.

    Example:
      >>> w, optimizer = tf.Variable(0.0), tf.keras.optimizers.OneBitAdam(0.5, freeze_step=1)
      >>> for gradient in (1.0, 100.0):
      ...     _ = optimizer.apply_gradients([(tf.constant(gradient), w)])
      >>> float(optimizer.get_slot(w, "v")) < 0.0011
      True
    """

    setting_names = ("epsilon", "freeze_step")

    def __init__(
        self,
        learning_rate: LearningRate = 0.001,
        freeze_step: int = 100_000,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        name: str = "OneBitAdam",
        **kwargs: Unpack[OptimizerArguments],
    ) -> None:
        if isinstance(freeze_step, bool) or not isinstance(freeze_step, int) or freeze_step < 1:
            raise ValueError(
                f"OneBitAdam: `freeze_step` must be an integer of at least 1, because steps are divided by the variance. "
                f"Received: freeze_step={freeze_step!r}"
            )
        clips = [k for k in ("clipnorm", "clipvalue", "global_clipnorm") if kwargs.get(k)]
        if clips:
            raise ValueError(
                f"OneBitAdam: {clips} need gradients, which are unknown once devices exchange momentum. Remove them, or "
                "use Adam."
            )
        super().__init__(learning_rate, beta_1, beta_2, epsilon, name=name, **kwargs)
        self.freeze_step = freeze_step

    @staticmethod
    def rule(
        var: Array,
        grad: Array,
        slots: Slots,
        values: Scalars,
        epsilon: float = 1e-7,
        freeze_step: int = 100_000,
    ) -> list[Array]:
        """Compute the update; see `RuleOptimizer.rule`."""
        m, v = OneBitAdam.update_slots(grad, slots, values, epsilon, freeze_step)
        return [OneBitAdam.update_variable(var, grad, [m, v], values, epsilon, freeze_step), m, v]

    @staticmethod
    def update_slots(
        grad: Array,
        slots: Slots,
        values: Scalars,
        epsilon: float = 1e-7,
        freeze_step: int = 100_000,
    ) -> list[Array]:
        """Compute new m and v; see `RuleOptimizer.update_slots`."""
        m, v = Adam.update_slots(grad, slots, values, epsilon)
        return [m, jnp.where(values["step"] <= freeze_step, v, slots[1])]

    @staticmethod
    def update_variable(
        var: Array,
        grad: Array,
        slots: Slots,
        values: Scalars,
        epsilon: float = 1e-7,
        freeze_step: int = 100_000,
    ) -> Array:
        """Compute the new variable from m and v; see `RuleOptimizer.update_variable`."""
        b1, b2, t = values["beta_1"], values["beta_2"], values["step"]
        rate = values["lr_t"] * jnp.sqrt(1 - b2 ** jnp.minimum(t, freeze_step)) / (1 - b1**t)
        return var - rate * slots[0] / (jnp.sqrt(slots[1]) + epsilon)

    def _get_compression_settings(self) -> dict[str, Any]:
        """Return the settings with which strategies compress momentum instead of gradients."""
        return {
            "warm_up": self.freeze_step,
            "decay": convert_to_tensor(self._get_hyper("beta_1", "float32")),
            "momentum": lambda var: self.get_slot(var, "m"),
        }
