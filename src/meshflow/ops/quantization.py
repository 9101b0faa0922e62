"""Numbers rounded as if they were held in a few bits, for training networks that will be."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from meshflow.core.dispatch.dispatch import op
from meshflow.core.dispatch.symbolic import also_symbolic
from meshflow.core.gradients.custom_gradient import custom_gradient
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.ops import array, math

__all__ = [
    "fake_quant_with_min_max_args",
    "fake_quant_with_min_max_vars",
    "fake_quant_with_min_max_vars_per_channel",
    "quantize_and_dequantize_v2",
]


@op(same=(), differentiable=False, name="fake_quant")
def _rounded(
    inputs: TensorLike, low: TensorLike, high: TensorLike, num_bits: int, narrow_range: bool
) -> Any:
    """Rounded numbers, and which of them were inside, below and above the range."""
    first, last = (1 if narrow_range else 0), 2**num_bits - 1
    # XLA would make other formulas of the divisions, and their last digits decide where 0 goes.
    kept = jax.lax.optimization_barrier
    step = kept((high - low) / kept(jnp.full_like(low, last - first)))
    # The range is moved so that 0 is one of its steps; halves go up.
    zero = first - low / step
    zero = jnp.clip(jnp.floor(zero + 0.5), first, last)
    begin, end = (first - zero) * step, (last - zero) * step
    steps = jnp.floor((jnp.clip(inputs, begin, end) - begin) / step + 0.5)
    # A range without any width, as before the first example, gives zeros.
    empty = (low == 0) & (high == 0)
    inside = (inputs >= begin) & (inputs <= end) | empty
    rounded = jnp.where(empty, 0, (steps + (first - zero)) * step)
    return rounded, inside, (inputs < begin) & ~empty, (inputs > end) & ~empty


def _checked(num_bits: int, what: str) -> None:
    if not 2 <= num_bits <= 16:
        raise InvalidValueError(
            f"{what}: num_bits must be between 2 and 16, inclusive. Got {num_bits}."
        )


def _fake_quant(inputs: Any, low: Any, high: Any, num_bits: int, narrow_range: bool) -> Tensor:
    """Rounded numbers, whose gradient is the identity within the range and that of its ends outside."""
    inputs, low, high = (math.cast(v, "float32") for v in (inputs, low, high))
    axes = list(range(len(inputs.shape) - len(low.shape)))

    @custom_gradient
    def rounding(inputs: Any, low: Any, high: Any) -> Any:
        found, inside, below, above = _rounded(inputs, low, high, num_bits, narrow_range)

        def gradient(upstream: Any) -> Any:
            zeros = array.zeros_like(upstream)
            parts = [array.where(mask, upstream, zeros) for mask in (inside, below, above)]
            return parts[0], *(math.reduce_sum(part, axes) for part in parts[1:])

        return found, gradient

    return rounding(inputs, low, high)


@also_symbolic
def fake_quant_with_min_max_args(
    inputs: TensorLike,
    min: float = -6,
    max: float = 6,
    num_bits: int = 8,
    narrow_range: bool = False,
    name: str | None = None,
) -> Tensor:
    """Rounds numbers to the steps of a range; what is outside goes to its ends.

    The range is moved a little, so that 0 is one of the steps.

    Args:
      inputs: float32.
      min: where the range begins.
      max: where it ends.
      num_bits: there are `2 ** num_bits` steps.
      narrow_range: whether the lowest step is not used.
      name: ignored.

    Returns:
      float32 of the same shape; its gradient is 1 within the range and 0 outside.

    Raises:
      InvalidArgumentError: unless min < max, or for a number of bits outside 2 to 16.

    Example:
      >>> import meshflow as tf
      >>> tf.quantization.fake_quant_with_min_max_args([-9.0, 0.4, 1.6], -2, 1, num_bits=2).numpy()
      array([-2.,  0.,  1.], dtype=float32)
    """
    _checked(num_bits, "fake_quant_with_min_max_args")
    if not min < max:
        raise InvalidValueError(
            f"fake_quant_with_min_max_args: min has to be smaller than max, got {min} and {max}."
        )
    return _fake_quant(inputs, float(min), float(max), num_bits, narrow_range)


@also_symbolic
def fake_quant_with_min_max_vars(
    inputs: TensorLike,
    min: TensorLike,
    max: TensorLike,
    num_bits: int = 8,
    narrow_range: bool = False,
    name: str | None = None,
) -> Tensor:
    """As `fake_quant_with_min_max_args`, for a range that may be trained.

    Args:
      inputs: float32.
      min: where the range begins, a scalar.
      max: where it ends, a scalar.
      num_bits: there are `2 ** num_bits` steps.
      narrow_range: whether the lowest step is not used.
      name: ignored.

    Returns:
      float32 of the same shape. The gradient of what is below the range goes to `min`, of what is
      above to `max`.

    Raises:
      InvalidArgumentError: for a number of bits outside 2 to 16.

    Example:
      >>> import meshflow as tf
      >>> tf.quantization.fake_quant_with_min_max_vars([-9.0, 0.4, 1.6], -2.0, 1.0, num_bits=2).numpy()
      array([-2.,  0.,  1.], dtype=float32)
    """
    _checked(num_bits, "fake_quant_with_min_max_vars")
    return _fake_quant(inputs, min, max, num_bits, narrow_range)


@also_symbolic
def fake_quant_with_min_max_vars_per_channel(
    inputs: TensorLike,
    min: TensorLike,
    max: TensorLike,
    num_bits: int = 8,
    narrow_range: bool = False,
    name: str | None = None,
) -> Tensor:
    """As `fake_quant_with_min_max_vars`, with a range for each channel.

    Args:
      inputs: float32 [..., channels].
      min: where the ranges begin, [channels].
      max: where they end, [channels].
      num_bits: there are `2 ** num_bits` steps.
      narrow_range: whether the lowest step is not used.
      name: ignored.

    Returns:
      float32 of the same shape.

    Raises:
      InvalidArgumentError: for a number of bits outside 2 to 16.

    Example:
      >>> import meshflow as tf
      >>> low, high = [-1.0, -2.0], [2.0, 1.0]
      >>> tf.quantization.fake_quant_with_min_max_vars_per_channel([[1.6, 1.6]], low, high, 2).numpy()
      array([[2., 1.]], dtype=float32)
    """
    _checked(num_bits, "fake_quant_with_min_max_vars_per_channel")
    return _fake_quant(inputs, min, max, num_bits, narrow_range)


@op(kinds="f", same=("input", "low", "high"), differentiable=False, name="quantize_and_dequantize")
def _to_integers_and_back(
    input: TensorLike,
    low: TensorLike,
    high: TensorLike,
    axis: int | None,
    signed: bool,
    num_bits: int,
    range_given: bool,
    half_up: bool,
    narrow_range: bool,
) -> Any:
    """Rounded numbers, and which of them are inside the given range."""
    others = tuple(a for a in range(input.ndim) if axis is None or a != axis % input.ndim)
    ranges = [low, high] if axis is None else [jnp.expand_dims(v, others) for v in (low, high)]
    inside = (input >= ranges[0]) & (input <= ranges[1])
    if not range_given:
        ranges = [reduce(input, axis=others, keepdims=True) for reduce in (jnp.min, jnp.max)]
    first = (narrow_range - 2 ** (num_bits - 1)) if signed else 0
    last = 2 ** (num_bits - signed) - 1
    # Every integer stands for a multiple of one step, so 0 stays 0: the side that needs the larger step decides.
    most = jnp.finfo(input.dtype).max
    scales = [jnp.where(n * v > 0, n / v, most) for n, v in zip((first, last), ranges, strict=True)]
    scale = jnp.minimum(*scales)
    # XLA would multiply by reciprocals.
    counts = [jnp.full_like(v, n or 1) for n, v in zip((first, last), ranges, strict=True)]
    steps = [v / n for v, n in zip(ranges, jax.lax.optimization_barrier(counts), strict=True)]
    step = jnp.where(scales[0] < scales[1], steps[0], steps[1])
    kept = jnp.clip(input, first * step, last * step) if range_given else input
    integers = kept * scale
    integers = jnp.floor(integers + 0.5) if half_up else jnp.round(integers)
    return integers * step, inside


@also_symbolic
def quantize_and_dequantize_v2(
    input: TensorLike,
    input_min: TensorLike,
    input_max: TensorLike,
    signed_input: bool = True,
    num_bits: int = 8,
    range_given: bool = False,
    round_mode: str = "HALF_TO_EVEN",
    name: str | None = None,
    narrow_range: bool = False,
    axis: int | None = None,
) -> Tensor:
    """Rounds numbers to integers of a few bits, times one step, which is the error that such integers make.

    Args:
      input: floating tensor.
      input_min: where the range begins: a scalar, or with `axis` a vector.
      input_max: where it ends, likewise.
      signed_input: whether the integers may be negative.
      num_bits: bits of an integer.
      range_given: whether the range is the given one; else it is that of the numbers.
      round_mode: 'HALF_TO_EVEN' or 'HALF_UP'.
      name: ignored.
      narrow_range: whether the lowest integer is not used.
      axis: the dimension of which every place has a range of its own.

    Returns:
      A tensor like `input`. Its gradient is 1 inside `input_min` and `input_max` and 0 outside.

    Raises:
      InvalidArgumentError: for a number of bits, a mode or an axis that there is not.

    Example:
      >>> import meshflow as tf
      >>> tf.quantization.quantize_and_dequantize_v2([-2.0, 0.3, 0.8], -2.0, 1.0, num_bits=3).numpy()
      array([-2. ,  0.5,  1. ], dtype=float32)
    """
    name = "quantize_and_dequantize_v2"
    input = convert_to_tensor(input)
    low, high = (math.cast(v, input.dtype) for v in (input_min, input_max))
    rank = len(input.shape)
    if not 1 <= num_bits < (63 if signed_input else 62):
        raise InvalidValueError(f"{name}: num_bits is out of range: {num_bits}.")
    if round_mode not in ("HALF_TO_EVEN", "HALF_UP"):
        raise InvalidValueError(
            f"{name}: round_mode must be HALF_TO_EVEN or HALF_UP, got {round_mode!r}."
        )
    if axis is not None and not -rank <= axis < rank:
        raise InvalidValueError(f"{name}: axis {axis} is not one of the {rank} of the input.")
    static = axis, signed_input, num_bits, range_given, round_mode == "HALF_UP", narrow_range

    @custom_gradient
    def rounding(input: Any, low: Any, high: Any) -> Any:
        found, inside = _to_integers_and_back(input, low, high, *static)

        def gradient(upstream: Any) -> Any:
            own = array.where(inside, upstream, array.zeros_like(upstream))
            return own, array.zeros_like(low), array.zeros_like(high)

        return found, gradient

    return rounding(input, low, high)
