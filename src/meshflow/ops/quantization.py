"""Fake quantization: rounding to a few bits, for quantization-aware training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from meshflow.core.dispatch.dispatch import op
from meshflow.core.dispatch.symbolic_calls import accept_symbolic
from meshflow.core.gradients.custom_gradients import custom_gradient
from meshflow.core.gradients.tape import GradientTape
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.ops import array, math
from meshflow.ops.array.shaping import check_rank

__all__ = [
    "fake_quant_with_min_max_args",
    "fake_quant_with_min_max_args_gradient",
    "fake_quant_with_min_max_vars",
    "fake_quant_with_min_max_vars_gradient",
    "fake_quant_with_min_max_vars_per_channel",
    "fake_quant_with_min_max_vars_per_channel_gradient",
    "quantize_and_dequantize",
    "quantize_and_dequantize_v2",
]


@op(same=(), differentiable=False, name="fake_quant")
def _round_to_steps(
    inputs: TensorLike, low: TensorLike, high: TensorLike, num_bits: int, narrow_range: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return rounded values, and masks of the elements inside, below and above the range."""
    first, last = (1 if narrow_range else 0), 2**num_bits - 1
    # Without barriers XLA would rewrite the divisions, and their last digits determine the zero
    # point.
    barrier = jax.lax.optimization_barrier
    step = barrier((high - low) / barrier(jnp.full_like(low, last - first)))
    # The range is shifted so that 0 is one of its steps; halves are rounded up.
    zero = first - low / step
    zero = jnp.clip(jnp.floor(zero + 0.5), first, last)
    begin, end = (first - zero) * step, (last - zero) * step
    steps = jnp.floor((jnp.clip(inputs, begin, end) - begin) / step + 0.5)
    # An empty range, for example before the first example, results in zeros.
    empty = (low == 0) & (high == 0)
    inside = (inputs >= begin) & (inputs <= end) | empty
    rounded = jnp.where(empty, 0, (steps + (first - zero)) * step)
    return rounded, inside, (inputs < begin) & ~empty, (inputs > end) & ~empty


def _check_num_bits(num_bits: int, op_name: str) -> None:
    if not 2 <= num_bits <= 16:
        raise InvalidValueError(
            f"{op_name}: num_bits must be between 2 and 16, inclusive. Got {num_bits}."
        )


def _fake_quantize(
    inputs: TensorLike, low: TensorLike, high: TensorLike, num_bits: int, narrow_range: bool
) -> Tensor:
    """Round values; gradients outside of the range flow to `low` and `high`."""
    inputs, low, high = (math.cast(v, "float32") for v in (inputs, low, high))
    axes = list(range(len(inputs.shape) - len(low.shape)))

    @custom_gradient
    def round_values(
        inputs: Tensor, low: Tensor, high: Tensor
    ) -> tuple[Tensor, Callable[[Tensor], tuple[Tensor, ...]]]:
        rounded, *masks = _round_to_steps(inputs, low, high, num_bits, narrow_range)

        def compute_gradient(upstream: Tensor) -> tuple[Tensor, ...]:
            zeros = array.zeros_like(upstream)
            parts = [array.where(mask, upstream, zeros) for mask in masks]
            return parts[0], *(math.reduce_sum(part, axes) for part in parts[1:])

        return rounded, compute_gradient

    return round_values(inputs, low, high)


@accept_symbolic
def fake_quant_with_min_max_args(
    inputs: TensorLike,
    min: float = -6,
    max: float = 6,
    num_bits: int = 8,
    narrow_range: bool = False,
    name: str | None = None,
) -> Tensor:
    """Round values to the steps of a range, and clip values outside of it.

    The range is shifted slightly, so that 0 is one of the steps.

    Args:
      inputs: float32.
      min: Lower end of the range.
      max: Upper end of the range.
      num_bits: The number of steps is `2 ** num_bits`.
      narrow_range: Whether to exclude the lowest step.
      name: Ignored.

    Returns:
      float32 of the same shape; its gradient is 1 inside of the range and 0 outside.

    Raises:
      InvalidArgumentError: If `min >= max`, or `num_bits` is not in 2 to 16.

    Example:
      >>> tf.quantization.fake_quant_with_min_max_args([-9.0, 0.4, 1.6], -2, 1, num_bits=2).numpy()
      array([-2.,  0.,  1.], dtype=float32)
    """
    _check_num_bits(num_bits, "fake_quant_with_min_max_args")
    if not min < max:
        raise InvalidValueError(
            f"fake_quant_with_min_max_args: min has to be smaller than max, got {min} and {max}."
        )
    return _fake_quantize(inputs, float(min), float(max), num_bits, narrow_range)


@accept_symbolic
def fake_quant_with_min_max_vars(
    inputs: TensorLike,
    min: TensorLike,
    max: TensorLike,
    num_bits: int = 8,
    narrow_range: bool = False,
    name: str | None = None,
) -> Tensor:
    """Round values like `fake_quant_with_min_max_args`, with a trainable range.

    Returns:
      float32 of the same shape. Gradients of elements below the range flow to `min`, and of those
      above to `max`.

    Raises:
      InvalidArgumentError: If `num_bits` is not in 2 to 16.

    Example:
      >>> tf.quantization.fake_quant_with_min_max_vars([-9.0, 0.4, 1.6], -2.0, 1.0, num_bits=2).numpy()
      array([-2.,  0.,  1.], dtype=float32)
    """
    _check_num_bits(num_bits, "fake_quant_with_min_max_vars")
    return _fake_quantize(inputs, min, max, num_bits, narrow_range)


@accept_symbolic
def fake_quant_with_min_max_vars_per_channel(
    inputs: TensorLike,
    min: TensorLike,
    max: TensorLike,
    num_bits: int = 8,
    narrow_range: bool = False,
    name: str | None = None,
) -> Tensor:
    """Round values like `fake_quant_with_min_max_vars`, with a range for each channel.

    Returns:
      float32 of the same shape.

    Raises:
      InvalidArgumentError: If `num_bits` is not in 2 to 16.

    Example:
      >>> low, high = [-1.0, -2.0], [2.0, 1.0]
      >>> tf.quantization.fake_quant_with_min_max_vars_per_channel([[1.6, 1.6]], low, high, 2).numpy()
      array([[2., 1.]], dtype=float32)
    """
    _check_num_bits(num_bits, "fake_quant_with_min_max_vars_per_channel")
    inputs, min, max = (convert_to_tensor(v, dtype_hint="float32") for v in (inputs, min, max))
    check_rank(inputs, 1, "fake_quant_with_min_max_vars_per_channel", "inputs")
    for limit, value in (("min", min), ("max", max)):
        if value.shape != inputs.shape[-1:]:
            raise InvalidValueError(
                f"fake_quant_with_min_max_vars_per_channel: {limit} has incorrect size, expected {inputs.shape[-1]} was "
                f"{list(value.shape)}."
            )
    return _fake_quantize(inputs, min, max, num_bits, narrow_range)


@op(kinds="f", same=("input", "low", "high"), differentiable=False, name="quantize_and_dequantize")
def _quantize_and_dequantize(
    input: TensorLike,
    low: TensorLike,
    high: TensorLike,
    axis: int | None,
    signed: bool,
    num_bits: int,
    range_given: bool,
    half_up: bool,
    narrow_range: bool,
) -> tuple[Tensor, Tensor]:
    """Return rounded values, and a mask of the elements inside of [low, high]."""
    others = tuple(a for a in range(input.ndim) if axis is None or a != axis % input.ndim)
    ranges = [low, high] if axis is None else [jnp.expand_dims(v, others) for v in (low, high)]
    inside = (input >= ranges[0]) & (input <= ranges[1])
    if not range_given:
        ranges = [reduce(input, axis=others, keepdims=True) for reduce in (jnp.min, jnp.max)]
    first = (narrow_range - 2 ** (num_bits - 1)) if signed else 0
    last = 2 ** (num_bits - signed) - 1
    # All integers are multiples of one step, so that 0 is exact. The end of the range that requires
    # the larger step determines it.
    largest = jnp.finfo(input.dtype).max
    scales = [
        jnp.where(n * v > 0, n / v, largest) for n, v in zip((first, last), ranges, strict=True)
    ]
    scale = jnp.minimum(*scales)
    # Without the barrier XLA would multiply by reciprocals.
    counts = [jnp.full_like(v, n or 1) for n, v in zip((first, last), ranges, strict=True)]
    steps = [v / n for v, n in zip(ranges, jax.lax.optimization_barrier(counts), strict=True)]
    step = jnp.where(scales[0] < scales[1], steps[0], steps[1])
    clipped = jnp.clip(input, first * step, last * step) if range_given else input
    integers = clipped * scale
    integers = jnp.floor(integers + 0.5) if half_up else jnp.round(integers)
    return integers * step, inside


@accept_symbolic
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
    """Round values to integers of a few bits, and multiply them by the step, to simulate the error.

    Args:
      input: Floating-point tensor.
      input_min: Lower end of the range: a scalar, or with `axis` a vector.
      input_max: Upper end of the range, in the same shape.
      signed_input: Whether the integers may be negative.
      num_bits: Number of bits of an integer.
      range_given: Whether to use the given range instead of that of the values.
      round_mode: 'HALF_TO_EVEN' or 'HALF_UP'.
      name: Ignored.
      narrow_range: Whether to exclude the lowest integer.
      axis: The axis with one range per index; None for one range.

    Returns:
      A tensor like `input`. Its gradient is 1 inside of `input_min` and `input_max` and 0 outside.

    Raises:
      InvalidArgumentError: If `num_bits`, `round_mode` or `axis` is invalid.

    Example:
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
        raise InvalidValueError(f"{name}: axis must be in [-{rank}, {rank}), got {axis}.")
    static = axis, signed_input, num_bits, range_given, round_mode == "HALF_UP", narrow_range

    @custom_gradient
    def round_values(
        input: Tensor, low: Tensor, high: Tensor
    ) -> tuple[Tensor, Callable[[Tensor], tuple[Tensor, ...]]]:
        rounded, inside = _quantize_and_dequantize(input, low, high, *static)

        def compute_gradient(upstream: Tensor) -> tuple[Tensor, ...]:
            input_gradient = array.where(inside, upstream, array.zeros_like(upstream))
            return input_gradient, array.zeros_like(low), array.zeros_like(high)

        return rounded, compute_gradient

    return round_values(input, low, high)


@accept_symbolic
def quantize_and_dequantize(
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
    """Call `quantize_and_dequantize_v2`, but with gradient 1 for all elements."""
    input = convert_to_tensor(input)
    rounded = quantize_and_dequantize_v2(
        input,
        input_min,
        input_max,
        signed_input,
        num_bits,
        range_given,
        round_mode,
        name,
        narrow_range,
        axis,
    )
    return input + array.stop_gradient(rounded - input)


def _differentiate(
    function: Callable[..., Tensor],
    gradients: TensorLike,
    operands: Sequence[TensorLike],
    *options: Any,
) -> list[Tensor]:
    """Return the gradients of all operands."""
    tensors = [math.cast(x, "float32") for x in operands]
    with GradientTape() as tape:
        tape.watch(tensors)
        result = function(*tensors, *options)
    return tape.gradient(result, tensors, convert_to_tensor(gradients))


def fake_quant_with_min_max_args_gradient(
    gradients: TensorLike,
    inputs: TensorLike,
    min: float = -6,
    max: float = 6,
    num_bits: int = 8,
    narrow_range: bool = False,
    name: str | None = None,
) -> Tensor:
    """Compute the gradient of `fake_quant_with_min_max_args`: 0 outside of the range.

    Example:
      >>> tf.quantization.fake_quant_with_min_max_args_gradient([1.0, 2.0], [0.5, 9.0]).numpy()
      array([1., 0.], dtype=float32)
    """
    return _differentiate(
        fake_quant_with_min_max_args, gradients, [inputs], min, max, num_bits, narrow_range
    )[0]


def fake_quant_with_min_max_vars_gradient(
    gradients: TensorLike,
    inputs: TensorLike,
    min: TensorLike,
    max: TensorLike,
    num_bits: int = 8,
    narrow_range: bool = False,
    name: str | None = None,
) -> list[Tensor]:
    """Compute the gradients of the inputs, the minimum and the maximum of `fake_quant_with_min_max_vars`."""
    return _differentiate(
        fake_quant_with_min_max_vars, gradients, [inputs, min, max], num_bits, narrow_range
    )


def fake_quant_with_min_max_vars_per_channel_gradient(
    gradients: TensorLike,
    inputs: TensorLike,
    min: TensorLike,
    max: TensorLike,
    num_bits: int = 8,
    narrow_range: bool = False,
    name: str | None = None,
) -> list[Tensor]:
    """Compute the gradients of `fake_quant_with_min_max_vars_per_channel`, as `fake_quant_with_min_max_vars_gradient`."""
    function = fake_quant_with_min_max_vars_per_channel
    return _differentiate(function, gradients, [inputs, min, max], num_bits, narrow_range)
