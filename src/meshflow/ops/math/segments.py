"""Reductions over groups of rows with the same segment id."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

from meshflow.core.dispatch.dispatch import op
from meshflow.core.dispatch.operands import to_static_value
from meshflow.core.dispatch.symbolic_calls import accept_symbolic, dispatch_composites
from meshflow.core.runtime.bounds_checks import check_segment_ids
from meshflow.core.runtime.errors import InvalidArgumentError, InvalidValueError
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.symbolic_sizes import has_symbolic_size
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.core.values.unknown_sizes import compute_size
from meshflow.environment.types import Array
from meshflow.ops.array.shaping import StaticInts
from meshflow.ops.casting import cast
from meshflow.ops.signatures import Segments, UnsortedSegments

__all__ = [
    "segment_max",
    "segment_mean",
    "segment_min",
    "segment_prod",
    "segment_sum",
    "unsorted_segment_max",
    "unsorted_segment_mean",
    "unsorted_segment_min",
    "unsorted_segment_prod",
    "unsorted_segment_sqrt_n",
    "unsorted_segment_sum",
]


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _multiply_segments(rows: jax.Array, ids: jax.Array, count: int) -> jax.Array:
    """Multiply the rows with equal ids; JAX has no gradient of these products."""
    return jax.ops.segment_prod(rows, ids, count)


def _multiply_segments_forward(
    rows: jax.Array, ids: jax.Array, count: int
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return _multiply_segments(rows, ids, count), (rows, ids)


def _multiply_segments_backward(
    count: int, residuals: tuple[jax.Array, jax.Array], g: jax.Array
) -> tuple[jax.Array, None]:
    rows, ids = residuals
    is_zero = rows == 0
    # The derivative is the product of the other rows: of the nonzero ones, unless another row is
    # zero.
    nonzero_products = jax.ops.segment_prod(jnp.where(is_zero, 1, rows), ids, count)[ids]
    num_zeros = jax.ops.segment_sum(is_zero.astype(jnp.int32), ids, count)[ids]
    factors = jnp.where(
        is_zero,
        jnp.where(num_zeros == 1, nonzero_products, 0),
        jnp.where(num_zeros == 0, nonzero_products / jnp.where(is_zero, 1, rows), 0),
    )
    return (g[ids] * factors).astype(rows.dtype), None


_multiply_segments.defvjp(_multiply_segments_forward, _multiply_segments_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _find_segment_extreme(rows: jax.Array, ids: jax.Array, count: int, kind: str) -> jax.Array:
    """Find maxima or minima of the rows with equal ids; equal elements share the gradient.

    In JAX, they also share it with the initial value of the reduction.
    """
    function = jax.ops.segment_max if kind == "max" else jax.ops.segment_min
    return function(rows, ids, count)


def _find_segment_extreme_forward(
    rows: jax.Array, ids: jax.Array, count: int, kind: str
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    result = _find_segment_extreme(rows, ids, count, kind)
    return result, (rows == result[ids], ids)


def _find_segment_extreme_backward(
    count: int, kind: str, residuals: tuple[jax.Array, jax.Array], g: jax.Array
) -> tuple[jax.Array, None]:
    is_extreme, ids = residuals
    num_extremes = jax.ops.segment_sum(is_extreme.astype(g.dtype), ids, count)
    row_gradients = jnp.where(
        is_extreme, (g / jnp.maximum(num_extremes, 1))[ids], jnp.zeros((), g.dtype)
    )
    return row_gradients, None


_find_segment_extreme.defvjp(_find_segment_extreme_forward, _find_segment_extreme_backward)


@op(same=("data",), name="segment_reduction", sizes=("num_segments",))
def _reduce_segments(
    data: TensorLike, segment_ids: TensorLike, num_segments: int, kind: str
) -> Tensor:
    outer = tuple(data.shape[: segment_ids.ndim])
    if outer != tuple(segment_ids.shape) and not has_symbolic_size((*outer, *segment_ids.shape)):
        raise InvalidValueError(
            f"data must be at least rank {segment_ids.ndim}, and segment_ids should be the same size as dimension 0 of "
            f"data: data.shape = {list(data.shape)} does not start with segment_ids.shape = {list(segment_ids.shape)}. "
            "[Op:SegmentReduction]"
        )
    flat_ids = segment_ids.reshape(-1)
    rows = data.reshape((flat_ids.shape[0], *data.shape[segment_ids.ndim :]))
    is_inside = (flat_ids >= 0) & (flat_ids < num_segments)
    ids = jnp.where(is_inside, flat_ids, num_segments)
    counts = jax.ops.segment_sum(jnp.ones(ids.shape, jnp.int32), ids, num_segments + 1)[
        :num_segments
    ]
    broadcast_counts = counts.reshape((-1,) + (1,) * (rows.ndim - 1))
    if kind in ("sum", "mean", "sqrt_n"):
        total = jax.ops.segment_sum(rows, ids, num_segments + 1)[:num_segments]
        divisor = jnp.maximum(broadcast_counts, 1).astype(total.dtype)
        return {"sum": total, "mean": total / divisor, "sqrt_n": total / jnp.sqrt(divisor)}[
            kind
        ].astype(data.dtype)
    if kind == "prod":
        result = _multiply_segments(rows, ids, num_segments + 1)[:num_segments]
    else:
        result = _find_segment_extreme(rows, ids, num_segments + 1, kind)[:num_segments]
    if kind == "prod" or data.dtype.kind not in "fV":
        return result
    # TensorFlow's maximum of an empty segment is the lowest finite number, not -infinity.
    limits = jnp.finfo(data.dtype)
    return jnp.where(broadcast_counts == 0, limits.min if kind == "max" else limits.max, result)


def count_segments(ids: Array) -> Array:
    if isinstance(ids, np.ndarray) and ((ids[1:] < ids[:-1]).any() or (ids[:1] < 0).any()):
        raise InvalidArgumentError(f"segment ids are not increasing from 0 on: {ids.tolist()}")
    return ids.max(initial=-1) + 1


def _define_sorted_op(kind: str, fill_empty: bool, example_output: str) -> Segments:
    """Define an op on sorted segment ids; `fill_empty` sets the rows of empty segments to 0."""

    def segment(data: TensorLike, segment_ids: TensorLike, name: str | None = None) -> Tensor:
        ids = convert_to_tensor(segment_ids)
        if ids.ndim != 1 or not ids.dtype.is_integer:
            raise InvalidValueError(
                f"segment_ids should be a vector of integers, got {ids.dtype.name} of shape {ids.shape}."
            )
        use = f"segment_ids of tf.math.segment_{kind} (use tf.math.unsorted_segment_{kind})"
        count = compute_size(count_segments, [ids], use)
        result = _reduce_segments(convert_to_tensor(data), ids, count, kind)
        return _zero_empty_segments(result, ids, count) if fill_empty else result

    segment.__name__ = segment.__qualname__ = f"segment_{kind}"
    segment.__doc__ = f"""Compute the {kind} of the rows with equal, sorted ids; 0 (1 for prod) for unused ids.

    Args:
      data: Tensor of shape [n, ...].
      segment_ids: n nondecreasing integers.
      name: Ignored.

    Returns:
      Tensor of shape [largest id + 1, ...].

    Raises:
      InvalidArgumentError: If the ids are not a vector of nondecreasing integers.

    Example:
      >>> print(tf.math.segment_{kind}([2.0, 4.0, 5.0], [0, 0, 2]).numpy())
      {example_output}
    """
    return dispatch_composites(segment)


@op(same=("result",), name="segment_mask", sizes=("count",))
def _zero_empty_segments(result: TensorLike, ids: TensorLike, count: int) -> Tensor:
    is_used = jnp.zeros((count,), bool).at[ids].set(True)
    return jnp.where(
        is_used.reshape((-1,) + (1,) * (result.ndim - 1)), result, jnp.zeros((), result.dtype)
    )


def _define_unsorted_op(kind: str, example_output: str) -> UnsortedSegments:
    """Define an op on segment ids in any order."""

    def segment(
        data: TensorLike, segment_ids: TensorLike, num_segments: StaticInts, name: str | None = None
    ) -> Tensor:
        count = to_static_value(num_segments, "num_segments")
        if isinstance(count, tuple):
            raise InvalidValueError(
                f"num_segments should be a scalar, got {list(count)}. [Op:UnsortedSegment]"
            )
        if count < 0:
            raise InvalidValueError(f"num_segments must not be negative, got {count}.")
        ids = check_segment_ids(convert_to_tensor(segment_ids), count)
        tensor = convert_to_tensor(data)
        if kind in ("mean", "sqrt_n") and tensor.dtype.is_integer:
            tensor = cast(tensor, "float32" if tensor.dtype.size <= 2 else "float64")
        return _reduce_segments(tensor, ids, count, kind)

    segment.__name__ = segment.__qualname__ = f"unsorted_segment_{kind}"
    segment.__doc__ = f"""Compute the {kind} of the rows with equal ids; rows with negative ids are dropped.

    Args:
      data: A tensor; its shape starts with that of `segment_ids`.
      segment_ids: Integers below `num_segments`.
      num_segments: Number of rows of the result.
      name: Ignored.

    Returns:
      Tensor of shape [num_segments, ...].

    Raises:
      InvalidArgumentError: If an id is not below `num_segments`.

    Example:
      >>> data, ids = [2.0, 5.0, 6.0, 9.0], [1, 0, 1, -1]
      >>> print(tf.math.unsorted_segment_{kind}(data, ids, num_segments=2).numpy().round(3))
      {example_output}
    """
    return accept_symbolic(segment)


segment_sum = _define_sorted_op("sum", False, "[6. 0. 5.]")
segment_mean = _define_sorted_op("mean", False, "[3. 0. 5.]")
segment_prod = _define_sorted_op("prod", False, "[8. 1. 5.]")
segment_max = _define_sorted_op("max", True, "[4. 0. 5.]")
segment_min = _define_sorted_op("min", True, "[2. 0. 5.]")
unsorted_segment_sum = _define_unsorted_op("sum", "[5. 8.]")
unsorted_segment_mean = _define_unsorted_op("mean", "[5. 4.]")
unsorted_segment_sqrt_n = _define_unsorted_op("sqrt_n", "[5.    5.657]")
unsorted_segment_prod = _define_unsorted_op("prod", "[ 5. 12.]")
unsorted_segment_max = _define_unsorted_op("max", "[5. 6.]")
unsorted_segment_min = _define_unsorted_op("min", "[5. 2.]")
