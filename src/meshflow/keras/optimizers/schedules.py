"""`tf.keras.optimizers.schedules`: learning rates that depend on the step."""

from __future__ import annotations

import math as _python_math
from typing import Any

from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.environment.types import Config
from meshflow.keras import registry, serialization
from meshflow.keras.optimizers.learning_rate_schedule import LearningRateSchedule
from meshflow.keras.optimizers.warmup_schedules import (
    LearningRateRangeTest,
    OneCycle,
    WarmupSchedule,
)
from meshflow.ops import array, math

__all__ = [
    "CosineDecay",
    "CosineDecayRestarts",
    "ExponentialDecay",
    "InverseTimeDecay",
    "LearningRateRangeTest",
    "LearningRateSchedule",
    "OneCycle",
    "PiecewiseConstantDecay",
    "PolynomialDecay",
    "WarmupSchedule",
    "deserialize",
    "serialize",
]


class ExponentialDecay(LearningRateSchedule):
    """Exponential decay: `initial * rate ^ (step / steps)`.

    Formula:
      `initial_learning_rate * decay_rate^(t / decay_steps)`, where t is the step; with `staircase`
      the quotient is rounded down.

    Args:
      initial_learning_rate: Rate at step 0.
      decay_steps: Number of steps in which the rate is multiplied by `decay_rate`.
      decay_rate: Factor of the decay.
      staircase: Whether the rate changes only every `decay_steps`.
      name: Ignored.

    Example:
      >>> rate = tf.keras.optimizers.schedules.ExponentialDecay(8.0, decay_steps=10, decay_rate=0.5)
      >>> float(rate(0)), float(rate(10)), float(rate(20))
      (8.0, 4.0, 2.0)
    """

    def __init__(
        self,
        initial_learning_rate: float,
        decay_steps: int,
        decay_rate: float,
        staircase: bool = False,
        name: str | None = None,
    ) -> None:
        self.initial_learning_rate, self.decay_steps = initial_learning_rate, decay_steps
        self.decay_rate, self.staircase, self.name = decay_rate, staircase, name

    def __call__(self, step: TensorLike) -> Tensor:
        """Compute the learning rate at a step."""
        p = self._cast_step(step) / float(self.decay_steps)
        return self.initial_learning_rate * math.pow(
            float(self.decay_rate), math.floor(p) if self.staircase else p
        )


class InverseTimeDecay(ExponentialDecay):
    """Inverse time decay: `initial / (1 + rate * step / steps)`; arguments as `ExponentialDecay`.

    Formula:
      `initial_learning_rate / (1 + decay_rate * t / decay_steps)`, where t is the step; with
      `staircase` the quotient is rounded down.

    Example:
      >>> rate = tf.keras.optimizers.schedules.InverseTimeDecay(8.0, decay_steps=10, decay_rate=1.0)
      >>> float(rate(0)), float(rate(10)), float(rate(30))
      (8.0, 4.0, 2.0)
    """

    def __call__(self, step: TensorLike) -> Tensor:
        """Compute the learning rate at a step."""
        p = self._cast_step(step) / float(self.decay_steps)
        return self.initial_learning_rate / (
            1.0 + self.decay_rate * (math.floor(p) if self.staircase else p)
        )


class PiecewiseConstantDecay(LearningRateSchedule):
    """Rate that is constant between boundaries.

    Formula:
      `values[i]`, where i is the number of `boundaries` that are smaller than the step.

    Args:
      boundaries: Steps in ascending order; a boundary belongs to the interval before it.
      values: Rates, one more than boundaries.
      name: Ignored.

    Example:
      >>> rate = tf.keras.optimizers.schedules.PiecewiseConstantDecay([100, 200], [1.0, 0.5, 0.25])
      >>> float(rate(100)), float(rate(101)), float(rate(999))
      (1.0, 0.5, 0.25)
    """

    def __init__(self, boundaries: Any, values: Any, name: str | None = None) -> None:
        if len(boundaries) != len(values) - 1:
            raise ValueError(
                f"The length of boundaries should be 1 less than the length of values. Received: boundaries={boundaries} of length {len(boundaries)}, and values={values} of length {len(values)}."
            )
        self.boundaries, self.values, self.name = list(boundaries), list(values), name

    def __call__(self, step: TensorLike) -> Tensor:
        """Compute the learning rate at a step."""
        step = self._cast_step(step)
        rate: Any = convert_to_tensor(float(self.values[-1]))
        for boundary, value in zip(
            reversed(self.boundaries), reversed(self.values[:-1]), strict=True
        ):
            rate = array.where(step <= float(boundary), float(value), rate)
        return rate


class PolynomialDecay(LearningRateSchedule):
    """Polynomial decay from an initial to an end rate.

    Formula:
      `(initial_learning_rate - end_learning_rate) * (1 - t / decay_steps)^power +
      end_learning_rate`, where t is the step, at most `decay_steps`; with `cycle` the next multiple of `decay_steps` replaces `decay_steps`.

    Args:
      initial_learning_rate: Rate at step 0.
      decay_steps: Step at which the end rate is reached.
      end_learning_rate: The end rate.
      power: Power of the polynomial.
      cycle: Whether to restart beyond `decay_steps`.
      name: Ignored.

    Example:
      >>> rate = tf.keras.optimizers.schedules.PolynomialDecay(4.0, 100, end_learning_rate=2.0)
      >>> float(rate(0)), float(rate(50)), float(rate(1000))
      (4.0, 3.0, 2.0)
    """

    def __init__(
        self,
        initial_learning_rate: float,
        decay_steps: int,
        end_learning_rate: float = 0.0001,
        power: float = 1.0,
        cycle: bool = False,
        name: str | None = None,
    ) -> None:
        self.initial_learning_rate, self.decay_steps, self.end_learning_rate = (
            initial_learning_rate,
            decay_steps,
            end_learning_rate,
        )
        self.power, self.cycle, self.name = power, cycle, name

    def __call__(self, step: TensorLike) -> Tensor:
        """Compute the learning rate at a step."""
        step, steps = self._cast_step(step), convert_to_tensor(float(self.decay_steps))
        if self.cycle:
            steps = steps * math.maximum(math.ceil(step / steps), 1.0)
        else:
            step = math.minimum(step, steps)
        factor = math.pow(1.0 - step / steps, float(self.power))
        return (
            self.initial_learning_rate - self.end_learning_rate
        ) * factor + self.end_learning_rate


class CosineDecay(LearningRateSchedule):
    """Cosine decay down to a fraction of the initial rate, with an optional linear warm-up.

    Formula:
      `initial_learning_rate * ((1 - alpha) * (1 + cos(pi * t / decay_steps)) / 2 + alpha)`, where t
      is the step, at most `decay_steps` (arXiv:1608.03983). With `warmup_target`,
      `initial_learning_rate + (warmup_target - initial_learning_rate) * t / warmup_steps` for the
      first `warmup_steps`, and then the decay from `warmup_target`.

    Args:
      initial_learning_rate: Rate at step 0.
      decay_steps: Number of steps of the decay.
      alpha: Final rate as a fraction of the highest one.
      name: Ignored.
      warmup_target: Rate after the warm-up; None for no warm-up.
      warmup_steps: Number of steps of the warm-up.

    Example:
      >>> rate = tf.keras.optimizers.schedules.CosineDecay(0.0, 100, warmup_target=2.0, warmup_steps=10)
      >>> [round(float(rate(step)), 3) for step in (0, 5, 10, 60, 110)]
      [0.0, 1.0, 2.0, 1.0, 0.0]
    """

    def __init__(
        self,
        initial_learning_rate: float,
        decay_steps: int,
        alpha: float = 0.0,
        name: str | None = None,
        warmup_target: float | None = None,
        warmup_steps: int = 0,
    ) -> None:
        self.initial_learning_rate, self.decay_steps, self.alpha = (
            initial_learning_rate,
            decay_steps,
            alpha,
        )
        self.name, self.warmup_target, self.warmup_steps = name, warmup_target, warmup_steps

    def __call__(self, step: TensorLike) -> Tensor:
        """Compute the learning rate at a step."""
        step = self._cast_step(step)
        start = self.initial_learning_rate if self.warmup_target is None else self.warmup_target
        decay_step = step if self.warmup_target is None else step - float(self.warmup_steps)
        fraction = math.minimum(math.maximum(decay_step, 0.0), float(self.decay_steps)) / float(
            self.decay_steps
        )
        decayed = start * (
            (1 - self.alpha) * 0.5 * (1.0 + math.cos(_python_math.pi * fraction)) + self.alpha
        )
        if self.warmup_target is None or not self.warmup_steps:
            return decayed
        warmup_rate = self.initial_learning_rate + (
            self.warmup_target - self.initial_learning_rate
        ) * step / float(self.warmup_steps)
        return array.where(step < float(self.warmup_steps), warmup_rate, decayed)


class CosineDecayRestarts(LearningRateSchedule):
    """Cosine decay with restarts, each period longer and lower (arXiv:1608.03983).

    Formula:
      `initial_learning_rate * ((1 - alpha) * m_mul^i * (1 + cos(pi * f)) / 2 + alpha)`, where i is
      the number of restarts so far and f the elapsed fraction of the period; period i takes
      `first_decay_steps * t_mul^i` steps.

    Args:
      initial_learning_rate: Rate at step 0.
      first_decay_steps: Number of steps of the first period.
      t_mul: Factor of the lengths of periods.
      m_mul: Factor of the initial rates of periods.
      alpha: Rate at the end of each period, as a fraction of the initial one.
      name: Ignored.

    Example:
      >>> rate = tf.keras.optimizers.schedules.CosineDecayRestarts(2.0, 10, m_mul=0.5)
      >>> [round(float(rate(step)), 3) for step in (0, 5, 10, 20)]
      [2.0, 1.0, 1.0, 0.5]
    """

    def __init__(
        self,
        initial_learning_rate: float,
        first_decay_steps: int,
        t_mul: float = 2.0,
        m_mul: float = 1.0,
        alpha: float = 0.0,
        name: str | None = None,
    ) -> None:
        self.initial_learning_rate, self.first_decay_steps = (
            initial_learning_rate,
            first_decay_steps,
        )
        self.t_mul, self.m_mul, self.alpha, self.name = t_mul, m_mul, alpha, name

    def __call__(self, step: TensorLike) -> Tensor:
        """Compute the learning rate at a step."""
        fraction = self._cast_step(step) / float(self.first_decay_steps)
        if self.t_mul == 1.0:
            restart = math.floor(fraction)
            fraction = fraction - restart
        else:
            restart = math.floor(
                math.log(1.0 - fraction * (1.0 - self.t_mul)) / _python_math.log(self.t_mul)
            )
            power = math.pow(float(self.t_mul), restart)
            fraction = (fraction - (1.0 - power) / (1.0 - self.t_mul)) / power
        factor = math.pow(float(self.m_mul), restart)
        decayed = 0.5 * factor * (1.0 + math.cos(_python_math.pi * fraction))
        return self.initial_learning_rate * ((1 - self.alpha) * decayed + self.alpha)


_FAMILY = registry.create_registry(
    "decay",
    "keras.optimizers.schedules",
    registry.make_name_table(
        ExponentialDecay,
        InverseTimeDecay,
        PiecewiseConstantDecay,
        PolynomialDecay,
        CosineDecay,
        CosineDecayRestarts,
        WarmupSchedule,
        OneCycle,
        LearningRateRangeTest,
    ),
)


def serialize(
    learning_rate_schedule: LearningRateSchedule, use_legacy_format: bool = False
) -> Config:
    """Return the configuration of a schedule.

    Example:
      >>> rate = tf.keras.optimizers.schedules.ExponentialDecay(8.0, 10, 0.5)
      >>> tf.keras.optimizers.schedules.serialize(rate)["class_name"]
      'ExponentialDecay'
    """
    return serialization.serialize(learning_rate_schedule, use_legacy_format)


def deserialize(
    config: dict[str, Any],
    custom_objects: dict[str, Any] | None = None,
    use_legacy_format: bool = False,
) -> LearningRateSchedule:
    """Create a schedule from its configuration.

    Example:
      >>> config = {"class_name": "ExponentialDecay", "config": {
      ...     "initial_learning_rate": 8.0, "decay_steps": 10, "decay_rate": 0.5}}
      >>> float(tf.keras.optimizers.schedules.deserialize(config)(10))
      4.0
    """
    return _FAMILY.deserialize(config, custom_objects)
