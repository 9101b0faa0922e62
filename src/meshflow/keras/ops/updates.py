"""Slices of tensors, and tensors with replaced parts.

Example:
  >>> ops.slice_update([1, 2, 3], [1], [8, 9]).numpy().tolist()
  [1, 8, 9]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from meshflow.core.dispatch.dispatch import op
from meshflow.core.values.shapes import ShapeLike
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.keras.ops.graph_calls import as_single_layer
from meshflow.keras.ops.promotion import as_tensor
from meshflow.ops import array as array_ops
from meshflow.ops import casting

__all__ = ["scatter", "scatter_update", "slice", "slice_update", "unstack"]


@as_single_layer()
def scatter(indices: TensorLike, values: TensorLike, shape: ShapeLike) -> Tensor:
    """Scatter values into zeros; values with equal indices are summed.

    Args:
      indices: Indices of the first d axes, [n, d].
      values: [n, ...].
      shape: Shape of the result.

    Example:
      >>> ops.scatter([[0], [2]], [1.0, 2.0], [3]).numpy().tolist()
      [1.0, 0.0, 2.0]
    """
    return array_ops.scatter_nd(as_tensor(indices), as_tensor(values), shape)


@as_single_layer()
def scatter_update(
    inputs: TensorLike, indices: TensorLike, updates: TensorLike, reduction: str | None = None
) -> Tensor:
    """Update elements of a tensor.

    Args:
      inputs: The tensor.
      indices: Indices of the first d axes, [n, d].
      updates: [n, ...].
      reduction: None to replace, or 'add', 'max', 'min', 'mul'.

    Example:
      >>> ops.scatter_update([1, 2, 3], [[1]], [9]).numpy().tolist()
      [1, 9, 3]
    """
    inputs, updates = as_tensor(inputs), as_tensor(updates)
    updates = casting.cast(updates, inputs.dtype)
    updates_by_reduction: dict[str | None, Any] = {
        None: array_ops.tensor_scatter_nd_update,
        "add": array_ops.tensor_scatter_nd_add,
        "max": array_ops.tensor_scatter_nd_max,
        "min": array_ops.tensor_scatter_nd_min,
        "mul": _scatter_mul,
    }
    if reduction not in updates_by_reduction:
        raise ValueError(
            f"Unsupported reduction: {reduction}; expected one of {list(updates_by_reduction)}."
        )
    return updates_by_reduction[reduction](inputs, as_tensor(indices), updates)


@op(same=("x", "updates"), name="scatter_mul")
def _scatter_mul(x: TensorLike, indices: TensorLike, updates: TensorLike) -> Any:
    return x.at[tuple(jnp.moveaxis(indices, -1, 0))].multiply(updates)


def slice(inputs: TensorLike, start_indices: TensorLike, shape: ShapeLike) -> Tensor:
    """Extract a slice of a tensor.

    Args:
      inputs: The tensor.
      start_indices: Start of the slice in each axis.
      shape: Shape of the slice.

    Example:
      >>> ops.slice([1, 2, 3, 4], [1], [2]).numpy().tolist()
      [2, 3]
    """
    return array_ops.slice(as_tensor(inputs), start_indices, shape)


@op(same=("x", "updates"), name="slice_update")
def _slice_update(x: TensorLike, starts: Sequence[TensorLike], updates: TensorLike) -> Any:
    return jax.lax.dynamic_update_slice(x, updates, starts)


@as_single_layer()
def slice_update(inputs: TensorLike, start_indices: TensorLike, updates: TensorLike) -> Tensor:
    """Replace a slice of a tensor.

    Args:
      inputs: The tensor.
      start_indices: Start of the slice in each axis.
      updates: The new values.

    Example:
      >>> ops.slice_update([1, 2, 3], [1], [8, 9]).numpy().tolist()
      [1, 8, 9]
    """
    inputs = as_tensor(inputs)
    starts = array_ops.unstack(casting.cast(as_tensor(start_indices), "int32"))
    return _slice_update(inputs, starts, casting.cast(as_tensor(updates), inputs.dtype))


@as_single_layer()
def unstack(x: TensorLike, num: int | None = None, axis: int = 0) -> list[Tensor]:
    """Split a tensor into slices along an axis.

    Args:
      x: A tensor.
      num: Number of slices, if the size of the axis is unknown.
      axis: The axis.

    Example:
      >>> [int(v) for v in ops.unstack([1, 2])]
      [1, 2]
    """
    return list(array_ops.unstack(as_tensor(x), num, axis))
