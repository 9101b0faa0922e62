"""Loss scales, which keep small float16 gradients from underflowing.

A dynamic scale doubles after a number of consecutive steps with finite gradients, and halves, down
to 1, after a step with a gradient that is not finite (Micikevicius et al. 2018, arXiv:1710.03740).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Self

import numpy as np

from meshflow.core.dispatch.composite import IndexedSlices
from meshflow.core.tracing.trace import init_scope
from meshflow.core.values import nest
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.tensor import Tensor
from meshflow.core.variables.variable import Variable
from meshflow.environment.types import PyTree
from meshflow.ops import array, math

DEFAULT_SCALE = 2.0**15
GROWTH_STEPS = 2000
MULTIPLIER = 2.0


def are_finite(gradients: Iterable[Any]) -> Tensor:
    """Check whether all values of gradients (tensors, slices or None) are finite, a bool scalar."""
    values = [g.values if isinstance(g, IndexedSlices) else g for g in gradients if g is not None]
    checks = [math.reduce_all(math.is_finite(v)) for v in values]
    return math.reduce_all(array.stack(checks)) if checks else convert_to_tensor(True)


class ScaleState:
    """Variables of a loss scale: the scale and its count of consecutive finite steps.

    Args:
      initial: The initial scale.
      growth_steps: Number of consecutive finite steps after which the scale grows; None keeps it
        fixed.
      multiplier: Factor by which the scale grows and shrinks.
    """

    def __init__(
        self, initial: float, growth_steps: int | None, multiplier: float = MULTIPLIER
    ) -> None:
        self.growth_steps = growth_steps
        self.multiplier = multiplier
        with init_scope():
            self.scale = Variable(np.float32(initial), trainable=False, name="current_loss_scale")
            self.good_steps = Variable(np.int64(0), trainable=False, name="good_steps")
            self.skipped_steps = Variable(np.int64(0), trainable=False, name="skipped_steps")

    def update(self, finite: Tensor) -> None:
        """Update the scale after a step.

        Args:
          finite: Whether the step's gradients were finite, a bool scalar.
        """
        self.skipped_steps.assign_add(math.cast(math.logical_not(finite), "int64"))
        if self.growth_steps is None:
            return
        scale, count = self.scale.value(), self.good_steps.value() + np.int64(1)
        grown = scale * np.float32(self.multiplier)
        is_due = math.greater_equal(count, np.int64(self.growth_steps))
        larger = array.where(math.logical_and(is_due, math.is_finite(grown)), grown, scale)
        smaller = math.maximum(scale / np.float32(self.multiplier), np.float32(1))
        self.scale.assign(array.where(finite, larger, smaller))
        is_counted = math.logical_and(finite, math.logical_not(is_due))
        self.good_steps.assign(array.where(is_counted, count, np.int64(0)))


class LossScale:
    """Loss scale of TensorFlow 2.1 to 2.3; see `FixedLossScale` and `DynamicLossScale`."""

    _state: ScaleState

    def __call__(self) -> Tensor:
        """Return the scale, a float32 scalar."""
        return self._state.scale.value()

    def update(self, grads: PyTree) -> tuple[None, Tensor]:
        """Update the scale after a step.

        Args:
          grads: Gradients of the step, in any structure.

        Returns:
          None, and whether to apply the gradients, a bool scalar.
        """
        finite = are_finite(nest.flatten(grads))
        self._state.update(finite)
        return None, finite

    def get_config(self) -> dict[str, Any]:
        """Return the configuration."""
        raise NotImplementedError

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Create a loss scale from its configuration."""
        return cls(**config)

    def _checkpoint_children(self) -> dict[str, Any]:
        return {"current_loss_scale": self._state.scale, "good_steps": self._state.good_steps}


class FixedLossScale(LossScale):
    """Constant loss scale.

    Args:
      loss_scale_value: The scale, at least 1.

    Raises:
      ValueError: If the scale is below 1.

    Example:
      >>> float(tf.mixed_precision.experimental.FixedLossScale(128.0)())
      128.0
    """

    def __init__(self, loss_scale_value: float) -> None:
        if not isinstance(loss_scale_value, (int, float)):
            raise ValueError("loss_scale_value must be a Python int or float.")
        if loss_scale_value < 1:
            raise ValueError("loss_scale_value must be at least 1.")
        self._value = float(loss_scale_value)
        self._state = ScaleState(self._value, None)

    def update(self, grads: PyTree) -> tuple[None, bool]:  # type: ignore[override]
        """Return (None, True): gradients are always applied, and the scale is constant."""
        del grads
        return None, True

    def get_config(self) -> dict[str, Any]:
        """Return the configuration."""
        return {"loss_scale_value": self._value}

    def __repr__(self) -> str:
        return f"FixedLossScale({self._value})"


class DynamicLossScale(LossScale):
    """Loss scale that grows while gradients are finite and shrinks when they are not.

    Args:
      initial_loss_scale: The initial scale.
      increment_period: Number of consecutive finite steps after which the scale grows.
      multiplier: Factor by which the scale grows and shrinks.

    Example:
      >>> scale = tf.mixed_precision.experimental.DynamicLossScale(8.0)
      >>> _ = scale.update([tf.constant(float("inf"))])
      >>> float(scale())
      4.0
    """

    def __init__(
        self,
        initial_loss_scale: float = DEFAULT_SCALE,
        increment_period: int = GROWTH_STEPS,
        multiplier: float = MULTIPLIER,
    ) -> None:
        self.initial_loss_scale = float(initial_loss_scale)
        self.increment_period = int(increment_period)
        self.multiplier = float(multiplier)
        self._state = ScaleState(self.initial_loss_scale, self.increment_period, self.multiplier)

    def get_config(self) -> dict[str, Any]:
        """Return the configuration."""
        return {
            "initial_loss_scale": self.initial_loss_scale,
            "increment_period": self.increment_period,
            "multiplier": self.multiplier,
        }

    def __repr__(self) -> str:
        return (
            f"DynamicLossScale(current_loss_scale={float(self())}, "
            f"num_good_steps={int(self._state.good_steps)}, "
            f"initial_loss_scale={self.initial_loss_scale}, "
            f"increment_period={self.increment_period}, multiplier={self.multiplier})"
        )


def get(identifier: str | float | dict[str, Any] | LossScale | None) -> LossScale | None:
    """Return a loss scale for 'dynamic', a number, a configuration, a `LossScale`, or None.

    Raises:
      ValueError: If `identifier` is anything else.
    """
    if identifier is None or isinstance(identifier, LossScale):
        return identifier
    if identifier == "dynamic":
        return DynamicLossScale()
    if isinstance(identifier, (int, float)):
        return FixedLossScale(identifier)
    if isinstance(identifier, dict):
        classes: dict[str, Callable[..., LossScale]] = {
            "FixedLossScale": FixedLossScale,
            "DynamicLossScale": DynamicLossScale,
        }
        if identifier.get("class_name") in classes:
            return classes[identifier["class_name"]](**identifier["config"])
    raise ValueError(
        f"Could not interpret loss scale identifier: {identifier!r}. Expected 'dynamic', a number of at least 1, "
        "a FixedLossScale or a DynamicLossScale."
    )
