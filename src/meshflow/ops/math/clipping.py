"""Limiting values and norms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from meshflow.core.dispatch.composite import IndexedSlices, on_rows
from meshflow.core.dispatch.dispatch import op
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.ops.casting import cast
from meshflow.ops.math.arithmetic import multiply

__all__ = ["clip_by_global_norm", "clip_by_norm", "clip_by_value", "global_norm", "l2_normalize"]


@on_rows
@op(kinds="if")
def clip_by_value(
    t: TensorLike, clip_value_min: TensorLike, clip_value_max: TensorLike, name: str | None = None
) -> Tensor:
    """Moves elements into an interval.

    Args:
      t: a tensor.
      clip_value_min: lower end.
      clip_value_max: upper end.
      name: ignored.

    Returns:
      A tensor of the shape of `t`.

    Example:
      >>> import meshflow as tf
      >>> tf.clip_by_value([-5.0, 0.5, 5.0], 0.0, 1.0).numpy()
      array([0. , 0.5, 1. ], dtype=float32)
    """
    # At the ends of the interval the whole gradient goes to the tensor, as in TensorFlow.
    # NaN stays, whether the tensor has it or a limit, and passes no gradient to the tensor.
    below = jnp.where(t <= clip_value_max, t, _or_nan(t, clip_value_max))
    return jnp.where(below >= clip_value_min, below, _or_nan(below, clip_value_min))


def _or_nan(x: Any, limit: Any) -> Any:
    return jnp.where(x != x, jax.lax.stop_gradient(x), limit)


@on_rows
@op(same=("t", "clip_norm"), kinds="fc")
def clip_by_norm(
    t: TensorLike, clip_norm: TensorLike, axes: Any = None, name: str | None = None
) -> Tensor:
    """Scales a tensor down so that its L2 norm is at most `clip_norm`.

    The result has the shape of the argument.

    Args:
      t: a tensor.
      clip_norm: the largest norm, a positive number.
      axes: dimensions to compute the norm over; default all.
      name: ignored.

    Example:
      >>> import meshflow as tf
      >>> print(tf.clip_by_norm([[3.0, 4.0], [0.3, 0.4]], 1.0, axes=1).numpy().round(3))
      [[0.6 0.8]
       [0.3 0.4]]
    """
    squares = jnp.sum(t * t, axis=axes, keepdims=True)
    positive = squares > 0
    norm = jnp.where(positive, jnp.sqrt(jnp.where(positive, squares, 1)), squares)
    return t * clip_norm / jnp.maximum(norm, clip_norm)


@op(name="global_norm")
def _global_norm(t_list: Sequence[TensorLike]) -> Tensor:
    total = sum(jnp.sum(jnp.square(jnp.abs(t))) for t in t_list)
    return jnp.sqrt(jnp.asarray(total))


def global_norm(t_list: Any, name: str | None = None) -> Tensor:
    """`sqrt(sum of squares)` over all tensors of a list; None entries count as absent.

    The result is a scalar.

    Example:
      >>> import meshflow as tf
      >>> tf.linalg.global_norm([tf.constant([3.0]), None, tf.constant([[4.0]])]).numpy().item()
      5.0
    """
    return _global_norm(
        [t.values if isinstance(t, IndexedSlices) else t for t in t_list if t is not None]
    )


def clip_by_global_norm(
    t_list: Any, clip_norm: TensorLike, use_norm: Any = None, name: str | None = None
) -> tuple[list[Any], Tensor]:
    """Scales tensors down so that their common norm is at most `clip_norm`.

    All tensors keep their shapes; the norm is a scalar.

    Args:
      t_list: tensors and `tf.IndexedSlices`, of which the rows count as given; None entries stay None.
      clip_norm: the largest norm.
      use_norm: the norm, when known already.
      name: ignored.

    Returns:
      The scaled tensors and the norm before. NaN everywhere when the norm is not finite.

    Example:
      >>> import meshflow as tf
      >>> clipped, norm = tf.clip_by_global_norm([tf.constant([3.0]), tf.constant([4.0])], 1.0)
      >>> float(norm), clipped[0].numpy()
      (5.0, array([0.6], dtype=float32))
    """
    norm = global_norm(t_list) if use_norm is None else use_norm
    scale = _global_scale(norm, clip_norm)

    def scaled(t: Any) -> Any:
        if isinstance(t, IndexedSlices):
            return t.with_values(scaled(t.values))
        return None if t is None else multiply(t, cast(scale, t.dtype))

    return [scaled(t) for t in t_list], norm


@op(kinds="f")
def _global_scale(norm: TensorLike, clip_norm: TensorLike) -> Tensor:
    scale = clip_norm * jnp.minimum(1 / norm, jnp.ones((), norm.dtype) / clip_norm)
    return jnp.where(jnp.isfinite(norm), scale, jnp.nan)


@op(kinds="fc")
def l2_normalize(
    x: TensorLike,
    axis: Any = None,
    epsilon: float = 1e-12,
    name: str | None = None,
    dim: Any = None,
) -> Tensor:
    """Scales to L2 norm 1 along dimensions: `x / sqrt(max(sum(x^2), epsilon))`.

    The result has the shape of the argument.

    Args:
      x: a floating tensor.
      axis: the dimension or dimensions; default all.
      epsilon: the least divisor, squared.
      name: ignored.
      dim: an older name of `axis`.

    Example:
      >>> import meshflow as tf
      >>> print(tf.math.l2_normalize([[3.0, 4.0], [0.0, 2.0]], axis=1).numpy().round(3))
      [[0.6 0.8]
       [0.  1. ]]
    """
    squares = jnp.sum(jnp.square(jnp.abs(x)), axis=axis if dim is None else dim, keepdims=True)
    return x * (1 / jnp.sqrt(jnp.maximum(squares, jnp.asarray(epsilon, squares.dtype)))).astype(
        x.dtype
    )
