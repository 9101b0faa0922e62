"""Ops that limit values and norms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from meshflow.core.dispatch.composite import IndexedSlices, accept_composites
from meshflow.core.dispatch.dispatch import op
from meshflow.core.dispatch.symbolic_calls import accept_symbolic, dispatch_composites
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.ops.array.shaping import Axes
from meshflow.ops.casting import cast
from meshflow.ops.math.arithmetic import multiply

__all__ = ["clip_by_global_norm", "clip_by_norm", "clip_by_value", "global_norm", "l2_normalize"]


@accept_composites
@op(kinds="if")
def clip_by_value(
    t: TensorLike, clip_value_min: TensorLike, clip_value_max: TensorLike, name: str | None = None
) -> Tensor:
    """Clip elements to an interval.

    Args:
      t: A tensor.
      clip_value_min: Lower end of the interval.
      clip_value_max: Upper end of the interval.
      name: Ignored.

    Returns:
      A tensor of the shape of `t`.

    Example:
      >>> tf.clip_by_value([-5.0, 0.5, 5.0], 0.0, 1.0).numpy()
      array([0. , 0.5, 1. ], dtype=float32)
    """
    # As in TensorFlow, the tensor has the full gradient at the ends of the interval. A NaN of the
    # tensor or of a limit results in NaN and has no gradient to the tensor.
    below = jnp.where(t <= clip_value_max, t, _propagate_nan(t, clip_value_max))
    return jnp.where(below >= clip_value_min, below, _propagate_nan(below, clip_value_min))


def _propagate_nan(x: jax.Array, limit: jax.Array) -> jax.Array:
    return jnp.where(x != x, jax.lax.stop_gradient(x), limit)


def scale_to_norm(t: jax.Array, clip_norm: jax.Array | float, axes: Axes = None) -> jax.Array:
    """Compute `clip_by_norm` of arrays."""
    squares = jnp.sum(t * t, axis=axes, keepdims=True)
    is_positive = squares > 0
    norm = jnp.where(is_positive, jnp.sqrt(jnp.where(is_positive, squares, 1)), squares)
    return t * clip_norm / jnp.maximum(norm, clip_norm)


@accept_composites
@op(same=("t", "clip_norm"), kinds="fc")
def clip_by_norm(
    t: TensorLike, clip_norm: TensorLike, axes: Axes = None, name: str | None = None
) -> Tensor:
    """Scale a tensor down so that its L2 norm is at most `clip_norm`, a scalar.

    Args:
      t: A tensor.
      clip_norm: The maximum norm, a positive number.
      axes: Dimensions to compute the norm over; default all.
      name: Ignored.

    Example:
      >>> print(tf.clip_by_norm([[3.0, 4.0], [0.3, 0.4]], 1.0, axes=1).numpy().round(3))
      [[0.6 0.8]
       [0.3 0.4]]
    """
    return scale_to_norm(t, clip_norm, axes)


@op(name="global_norm")
def _global_norm(t_list: Sequence[TensorLike]) -> Tensor:
    total = sum(jnp.sum(jnp.square(jnp.abs(t))) for t in t_list)
    return jnp.sqrt(jnp.asarray(total))


def global_norm(t_list: Sequence[Any], name: str | None = None) -> Tensor:
    """Compute the scalar `sqrt(sum of squares)` of all tensors of a list; None entries are skipped.

    Example:
      >>> tf.linalg.global_norm([tf.constant([3.0]), None, tf.constant([[4.0]])]).numpy().item()
      5.0
    """
    return _global_norm(
        [t.values if isinstance(t, IndexedSlices) else t for t in t_list if t is not None]
    )


@accept_symbolic
def clip_by_global_norm(
    t_list: Sequence[Any],
    clip_norm: TensorLike,
    use_norm: Tensor | None = None,
    name: str | None = None,
) -> tuple[list[Any], Tensor]:
    """Scale tensors down so that their common norm is at most `clip_norm`.

    Args:
      t_list: Tensors or values, `tf.IndexedSlices` (the norm is that of their rows), and None entries, which
        are kept.
      clip_norm: The maximum norm.
      use_norm: The common norm, if it is known already.
      name: Ignored.

    Returns:
      The scaled tensors with unchanged shapes, and the previous norm, a scalar. If the norm is not
      finite, all elements are NaN.

    Example:
      >>> clipped, norm = tf.clip_by_global_norm([tf.constant([3.0]), tf.constant([4.0])], 1.0)
      >>> float(norm), clipped[0].numpy()
      (5.0, array([0.6], dtype=float32))
    """
    t_list = [
        t if t is None or isinstance(t, IndexedSlices) else convert_to_tensor(t) for t in t_list
    ]
    norm = global_norm(t_list) if use_norm is None else use_norm
    scale = _global_scale(norm, clip_norm)

    def scale_tensor(t: Any) -> Any:
        if isinstance(t, IndexedSlices):
            return t.with_values(scale_tensor(t.values))
        return None if t is None else multiply(t, cast(scale, t.dtype))

    return [scale_tensor(t) for t in t_list], norm


@op(kinds="f")
def _global_scale(norm: TensorLike, clip_norm: TensorLike) -> Tensor:
    scale = clip_norm * jnp.minimum(1 / norm, jnp.ones((), norm.dtype) / clip_norm)
    return jnp.where(jnp.isfinite(norm), scale, jnp.nan)


def _divide_by_norm(x: TensorLike, axis: Axes, smallest: TensorLike) -> Tensor:
    squares = jnp.sum(jnp.square(jnp.abs(x)), axis=axis, keepdims=True)
    return x * (1 / jnp.sqrt(jnp.maximum(squares, smallest.astype(squares.dtype)))).astype(x.dtype)


@op(kinds="fc", name="l2_normalize")
def _l2_normalize(x: TensorLike, axis: Axes, epsilon: float) -> Tensor:
    return _divide_by_norm(x, axis, np.asarray(epsilon))


@op(same=("x",), kinds="fc", name="l2_normalize_above")
def _l2_normalize_above(x: TensorLike, epsilon: TensorLike, axis: Axes) -> Tensor:
    return _divide_by_norm(x, axis, epsilon)


@dispatch_composites
@accept_symbolic
def l2_normalize(
    x: TensorLike,
    axis: Axes = None,
    epsilon: TensorLike = 1e-12,
    name: str | None = None,
    dim: Axes = None,
) -> Tensor:
    """Scale a tensor to L2 norm 1 along dimensions: `x / sqrt(max(sum(x^2), epsilon))`.

    Args:
      x: A floating tensor.
      axis: The dimension or dimensions; default all.
      epsilon: The minimum square of the divisor; a tensor or variable may be trained.
      name: Ignored.
      dim: An older name of `axis`.

    Example:
      >>> print(tf.math.l2_normalize([[3.0, 4.0], [0.0, 2.0]], axis=1).numpy().round(3))
      [[0.6 0.8]
       [0.  1. ]]
    """
    axis = axis if dim is None else dim
    if isinstance(epsilon, (int, float)):
        return _l2_normalize(x, axis, epsilon)
    return _l2_normalize_above(x, epsilon, axis)
