"""Clipping of gradients by value, by each one's norm, and by their common norm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meshflow.core.dispatch.composite import IndexedSlices
from meshflow.keras.optimizers.hyper import check_number
from meshflow.ops import math


def check_clipping(
    clipnorm: float | None,
    clipvalue: float | None,
    global_clipnorm: float | None,
    gradient_transformers: Any,
) -> None:
    """Checks an optimizer's clip settings.

    Args:
      clipnorm: limit of each gradient's norm.
      clipvalue: limit of each element.
      global_clipnorm: limit of the norm of all gradients together.
      gradient_transformers: functions that exclude clipping.

    Raises:
      ValueError: for negative values or settings that exclude each other.
    """
    settings = {"clipnorm": clipnorm, "clipvalue": clipvalue, "global_clipnorm": global_clipnorm}
    for key, value in settings.items():
        if value is not None:
            check_number("Optimizer", key, value)
        if value is not None and value < 0:
            raise ValueError(f"Expected {key} >= 0, received: {value}")
    if clipnorm is not None and global_clipnorm is not None:
        raise ValueError(
            f"Cannot accept both `clipnorm` and `global_clipnorm`. Received: clipnorm={clipnorm}, global_clipnorm={global_clipnorm}."
        )
    if gradient_transformers and any(value is not None for value in settings.values()):
        raise ValueError(
            "`gradient_transformers` and clipping (`clipnorm`, `clipvalue`, `global_clipnorm`) cannot be set both: put the clipping into a transformer."
        )


def clip_gradients(
    grads_and_vars: list[tuple[Any, Any]],
    clipvalue: float | None,
    clipnorm: float | None,
    global_clipnorm: float | None,
) -> list[tuple[Any, Any]]:
    """Clips gradients, in the order value, norm, common norm.

    Args:
      grads_and_vars: pairs (gradient, variable); of `IndexedSlices` the rows are clipped.
      clipvalue: limit of each element, or None.
      clipnorm: limit of each gradient's norm, or None.
      global_clipnorm: limit of the norm of all gradients together, or None.

    Returns:
      The pairs with clipped gradients.
    """
    if clipvalue is not None:
        limit = float(clipvalue)
        grads_and_vars = [
            (_on_values(g, lambda x: math.clip_by_value(x, -limit, limit)), v)
            for g, v in grads_and_vars
        ]
    if clipnorm is not None:
        norm = float(clipnorm)
        grads_and_vars = [
            (_on_values(g, lambda x: math.clip_by_norm(x, norm)), v) for g, v in grads_and_vars
        ]
    if global_clipnorm is not None:
        values = [g.values if isinstance(g, IndexedSlices) else g for g, _ in grads_and_vars]
        clipped, _ = math.clip_by_global_norm(values, float(global_clipnorm))
        grads_and_vars = [
            # mypy does not infer lambdas with defaults.
            (_on_values(g, lambda _, c=c: c), v)  # type: ignore[misc]
            for (g, v), c in zip(grads_and_vars, clipped, strict=True)
        ]
    return grads_and_vars


def _on_values(gradient: Any, function: Callable[[Any], Any]) -> Any:
    if isinstance(gradient, IndexedSlices):
        return IndexedSlices(function(gradient.values), gradient.indices, gradient.dense_shape)
    return function(gradient)
