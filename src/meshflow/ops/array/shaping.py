"""Ops that change the shape of a tensor but not its elements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from meshflow.core.dispatch.dispatch import op
from meshflow.core.dispatch.symbolic_calls import accept_symbolic
from meshflow.core.runtime.context import context
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.values.dtypes import DType, DTypeLike, as_dtype
from meshflow.core.values.shapes import TensorShape, are_different, can_be_equal
from meshflow.core.values.symbolic_sizes import has_symbolic_size
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.core.values.unknown_sizes import set_sizes
from meshflow.environment.types import Array

__all__ = ["bitcast", "expand_dims", "newaxis", "reshape", "squeeze", "transpose"]


newaxis = None

# One or several dimensions, or None for all.
Axes: TypeAlias = int | Sequence[int] | None
# Integers that must be known while tracing: a scalar, nested sequences, an array or a tensor.
StaticInts: TypeAlias = int | np.integer[Any] | Sequence[Any] | Array | TensorShape | Tensor | None


# Messages about an axis that is out of range, with the words of TensorFlow's ops that have a message of their own.
_AXIS_MESSAGES = {
    "concat": "Expected concatenating dimensions in the range [-{rank}, {rank}), but got {axis}",
    "expand_dims": "Tried to expand dim index {axis} for tensor with {below} dimensions",
    "reduce_join": "Invalid reduction dimension {axis} for input with {rank} dimension(s)",
    "reverse": "axis {axis} is out of valid range [-{rank}, {rank})",
    "softmax": (
        "`axis` must be in the range [-{rank}, {rank}) where {rank} is the number of dimensions in the input, got axis "
        "{axis}"
    ),
    "split": "-input rank(-{rank}) <= split_dim < input rank ({rank}), but got {axis}",
    "squeeze": "Tried to squeeze dim index {axis} for tensor with {rank} dimensions",
}
_AXIS_MESSAGE = (
    "Argument `axis` = {axis} not in range [-{rank}, {rank}): it is out of range for rank {rank}"
)

# Messages about sizes that are not a vector, about several -1, and about a size that is less than -1.
_SIZE_MESSAGES = {
    "reshape": (
        "reshape: the shape, the sizes input, must be 1-D, got {sizes}. [Op:Reshape]",
        "reshape: Only one input size may be -1, got the shape {sizes}. [Op:Reshape]",
        "reshape: Size {index} must be non-negative, not {size}. [Op:Reshape]",
    ),
    "split": (
        "split: size of the split_tensor must be 1-D and have the same elements as outputs, at least one, got {sizes}. "
        "[Op:SplitV]",
        "split: There can only be one -1 in the input, got the sizes {sizes}. [Op:SplitV]",
        "split: Split size at index {index} must be >= -1. Got: {size} [Op:SplitV]",
    ),
}


def check_rank(array: Array, minimum: int, op_name: str, subject: str = "input") -> None:
    """Raise `InvalidArgumentError` unless an operand, the subject of the message, has at least `minimum` dimensions."""
    if array.ndim < minimum:
        raise InvalidValueError(
            f"{op_name}: {subject} must be at least {minimum}-dim, received shape: {list(array.shape)}. It must be at least "
            f"rank {minimum}. [Op:{op_name}]"
        )


def normalize_axis(axis: int | tuple[int, ...], rank: int, op_name: str) -> int:
    """Return a nonnegative axis.

    Args:
      axis: The axis, or a tuple that contains only it.
      rank: Number of dimensions.
      op_name: Name of the op, for the errors.

    Raises:
      InvalidArgumentError: If the axis is out of range, or not one integer.
    """
    if isinstance(axis, tuple):
        if len(axis) != 1:
            raise InvalidValueError(
                f"{op_name}: the axis must be a tensor with a single value, got {list(axis)}. [Op:{op_name}]"
            )
        axis = axis[0]
    if not -rank <= axis < rank:
        text = _AXIS_MESSAGES.get(op_name, _AXIS_MESSAGE)
        text = text.format(axis=axis, rank=rank, below=rank - 1)
        raise InvalidValueError(f"{op_name}: {text}. [Op:{op_name}]")
    return axis % rank


def check_sizes(sizes: tuple[Any, ...], op_name: str, min_count: int = 0) -> None:
    """Raise unless there are `min_count` sizes or more, all of them nonnegative integers except at most one -1."""
    not_vector, several_unknown, negative = _SIZE_MESSAGES[op_name]
    known = [s for s in sizes if isinstance(s, int)]
    if len(sizes) < min_count or any(isinstance(s, tuple) for s in sizes):
        raise InvalidValueError(not_vector.format(sizes=list(sizes)))
    if known.count(-1) > 1:
        raise InvalidValueError(several_unknown.format(sizes=list(sizes)))
    for index, size in enumerate(sizes):
        if isinstance(size, int) and size < -1:
            raise InvalidValueError(negative.format(index=index, size=size))


@op(same=(), name="reshape", strings="moves", sizes=("shape",))
def reshape(tensor: TensorLike, shape: Any, name: str | None = None) -> Tensor:
    """Return the same elements in another shape.

    Args:
      tensor: A tensor.
      shape: The new sizes; one may be -1.
      name: Ignored.

    Raises:
      InvalidArgumentError: If the number of elements differs.

    Example:
      >>> tf.reshape(tf.range(6), [2, -1]).numpy()
      array([[0, 1, 2],
             [3, 4, 5]], dtype=int32)
    """
    sizes = tuple(-1 if s is None else s for s in (shape if isinstance(shape, tuple) else (shape,)))
    check_sizes(sizes, "reshape")
    _check_inferred_size(sizes, tensor)
    count = math.prod(sizes)
    # JAX does not compare symbolic numbers of elements.
    if -1 not in sizes and are_different(count, tensor.size):
        raise InvalidValueError(
            f"Input to reshape is a tensor with {tensor.size} values, but the requested shape has {count}: "
            f"{list(sizes)}. [Op:Reshape]"
        )
    if has_symbolic_size((*sizes, *tensor.shape)):
        return jnp.reshape(tensor, sizes)
    if -1 in sizes and 0 in sizes and tensor.size == 0:
        # Any size would fit; TensorFlow uses the one that fits if zeros are not counted.
        old = int(np.prod([s for s in tensor.shape if s], dtype=np.int64))
        new = int(np.prod([s for s in sizes if s > 0], dtype=np.int64))
        sizes = tuple(old // new if s == -1 else s for s in sizes)
    return jnp.reshape(tensor, sizes)


def _check_inferred_size(sizes: tuple[Any, ...], tensor: Array) -> None:
    """Raise unless there is a size that can replace the -1 in the sizes of `reshape`."""
    if all(isinstance(s, int) for s in (*sizes, tensor.size)) and -1 in sizes:
        factor = math.prod(s for s in sizes if s != -1)
        if tensor.size % factor if factor else tensor.size:
            raise InvalidValueError(
                f"Input to reshape is a tensor with {tensor.size} values, but the requested shape requires a "
                f"multiple of {factor}: {list(sizes)}. [Op:Reshape]"
            )


@op(same=(), name="expand_dims", strings="moves")
def expand_dims(input: TensorLike, axis: int, name: str | None = None) -> Tensor:
    """Insert a dimension of size 1 at `axis`.

    Args:
      input: A tensor.
      axis: Index of the new dimension; a negative index counts from the end of the result.
      name: Ignored.

    Raises:
      InvalidArgumentError: If `axis` is out of range.

    Example:
      >>> x = tf.zeros([2, 3])
      >>> tf.expand_dims(x, 0).shape, tf.expand_dims(x, -1).shape
      (TensorShape([1, 2, 3]), TensorShape([2, 3, 1]))
    """
    return jnp.expand_dims(input, normalize_axis(axis, input.ndim + 1, "expand_dims"))


@op(same=(), name="squeeze", strings="moves")
def squeeze(input: TensorLike, axis: Axes = None, name: str | None = None) -> Tensor:
    """Remove dimensions of size 1.

    Args:
      input: A tensor.
      axis: The dimension or dimensions to remove; default all of size 1.
      name: Ignored.

    Raises:
      InvalidArgumentError: If a dimension has another size.

    Example:
      >>> x = tf.zeros([1, 3, 1])
      >>> tf.squeeze(x).shape, tf.squeeze(x, axis=0).shape
      (TensorShape([3]), TensorShape([3, 1]))
    """
    sizes = input.shape
    if axis is not None and axis != ():
        axes = (axis,) if isinstance(axis, int) else axis
        axes = tuple(dict.fromkeys(normalize_axis(a, input.ndim, "squeeze") for a in axes))
        for a in axes:
            probe = context.value_probe
            if probe is not None and sizes[a] == probe.invented_size:
                # The unknown size must be 1.
                input = lax.slice_in_dim(input, 0, 1, axis=a)
            elif not can_be_equal(sizes[a], 1):
                raise InvalidValueError(
                    f"Can not squeeze dim[{a}], expected a dimension of 1, got {sizes[a]} [Op:Squeeze]"
                )
    else:
        axes = tuple(a for a, size in enumerate(sizes) if size == 1)
    known = set_sizes(input, [1 if a in axes else size for a, size in enumerate(sizes)])
    return jnp.squeeze(known, axes)


@op(same=(), name="transpose", strings="moves")
def transpose(
    a: TensorLike,
    perm: Sequence[int] | None = None,
    conjugate: bool = False,
    name: str = "transpose",
) -> Tensor:
    """Permute the dimensions.

    Args:
      a: A tensor.
      perm: Order of the dimensions; default reversed.
      conjugate: Whether to conjugate complex numbers.
      name: Ignored.

    Example:
      >>> print(tf.transpose([[1, 2, 3], [4, 5, 6]]).numpy())
      [[1 4]
       [2 5]
       [3 6]]
      >>> tf.transpose(tf.zeros([2, 3, 4]), perm=[0, 2, 1]).shape
      TensorShape([2, 4, 3])
    """
    if perm is not None and sorted(p % max(a.ndim, 1) for p in perm) != list(range(a.ndim)):
        raise InvalidValueError(
            f"transpose expects a permutation of the {a.ndim} dimensions, got {list(perm)}."
        )
    result = jnp.transpose(a, perm)
    return jnp.conj(result) if conjugate else result


@op(same=(), name="bitcast")
def _bitcast(input: TensorLike, dtype: DType) -> Tensor:
    ratio = dtype.size // max(input.dtype.itemsize, 1)
    if ratio > 1 and input.shape[-1:] != (ratio,):
        raise InvalidValueError(
            f"Cannot bitcast from {input.dtype.name} to {dtype.name}: the last dimension of shape "
            f"{list(input.shape)} must have size {ratio}. [Op:Bitcast]"
        )
    return jax.lax.bitcast_convert_type(input, dtype.dtype)


@accept_symbolic
def bitcast(input: TensorLike, type: DTypeLike, name: str | None = None) -> Tensor:
    """Reinterpret the bits of a tensor as another dtype.

    Args:
      input: A tensor.
      type: The new dtype. A smaller one adds a last dimension, a larger one removes it.
      name: Ignored.

    Example:
      >>> hex(tf.bitcast(1.0, tf.int32).numpy().item())
      '0x3f800000'
      >>> tf.bitcast(tf.zeros([2], tf.int32), tf.uint8).shape
      TensorShape([2, 4])
    """
    return _bitcast(input, as_dtype(type))
