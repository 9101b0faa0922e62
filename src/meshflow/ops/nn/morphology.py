"""Dilation and erosion of grayscale images."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from meshflow.core.dispatch.dispatch import op
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.ops import array

__all__ = ["dilation2d", "erosion2d"]


@op(kinds="if", name="dilation2d")
def _dilate(
    input: TensorLike, filters: TensorLike, strides: Sequence[int], rates: Sequence[int], same: bool
) -> Tensor:
    if input.ndim != 4 or filters.ndim != 3 or input.shape[3] != filters.shape[2]:
        raise InvalidValueError(
            "dilation2d: input must be [batch, height, width, depth] and filters [height, width, "
            f"depth], got {list(input.shape)} and {list(filters.shape)}."
        )
    extents = [(k - 1) * r + 1 for k, r in zip(filters.shape[:2], rates, strict=True)]
    pads = [(0, 0)] * 4
    if same:
        for d in (0, 1):
            missing = (-(-input.shape[d + 1] // strides[d]) - 1) * strides[d] + extents[d]
            missing = max(missing - input.shape[d + 1], 0)
            pads[d + 1] = (missing // 2, missing - missing // 2)
    low = -jnp.inf if jnp.issubdtype(input.dtype, jnp.floating) else jnp.iinfo(input.dtype).min
    padded = jnp.pad(input, pads, constant_values=low)
    sizes = [(padded.shape[d + 1] - extents[d]) // strides[d] + 1 for d in (0, 1)]

    def add_filter_element(row: int, column: int) -> jax.Array:
        starts = row * rates[0], column * rates[1]
        ends = [s + (n - 1) * step + 1 for s, n, step in zip(starts, sizes, strides, strict=True)]
        part = jax.lax.slice(
            padded,
            (0, *starts, 0),
            (padded.shape[0], *ends, padded.shape[3]),
            (1, *strides, 1),
        )
        return part + filters[row, column]

    indices = [(r, c) for r in range(filters.shape[0]) for c in range(filters.shape[1])]
    result = add_filter_element(*indices[0])
    for index in indices[1:]:
        candidate = add_filter_element(*index)
        # The gradient flows to the first of equal elements.
        result = jnp.where(candidate > result, candidate, result)
    return result


def _get_spatial_pair(value: Sequence[int], name: str) -> tuple[int, int]:
    if len(value) != 4 or value[0] != 1 or value[3] != 1:
        raise InvalidValueError(f"{name} must be [1, rows, columns, 1], got {list(value)}.")
    return int(value[1]), int(value[2])


def dilation2d(
    input: TensorLike,
    filters: TensorLike,
    strides: Sequence[int],
    padding: str,
    data_format: str,
    dilations: Sequence[int],
    name: str | None = None,
) -> Tensor:
    """Compute the maximum of window plus filter, for each channel.

    Args:
      input: [batch, height, width, depth].
      filters: [height, width, depth].
      strides: [1, rows, columns, 1].
      padding: 'SAME' or 'VALID'.
      data_format: 'NHWC'.
      dilations: [1, rows, columns, 1], distances between the elements of a window.
      name: Ignored.

    Returns:
      Tensor [batch, new_height, new_width, depth].

    Raises:
      ValueError: For another data format.
      InvalidArgumentError: For another padding, or shapes that do not match.

    Example:
      >>> x = tf.reshape([1.0, 5.0, 2.0], [1, 1, 3, 1])
      >>> y = tf.nn.dilation2d(x, tf.zeros([1, 2, 1]), [1] * 4, "VALID", "NHWC", [1] * 4)
      >>> print(y[0, 0, :, 0].numpy())
      [5. 5.]
    """
    if data_format != "NHWC":
        raise ValueError(
            f"`data_format` values other than 'NHWC' not supported, got {data_format}."
        )
    if padding not in ("SAME", "VALID"):
        raise InvalidValueError(f"padding must be 'SAME' or 'VALID', got {padding!r}.")
    steps, rates = _get_spatial_pair(strides, "strides"), _get_spatial_pair(dilations, "dilations")
    return _dilate(input, filters, steps, rates, padding == "SAME")


def erosion2d(
    value: TensorLike,
    filters: TensorLike,
    strides: Sequence[int],
    padding: str,
    data_format: str,
    dilations: Sequence[int],
    name: str | None = None,
) -> Tensor:
    """Compute the minimum of window minus filter, for each channel.

    The arguments are those of `dilation2d`.

    Returns:
      Tensor [batch, new_height, new_width, depth].

    Example:
      >>> x = tf.reshape([1.0, 5.0, 2.0], [1, 1, 3, 1])
      >>> y = tf.nn.erosion2d(x, tf.zeros([1, 2, 1]), [1] * 4, "VALID", "NHWC", [1] * 4)
      >>> print(y[0, 0, :, 0].numpy())
      [1. 2.]
    """
    flipped = array.reverse(convert_to_tensor(filters), [0, 1])
    return -dilation2d(-convert_to_tensor(value), flipped, strides, padding, data_format, dilations)
