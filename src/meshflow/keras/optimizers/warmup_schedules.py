"""Learning rates with a warm-up: DeepSpeed's schedules."""

from __future__ import annotations

import math as _python_math
from typing import Any, Literal

from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.keras.optimizers.learning_rate_schedule import LearningRateSchedule
from meshflow.ops import array, math


class WarmupSchedule(LearningRateSchedule):
    """Rise, then a constant or a decay: DeepSpeed's WarmupLR, WarmupDecayLR and WarmupCosineLR.

    Formula:
      `low + (high - low) * log(s + 1) / log(warmup_steps)` while `s < warmup_steps`, or
      `low + (high - low) * s / warmup_steps` for a linear rise. After that high; with a linear
      decay `last + (high - last) * max((total_steps - s) / (total_steps - warmup_steps), 0)`, with
      a cosine decay `last + (high - last) * (1 + cos(pi * p)) / 2`,
      `p = min((s + 1 - warmup_steps) / (total_steps - warmup_steps), 1)`. t is the step, s the step
      before, `s = max(t - 1, 0)`, low the minimum rate, high the learning rate, last the final
      rate, and p the elapsed fraction of the decay.

    Args:
      learning_rate: The maximum rate.
      warmup_steps: Number of steps of the rise, at least 2.
      minimum_learning_rate: Rate of the first step.
      total_steps: Number of steps until the final rate; None with `decay=None`.
      decay: None, "linear" or "cosine".
      final_learning_rate: The final rate.
      rise: "log" or "linear".
      name: Ignored.

    Raises:
      ValueError: If `decay` or `rise` has another value, or the numbers of steps do not fit.

    Example:
      >>> rate = tf.keras.optimizers.schedules.WarmupSchedule(
      ...     1.0, warmup_steps=4, total_steps=12, decay="linear", rise="linear")
      >>> [float(rate(step)) for step in (0, 3, 5, 9, 13)]
      [0.0, 0.5, 1.0, 0.5, 0.0]
    """

    def __init__(
        self,
        learning_rate: float,
        warmup_steps: int = 1000,
        minimum_learning_rate: float = 0.0,
        total_steps: int | None = None,
        decay: Literal["linear", "cosine"] | None = None,
        final_learning_rate: float = 0.0,
        rise: Literal["log", "linear"] = "log",
        name: str | None = None,
    ) -> None:
        if decay not in (None, "linear", "cosine") or rise not in ("log", "linear"):
            raise ValueError(
                f"WarmupSchedule: `decay` must be None, 'linear' or 'cosine', and `rise` 'log' or 'linear'. Received: "
                f"decay={decay!r}, rise={rise!r}"
            )
        if (decay is None) != (total_steps is None) or warmup_steps < 2:
            raise ValueError(
                "WarmupSchedule: `warmup_steps` must be at least 2, and `decay` requires `total_steps`. Received: "
                f"warmup_steps={warmup_steps}, total_steps={total_steps}, decay={decay!r}"
            )
        self.learning_rate, self.warmup_steps = learning_rate, warmup_steps
        self.minimum_learning_rate, self.total_steps = minimum_learning_rate, total_steps
        self.decay, self.final_learning_rate = decay, final_learning_rate
        self.rise, self.name = rise, name

    def __call__(self, step: TensorLike) -> Tensor:
        """Compute the learning rate at a step."""
        s = math.maximum(self._cast_step(step) - 1.0, 0.0)
        warm = float(self.warmup_steps)
        # The argument of the logarithm is never below 1, so the gradient of the unselected branch
        # is finite.
        fraction = math.log(s + 1.0) / _python_math.log(warm) if self.rise == "log" else s / warm
        low, high = self.minimum_learning_rate, self.learning_rate
        rate = low + (high - low) * fraction
        after: Any = array.ones_like(s) * high
        if self.total_steps is not None:
            decay_steps = max(float(self.total_steps - self.warmup_steps), 1.0)
            if self.decay == "linear":
                factor = math.maximum((float(self.total_steps) - s) / decay_steps, 0.0)
            else:
                elapsed = math.minimum((s + 1.0 - warm) / decay_steps, 1.0)
                factor = (1.0 + math.cos(_python_math.pi * elapsed)) / 2.0
            after = self.final_learning_rate + (high - self.final_learning_rate) * factor
        return array.where(s < warm, rate, after)


class OneCycle(LearningRateSchedule):
    """Rise, fall, and a slow decay (Smith 2018, arXiv:1803.09820), like DeepSpeed's OneCycle.

    Formula:
      `low + (high - low) * c`, where low and high are the two rates, t is the step and c the height
      in the cycle: `c = t / first_steps` and then `c = 1 - (t - first_steps) / second_steps`; with
      stairs c is rounded down to a multiple of 1 / stairs. After the cycle
      `low / (1 + decay_rate * (t - first_steps - second_steps) / decay_steps)`, or low if
      `decay_steps` is 0.

    Args:
      minimum_learning_rate: Rate at both ends of the cycle.
      maximum_learning_rate: Rate at the top of the cycle.
      first_steps: Number of steps of the rise.
      second_steps: Number of steps of the fall; default `first_steps`.
      decay_steps: Number of steps of a decay period. After period k following the cycle, the
        minimum rate is divided by 1 + k * `decay_rate`.
      decay_rate: Rate of the decay.
      first_stairs: Number of stairs of the rise; 0 for none.
      second_stairs: Number of stairs of the fall; default `first_stairs`.
      name: Ignored.

    Example:
      >>> rate = tf.keras.optimizers.schedules.OneCycle(1.0, 3.0, 4, 2, decay_steps=2, decay_rate=1.0)
      >>> [float(rate(step)) for step in (0, 2, 4, 5, 6, 8)]
      [1.0, 2.0, 3.0, 2.0, 1.0, 0.5]
    """

    def __init__(
        self,
        minimum_learning_rate: float,
        maximum_learning_rate: float,
        first_steps: int = 2000,
        second_steps: int | None = None,
        decay_steps: int = 0,
        decay_rate: float = 0.0,
        first_stairs: int = 0,
        second_stairs: int | None = None,
        name: str | None = None,
    ) -> None:
        self.minimum_learning_rate = minimum_learning_rate
        self.maximum_learning_rate = maximum_learning_rate
        self.first_steps, self.second_steps = first_steps, second_steps
        self.decay_steps, self.decay_rate = decay_steps, decay_rate
        self.first_stairs, self.second_stairs, self.name = first_stairs, second_stairs, name

    def __call__(self, step: TensorLike) -> Tensor:
        """Compute the learning rate at a step."""
        t, first = self._cast_step(step), float(self.first_steps)
        second = first if self.second_steps is None else float(self.second_steps)
        stairs = self.first_stairs if self.second_stairs is None else self.second_stairs
        up = _round_to_stairs(t, first, self.first_stairs)
        down = _round_to_stairs(first + second - t, second, stairs)
        low, high = self.minimum_learning_rate, self.maximum_learning_rate
        rate = low + (high - low) * array.where(t <= first, up, down)
        after: Any = array.ones_like(t) * low
        if self.decay_steps:
            periods = (t - first - second) / float(self.decay_steps)
            after = low / (1.0 + self.decay_rate * math.maximum(periods, 0.0))
        return array.where(t < first + second, rate, after)


def _round_to_stairs(done: Tensor, steps: float, stairs: int) -> Tensor:
    return math.floor(done * float(stairs) / steps) / float(stairs) if stairs else done / steps


class LearningRateRangeTest(LearningRateSchedule):
    """Rise until training fails, to find the maximum rate (Smith 2018, arXiv:1803.09820).

    This is DeepSpeed's LRRangeTest.

    Formula:
      `minimum_learning_rate * (1 + step_rate * t / step_size)`, where t is the step; with
      `staircase` the quotient is rounded down.

    Args:
      minimum_learning_rate: Rate at step 0.
      step_size: Number of steps in which the rate grows by `step_rate` times the initial rate.
      step_rate: Growth relative to the initial rate.
      staircase: Whether the rate changes only every `step_size`.
      name: Ignored.

    Example:
      >>> rate = tf.keras.optimizers.schedules.LearningRateRangeTest(0.5, step_size=10, step_rate=1.0)
      >>> float(rate(0)), float(rate(20))
      (0.5, 1.5)
    """

    def __init__(
        self,
        minimum_learning_rate: float = 1e-3,
        step_size: int = 2000,
        step_rate: float = 1.0,
        staircase: bool = False,
        name: str | None = None,
    ) -> None:
        self.minimum_learning_rate, self.step_size = minimum_learning_rate, step_size
        self.step_rate, self.staircase, self.name = step_rate, staircase, name

    def __call__(self, step: TensorLike) -> Tensor:
        """Compute the learning rate at a step."""
        periods = self._cast_step(step) / float(self.step_size)
        periods = math.floor(periods) if self.staircase else periods
        return self.minimum_learning_rate * (1.0 + self.step_rate * periods)
