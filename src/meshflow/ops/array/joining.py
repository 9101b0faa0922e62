"""Ops that join and split tensors: concat, stack, split, unstack."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from meshflow.core.dispatch.dispatch import op
from meshflow.core.dispatch.symbolic_calls import accept_symbolic, dispatch_composites
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.staging.stacked_rows import find_stacked
from meshflow.core.values import convert, dtypes
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.shapes import can_be_equal
from meshflow.core.values.tensor import Tensor, TensorLike, is_tensor
from meshflow.core.values.unknown_sizes import set_sizes
from meshflow.core.variables import variable_rows
from meshflow.ops.array.shaping import StaticInts, check_sizes, normalize_axis
from meshflow.ops.casting import cast

__all__ = ["concat", "parallel_stack", "split", "stack", "unstack"]


@op(name="concat", strings="moves")
def _concat(values: Sequence[TensorLike], axis: int) -> Tensor:
    if len(values) == 1 and not isinstance(axis, tuple):
        return values[0]
    shapes = [v.shape for v in values]
    if () in shapes and axis in (0, (0,)):
        raise InvalidValueError(
            f"ConcatOp : Can't concatenate scalars (use tf.stack instead), got the shapes {shapes}. [Op:ConcatV2]"
        )
    axis = normalize_axis(axis, values[0].ndim, "concat")
    for i, shape in enumerate(shapes[1:], 1):
        _check_similar(shapes[0], shape, i, axis)
    return jnp.concatenate(values, axis)


def _check_similar(first: tuple[Any, ...], other: tuple[Any, ...], index: int, axis: int) -> None:
    """Raise unless two shapes have the same rank, and the same sizes except at the axis."""
    compared = f"shape[0] = {list(first)} vs. shape[{index}] = {list(other)}"
    if len(first) != len(other):
        raise InvalidValueError(
            f"ConcatOp : Ranks of all input tensors should match: {compared} [Op:ConcatV2]"
        )
    for dim, (size, other_size) in enumerate(zip(first, other, strict=True)):
        are_known = isinstance(size, int) and isinstance(other_size, int)
        if dim != axis and are_known and size != other_size:
            raise InvalidValueError(
                f"ConcatOp : Dimension {dim} in both shapes must be equal: {compared} [Op:ConcatV2]"
            )


@dispatch_composites
def concat(values: Any, axis: Any, name: str = "concat") -> Tensor:
    """Join tensors along an existing dimension.

    Args:
      values: Tensors of one dtype with the same sizes in all other dimensions.
      axis: The dimension to join along.
      name: Ignored.

    Raises:
      InvalidArgumentError: If the shapes do not match.

    Example:
      >>> tf.concat([[1, 2], [3]], 0).numpy()
      array([1, 2, 3], dtype=int32)
    """
    if not isinstance(values, (list, tuple)):
        values = [values]
    if not values:
        raise InvalidValueError(
            "concat: `values` must hold at least one tensor, got an empty list. [Op:ConcatV2]"
        )
    return _concat(values, axis)


@op(name="stack", strings="moves")
def _stack(values: Sequence[TensorLike], axis: int) -> Tensor:
    first = values[0].shape
    # Sizes that depend on values may be equal without being the same symbol.
    for index, other in ((i, v.shape) for i, v in enumerate(values) if v.shape != first):
        raise InvalidValueError(
            f"Shapes of all inputs must match: values[0].shape = {list(first)} != values[{index}].shape = "
            f"{list(other)} [Op:Pack]"
        )
    values = [set_sizes(v, first) for v in values]
    return jnp.stack(values, normalize_axis(axis, values[0].ndim + 1, "stack"))


@op(name="stack")
def _move_first_axis(tensor: TensorLike, axis: int) -> Tensor:
    return jnp.moveaxis(tensor, 0, normalize_axis(axis, tensor.ndim, "stack"))


@dispatch_composites
def stack(values: Any, axis: int = 0, name: str = "stack") -> Tensor:
    """Join tensors of one shape along a new dimension.

    Args:
      values: Tensors of one shape and dtype.
      axis: Index of the new dimension.
      name: Ignored.

    Example:
      >>> tf.stack([1, 2]).numpy()
      array([1, 2], dtype=int32)
    """
    if not isinstance(values, (list, tuple)):
        values = convert_to_tensor(values)
        if len(values.shape) == 0:
            return values
        values = list(values)
    if not values:
        return convert_to_tensor([], dtypes.float32)
    if not any(hasattr(v, "dtype") for v in values):
        # Numbers and lists get a common dtype as in one nested list: 1 and 2.5 become floats.
        try:
            common_dtype = convert_to_tensor(values).dtype
            values = [convert_to_tensor(v, dtype=common_dtype) for v in values]
        except ValueError:
            pass
    stacked = find_stacked(values)
    return _stack(values, axis) if stacked is None else _move_first_axis(stacked, axis)


@accept_symbolic
def parallel_stack(values: Sequence[Any], name: str = "parallel_stack") -> Tensor:
    """Apply `stack` along a new first dimension.

    Example:
      >>> print(tf.parallel_stack([[1, 2], [3, 4]]).numpy())
      [[1 2]
       [3 4]]
    """
    return stack(values)


def _pack(value: Sequence[Any], dtype: dtypes.DType | None) -> Tensor:
    """Make a tensor from nested lists that contain tensors."""
    items = [
        _pack(v, dtype) if isinstance(v, (list, tuple)) and convert.contains_tensors(v) else v
        for v in value
    ]
    if dtype is None:
        return stack(items)
    # Tensors are cast, and Python numbers must fit.
    return stack([cast(v, dtype) if is_tensor(v) else convert_to_tensor(v, dtype) for v in items])


convert.pack = _pack


@op(same=(), name="unstack", strings="moves")
def _unstack(value: TensorLike, axis: int) -> Any:
    axis = normalize_axis(axis, value.ndim, "unstack")
    return [jax.lax.index_in_dim(value, i, axis, keepdims=False) for i in range(value.shape[axis])]


@dispatch_composites
def unstack(
    value: TensorLike, num: int | None = None, axis: int = 0, name: str = "unstack"
) -> list[Tensor]:
    """Split a tensor along a dimension into slices without this dimension.

    Args:
      value: A tensor.
      num: Number of slices; default the size of the dimension.
      axis: The dimension to split along.
      name: Ignored.

    Raises:
      InvalidArgumentError: If `num` is passed and differs from the size of the dimension.

    Example:
      >>> a, b = tf.unstack([[1, 2], [3, 4]], axis=1)
      >>> print(a.numpy(), b.numpy())
      [1 3] [2 4]
    """
    parts = _unstack(value, axis)
    if num is not None and num != len(parts):
        raise InvalidValueError(
            f"unstack: Input shape axis {axis} must equal num, {num}, got {len(parts)}. [Op:Unpack]"
        )
    return list(parts)


@op(same=(), name="split", strings="moves")
def _split(value: TensorLike, sizes: Any, axis: int) -> list[Tensor]:
    axis = normalize_axis(axis, value.ndim, "split")
    total = value.shape[axis]
    if isinstance(sizes, int):
        if sizes <= 0:
            raise InvalidValueError(
                f"split: the number of parts must be at least 1, got num_or_size_splits {sizes}. [Op:Split]"
            )
        if total % sizes:
            raise InvalidValueError(
                f"Number of ways to split should evenly divide the split dimension: Dimension size {total}, must be "
                f"evenly divisible by {sizes} [Op:Split]"
            )
        sizes = (total // sizes,) * sizes
    check_sizes(sizes, "split", min_count=1)
    if -1 in sizes:
        rest = total - sum(s for s in sizes if s != -1)
        sizes = tuple(rest if s == -1 else s for s in sizes)
    rest = total - sum(sizes)
    if not can_be_equal(rest, 0) or any(isinstance(s, int) and s < 0 for s in sizes):
        raise InvalidValueError(
            f"split: Determined shape must either match input shape along split_dim exactly if fully specified, or "
            f"be at most its size: the sizes are {list(sizes)}, and dimension {axis} has size {total}. [Op:SplitV]"
        )
    return jnp.split(value, list(itertools.accumulate(sizes[:-1])), axis)


@dispatch_composites
def split(
    value: TensorLike,
    num_or_size_splits: StaticInts,
    axis: int = 0,
    num: int | None = None,
    name: str = "split",
) -> list[Tensor]:
    """Split a tensor into parts along a dimension.

    Args:
      value: A tensor.
      num_or_size_splits: Number of equal parts, or a list of sizes, one of which may be -1.
      axis: The dimension to split along.
      num: Number of sizes, if the sizes are a list of unknown length.
      name: Ignored.

    Raises:
      InvalidArgumentError: If the sizes do not add up to the size of the dimension, or if there are not `num` sizes.

    Example:
      >>> [part.numpy().tolist() for part in tf.split(tf.range(6), 3)]
      [[0, 1], [2, 3], [4, 5]]
      >>> [part.numpy().tolist() for part in tf.split(tf.range(6), [1, -1, 2])]
      [[0], [1, 2, 3], [4, 5]]
    """
    parts = list(_split(value, num_or_size_splits, axis))
    if num is not None and num != len(parts) and not isinstance(num_or_size_splits, int):
        raise InvalidValueError(
            f"split: size of the split_tensor must be 1-D and have the same elements as outputs: num is {num}, and "
            f"there are {len(parts)} parts. [Op:SplitV]"
        )
    return parts


variable_rows.part_ops["concat"] = concat
