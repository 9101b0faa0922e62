"""Moments and normalization."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from meshflow.core.dispatch.dispatch import op
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.ops.math import (
    cast,
    divide_no_nan,
    in_top_k,
    l2_normalize,
    reduce_sum,
    square,
    top_k,
    zero_fraction,
)

__all__ = [
    "batch_norm_with_global_normalization",
    "batch_normalization",
    "in_top_k",
    "l2_normalize",
    "local_response_normalization",
    "lrn",
    "moments",
    "normalize_moments",
    "sufficient_statistics",
    "top_k",
    "weighted_moments",
    "zero_fraction",
]


@op(name="moments", kinds="ifc")
def _moments(x: TensorLike, axes: Any, keepdims: bool) -> Any:
    if x.dtype.kind in "iu":  # whole numbers, cut off as TensorFlow's integer means are
        mean = jnp.mean(x, axis=axes, keepdims=True).astype(x.dtype)
        variance = jnp.mean(jnp.square(x - mean), axis=axes, keepdims=keepdims)
        return mean if keepdims else jnp.squeeze(mean, axes), variance.astype(x.dtype)
    # float16 sums overflow early; TensorFlow computes these in float32 too.
    wide = x.astype(jnp.float32) if x.dtype.itemsize == 2 else x
    mean = jnp.mean(wide, axis=axes, keepdims=True)
    variance = jnp.mean(jnp.square(wide - mean), axis=axes, keepdims=keepdims)
    mean = mean if keepdims else jnp.squeeze(mean, axes)
    return mean.astype(x.dtype), variance.astype(x.dtype)


def moments(
    x: TensorLike, axes: Any, shift: Any = None, keepdims: bool = False, name: str | None = None
) -> tuple[Tensor, Tensor]:
    """Mean and variance over dimensions.

    Both results have the shape of the argument without the dimensions of `axes`; with `keepdims` these stay with
    size 1.

    Args:
      x: a tensor.
      axes: dimensions.
      shift: ignored.
      keepdims: whether the dimensions stay, with size 1.
      name: ignored.

    Returns:
      (mean, variance).

    Example:
      >>> import meshflow as tf
      >>> mean, variance = tf.nn.moments(tf.constant([[1.0, 2.0], [3.0, 6.0]]), axes=[0])
      >>> print(mean.numpy(), variance.numpy())
      [2. 4.] [1. 4.]
    """
    return tuple(_moments(x, axes if isinstance(axes, int) else list(axes), keepdims))


def weighted_moments(
    x: TensorLike,
    axes: Any,
    frequency_weights: TensorLike,
    keepdims: bool = False,
    name: str | None = None,
) -> tuple[Tensor, Tensor]:
    """Mean and variance in which elements count by weight.

    Both results have the shape of the argument without the dimensions of `axes`; with `keepdims` these stay with
    size 1.

    Args:
      x: a tensor.
      axes: dimensions.
      frequency_weights: weights, broadcasting with `x`.
      keepdims: whether the dimensions stay, with size 1.
      name: ignored.

    Returns:
      (mean, variance).

    Example:
      >>> import meshflow as tf
      >>> mean, variance = tf.nn.weighted_moments([0.0, 4.0], axes=[0], frequency_weights=[3.0, 1.0])
      >>> mean.numpy().item(), variance.numpy().item()
      (1.0, 3.0)
    """
    x = convert_to_tensor(x)
    weights = cast(convert_to_tensor(frequency_weights), x.dtype) + x * 0
    total = reduce_sum(weights, axes, True)
    mean = divide_no_nan(reduce_sum(weights * x, axes, True), total)
    variance = divide_no_nan(
        reduce_sum(weights * square(x - mean), axes, keepdims), reduce_sum(weights, axes, keepdims)
    )
    if not keepdims:
        mean = reduce_sum(mean, axes)
    return mean, variance


def sufficient_statistics(
    x: TensorLike, axes: Any, shift: Any = None, keepdims: bool = False, name: str | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Count, sum, sum of squares and shift, from which `normalize_moments` makes mean and variance.

    The count is a scalar; the sums have the shape of the argument without `axes`, which stay with size 1 under
    `keepdims`.

    Args:
      x: a tensor.
      axes: dimensions.
      shift: a number near the mean, subtracted first; None for 0.
      keepdims: whether the dimensions stay, with size 1.
      name: ignored.

    Example:
      >>> import meshflow as tf
      >>> count, total, squares, shift = tf.nn.sufficient_statistics([1.0, 2.0, 3.0], axes=[0])
      >>> count.numpy().item(), total.numpy().item(), squares.numpy().item(), shift
      (3.0, 6.0, 14.0, None)
    """
    x = convert_to_tensor(x)
    moved = x if shift is None else x - shift
    count = 1
    for axis in [axes] if isinstance(axes, int) else axes:
        count *= x.shape[axis]
    return (
        convert_to_tensor(count, dtype=x.dtype),
        reduce_sum(moved, axes, keepdims),
        reduce_sum(square(moved), axes, keepdims),
        None if shift is None else convert_to_tensor(shift, dtype=x.dtype),
    )


def normalize_moments(
    counts: TensorLike,
    mean_ss: TensorLike,
    variance_ss: TensorLike,
    shift: Any,
    name: str | None = None,
) -> tuple[Tensor, Tensor]:
    """Mean and variance from sufficient statistics.

    All results have one shape.

    Args:
      counts: number of elements.
      mean_ss: their sum, less the shift.
      variance_ss: sum of their squares, less the shift.
      shift: what was subtracted, or None.
      name: ignored.

    Returns:
      (mean, variance).

    Example:
      >>> import meshflow as tf
      >>> statistics = tf.nn.sufficient_statistics([1.0, 3.0], axes=[0])
      >>> mean, variance = tf.nn.normalize_moments(*statistics)
      >>> mean.numpy().item(), variance.numpy().item()
      (2.0, 1.0)
    """
    mean_ss, variance_ss = convert_to_tensor(mean_ss), convert_to_tensor(variance_ss)
    counts = convert_to_tensor(counts, dtype=mean_ss.dtype)
    shifted = mean_ss / counts
    mean = shifted if shift is None else shifted + shift
    return mean, variance_ss / counts - square(shifted)


@op(name="batch_normalization", same=("x",))
def _batch_normalization(
    x: TensorLike,
    mean: TensorLike,
    variance: TensorLike,
    offset: TensorLike | None,
    scale: TensorLike | None,
    variance_epsilon: float,
) -> Tensor:
    factor = 1 / jnp.sqrt(variance + jnp.asarray(variance_epsilon, variance.dtype))
    if scale is not None:
        factor = factor * scale
    shift = -mean * factor if offset is None else offset - mean * factor
    return (x * factor.astype(x.dtype) + shift.astype(x.dtype)).astype(x.dtype)


def batch_normalization(
    x: TensorLike,
    mean: TensorLike,
    variance: TensorLike,
    offset: Any,
    scale: Any,
    variance_epsilon: float,
    name: str | None = None,
) -> Tensor:
    """`(x - mean) / sqrt(variance + epsilon) * scale + offset`.

    The result has the shape of the argument.

    Args:
      x: a tensor.
      mean: mean, broadcasting to `x`.
      variance: variance, likewise.
      offset: likewise, or None.
      scale: likewise, or None.
      variance_epsilon: a small number against division by zero.
      name: ignored.

    Example:
      >>> import meshflow as tf
      >>> x = tf.constant([1.0, 3.0])
      >>> y = tf.nn.batch_normalization(
      ...     x, mean=2.0, variance=1.0, offset=10.0, scale=5.0, variance_epsilon=0.0)
      >>> print(y.numpy())
      [ 5. 15.]
    """
    return _batch_normalization(x, mean, variance, offset, scale, float(variance_epsilon))


def batch_norm_with_global_normalization(
    input: TensorLike,
    mean: TensorLike,
    variance: TensorLike,
    beta: TensorLike,
    gamma: TensorLike,
    variance_epsilon: float,
    scale_after_normalization: bool,
    name: str | None = None,
) -> Tensor:
    """An older form of `batch_normalization`: offset `beta`, and scale `gamma` only when asked for.

    The result has the shape of the argument.

    Args:
      input: a tensor.
      mean: broadcasting to `input`.
      variance: likewise.
      beta: likewise.
      gamma: likewise.
      variance_epsilon: a small number against division by zero.
      scale_after_normalization: whether `gamma` is used.
      name: ignored.

    Example:
      >>> import meshflow as tf
      >>> x = tf.constant([1.0, 3.0])
      >>> y = tf.nn.batch_norm_with_global_normalization(x, 2.0, 4.0, 10.0, 5.0, 0.0, False)
      >>> print(y.numpy())
      [ 9.5 10.5]
    """
    scale = gamma if scale_after_normalization else None
    return batch_normalization(input, mean, variance, beta, scale, variance_epsilon)


@op(kinds="f")
def local_response_normalization(
    input: TensorLike,
    depth_radius: int = 5,
    bias: float = 1,
    alpha: float = 1,
    beta: float = 0.5,
    name: str | None = None,
) -> Tensor:
    """Divides by the summed squares of neighbouring channels (Krizhevsky et al. 2012).

    Args:
      input: float tensor [batch, height, width, channels].
      depth_radius: how many channels on each side count.
      bias: added to the sum, against division by zero.
      alpha: factor of the sum.
      beta: exponent.
      name: ignored.

    Example:
      >>> import meshflow as tf
      >>> x = tf.reshape([3.0, 0.0, 4.0], [1, 1, 1, 3])
      >>> print(tf.nn.lrn(x, depth_radius=1, bias=0.0, alpha=1.0, beta=1.0)[0, 0, 0].numpy().round(3))
      [0.333 0.    0.25 ]
    """
    squares = jnp.pad(
        jnp.square(input), [(0, 0)] * (input.ndim - 1) + [(depth_radius, depth_radius)]
    )
    depth = input.shape[-1]
    total = sum(squares[..., i : i + depth] for i in range(2 * depth_radius + 1))
    return input / (bias + alpha * total) ** beta


lrn = local_response_normalization
