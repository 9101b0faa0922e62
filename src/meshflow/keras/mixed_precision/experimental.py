"""`tf.keras.mixed_precision.experimental`: names of TensorFlow 2.1 to 2.3."""

from __future__ import annotations

import logging
from typing import Any

from meshflow.environment.types import Config
from meshflow.keras.mixed_precision import policy as policies
from meshflow.keras.mixed_precision.policy import global_policy
from meshflow.keras.optimizers import loss_scale as scales
from meshflow.keras.optimizers import loss_scale_optimizer
from meshflow.keras.optimizers.base import Optimizer
from meshflow.keras.registry import CustomObjects

__all__ = ["LossScaleOptimizer", "Policy", "get_layer_policy", "global_policy", "set_policy"]

_log = logging.getLogger("meshflow")


class PolicyV1(policies.Policy):
    """Policy with a loss scale.

    Args:
      name: See `tf.keras.mixed_precision.Policy`.
      loss_scale: 'auto' (dynamic for 'mixed_float16', none otherwise), 'dynamic', a number, a
        `LossScale`, or None.

    Example:
      >>> tf.keras.mixed_precision.experimental.Policy("mixed_float16", loss_scale=128.0).loss_scale
      FixedLossScale(128.0)
    """

    def __init__(
        self, name: str, loss_scale: str | float | scales.LossScale | None = "auto"
    ) -> None:
        super().__init__(name)
        if loss_scale == "auto":
            loss_scale = "dynamic" if name == "mixed_float16" else None
        self._loss_scale = scales.get(loss_scale)
        if self._loss_scale is not None and name not in ("float16", "mixed_float16"):
            _log.warning(
                "Creating a Policy with a loss scale is only useful for float16 policies. You passed "
                f"loss_scale={loss_scale!r} for policy {name}. Consider not passing any loss_scale instead."
            )

    @property
    def loss_scale(self) -> scales.LossScale | None:
        """Return the loss scale, or None."""
        return self._loss_scale

    def get_config(self) -> Config:
        """Return the configuration."""
        scale = self._loss_scale
        if scale is None:
            return {"name": self.name, "loss_scale": None}
        stored = {"class_name": type(scale).__name__, "config": scale.get_config()}
        return {"name": self.name, "loss_scale": stored}

    @classmethod
    def from_config(cls, config: Config, custom_objects: CustomObjects = None) -> PolicyV1:
        """Create a policy from its configuration."""
        del custom_objects
        return cls(config["name"], scales.get(config.get("loss_scale")))

    def __repr__(self) -> str:
        return f'<PolicyV1 "{self.name}", loss_scale={self._loss_scale}>'


Policy = PolicyV1


def set_policy(policy: policies.Policy | str | None) -> None:
    """Set the global policy; see `tf.keras.mixed_precision.set_global_policy`.

    Args:
      policy: A policy, a name, or None.

    Example:
      >>> tf.keras.mixed_precision.experimental.set_policy("mixed_bfloat16")
      >>> tf.keras.layers.Dense(2).compute_dtype
      'bfloat16'
      >>> tf.keras.mixed_precision.experimental.set_policy("float32")
    """
    policies.set_global_policy(Policy(policy) if isinstance(policy, str) else policy)


def get_layer_policy(layer: object) -> policies.Policy:
    """Return the policy of a layer.

    Args:
      layer: The layer.

    Raises:
      ValueError: If `layer` is not a layer.

    Example:
      >>> layer = tf.keras.layers.Dense(2, dtype="mixed_bfloat16")
      >>> tf.keras.mixed_precision.experimental.get_layer_policy(layer).name
      'mixed_bfloat16'
    """
    if not hasattr(layer, "dtype_policy"):
        raise ValueError(f"get_policy can only be called on a layer, but got: {layer!r}")
    return layer.dtype_policy


class LossScaleOptimizer(loss_scale_optimizer.LossScaleOptimizer):
    """Optimizer with the arguments of TensorFlow 2.1 to 2.3.

    Args:
      optimizer: Optimizer that updates the variables.
      loss_scale: 'dynamic', a number, or a `LossScale`.

    Raises:
      ValueError: If `loss_scale` is None.
    """

    def __init__(
        self, optimizer: Optimizer, loss_scale: str | float | scales.LossScale | None
    ) -> None:
        scale = scales.get(loss_scale)
        if scale is None:
            raise ValueError("loss_scale cannot be None.")
        super().__init__(optimizer, **loss_scale_optimizer.convert_loss_scale(scale))

    @classmethod
    def from_config(cls, config: Config, custom_objects: CustomObjects = None) -> Any:
        """Create an optimizer of the base class from its configuration."""
        return loss_scale_optimizer.LossScaleOptimizer.from_config(config, custom_objects)
