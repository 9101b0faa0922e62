"""Adam with a mean square kept as row and column means only."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax

from meshflow.keras.optimizers.update_rule import RuleOptimizer

__all__ = ["Adafactor"]


class Adafactor(RuleOptimizer):
    """Sublinear memory (Shazeer and Stern 2018, arXiv:1804.04235).

    For a variable of two or more dimensions the mean square gradient is the outer product of its
    means along the last two, so the state is as large as one row and one column.

    Formula:
      `w = w - max(epsilon_2, rms(w)) * min(lr, 1 / sqrt(t)) * u / max(1, rms(u) / clip_threshold)`, where
      `u = g / sqrt(v)` is the unscaled step u. w is the variable, g its gradient, lr the learning rate, t the number
      of the step, from 1, rms the root of the mean square, and v the mean of `g^2 + epsilon_1` with the decay
      `1 - t^beta_2_decay`: for variables of two or more dimensions the product of its means r over the columns and c
      over the rows, `v = r * c / mean(r)`.

    Args:
      learning_rate: number, function, or schedule.
      beta_2_decay: power of the step at which the mean square forgets.
      epsilon_1: added to the squared gradient.
      epsilon_2: smallest root mean square of a variable, by which steps are scaled.
      clip_threshold: largest root mean square of a step before scaling.
      relative_step: kept in the configuration; the rate is limited by `1 / sqrt(step)` either way,
        as in tf-keras.
      name: the optimizer's name.
      **kwargs: arguments of `Optimizer`.

    Example:
      >>> import meshflow as tf
      >>> w = tf.Variable(tf.ones([2, 3]))
      >>> _ = tf.keras.optimizers.Adafactor(0.5).apply_gradients([(tf.ones([2, 3]), w)])
      >>> w.numpy().round(3).tolist()[0]
      [0.5, 0.5, 0.5]
    """

    _list_names = {"v": "_v"}
    setting_names = (
        "beta_2_decay",
        "epsilon_1",
        "epsilon_2",
        "clip_threshold",
    )

    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta_2_decay: float = -0.8,
        epsilon_1: float = 1e-30,
        epsilon_2: float = 1e-3,
        clip_threshold: float = 1.0,
        relative_step: bool = True,
        name: str = "Adafactor",
        **kwargs: Any,
    ) -> None:
        super().__init__(name, learning_rate=kwargs.pop("lr", learning_rate), **kwargs)
        self.beta_2_decay = beta_2_decay
        self.epsilon_1, self.epsilon_2 = epsilon_1, epsilon_2
        self.clip_threshold, self.relative_step = clip_threshold, relative_step

    def _slot_names_of(self, var: Any) -> tuple[str, ...]:
        return ("r", "c") if len(var.shape) >= 2 else ("v",)

    def _create_slots(self, var_list: Any) -> None:
        for var in var_list:
            shape = tuple(var.shape)
            sizes = {"r": shape[:-1], "c": shape[:-2] + shape[-1:], "v": shape}
            for name in self._slot_names_of(var):
                self.add_slot(var, name, shape=sizes[name])

    @staticmethod
    def rule(
        var: Any,
        grad: Any,
        slots: Any,
        values: dict[str, Any],
        beta_2_decay: float = -0.8,
        epsilon_1: float = 1e-30,
        epsilon_2: float = 1e-3,
        clip_threshold: float = 1.0,
    ) -> list[Any]:
        """See `RuleOptimizer.rule`."""
        step = values["step"]
        # tf-keras limits the rate by 1 / sqrt(step) whatever `relative_step` says; so do we.
        rate = jnp.minimum(values["lr_t"], lax.rsqrt(step))
        scale = jnp.maximum(epsilon_2, _rms(var)) * rate
        square = grad * grad + epsilon_1
        beta = 1 - step**beta_2_decay
        if var.ndim >= 2:
            r = beta * slots[0] + (1 - beta) * jnp.mean(square, axis=-1)
            c = beta * slots[1] + (1 - beta) * jnp.mean(square, axis=-2)
            rows = r / jnp.mean(r, axis=-1, keepdims=True)
            v, new = rows[..., None] * c[..., None, :], [r, c]
        else:
            v = beta * slots[0] + (1 - beta) * square
            new = [v]
        update = grad * lax.rsqrt(v)
        update = update / jnp.maximum(1.0, _rms(update) / clip_threshold)
        return [var - scale * update, *new]

    def get_config(self) -> dict[str, Any]:
        """The configuration: what the constructor takes, as plain Python values."""
        return {**super().get_config(), "relative_step": self.relative_step}


def _rms(x: jnp.ndarray) -> jnp.ndarray:
    return jnp.sqrt(jnp.mean(jnp.square(x)))
