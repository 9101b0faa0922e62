"""Moments, batch normalization and local response normalization."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax

from meshflow.core.dispatch.dispatch import op
from meshflow.core.dispatch.symbolic_calls import dispatch_composites
from meshflow.core.runtime.broadcasting import combine
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.ops.array.shaping import normalize_axis
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
from meshflow.ops.math.reductions import divide_by_count

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
def _moments(x: TensorLike, axes: int | Sequence[int], keepdims: bool) -> tuple[Tensor, Tensor]:
    if x.dtype.kind in "iu":  # TensorFlow truncates integer means, too.
        mean = jnp.mean(x, axis=axes, keepdims=True).astype(x.dtype)
        variance = jnp.mean(jnp.square(x - mean), axis=axes, keepdims=keepdims)
        return mean if keepdims else jnp.squeeze(mean, axes), variance.astype(x.dtype)
    # Sums of float16 overflow early, so they are computed in float32, as in TensorFlow.
    wide = lax.convert_element_type(x, jnp.float32) if x.dtype.itemsize == 2 else x
    axes = [axes] if isinstance(axes, int) else axes
    axes = tuple(normalize_axis(axis, x.ndim, "moments") for axis in axes)
    mean, variance = _compute_moments(wide, axes)
    if not keepdims:
        mean, variance = lax.squeeze(mean, axes), lax.squeeze(variance, axes)
    return tuple(
        a if a.dtype == x.dtype else lax.convert_element_type(a, x.dtype) for a in (mean, variance)
    )


# The functions of `lax` are traced several times as fast as those of `jax.numpy`.
def _average(x: jax.Array, axes: tuple[int, ...]) -> jax.Array:
    return lax.expand_dims(divide_by_count(lax.reduce_sum(x, axes), x, axes), axes)


def _average_squares(x: jax.Array, axes: tuple[int, ...]) -> tuple[jax.Array, jax.Array]:
    mean = _average(x, axes)
    return mean, _average(lax.square(lax.sub(x, mean)), axes)


_compute_moments = jax.custom_jvp(_average_squares, nondiff_argnums=(1,))


@_compute_moments.defjvp
def _moments_jvp(
    axes: tuple[int, ...], primals: tuple[jax.Array], tangents: tuple[jax.Array]
) -> tuple[tuple[jax.Array, jax.Array], tuple[jax.Array, jax.Array]]:
    (x,), (tangent,) = primals, tangents
    mean, variance = _average_squares(x, axes)
    # The variance does not depend on the mean, because the centered values have the sum 0.
    change = _average(lax.mul(lax.sub(x, mean), tangent), axes)
    return (mean, variance), (_average(tangent, axes), lax.mul(x.dtype.type(2), change))


@dispatch_composites
def moments(
    x: TensorLike,
    axes: int | Sequence[int] | None,
    shift: TensorLike = None,
    keepdims: bool = False,
    name: str | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute the mean and the variance over axes.

    Args:
      x: A tensor.
      axes: The axes to reduce; None for all.
      shift: Ignored.
      keepdims: Whether to keep the reduced axes, with size 1.
      name: Ignored.

    Returns:
      (mean, variance).

    Example:
      >>> mean, variance = tf.nn.moments(tf.constant([[1.0, 2.0], [3.0, 6.0]]), axes=[0])
      >>> print(mean.numpy(), variance.numpy())
      [2. 4.] [1. 4.]
    """
    if axes is None:
        axes = range(len(convert_to_tensor(x).shape))
    return tuple(_moments(x, axes, keepdims))


def weighted_moments(
    x: TensorLike,
    axes: int | Sequence[int],
    frequency_weights: TensorLike,
    keepdims: bool = False,
    name: str | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute the weighted mean and variance over axes.

    `frequency_weights` is broadcast to `x`; the other arguments are those of `moments`.

    Returns:
      (mean, variance).

    Example:
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
    x: TensorLike,
    axes: int | Sequence[int],
    shift: TensorLike = None,
    keepdims: bool = False,
    name: str | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Compute the count, sum, sum of squares and shift, for `normalize_moments`.

    Args:
      x: A tensor.
      axes: The axes to reduce.
      shift: A value near the mean, which is subtracted first; None for 0.
      keepdims: Whether to keep the reduced axes, with size 1.
      name: Ignored.

    Returns:
      (count, sum, sum of squares, shift); the count is a scalar, and the shift may be None.

    Example:
      >>> count, total, squares, shift = tf.nn.sufficient_statistics([1.0, 2.0, 3.0], axes=[0])
      >>> count.numpy().item(), total.numpy().item(), squares.numpy().item(), shift
      (3.0, 6.0, 14.0, None)
    """
    x = convert_to_tensor(x)
    shifted = x if shift is None else x - shift
    count = 1
    for axis in [axes] if isinstance(axes, int) else axes:
        count *= x.shape[axis]
    return (
        convert_to_tensor(count, dtype=x.dtype),
        reduce_sum(shifted, axes, keepdims),
        reduce_sum(square(shifted), axes, keepdims),
        None if shift is None else convert_to_tensor(shift, dtype=x.dtype),
    )


def normalize_moments(
    counts: TensorLike,
    mean_ss: TensorLike,
    variance_ss: TensorLike,
    shift: TensorLike | None,
    name: str | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute the mean and the variance from sufficient statistics.

    Args:
      counts: Number of elements.
      mean_ss: Sum of the shifted elements.
      variance_ss: Sum of the squares of the shifted elements.
      shift: The value that was subtracted from the elements, or None.
      name: Ignored.

    Returns:
      (mean, variance).

    Example:
      >>> statistics = tf.nn.sufficient_statistics([1.0, 3.0], axes=[0])
      >>> mean, variance = tf.nn.normalize_moments(*statistics)
      >>> mean.numpy().item(), variance.numpy().item()
      (2.0, 1.0)
    """
    mean_ss, variance_ss = convert_to_tensor(mean_ss), convert_to_tensor(variance_ss)
    counts = convert_to_tensor(counts, dtype=mean_ss.dtype)
    shifted_mean = mean_ss / counts
    mean = shifted_mean if shift is None else shifted_mean + shift
    return mean, variance_ss / counts - square(shifted_mean)


@op(name="batch_normalization", same=("x",))
def _normalize_batch(
    x: TensorLike,
    mean: TensorLike,
    variance: TensorLike,
    offset: TensorLike | None,
    scale: TensorLike | None,
    variance_epsilon: float,
) -> Tensor:
    one, epsilon = (variance.dtype.type(value) for value in (1, variance_epsilon))
    factor = lax.div(one, lax.sqrt(lax.add(variance, epsilon)))
    if scale is not None:
        factor = combine(lax.mul, factor, scale)
    if offset is None:
        shift = combine(lax.mul, lax.neg(mean), factor)
    else:
        shift = combine(lax.sub, offset, combine(lax.mul, mean, factor))
    factor, shift = (lax.convert_element_type(a, x.dtype) for a in (factor, shift))
    return combine(lax.add, combine(lax.mul, x, factor), shift)


@dispatch_composites
def batch_normalization(
    x: TensorLike,
    mean: TensorLike,
    variance: TensorLike,
    offset: TensorLike | None,
    scale: TensorLike | None,
    variance_epsilon: TensorLike,
    name: str | None = None,
) -> Tensor:
    """Compute `(x - mean) / sqrt(variance + variance_epsilon) * scale + offset`.

    Args:
      x: A tensor of any shape.
      mean: Mean, broadcast to `x`.
      variance: Variance, broadcast to `x`.
      offset: Offset, broadcast to `x`, or None.
      scale: Scale, broadcast to `x`, or None.
      variance_epsilon: Small number that avoids a division by zero; a tensor or variable may be trained.
      name: Ignored.

    Example:
      >>> x = tf.constant([1.0, 3.0])
      >>> y = tf.nn.batch_normalization(
      ...     x, mean=2.0, variance=1.0, offset=10.0, scale=5.0, variance_epsilon=0.0)
      >>> print(y.numpy())
      [ 5. 15.]
    """
    if not isinstance(variance_epsilon, (int, float)):
        variance, variance_epsilon = convert_to_tensor(variance) + variance_epsilon, 0.0
    return _normalize_batch(x, mean, variance, offset, scale, float(variance_epsilon))


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
    """Apply `batch_normalization` with offset `beta` and optional scale `gamma`, keeping the shape.

    Example:
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
    """Divide each element by a power of the sum of squares of nearby channels.

    Args:
      input: Float tensor [batch, height, width, channels].
      depth_radius: Number of channels on each side in the sum.
      bias: Term that is added to the scaled sum.
      alpha: Factor of the sum.
      beta: Exponent.
      name: Ignored.

    Example:
      >>> x = tf.reshape([3.0, 0.0, 4.0], [1, 1, 1, 3])
      >>> print(tf.nn.lrn(x, depth_radius=1, bias=0.0, alpha=1.0, beta=1.0)[0, 0, 0].numpy().round(3))
      [0.333 0.    0.25 ]

    References:
      Krizhevsky et al., ImageNet classification with deep convolutional neural networks, 2012.
    """
    if input.ndim != 4:
        raise InvalidValueError(
            f"tf.nn.lrn: expected an input of rank 4, got shape {list(input.shape)}."
        )
    squares = jnp.pad(
        jnp.square(input), [(0, 0)] * (input.ndim - 1) + [(depth_radius, depth_radius)]
    )
    depth = input.shape[-1]
    total = sum(squares[..., i : i + depth] for i in range(2 * depth_radius + 1))
    return input / (bias + alpha * total) ** beta


lrn = local_response_normalization
