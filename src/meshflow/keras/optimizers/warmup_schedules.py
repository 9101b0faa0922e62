"""Learning rates that rise first: DeepSpeed's schedules."""

from __future__ import annotations

import math as _python_math
from typing import Any

from meshflow.keras.optimizers.learning_rate_schedule import LearningRateSchedule
from meshflow.ops import array, math

__all__ = ["LearningRateRangeTest", "OneCycle", "WarmupSchedule"]


class WarmupSchedule(LearningRateSchedule):
    """Rises, and then stays or falls: DeepSpeed's WarmupLR, WarmupDecayLR and WarmupCosineLR.

    Formula:
      `low + (high - low) * log(s + 1) / log(warmup_steps)` while `s < warmup_steps`, or `low + (high - low) * s /
      warmup_steps` for a rise that is linear. After that high; for a decay that is linear
      `last + (high - last) * max((total_steps - s) / (total_steps - warmup_steps), 0)`, for one that is a cosine
      `last + (high - last) * (1 + cos(pi * p)) / 2`, `p = min((s + 1 - warmup_steps) / (total_steps - warmup_steps), 1)`.
      t is the step, s the one before, `s = max(t - 1, 0)`, low the minimum, high the learning rate, last the final
      one, and p the part of the decay that is over.

    Args:
      learning_rate: the highest rate.
      warmup_steps: steps until then, at least 2.
      minimum_learning_rate: the rate of the first step.
      total_steps: steps until the last rate; None with `decay=None`.
      decay: None, "linear" or "cosine".
      final_learning_rate: the last rate.
      rise: "log" or "linear".
      name: ignored.

    Raises:
      ValueError: for another decay or rise, and for steps that do not go together.

    Example:
      >>> import meshflow as tf
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
        decay: str | None = None,
        final_learning_rate: float = 0.0,
        rise: str = "log",
        name: str | None = None,
    ) -> None:
        if decay not in (None, "linear", "cosine") or rise not in ("log", "linear"):
            raise ValueError(
                f"WarmupSchedule: `decay` must be None, 'linear' or 'cosine', and `rise` 'log' or 'linear'. Received: "
                f"decay={decay!r}, rise={rise!r}"
            )
        if (decay is None) != (total_steps is None) or warmup_steps < 2:
            raise ValueError(
                "WarmupSchedule: `warmup_steps` must be at least 2, and `total_steps` says when `decay` ends. Received: "
                f"warmup_steps={warmup_steps}, total_steps={total_steps}, decay={decay!r}"
            )
        self.learning_rate, self.warmup_steps = learning_rate, warmup_steps
        self.minimum_learning_rate, self.total_steps = minimum_learning_rate, total_steps
        self.decay, self.final_learning_rate = decay, final_learning_rate
        self.rise, self.name = rise, name

    def __call__(self, step: Any) -> Any:
        """The learning rate at a step."""
        s = math.maximum(self._step(step) - 1.0, 0.0)
        warm = float(self.warmup_steps)
        # No logarithm below zero, for gradients of what is not chosen.
        risen = math.log(s + 1.0) / _python_math.log(warm) if self.rise == "log" else s / warm
        low, high = self.minimum_learning_rate, self.learning_rate
        rate = low + (high - low) * risen
        after: Any = array.ones_like(s) * high
        if self.total_steps is not None:
            left = max(float(self.total_steps - self.warmup_steps), 1.0)
            if self.decay == "linear":
                share = math.maximum((float(self.total_steps) - s) / left, 0.0)
            else:
                over = math.minimum((s + 1.0 - warm) / left, 1.0)
                share = (1.0 + math.cos(_python_math.pi * over)) / 2.0
            after = self.final_learning_rate + (high - self.final_learning_rate) * share
        return array.where(s < warm, rate, after)


class OneCycle(LearningRateSchedule):
    """Up, down, and then slowly further down (Smith 2018, arXiv:1803.09820), as DeepSpeed's OneCycle does it.

    Formula:
      `low + (high - low) * c`, low and high being the two rates, t the step and c its height: `c = t / first_steps`
      and then `c = 1 - (t - first_steps) / second_steps`; with stairs c is rounded down to a multiple of 1 / stairs.
      After the cycle `low / (1 + decay_rate * (t - first_steps - second_steps) / decay_steps)`, or low where
      `decay_steps` is 0.

    Args:
      minimum_learning_rate: the rate at both ends of the cycle.
      maximum_learning_rate: the rate between.
      first_steps: steps on the way up.
      second_steps: steps on the way down; default as many.
      decay_steps: steps in which the rate is divided by 1 + `decay_rate` after the cycle, the next ones by
        1 + 2 * `decay_rate`, and so on.
      decay_rate: see there.
      first_stairs: in how many stairs it goes up; 0 for none.
      second_stairs: in how many it goes down; default as many.
      name: ignored.

    Example:
      >>> import meshflow as tf
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

    def __call__(self, step: Any) -> Any:
        """The learning rate at a step."""
        t, first = self._step(step), float(self.first_steps)
        second = first if self.second_steps is None else float(self.second_steps)
        stairs = self.first_stairs if self.second_stairs is None else self.second_stairs
        up = _in_stairs(t, first, self.first_stairs)
        down = _in_stairs(first + second - t, second, stairs)
        low, high = self.minimum_learning_rate, self.maximum_learning_rate
        rate = low + (high - low) * array.where(t <= first, up, down)
        after: Any = array.ones_like(t) * low
        if self.decay_steps:
            over = (t - first - second) / float(self.decay_steps)
            after = low / (1.0 + self.decay_rate * math.maximum(over, 0.0))
        return array.where(t < first + second, rate, after)


def _in_stairs(done: Any, steps: float, stairs: int) -> Any:
    return math.floor(done * float(stairs) / steps) / float(stairs) if stairs else done / steps


class LearningRateRangeTest(LearningRateSchedule):
    """Rises until training fails, to find out how far it may (Smith 2018, arXiv:1803.09820): DeepSpeed's LRRangeTest.

    Formula:
      `minimum_learning_rate * (1 + step_rate * t / step_size)`, t being the step; with `staircase` the quotient is
      rounded down.

    Args:
      minimum_learning_rate: the rate at step 0.
      step_size: in how many steps it grows by `step_rate` times the first rate.
      step_rate: see there.
      staircase: whether the rate changes only every `step_size`.
      name: ignored.

    Example:
      >>> import meshflow as tf
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

    def __call__(self, step: Any) -> Any:
        """The learning rate at a step."""
        done = self._step(step) / float(self.step_size)
        done = math.floor(done) if self.staircase else done
        return self.minimum_learning_rate * (1.0 + self.step_rate * done)
