"""Adafactor: mean squares of gradients, stored as row and column means."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

import jax.numpy as jnp
from jax import Array, lax

from meshflow.core.variables.variable import Variable
from meshflow.keras.optimizers.optimizer_arguments import LearningRate, OptimizerArguments
from meshflow.keras.optimizers.update_rule import RuleOptimizer, Scalars, Slots


class Adafactor(RuleOptimizer):
    """Adaptive steps with sublinear memory (Shazeer and Stern 2018, arXiv:1804.04235).

    For a variable of two or more dimensions, the mean square gradient is the outer product of its
    means along the last two, so the state has the size of one row and one column.

    Formula:
      `w = w - max(epsilon_2, rms(w)) * min(lr, 1 / sqrt(t)) * u / max(1, rms(u) /
      clip_threshold)`, where `u = g / sqrt(v)` is the unscaled step u. w is the variable, g its
      gradient, lr the learning rate, t the step count from 1, rms the root mean square, and v the
      average of `g^2 + epsilon_1` with the decay `1 - t^beta_2_decay`: for variables of two or more
      dimensions `v = r
      * c / mean(r)`, the product of its means r over the columns and c over the rows.

    Args:
      learning_rate: Number, schedule, or function without arguments.
      beta_2_decay: Power of the step count in the decay of the mean square.
      epsilon_1: Value that is added to the squared gradient.
      epsilon_2: Minimum root mean square of a variable, by which steps are scaled.
      clip_threshold: Maximum root mean square of an unscaled step.
      relative_step: Stored in the configuration. As in tf-keras, `1 / sqrt(step)` limits the rate
        either way.
      name: Name of the optimizer.
      **kwargs: Arguments of `Optimizer`.

    Example:
      >>> w = tf.Variable(tf.ones([2, 3]))
      >>> _ = tf.keras.optimizers.Adafactor(0.5).apply_gradients([(tf.ones([2, 3]), w)])
      >>> w.numpy().round(3).tolist()[0]
      [0.5, 0.5, 0.5]
    """

    slot_names = ("r", "c", "v")
    _list_names = {"v": "_v"}
    _is_elementwise = False
    setting_names = ("beta_2_decay", "epsilon_1", "epsilon_2", "clip_threshold")

    def __init__(
        self,
        learning_rate: LearningRate = 0.001,
        beta_2_decay: float = -0.8,
        epsilon_1: float = 1e-30,
        epsilon_2: float = 1e-3,
        clip_threshold: float = 1.0,
        relative_step: bool = True,
        name: str = "Adafactor",
        **kwargs: Unpack[OptimizerArguments],
    ) -> None:
        super().__init__(name, learning_rate=kwargs.pop("lr", learning_rate), **kwargs)
        self.beta_2_decay = beta_2_decay
        self.epsilon_1, self.epsilon_2 = epsilon_1, epsilon_2
        self.clip_threshold, self.relative_step = clip_threshold, relative_step

    def _get_slot_names(self, var: Variable) -> tuple[str, ...]:
        return ("r", "c") if len(var.shape) >= 2 else ("v",)

    def _create_slots(self, var_list: Sequence[Variable]) -> None:
        for var in var_list:
            shape = tuple(var.shape)
            sizes = {"r": shape[:-1], "c": shape[:-2] + shape[-1:], "v": shape}
            for name in self._get_slot_names(var):
                self.add_slot(var, name, shape=sizes[name])

    @staticmethod
    def rule(
        var: Array,
        grad: Array,
        slots: Slots,
        values: Scalars,
        beta_2_decay: float = -0.8,
        epsilon_1: float = 1e-30,
        epsilon_2: float = 1e-3,
        clip_threshold: float = 1.0,
    ) -> list[Array]:
        """Compute the update; see `RuleOptimizer.rule`."""
        step = values["step"]
        # tf-keras limits the rate by 1 / sqrt(step) for either value of `relative_step`.
        rate = jnp.minimum(values["lr_t"], lax.rsqrt(step))
        scale = jnp.maximum(epsilon_2, _rms(var)) * rate
        square = grad * grad + epsilon_1
        beta = 1 - step**beta_2_decay
        if var.ndim >= 2:
            r = beta * slots[0] + (1 - beta) * jnp.mean(square, axis=-1)
            c = beta * slots[1] + (1 - beta) * jnp.mean(square, axis=-2)
            # The product r * c underflows if a row and a column have no gradients, so the factors are applied one by one.
            update = grad * lax.rsqrt(r)[..., None] * lax.rsqrt(c)[..., None, :]
            update *= jnp.sqrt(jnp.mean(r, axis=-1, keepdims=True))[..., None]
            new = [r, c]
        else:
            v = beta * slots[0] + (1 - beta) * square
            update, new = grad * lax.rsqrt(v), [v]
        update = update / jnp.maximum(1.0, _rms(update) / clip_threshold)
        return [var - scale * update, *new]

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments as plain Python values."""
        return {**super().get_config(), "relative_step": self.relative_step}


def _rms(x: Array) -> Array:
    return jnp.sqrt(jnp.mean(jnp.square(x)))
