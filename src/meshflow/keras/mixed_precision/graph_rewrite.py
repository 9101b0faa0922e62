"""`enable_mixed_precision_graph_rewrite`: automatic mixed precision with a scaled loss."""

from __future__ import annotations

import logging
from typing import Any

from meshflow.core.config import config_optimizer
from meshflow.keras.mixed_precision import policy as policies
from meshflow.keras.optimizers import loss_scale as scales
from meshflow.keras.optimizers.loss_scale_optimizer import LossScaleOptimizer, scale_settings

__all__ = ["disable_mixed_precision_graph_rewrite", "enable_mixed_precision_graph_rewrite"]

_log = logging.getLogger("meshflow")


def enable_mixed_precision_graph_rewrite(opt: Any, loss_scale: Any = "dynamic") -> Any:
    """Rewrites functions compiled from now on to compute in mixed precision, and scales an optimizer's loss.

    Only what runs in a `tf.function` or in Keras' `fit`, `evaluate` and `predict` is rewritten;
    variables stay in float32. `tf.mixed_precision.explain` shows what would run in which precision.

    Args:
      opt: the optimizer.
      loss_scale: 'dynamic', a number, or a `LossScale`.

    Returns:
      The optimizer, wrapped so that its loss is scaled.

    Raises:
      ValueError: when `opt` is no optimizer, is wrapped already, or a mixed policy is set.

    Example:
      >>> import meshflow as tf
      >>> optimizer = tf.train.experimental.enable_mixed_precision_graph_rewrite(
      ...     tf.keras.optimizers.Adam())
      >>> float(optimizer.loss_scale)
      32768.0
      >>> tf.train.experimental.disable_mixed_precision_graph_rewrite()
    """
    if isinstance(opt, LossScaleOptimizer):
        raise ValueError(
            f'"opt" must not already be an instance of a LossScaleOptimizer. `opt` was: {opt}'
        )
    if not hasattr(opt, "apply_gradients"):
        raise ValueError(
            f'"opt" must be an instance of a tf.train.Optimizer or a tf.keras.optimizers.Optimizer, but got: {opt!r}'
        )
    policy = policies.global_policy()
    if policy.compute_dtype != policy.variable_dtype:
        raise ValueError(
            "The mixed precision graph rewrite cannot be enabled, because the global Keras dtype Policy has been "
            f'set to a mixed precision policy: "{policy.name}". Use one or the other.'
        )
    scale = scales.get(loss_scale)
    if scale is None:
        raise ValueError("loss_scale cannot be None.")
    config_optimizer.set_experimental_options({"auto_mixed_precision": True})
    return LossScaleOptimizer(opt, **scale_settings(scale))


def disable_mixed_precision_graph_rewrite() -> None:
    """Compiles functions from now on as they are written; wrapped optimizers stay wrapped."""
    if not config_optimizer.get_experimental_options().get("auto_mixed_precision"):
        _log.warning(
            "disable_mixed_precision_graph_rewrite() called when mixed precision is already disabled."
        )
    config_optimizer.set_experimental_options({"auto_mixed_precision": False})
