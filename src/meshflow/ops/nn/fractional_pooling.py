"""Pooling of regions with random sizes, so that the ratio of the sizes need not be an integer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from meshflow.core.dispatch.symbolic_calls import accept_symbolic
from meshflow.core.runtime.errors import InvalidArgumentError, InvalidValueError
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.ops import array, math, random
from meshflow.ops.casting import cast
from meshflow.ops.random.stateless import stateless_shuffle

__all__ = ["fractional_avg_pool", "fractional_max_pool"]

_MAX_SEED = np.iinfo(np.int32).max


class FractionalPool(NamedTuple):
    """Result of a fractional pooling, and the first row and column of each region, followed by the size of the input."""

    output: Tensor
    row_pooling_sequence: Tensor
    col_pooling_sequence: Tensor


@accept_symbolic
def fractional_max_pool(
    value: TensorLike,
    pooling_ratio: float | Sequence[float],
    pseudo_random: bool = False,
    overlapping: bool = False,
    seed: int = 0,
    name: str | None = None,
) -> FractionalPool:
    """Compute the maximum of regions of random heights and widths.

    Args:
      value: Tensor of shape [batch, height, width, channels].
      pooling_ratio: Ratio of the sizes of input and output, at least 1, for height and width: a number, two numbers, or
        four, of which the first and last are 1.
      pseudo_random: Whether to distribute larger regions evenly, instead of in a random order.
      overlapping: Whether a region includes the first row and column of the next one.
      seed: Seed of the regions; 0 for other regions at each call.
      name: Ignored.

    Returns:
      (output, row_pooling_sequence, col_pooling_sequence): the output has the shape [batch, height // ratio,
      width // ratio, channels]; the sequences have the first index of each region, and the size of the input at the end.

    Raises:
      ValueError: If the ratio is not valid, or `value` has no four dimensions with a known height and width.
      InvalidArgumentError: If the ratio is larger than a size.

    Example:
      >>> x = tf.reshape(tf.range(36.0), [1, 6, 6, 1])
      >>> result = tf.nn.fractional_max_pool(x, 1.5, seed=1)
      >>> result.output.shape, result.row_pooling_sequence.numpy()[[0, -1]].tolist()
      (TensorShape([1, 4, 4, 1]), [0, 6])
    """
    return _pool(value, pooling_ratio, pseudo_random, overlapping, seed, is_mean=False)


@accept_symbolic
def fractional_avg_pool(
    value: TensorLike,
    pooling_ratio: float | Sequence[float],
    pseudo_random: bool = False,
    overlapping: bool = False,
    seed: int = 0,
    name: str | None = None,
) -> FractionalPool:
    """Compute the mean of regions of random heights and widths; see `tf.nn.fractional_max_pool`.

    Means of integers are rounded towards zero.

    Args:
      value: Tensor of shape [batch, height, width, channels].
      pooling_ratio: Ratio of the sizes of input and output.
      pseudo_random: Whether to distribute larger regions evenly.
      overlapping: Whether a region includes the first row and column of the next one.
      seed: Seed of the regions; 0 for other regions at each call.
      name: Ignored.

    Returns:
      (output, row_pooling_sequence, col_pooling_sequence).

    Raises:
      ValueError: If the ratio is not valid, or `value` has no four dimensions with a known height and width.
      InvalidArgumentError: If the ratio is larger than a size.

    Example:
      >>> tf.nn.fractional_avg_pool(tf.ones([1, 6, 6, 1]), [1.5, 2.0]).output.shape
      TensorShape([1, 4, 3, 1])
    """
    return _pool(value, pooling_ratio, pseudo_random, overlapping, seed, is_mean=True)


def _pool(
    value: TensorLike,
    ratio: float | Sequence[float],
    pseudo_random: bool,
    overlapping: bool,
    seed: int,
    is_mean: bool,
) -> FractionalPool:
    result = convert_to_tensor(value)
    if result.shape.rank != 4 or None in (result.shape[1], result.shape[2]):
        raise InvalidValueError(
            "fractional pooling expects `value` of shape [batch, height, width, channels] with a known height and width, "
            f"got {result.shape}."
        )
    starts: list[Tensor] = []
    num_values: Any = 1
    for axis, factor in enumerate(_normalize_ratio(ratio), 1):
        size = int(result.shape[axis])
        starts.append(_draw_starts(size, int(size / factor), pseudo_random, seed, axis))
    # Columns are reduced before rows: the gradient of equal maxima belongs to the first one in row-major order.
    for axis in (2, 1):
        sequence = starts[axis - 1]
        size, count = int(result.shape[axis]), int(sequence.shape[0]) - 1
        width = -(-size // count) + overlapping
        # A region shorter than the longest one repeats its last element.
        last = math.minimum(sequence[1:] - (not overlapping), size - 1)
        indices = sequence[:count, None] + np.arange(width)
        values = array.gather(result, math.minimum(indices, last[:, None]), axis=axis)
        if is_mean:
            shape = [1] * axis + [count, width] + [1] * (3 - axis)
            is_inside = array.reshape(cast(indices <= last[:, None], values.dtype), shape)
            result = math.reduce_sum(values * is_inside, axis + 1)
            num_values *= math.reduce_sum(is_inside, axis + 1)
        else:
            is_first = array.one_hot(
                math.argmax(values, axis + 1), width, True, False, axis + 1, "bool"
            )
            result = math.reduce_sum(
                array.where(is_first, values, array.zeros_like(values)), axis + 1
            )
    if is_mean:
        divide = math.truncatediv if result.dtype.is_integer else math.divide
        result = divide(result, num_values)
    return FractionalPool(result, *starts)


def _normalize_ratio(ratio: float | Sequence[float]) -> tuple[float, float]:
    """Return the ratios of height and width."""
    values = [ratio] if isinstance(ratio, (int, float)) else list(ratio)
    if len(values) not in (1, 2, 4) or (len(values) == 4 and (values[0], values[3]) != (1, 1)):
        raise InvalidValueError(
            f"pooling_ratio should have 1 or 2 elements, or 4 of which the first and last are 1, got {ratio}."
        )
    height, width = values[1:3] if len(values) == 4 else (values[0], values[-1])
    if min(height, width) < 1:
        raise InvalidValueError(f"pooling_ratio should be >= 1.0, got {ratio}.")
    return height, width


def _draw_starts(size: int, count: int, pseudo_random: bool, seed: int, axis: int) -> Tensor:
    """Return the first index of each of `count` regions, and the size, as int64."""
    if count == 0:
        raise InvalidArgumentError(
            f"Pooling ratio is higher than input dimension size for dimension {axis}. Input dim size: {size}"
        )
    # Calls with one seed have the same regions.
    seeds: Any = [seed, axis] if seed else random.uniform([2], 0, _MAX_SEED, "int32")
    if pseudo_random:
        # Integers, so that the last region ends exactly at `size`.
        offset = random.stateless_uniform([], seeds, 0, size, "int64")
        return (np.arange(count + 1) * size + offset) // count - offset // count
    small, large = divmod(size, count)
    lengths = np.array([small] * (count - large) + [small + 1] * large)
    return array.concat([[0], math.cumsum(stateless_shuffle(lengths, seeds))], 0)
