"""`enable_mixed_precision_graph_rewrite`: automatic mixed precision with a scaled loss."""

from __future__ import annotations

import logging

from meshflow.core.config import config_optimizer
from meshflow.keras.mixed_precision import policy as policies
from meshflow.keras.optimizers import loss_scale as scales
from meshflow.keras.optimizers.base import Optimizer
from meshflow.keras.optimizers.loss_scale_optimizer import LossScaleOptimizer, convert_loss_scale

_log = logging.getLogger("meshflow")


def enable_mixed_precision_graph_rewrite(
    opt: Optimizer, loss_scale: str | float | scales.LossScale | None = "dynamic"
) -> LossScaleOptimizer:
    """Compile functions in mixed precision from now on, and scale the loss of an optimizer.

    Only functions that run in a `tf.function` or in `fit`, `evaluate` and `predict` are rewritten;
    variables keep float32. `tf.mixed_precision.explain` shows the precision of each operation.

    Args:
      opt: The optimizer.
      loss_scale: 'dynamic', a number, or a `LossScale`.

    Returns:
      A wrapper of the optimizer that scales the loss.

    Raises:
      ValueError: If `opt` is not an optimizer or is already wrapped, or if a mixed policy is set.

    Example:
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
    return LossScaleOptimizer(opt, **convert_loss_scale(scale))


def disable_mixed_precision_graph_rewrite() -> None:
    """Compile functions as they are written from now on; optimizers keep their wrappers."""
    if not config_optimizer.get_experimental_options().get("auto_mixed_precision"):
        _log.warning(
            "disable_mixed_precision_graph_rewrite() called when mixed precision is already disabled."
        )
    config_optimizer.set_experimental_options({"auto_mixed_precision": False})
