"""Ops that slice tensors: `slice` with sizes, `strided_slice` with strides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from meshflow.core.dispatch.dispatch import apply
from meshflow.core.dispatch.operands import to_static_value
from meshflow.core.dispatch.operation import Op
from meshflow.core.dispatch.symbolic_calls import dispatch_composites
from meshflow.core.runtime.bounds_checks import check_begin
from meshflow.core.runtime.context import context
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.shapes import can_be_equal, is_smaller
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.core.variables.indexing import getitem
from meshflow.ops.array.joining import unstack
from meshflow.ops.array.shaping import StaticInts

__all__ = ["slice", "strided_slice"]

_python_slice = slice


def _compute_slice(
    operands: tuple[jax.Array, Sequence[jax.Array]], size: tuple[int, ...]
) -> jax.Array:
    array, begins = operands
    return jax.lax.dynamic_slice(array, begins, size)


_SLICE = Op("slice", _compute_slice, strings="moves")


@dispatch_composites
def slice(input_: TensorLike, begin: Any, size: StaticInts, name: str | None = None) -> Tensor:
    """Extract a block of a tensor; `begin` may be computed at run time, `size` must be static.

    Args:
      input_: A tensor.
      begin: First index in each dimension.
      size: Size in each dimension; -1 for the remaining size (then `begin` must be static).
      name: Ignored.

    Raises:
      InvalidArgumentError: If the block is not inside the tensor.

    Example:
      >>> x = tf.reshape(tf.range(12), [3, 4])
      >>> print(tf.slice(x, begin=[1, 0], size=[2, 2]).numpy())
      [[4 5]
       [8 9]]
      >>> print(tf.slice(x, [2, 1], [-1, -1]).numpy())
      [[ 9 10 11]]
    """
    if hasattr(input_, "_keras_history"):
        sizes = to_static_value(size)
        return input_[
            tuple(
                _python_slice(b, None if s == -1 else b + s)
                for b, s in zip(begin, sizes, strict=True)
            )
        ]
    tensor = convert_to_tensor(input_)
    sizes = to_static_value(size, "size")
    num_begins = (tuple(begin.shape) or (1,))[0] if hasattr(begin, "shape") else len(begin)
    if len(sizes) != tensor.ndim or num_begins not in (tensor.ndim, None):
        raise InvalidValueError(
            f"slice: Expected begin and size arguments to be 1-D tensors of size {tensor.ndim} for a tensor of shape "
            f"{tuple(tensor.shape)}, but got {num_begins} and {len(sizes)} numbers. [Op:Slice]"
        )
    for dim, (s, n) in enumerate(zip(sizes, tensor.array.shape, strict=True)):
        if isinstance(s, int) and isinstance(n, int) and (s > n or s < -1):
            raise InvalidValueError(f"Expected size[{dim}] in [0, {n}], but got {s} [Op:Slice]")
    # With static sizes, only the running program needs the start, so it becomes no symbol of the trace.
    is_static = all(isinstance(s, int) and s >= 0 for s in sizes)
    saved, context.unknown_sizes = (
        context.unknown_sizes,
        None if is_static else context.unknown_sizes,
    )
    try:
        if is_static and context.value_probe is not None and _is_traced(begin):
            raise TypeError("A placeholder value is no valid start.")
        begins = to_static_value(begin, "begin")
    except TypeError:
        context.unknown_sizes = saved
        begins = [
            convert_to_tensor(b)
            for b in (list(begin) if isinstance(begin, (list, tuple)) else unstack(begin))
        ]
        shape = tensor.array.shape
        begins = [
            check_begin(b, s, n, dim)
            for dim, (b, s, n) in enumerate(zip(begins, sizes, shape, strict=True))
        ]
        return apply(_SLICE, (tensor, begins), sizes)
    finally:
        context.unknown_sizes = saved
    shape = tensor.array.shape
    for dim, (b, s, n) in enumerate(zip(begins, sizes, shape, strict=True)):
        check_begin(np.asarray(b), max(s, 0), n, dim)
        if is_smaller(n, b + max(s, 0)):
            raise InvalidValueError(f"Expected size[{dim}] in [0, {n} - {b}], but got {s}")
    result = getitem(
        tensor,
        tuple(
            _python_slice(b, None if s == -1 else b + s) for b, s in zip(begins, sizes, strict=True)
        ),
    )
    for dim, (s, n) in enumerate(zip(sizes, result.array.shape, strict=True)):
        # Python's slices end with the tensor.
        if s != -1 and not context.exporting and not can_be_equal(n, s):
            raise InvalidValueError(f"Expected size[{dim}] in [0, {n}], but got {s}")
    return result


def _is_traced(begin: Any) -> bool:
    parts = begin if isinstance(begin, (list, tuple)) else [begin]
    return any(isinstance(getattr(part, "array", None), jax.core.Tracer) for part in parts)


@dispatch_composites
def strided_slice(
    input_: TensorLike,
    begin: StaticInts,
    end: StaticInts,
    strides: StaticInts | None = None,
    begin_mask: int = 0,
    end_mask: int = 0,
    ellipsis_mask: int = 0,
    new_axis_mask: int = 0,
    shrink_axis_mask: int = 0,
    var: object = None,
    name: str | None = None,
) -> Tensor:
    """Compute `input_[begin:end:strides]`, where bits of the masks change the meaning of entries.

    Args:
      input_: A tensor.
      begin: First index in each dimension.
      end: Index after the last one in each dimension.
      strides: Steps, which may be negative; default 1.
      begin_mask: If bit i is set, dimension i is read from its first index.
      end_mask: If bit i is set, dimension i is read to its last index.
      ellipsis_mask: If bit i is set, entry i is an ellipsis.
      new_axis_mask: If bit i is set, entry i is a new dimension of size 1.
      shrink_axis_mask: If bit i is set, entry i is a single index, and its dimension is removed.
      var: Ignored.
      name: Ignored.

    Example:
      >>> x = tf.range(10)
      >>> print(tf.strided_slice(x, begin=[1], end=[8], strides=[3]).numpy())
      [1 4 7]
      >>> print(tf.strided_slice(x, [0], [8], [3], end_mask=1).numpy())
      [0 3 6 9]
    """
    begins, ends = to_static_value(begin, "begin"), to_static_value(end, "end")
    steps = to_static_value(strides, "strides") if strides is not None else (1,) * len(begins)
    if not len(begins) == len(ends) == len(steps):
        raise InvalidValueError(
            f"strided_slice: Expected begin, end, and strides to be 1D equal size tensors, but got {list(begins)}, "
            f"{list(ends)} and {list(steps)}. [Op:StridedSlice]"
        )
    key: list[Any] = []
    for i, (b, e, s) in enumerate(zip(begins, ends, steps, strict=True)):
        bit = 1 << i
        if ellipsis_mask & bit:
            key.append(Ellipsis)
        elif new_axis_mask & bit:
            key.append(None)
        elif shrink_axis_mask & bit:
            key.append(b)
        else:
            key.append(
                _python_slice(None if begin_mask & bit else b, None if end_mask & bit else e, s)
            )
    return getitem(convert_to_tensor(input_), tuple(key))
