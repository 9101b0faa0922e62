"""Max and average pooling."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import jax
import jax.numpy as jnp

from meshflow.core.dispatch.dispatch import op
from meshflow.core.dispatch.operands import to_static_value
from meshflow.core.runtime.errors import InvalidValueError, UnimplementedError
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import DType, DTypeLike, as_dtype
from meshflow.core.values.symbolic_sizes import as_size
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.ops.nn.convolution import (
    Padding,
    Sizes,
    check_window_fits,
    is_channels_first,
    normalize_padding,
    normalize_sizes,
)
from meshflow.ops.nn.windows import Windows, argmax_windows, max_windows, sum_windows

__all__ = [
    "avg_pool",
    "avg_pool1d",
    "avg_pool2d",
    "avg_pool3d",
    "max_pool",
    "max_pool1d",
    "max_pool2d",
    "max_pool3d",
    "max_pool_with_argmax",
    "pool",
]
T = TypeVar("T")


def _make_windows(
    shape: tuple[int, ...],
    size: Sequence[int],
    strides: Sequence[int],
    padding: Padding,
    dilations: Sequence[int] | None,
    first: bool,
) -> Windows:
    def add_batch_and_channels(values: Sequence[T], default: T) -> tuple[T, ...]:
        return (default, default, *values) if first else (default, *values, default)

    rank = len(size)
    check_window_fits(shape[2:] if first else shape[1:-1], size, dilations, padding)
    size, strides = add_batch_and_channels(size, 1), add_batch_and_channels(strides, 1)
    dilations = add_batch_and_channels(dilations or (1,) * rank, 1)
    pairs: Sequence[Sequence[int]]
    if isinstance(padding, str):
        extents = tuple((k - 1) * d + 1 for k, d in zip(size, dilations, strict=True))
        pairs = jax.lax.padtype_to_pads(shape, extents, strides, padding)
    else:
        pairs = add_batch_and_channels(padding, (0, 0))
    pads = tuple((as_size(low), as_size(high)) for low, high in pairs)
    return Windows(size, strides, pads, dilations)


@op(name="max_pool", kinds="if")
def _max_pool(
    input: TensorLike,
    window: Sequence[int],
    strides: Sequence[int],
    padding: Padding,
    first: bool,
    dilations: Sequence[int] | None = None,
) -> Tensor:
    return max_windows(
        input, _make_windows(input.shape, window, strides, padding, dilations, first)
    )


@op(name="avg_pool", kinds="f")
def _avg_pool(
    input: TensorLike,
    window: Sequence[int],
    strides: Sequence[int],
    padding: Padding,
    first: bool,
    dilations: Sequence[int] | None = None,
) -> Tensor:
    windows = _make_windows(input.shape, window, strides, padding, dilations, first)
    wide = input.astype(jnp.float32) if input.dtype.itemsize == 2 else input
    total = sum_windows(wide, windows)
    if all(pair == (0, 0) for pair in windows.pads):
        return (total / windows.count).astype(input.dtype)
    # Positions outside of the input are not counted.
    inside = tuple(
        n if i in _get_spatial_axes(input.ndim, first) else 1 for i, n in enumerate(input.shape)
    )
    return (total / sum_windows(jnp.ones(inside, wide.dtype), windows)).astype(input.dtype)


def _get_spatial_axes(rank: int, first: bool) -> range:
    return range(2, rank) if first else range(1, rank - 1)


@op(name="max_pool_with_argmax", kinds="if")
def _max_pool_with_argmax(
    input: TensorLike,
    window: Sequence[int],
    strides: Sequence[int],
    padding: Padding,
    dtype: DType,
    batch: bool,
) -> tuple[Tensor, Tensor]:
    windows = _make_windows(input.shape, window, strides, padding, None, False)
    y, index = argmax_windows(input, windows)
    if batch:
        size = input.size // max(input.shape[0], 1)
        index = index + jnp.arange(input.shape[0], dtype=jnp.int64)[:, None, None, None] * size
    return y, index.astype(dtype)


def _apply_pooling(
    function: Callable[..., Tensor],
    input: TensorLike,
    ksize: Sizes,
    strides: Sizes | None,
    padding: Padding,
    data_format: str | None,
    rank: int | None,
    dilations: Sequence[int] | None = None,
) -> Tensor:
    input, first = convert_to_tensor(input), is_channels_first(data_format)
    if rank is None:
        rank = len(input.shape) - 2
    depth = _get_window_depth(ksize, rank, first)
    if depth > 1 and function is _max_pool:
        return _pool_channels(input, ksize, strides, first, depth)
    window = normalize_sizes(ksize, rank, first, "ksize")
    steps = normalize_sizes(1 if strides is None else strides, rank, first, "strides")
    if len(input.shape) != rank + 2:
        raise InvalidValueError(
            f"pooling expects input of rank {rank + 2}, got shape {tuple(input.shape)}."
        )
    pads = normalize_padding(padding, rank, first)
    return function(input, window, steps, pads, first, dilations)


def _get_window_depth(ksize: Sizes, rank: int, first: bool) -> int:
    """Return the number of channels of a window."""
    sizes = to_static_value(ksize, "ksize")
    has_channels = isinstance(sizes, tuple) and len(sizes) == rank + 2
    return sizes[1 if first else -1] if has_channels else 1


def _pool_channels(
    input: Tensor, ksize: Sizes, strides: Sizes | None, first: bool, depth: int
) -> Tensor:
    """Compute maxima of groups of channels; TensorFlow only supports windows that tile them."""
    sizes, axis = to_static_value(ksize, "ksize"), 1 if first else len(input.shape) - 1
    others = [size for i, size in enumerate(sizes) if i != axis]
    tiles = to_static_value(strides, "strides") == sizes
    if others != [1] * len(others) or not tiles or input.shape[axis] % depth:
        raise UnimplementedError(
            "max_pool over channels requires a window of size 1 in all other dimensions, strides equal to ksize, and a "
            f"number of channels that is divisible by ksize; got ksize {list(sizes)}, strides {strides} and "
            f"{input.shape[axis]} channels."
        )
    return _pool_channel_groups(input, depth, axis)


@op(name="max_pool")
def _pool_channel_groups(input: TensorLike, depth: int, axis: int) -> Tensor:
    sizes = input.shape
    grouped = input.reshape(*sizes[:axis], sizes[axis] // depth, depth, *sizes[axis + 1 :])
    return grouped.max(axis + 1)


def max_pool(
    input: TensorLike,
    ksize: Sizes,
    strides: Sizes | None,
    padding: Padding,
    data_format: str | None = None,
    name: str | None = None,
) -> Tensor:
    """Compute the maximum of each window.

    Args:
      input: Tensor of shape [batch, *spatial, channels] (or channels first) with 1 to 3 spatial
        dimensions.
      ksize: Window size per spatial dimension.
      strides: Strides of the window; None for 1.
      padding: 'SAME', 'VALID' or explicit pairs.
      data_format: Data format, for example 'NHWC' or 'NCHW'.
      name: Ignored.

    Returns:
      A tensor in the layout of the input.

    Example:
      >>> tf.nn.max_pool(tf.reshape(tf.range(4.0), [1, 2, 2, 1]), 2, 2, "VALID").numpy().item()
      3.0
    """
    return _apply_pooling(_max_pool, input, ksize, strides, padding, data_format, None)


def avg_pool(
    input: TensorLike,
    ksize: Sizes,
    strides: Sizes | None,
    padding: Padding,
    data_format: str | None = None,
    name: str | None = None,
) -> Tensor:
    """Compute the mean of each window, without padding; the arguments are those of `max_pool`.

    The result has the shape [batch, *new_spatial, channels], or channels first for 'NC...'.

    Example:
      >>> x = tf.reshape([1.0, 3.0, 5.0, 9.0], [1, 2, 2, 1])
      >>> tf.nn.avg_pool(x, ksize=2, strides=2, padding="VALID").numpy().item()
      4.5
    """
    return _apply_pooling(_avg_pool, input, ksize, strides, padding, data_format, None)


def max_pool1d(
    input: TensorLike,
    ksize: Sizes,
    strides: Sizes | None,
    padding: Padding,
    data_format: str = "NWC",
    name: str | None = None,
) -> Tensor:
    """Apply `max_pool` to [batch, steps, channels], or [batch, channels, steps] for 'NCW'.

    Example:
      >>> x = tf.reshape([1.0, 3.0, 2.0, 5.0], [1, 4, 1])
      >>> print(tf.nn.max_pool1d(x, ksize=2, strides=2, padding="VALID")[0, :, 0].numpy())
      [3. 5.]
    """
    return _apply_pooling(_max_pool, input, ksize, strides, padding, data_format, 1)


def max_pool2d(
    input: TensorLike,
    ksize: Sizes,
    strides: Sizes | None,
    padding: Padding,
    data_format: str = "NHWC",
    name: str | None = None,
) -> Tensor:
    """Apply `max_pool` to [batch, height, width, channels], or channels first for 'NCHW'.

    Example:
      >>> x = tf.reshape(tf.range(9.0), [1, 3, 3, 1])
      >>> print(tf.nn.max_pool2d(x, ksize=2, strides=1, padding="VALID")[0, :, :, 0].numpy())
      [[4. 5.]
       [7. 8.]]
    """
    return _apply_pooling(_max_pool, input, ksize, strides, padding, data_format, 2)


def max_pool3d(
    input: TensorLike,
    ksize: Sizes,
    strides: Sizes | None,
    padding: Padding,
    data_format: str = "NDHWC",
    name: str | None = None,
) -> Tensor:
    """Apply `max_pool` to [batch, depth, height, width, channels], or channels first for 'NCDHW'.

    Example:
      >>> x = tf.reshape(tf.range(8.0), [1, 2, 2, 2, 1])
      >>> tf.nn.max_pool3d(x, ksize=2, strides=2, padding="VALID").numpy().item()
      7.0
    """
    return _apply_pooling(_max_pool, input, ksize, strides, padding, data_format, 3)


def avg_pool1d(
    input: TensorLike,
    ksize: Sizes,
    strides: Sizes | None,
    padding: Padding,
    data_format: str = "NWC",
    name: str | None = None,
) -> Tensor:
    """Apply `avg_pool` to [batch, steps, channels], or [batch, channels, steps] for 'NCW'.

    Example:
      >>> x = tf.reshape([1.0, 3.0, 2.0], [1, 3, 1])
      >>> print(tf.nn.avg_pool1d(x, ksize=2, strides=2, padding="SAME")[0, :, 0].numpy())
      [2. 2.]
    """
    return _apply_pooling(_avg_pool, input, ksize, strides, padding, data_format, 1)


def avg_pool2d(
    input: TensorLike,
    ksize: Sizes,
    strides: Sizes | None,
    padding: Padding,
    data_format: str = "NHWC",
    name: str | None = None,
) -> Tensor:
    """Apply `avg_pool` to [batch, height, width, channels], or channels first for 'NCHW'.

    Example:
      >>> x = tf.reshape(tf.range(9.0), [1, 3, 3, 1])
      >>> print(tf.nn.avg_pool2d(x, ksize=2, strides=1, padding="VALID")[0, :, :, 0].numpy())
      [[2. 3.]
       [5. 6.]]
    """
    return _apply_pooling(_avg_pool, input, ksize, strides, padding, data_format, 2)


def avg_pool3d(
    input: TensorLike,
    ksize: Sizes,
    strides: Sizes | None,
    padding: Padding,
    data_format: str = "NDHWC",
    name: str | None = None,
) -> Tensor:
    """Apply `avg_pool` to [batch, depth, height, width, channels], or channels first for 'NCDHW'.

    Example:
      >>> x = tf.reshape(tf.range(8.0), [1, 2, 2, 2, 1])
      >>> tf.nn.avg_pool3d(x, ksize=2, strides=2, padding="VALID").numpy().item()
      3.5
    """
    return _apply_pooling(_avg_pool, input, ksize, strides, padding, data_format, 3)


def max_pool_with_argmax(
    input: TensorLike,
    ksize: Sizes,
    strides: Sizes | None,
    padding: str,
    data_format: str = "NHWC",
    output_dtype: DTypeLike = "int64",
    include_batch_in_index: bool = False,
    name: str | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute the maximum of each window and its position.

    Args:
      input: Tensor of shape [batch, height, width, channels].
      ksize: Window size per spatial dimension.
      strides: Strides of the window.
      padding: 'SAME' or 'VALID'.
      data_format: Must be 'NHWC'.
      output_dtype: The dtype of the positions, int32 or int64.
      include_batch_in_index: Whether positions are indices into the batch instead of the image.
      name: Ignored.

    Returns:
      (output, argmax): positions are `(y * width + x) * channels + channel` of the first maximum.

    Raises:
      ValueError: For another layout or explicit padding.

    Example:
      >>> x = tf.reshape(tf.constant([1.0, 4.0, 3.0, 2.0]), [1, 2, 2, 1])
      >>> tf.nn.max_pool_with_argmax(x, 2, 2, "VALID")[1].numpy().item()
      1
    """
    if data_format != "NHWC":
        raise ValueError(f"Attr 'data_format' of '{data_format}' is not in ['NHWC'].")
    if not isinstance(padding, str):
        raise ValueError(f"padding must be 'SAME' or 'VALID', got {padding!r}.")
    if isinstance(input, Tensor) and len(input.shape) != 4:
        raise InvalidValueError(
            f"max_pool_with_argmax expects input of rank 4, got shape {tuple(input.shape)}."
        )
    return _max_pool_with_argmax(
        input,
        normalize_sizes(ksize, 2, False, "ksize"),
        normalize_sizes(strides, 2, False, "strides"),
        normalize_padding(padding, 2, False),
        as_dtype(output_dtype),
        include_batch_in_index,
    )


def pool(
    input: TensorLike,
    window_shape: Sequence[int],
    pooling_type: str,
    strides: Sizes | None = None,
    padding: Padding = "VALID",
    data_format: str | None = None,
    dilations: Sizes | None = None,
    name: str | None = None,
) -> Tensor:
    """Apply max or average pooling to any number of spatial dimensions.

    Args:
      input: Tensor of shape [batch, *spatial, channels] (or channels first).
      window_shape: Window size per spatial dimension.
      pooling_type: 'AVG' or 'MAX'.
      strides: Strides of the window; 1 by default.
      padding: 'SAME', 'VALID' or explicit pairs.
      data_format: Data format, for example 'NHWC' or 'NCHW'.
      dilations: Distances between the elements of a window; 1 by default.
      name: Ignored.

    Returns:
      A tensor in the layout of the input.

    Raises:
      ValueError: For another pooling type, or dilations together with strides.

    Example:
      >>> x = tf.reshape([1.0, 9.0, 2.0, 5.0], [1, 4, 1])
      >>> print(tf.nn.pool(x, [2], "MAX", dilations=[2])[0, :, 0].numpy())
      [2. 9.]
    """
    rank = len(to_static_value(window_shape, "window_shape"))
    first = is_channels_first(data_format)
    steps = normalize_sizes(strides, rank, first, "strides")
    distances = normalize_sizes(dilations, rank, first, "dilations")
    if max(steps) > 1 and max(distances) > 1:
        raise ValueError(
            f"`strides > 1` not supported in conjunction with `dilations > 1`. Received: strides={list(steps)} and "
            f"dilations={list(distances)}"
        )
    if pooling_type not in ("AVG", "MAX"):
        raise ValueError(f"pooling_type must be 'AVG' or 'MAX', got {pooling_type!r}.")
    function = _max_pool if pooling_type == "MAX" else _avg_pool
    return _apply_pooling(
        function, input, window_shape, steps, padding, data_format, rank, distances
    )
