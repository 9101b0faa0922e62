"""`LearningRateSchedule`: base class of learning rates that depend on the step."""

from __future__ import annotations

from typing import Any

from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.environment.types import overridable
from meshflow.ops import math


class LearningRateSchedule:
    """Base class of functions from the step count to the learning rate.

    Example:
      >>> class Halving(tf.keras.optimizers.schedules.LearningRateSchedule):
      ...     def __call__(self, step):
      ...         return 1.0 / 2.0 ** tf.cast(step, "float32")
      >>> w, optimizer = tf.Variable(0.0), tf.keras.optimizers.SGD(Halving())
      >>> for _ in range(3):
      ...     _ = optimizer.apply_gradients([(tf.constant(-1.0), w)])
      ...     print(float(w))
      1.0
      1.5
      1.75
    """

    @overridable
    def __call__(self, step: TensorLike) -> Tensor:
        """Compute the learning rate at a step, a scalar tensor."""
        raise NotImplementedError("Learning rate schedule must override __call__")

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments."""
        return {k: v for k, v in vars(self).items() if not k.startswith("_")}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> LearningRateSchedule:
        """Create a schedule from its configuration."""
        return cls(**config)

    @staticmethod
    def _cast_step(step: TensorLike) -> Tensor:
        return math.cast(convert_to_tensor(step), "float32")
