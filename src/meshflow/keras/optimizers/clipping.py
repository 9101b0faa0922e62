"""Gradient clipping by value, by norm, and by global norm."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from meshflow.core.dispatch.composite import IndexedSlices
from meshflow.core.values.tensor import Tensor
from meshflow.keras.optimizers.hyperparameters import check_number
from meshflow.ops import math


def check_clipping(
    clipnorm: float | None,
    clipvalue: float | None,
    global_clipnorm: float | None,
    gradient_transformers: Sequence[Callable[..., Any]] | None,
    *,
    accepts_negative: bool = False,
) -> None:
    """Check an optimizer's clip settings.

    Args:
      clipnorm: Maximum norm of each gradient.
      clipvalue: Maximum absolute value of each element.
      global_clipnorm: Maximum norm of all gradients together.
      gradient_transformers: Functions that cannot be combined with clipping.
      accepts_negative: Whether values may be negative, which has no effect.

    Raises:
      ValueError: If a value is negative or settings exclude each other.
    """
    settings = {"clipnorm": clipnorm, "clipvalue": clipvalue, "global_clipnorm": global_clipnorm}
    for key, value in settings.items():
        if value is not None:
            check_number("Optimizer", key, value)
        if value is not None and value < 0 and not accepts_negative:
            raise ValueError(f"Expected {key} >= 0, received: {value}")
    if clipnorm is not None and global_clipnorm is not None:
        raise ValueError(
            f"Cannot accept both `clipnorm` and `global_clipnorm`. Received: clipnorm={clipnorm}, global_clipnorm={global_clipnorm}."
        )
    if gradient_transformers and any(value is not None for value in settings.values()):
        raise ValueError(
            "`gradient_transformers` and clipping (`clipnorm`, `clipvalue`, `global_clipnorm`) cannot both be set. Clip in a transformer instead."
        )


def clip_gradients(
    grads_and_vars: list[tuple[Any, Any]],
    clipvalue: float | None,
    clipnorm: float | None,
    global_clipnorm: float | None,
) -> list[tuple[Any, Any]]:
    """Clip gradients by value, then by norm, then by global norm.

    Args:
      grads_and_vars: Pairs (gradient, variable). The rows of `IndexedSlices` are clipped.
      clipvalue: Maximum absolute value of each element, or None.
      clipnorm: Maximum norm of each gradient, or None.
      global_clipnorm: Maximum norm of all gradients together, or None.

    Returns:
      The pairs with clipped gradients.
    """
    if clipvalue is not None:
        limit = float(clipvalue)
        grads_and_vars = [
            (_map_values(g, lambda x: math.clip_by_value(x, -limit, limit)), v)
            for g, v in grads_and_vars
        ]
    if clipnorm is not None:
        norm = float(clipnorm)
        grads_and_vars = [
            (_map_values(g, lambda x: math.clip_by_norm(x, norm)), v) for g, v in grads_and_vars
        ]
    if global_clipnorm is not None:
        values = [g.values if isinstance(g, IndexedSlices) else g for g, _ in grads_and_vars]
        clipped, _ = math.clip_by_global_norm(values, float(global_clipnorm))
        grads_and_vars = [
            # mypy cannot infer the type of lambdas with defaults.
            (_map_values(g, lambda _, c=c: c), v)  # type: ignore[misc]
            for (g, v), c in zip(grads_and_vars, clipped, strict=True)
        ]
    return grads_and_vars


def _map_values(
    gradient: Tensor | IndexedSlices, function: Callable[[Tensor], Tensor]
) -> Tensor | IndexedSlices:
    if isinstance(gradient, IndexedSlices):
        return IndexedSlices(function(gradient.values), gradient.indices, gradient.dense_shape)
    return function(gradient)
