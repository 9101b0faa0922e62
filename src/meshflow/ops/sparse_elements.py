"""Ops of sparse tensors that compute with their elements only.

Where the number of elements of a result depends on the indices, these must be static: a function
with traced indices runs op by op.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, overload

import numpy as np

from meshflow.core.dispatch.composite import SparseTensor
from meshflow.core.dispatch.operands import to_static_value
from meshflow.core.runtime.bounds_checks import PADDING_INDEX, is_padding
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import int64
from meshflow.core.values.shapes import ShapeLike
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.environment.types import Array
from meshflow.ops import array, math
from meshflow.ops.coordinates import (
    INVALID,
    add_elements,
    get_row_ids,
    get_static_indices,
    has_static_indices,
    map_indices,
    sort_elements,
    take_elements,
    unique_rows,
)
from meshflow.ops.signatures import RowSegments

__all__ = [
    "add",
    "bincount",
    "concat",
    "fill_empty_rows",
    "map_values",
    "maximum",
    "minimum",
    "reset_shape",
    "retain",
    "segment_mean",
    "segment_sqrt_n",
    "segment_sum",
    "slice",
    "softmax",
    "split",
    "to_indicator",
]


def _check_sparse(value: object, name: str) -> SparseTensor:
    if not isinstance(value, SparseTensor):
        raise TypeError(f"{name} must be a SparseTensor, got {type(value).__name__}.")
    return value


def _combine(
    a: SparseTensor, b: SparseTensor, combine: Callable[[Tensor, Tensor], Tensor], name: str
) -> SparseTensor:
    """Combine two sparse tensors; an element that is missing in one of them is 0."""
    if a.shape.as_list() != b.shape.as_list():
        raise InvalidValueError(f"Operands' shapes do not match: {a.shape} and {b.shape}.")
    first = get_static_indices(a, name)
    indices, owner = unique_rows(np.concatenate([first, get_static_indices(b, name)]))
    count = len(first)
    left = array.scatter_nd(owner[:count, None], a.values, [len(indices)])
    right = array.scatter_nd(owner[count:, None], b.values, [len(indices)])
    return SparseTensor(indices, combine(left, right), a.shape.as_list())


def _compare(
    a: SparseTensor, b: SparseTensor, combine: Callable[[Tensor, Tensor], Tensor], name: str
) -> SparseTensor:
    for operand, label in ((a, "sp_a"), (b, "sp_b")):
        message = "Sparse index tuple indices[{index}, :] = [{value}] is out of bounds"
        _check_sparse(operand, label).check_indices(message)
    return _combine(a, b, combine, name)


def _replace_by_ones(a: SparseTensor) -> SparseTensor:
    return a.with_values(array.ones([a.values.shape[0]], "int32"))


@overload
def add(a: SparseTensor, b: SparseTensor, threshold: float | Tensor = 0) -> SparseTensor: ...
@overload
def add(
    a: TensorLike | SparseTensor, b: TensorLike | SparseTensor, threshold: float | Tensor = 0
) -> Tensor: ...
def add(
    a: TensorLike | SparseTensor, b: TensorLike | SparseTensor, threshold: float | Tensor = 0
) -> Tensor | SparseTensor:
    """Add two tensors, at least one of them sparse.

    Args:
      a: A sparse or dense tensor.
      b: A sparse or dense tensor of the same dtype and shape.
      threshold: For two sparse tensors: elements that exist in both are removed if the magnitude of
        their sum is smaller.

    Returns:
      A sparse tensor if both arguments are sparse, otherwise a dense tensor.

    Raises:
      TypeError: If both arguments are dense.

    Example:
      >>> import meshflow as tf
      >>> a = tf.SparseTensor([[0]], [1], [3])
      >>> b = tf.SparseTensor([[0], [2]], [5, 7], [3])
      >>> print(tf.sparse.to_dense(tf.sparse.add(a, b)).numpy(), tf.sparse.add(a, [1, 1, 1]).numpy())
      [6 0 7] [2 1 1]
    """
    if isinstance(a, SparseTensor) and isinstance(b, SparseTensor):
        total = _combine(a, b, math.add, "add")
        limit = to_static_value(threshold, "threshold")
        if not limit:
            return total
        # The threshold only applies to elements that exist in both tensors.
        counts = _combine(_replace_by_ones(a), _replace_by_ones(b), math.add, "add").values
        sums = total.values.require_value("sums that tf.sparse.add compares with a threshold")
        return retain(total, (np.abs(sums) >= limit) | (np.asarray(counts.array) < 2))
    if not isinstance(a, SparseTensor) and not isinstance(b, SparseTensor):
        raise TypeError("tf.sparse.add: at least one argument must be a SparseTensor.")
    sparse, dense = (a, b) if isinstance(a, SparseTensor) else (b, a)
    dense = convert_to_tensor(dense, dtype_hint=sparse.dtype)
    if dense.shape != sparse.shape:
        raise InvalidValueError(f"Operands' shapes do not match: {dense.shape} and {sparse.shape}.")
    message = (
        "Sparse tensor has an invalid index on dimension {name}: a_indices({index},{name}) = {item}, "
        f"dense tensor shape: {' '.join(map(str, sparse.shape.as_list()))}"
    )
    return add_elements(dense, sparse.check_indices(message), sparse.values, False)


def maximum(sp_a: SparseTensor, sp_b: SparseTensor, name: str | None = None) -> SparseTensor:
    """Compute elementwise maxima of two sparse tensors of the same shape; a missing element is 0.

    Example:
      >>> import meshflow as tf
      >>> a, b = tf.SparseTensor([[0]], [4], [3]), tf.SparseTensor([[0], [1]], [6, -1], [3])
      >>> print(tf.sparse.to_dense(tf.sparse.maximum(a, b)).numpy())
      [6 0 0]
    """
    return _compare(sp_a, sp_b, math.maximum, "maximum")


def minimum(sp_a: SparseTensor, sp_b: SparseTensor, name: str | None = None) -> SparseTensor:
    """Compute elementwise minima of two sparse tensors of the same shape; a missing element is 0.

    Example:
      >>> import meshflow as tf
      >>> a, b = tf.SparseTensor([[0]], [4], [3]), tf.SparseTensor([[0], [1]], [6, -1], [3])
      >>> print(tf.sparse.to_dense(tf.sparse.minimum(a, b)).numpy())
      [ 4 -1  0]
    """
    return _compare(sp_a, sp_b, math.minimum, "minimum")


def map_values(op: Callable[..., Any], *args: Any, **kwargs: Any) -> SparseTensor:
    """Apply a function to the values of sparse tensors, keeping their indices.

    Args:
      op: Function of tensors that preserves the number of elements.
      *args: Arguments. Sparse arguments must have the same indices, and are replaced by their
        values.
      **kwargs: Keyword arguments, which may also be sparse.

    Returns:
      A sparse tensor of the same shape.

    Raises:
      ValueError: If no argument is sparse.

    Example:
      >>> import meshflow as tf
      >>> a = tf.sparse.from_dense([[0, 2], [3, 0]])
      >>> print(tf.sparse.to_dense(tf.sparse.map_values(tf.add, a, 10)).numpy())
      [[ 0 12]
       [13  0]]
    """
    sparse = [v for v in (*args, *kwargs.values()) if isinstance(v, SparseTensor)]
    if not sparse:
        raise ValueError("No SparseTensor in argument list of map_values")
    for other in sparse[1:]:
        if not _may_have_equal_indices(other, sparse[0]):
            raise InvalidValueError("map_values: sparse arguments must have the same indices.")
    values = [v.values if isinstance(v, SparseTensor) else v for v in args]
    named = {k: v.values if isinstance(v, SparseTensor) else v for k, v in kwargs.items()}
    return sparse[0].with_values(op(*values, **named))


def _may_have_equal_indices(a: SparseTensor, b: SparseTensor) -> bool:
    if not (has_static_indices(a) and has_static_indices(b)):
        return a.indices.shape == b.indices.shape
    return np.array_equal(np.asarray(a.indices.array), np.asarray(b.indices.array))


def retain(sp_input: SparseTensor, to_retain: TensorLike) -> SparseTensor:
    """Select some elements of a sparse tensor, keeping its shape.

    Args:
      sp_input: A sparse tensor of n elements.
      to_retain: n booleans.

    Raises:
      ValueError: If the number of booleans is not n.

    Example:
      >>> import meshflow as tf
      >>> a = tf.sparse.from_dense([5, 0, 6, 7])
      >>> print(tf.sparse.retain(a, [True, False, True]).indices.numpy().tolist())
      [[0], [3]]
    """
    mask = np.asarray(convert_to_tensor(to_retain).require_value("to_retain of tf.sparse.retain"))
    if mask.shape != (sp_input.values.shape[0],):
        raise ValueError(
            f"to_retain must have shape {[sp_input.values.shape[0]]}, got {list(mask.shape)}."
        )
    order = np.flatnonzero(mask)
    return SparseTensor(
        map_indices(lambda xp, i: i[order], sp_input.indices),
        array.gather(sp_input.values, order),
        sp_input.shape.as_list(),
    )


def concat(
    axis: int,
    sp_inputs: Sequence[SparseTensor],
    expand_nonconcat_dims: bool = False,
    name: str | None = None,
) -> SparseTensor:
    """Concatenate sparse tensors along an axis.

    Args:
      axis: The axis.
      sp_inputs: Sparse tensors of the same rank and dtype.
      expand_nonconcat_dims: Whether other sizes may differ; the result has the largest.
      name: Ignored.

    Raises:
      InvalidArgumentError: If other sizes differ and `expand_nonconcat_dims` is false.

    Example:
      >>> import meshflow as tf
      >>> a = tf.sparse.from_dense([[1, 0]])
      >>> print(tf.sparse.to_dense(tf.sparse.concat(0, [a, a])).numpy())
      [[1 0]
       [1 0]]
    """
    if isinstance(sp_inputs, SparseTensor):
        sp_inputs = [sp_inputs]
    shapes = np.asarray([_check_sparse(s, "sp_inputs").shape.as_list() for s in sp_inputs])
    rank = shapes.shape[1]
    if not -rank <= axis < rank:
        raise InvalidValueError(f"Concat dimension must be in [-{rank}, {rank}), got {axis}.")
    others = np.delete(shapes, axis, axis=1)
    if not expand_nonconcat_dims and (others != others[0]).any():
        raise InvalidValueError(
            f"tf.sparse.concat: shapes differ outside of dimension {axis}: {shapes.tolist()}."
        )
    shape = shapes.max(0)
    shape[axis] = shapes[:, axis].sum()
    padding = np.maximum(shape, PADDING_INDEX)
    starts = np.cumsum(shapes[:, axis]) - shapes[:, axis]

    def join(xp: ModuleType, *parts: Array) -> Array:
        offsets = np.zeros((len(parts), rank), np.int64)
        offsets[:, axis] = starts
        rows = zip(parts, shapes, offsets, strict=True)
        # Padding must not overflow.
        return xp.concatenate([xp.where(is_padding(i, n), padding, i + o) for i, n, o in rows])

    indices = map_indices(join, *[s.indices for s in sp_inputs])
    values = array.concat([s.values for s in sp_inputs], 0)
    return sort_elements(indices, values, shape.tolist())


def slice(
    sp_input: SparseTensor, start: TensorLike, size: TensorLike, name: str | None = None
) -> SparseTensor:
    """Extract a box from a sparse tensor.

    Args:
      sp_input: A sparse tensor.
      start: First index of the box in each dimension.
      size: Size of the box in each dimension; it is clipped to the tensor.
      name: Ignored.

    Example:
      >>> import meshflow as tf
      >>> a = tf.sparse.from_dense([[1, 2, 0], [0, 3, 4]])
      >>> print(tf.sparse.to_dense(tf.sparse.slice(a, start=[0, 1], size=[2, 2])).numpy())
      [[2 0]
       [3 4]]
    """
    first = np.asarray(to_static_value(start, "start"))
    shape = np.asarray(sp_input.shape.as_list())
    sizes = np.maximum(np.minimum(np.asarray(to_static_value(size, "size")), shape - first), 0)
    indices = get_static_indices(sp_input, "slice")
    order = np.flatnonzero(((indices >= first) & (indices < first + sizes)).all(1))
    values = take_elements(sp_input.values, Tensor(order))
    return SparseTensor(indices[order] - first, values, sizes.tolist())


def split(
    sp_input: SparseTensor, num_split: int, axis: int, name: str | None = None
) -> list[SparseTensor]:
    """Split an axis into parts of equal size, or with the first parts larger by 1.

    Args:
      sp_input: A sparse tensor.
      num_split: Number of parts.
      axis: The axis.
      name: Ignored.

    Example:
      >>> import meshflow as tf
      >>> a = tf.sparse.from_dense([[1, 0, 3]])
      >>> [tf.sparse.to_dense(part).numpy().tolist() for part in tf.sparse.split(a, 2, axis=1)]
      [[[1, 0]], [[3]]]
    """
    shape = sp_input.shape.as_list()
    rank = len(shape)
    if not -rank <= axis < rank:
        raise InvalidValueError(f"Input axis should be in [-{rank}, {rank}), got {axis}.")
    axis = axis % rank
    if not 0 < num_split <= shape[axis]:
        raise InvalidValueError(f"num_split must be in [1, {shape[axis]}], got {num_split}.")
    base, num_larger = divmod(shape[axis], num_split)
    parts, start = [], [0] * rank
    for i in range(num_split):
        size = list(shape)
        size[axis] = base + (i < num_larger)
        parts.append(slice(sp_input, start, size))
        start = [*start]
        start[axis] += size[axis]
    return parts


def reset_shape(sp_input: SparseTensor, new_shape: ShapeLike = None) -> SparseTensor:
    """Change the shape of a sparse tensor, keeping the indices of its elements.

    Args:
      sp_input: A sparse tensor.
      new_shape: Sizes that are at least those of the input; by default the smallest that contain
        all elements.

    Raises:
      InvalidArgumentError: If `new_shape` is too small or has another rank.

    Example:
      >>> import meshflow as tf
      >>> a = tf.SparseTensor([[0, 1]], [5], [4, 4])
      >>> tf.sparse.reset_shape(a).shape, tf.sparse.reset_shape(a, [8, 9]).shape
      (TensorShape([1, 2]), TensorShape([8, 9]))
    """
    old_shape = sp_input.shape.as_list()
    if new_shape is None:
        indices = get_static_indices(sp_input, "reset_shape")
        tight = (indices.max(0) + 1).tolist() if len(indices) else [0] * len(old_shape)
        return SparseTensor(indices, sp_input.values, tight)
    shape = list(to_static_value(new_shape, "new_shape"))
    if len(shape) != len(old_shape) or any(n < o for n, o in zip(shape, old_shape, strict=True)):
        raise InvalidValueError(
            f"tf.sparse.reset_shape: new_shape must not be smaller than {old_shape}, got {shape}."
        )
    return SparseTensor(sp_input.indices, sp_input.values, shape)


def fill_empty_rows(
    sp_input: SparseTensor, default_value: TensorLike, name: str | None = None
) -> tuple[SparseTensor, Tensor]:
    """Add an element in the first column of each empty row of a sparse matrix.

    Args:
      sp_input: A sparse matrix [rows, columns].
      default_value: Value of the new elements.
      name: Ignored.

    Returns:
      The filled matrix, and a mask of the empty rows [rows].

    Example:
      >>> import meshflow as tf
      >>> filled, empty = tf.sparse.fill_empty_rows(tf.sparse.from_dense([[1, 2], [0, 0]]), -1)
      >>> print(tf.sparse.to_dense(filled).numpy().tolist(), empty.numpy())
      [[1, 2], [-1, 0]] [False  True]
    """
    _check_sparse(sp_input, "sp_input")
    indices, shape = get_static_indices(sp_input, "fill_empty_rows"), sp_input.shape.as_list()
    message = "indices({index}, 0) is invalid: {item} >= {bound}"
    upper = (shape[0], *[np.iinfo(np.int64).max] * (len(shape) - 1))
    sp_input.check_indices(message, upper=upper)
    rows = np.setdiff1d(np.arange(shape[0]), indices[:, 0])
    extra = np.zeros((len(rows), len(shape)), np.int64)
    extra[:, 0] = rows
    filler = array.fill([len(rows)], convert_to_tensor(default_value, dtype=sp_input.dtype))
    values = array.concat([sp_input.values, filler], 0)
    filled = sort_elements(Tensor(np.concatenate([indices, extra])), values, shape)
    return filled, convert_to_tensor(np.isin(np.arange(shape[0]), rows))


def softmax(sp_input: SparseTensor, name: str | None = None) -> SparseTensor:
    """Compute the softmax of each row, keeping the shape; missing elements are minus infinity.

    Example:
      >>> import meshflow as tf
      >>> a = tf.sparse.from_dense([[1.0, 1.0, 0.0]])
      >>> print(tf.sparse.to_dense(tf.sparse.softmax(a)).numpy())
      [[0.5 0.5 0. ]]
    """
    sizes = sp_input.shape.as_list()[:-1]
    count = sp_input.values.shape[0]
    if not count:
        return sp_input

    def number_rows(xp: ModuleType, indices: Array) -> Array:
        # In a program, the number of different rows must be static.
        options = {} if xp is np else {"size": count}
        row_ids = get_row_ids(xp, indices, sizes)
        return xp.unique(row_ids, return_inverse=True, **options)[1].reshape(-1)

    owner = map_indices(number_rows, sp_input.indices)
    largest = array.stop_gradient(math.unsorted_segment_max(sp_input.values, owner, count))
    powers = math.exp(sp_input.values - array.gather(largest, owner))
    total = math.unsorted_segment_sum(powers, owner, count)
    return sp_input.with_values(powers / array.gather(total, owner))


def to_indicator(sp_input: SparseTensor, vocab_size: int, name: str | None = None) -> Tensor:
    """Return a mask of the integers that each row contains.

    Args:
      sp_input: Sparse integers of shape [..., n].
      vocab_size: Exclusive upper limit of the integers.
      name: Ignored.

    Returns:
      Booleans [..., vocab_size].

    Example:
      >>> import meshflow as tf
      >>> a = tf.SparseTensor([[0, 0], [0, 1], [1, 0]], [0, 2, 1], [2, 2])
      >>> print(tf.sparse.to_indicator(a, vocab_size=3).numpy())
      [[ True False  True]
       [False  True False]]
    """
    shape = [*sp_input.shape.as_list()[:-1], int(vocab_size)]
    indices = array.concat(
        [sp_input.indices[:, :-1], math.cast(sp_input.values, int64)[:, None]], 1
    )
    is_stored = SparseTensor(indices, array.ones([indices.shape[0]], "bool"), shape)
    return add_elements(
        array.zeros(shape, "bool"), is_stored.check_indices(INVALID), is_stored.values, True
    )


def bincount(
    values: TensorLike | SparseTensor,
    weights: TensorLike | SparseTensor | None = None,
    axis: int = 0,
    minlength: int | None = None,
    maxlength: int | None = None,
    binary_output: bool = False,
    name: str | None = None,
) -> SparseTensor:
    """Count integers like `tf.math.bincount`, with a sparse result.

    Args:
      values: A dense or sparse tensor of non-negative integers; missing elements are not counted.
      weights: Weight of each value, in the same form; 1 by default.
      axis: 0 to count in the entire tensor, -1 to count in each row.
      minlength: Minimum size of the last axis.
      maxlength: Maximum size of the last axis; larger integers are ignored.
      binary_output: Whether to return 1 for any positive count.
      name: Ignored.

    Returns:
      A sparse tensor, int64 or with the dtype of `weights`.

    Example:
      >>> import meshflow as tf
      >>> print(tf.sparse.to_dense(tf.sparse.bincount([1, 3, 1])).numpy())
      [0 2 0 1]
    """
    if axis not in (0, -1):
        raise ValueError(f"tf.sparse.bincount: axis must be 0 or -1, got {axis}.")
    if isinstance(values, SparseTensor):
        integers = values.values.require_value("values of tf.sparse.bincount")
        owner = get_static_indices(values, "bincount")[:, 0]
        rows, by_row = values.shape.as_list()[0], axis == -1 and len(values.shape) > 1
        amounts = None if weights is None else _get_weights(weights.values)
    else:
        dense = np.asarray(convert_to_tensor(values).require_value("values of tf.sparse.bincount"))
        rows, by_row = (len(dense) if dense.ndim else 1), axis == -1 and dense.ndim > 1
        integers = dense.reshape(-1)
        owner = np.repeat(np.arange(rows), integers.size // max(rows, 1))
        amounts = None if weights is None else _get_weights(weights).reshape(-1)
    if (integers < 0).any():
        raise InvalidValueError("tf.sparse.bincount: values must be non-negative.")
    size = max(int(integers.max(initial=-1)) + 1, minlength or 0)
    size = size if maxlength is None else min(size, maxlength)
    amounts = np.ones(integers.size, np.int64) if amounts is None else amounts
    is_counted = integers < size
    owner = owner if by_row else np.zeros_like(owner)
    pairs = np.stack([owner[is_counted], integers[is_counted]], 1).astype(np.int64)
    indices, owner = unique_rows(pairs)
    counts = np.zeros(len(indices), amounts.dtype)
    np.add.at(counts, owner, amounts[is_counted])
    if binary_output:
        counts = np.ones_like(counts)
    if by_row:
        return SparseTensor(indices, counts, [rows, size])
    return SparseTensor(indices[:, 1:], counts, [size])


def _get_weights(weights: TensorLike) -> np.ndarray:
    return convert_to_tensor(weights).require_value("weights of tf.sparse.bincount")


def _make_row_segments(reduction: str, example_result: str) -> RowSegments:
    """Create an op on segments of selected rows, with the result of the example in its docstring."""

    def segment(
        data: TensorLike,
        indices: TensorLike,
        segment_ids: TensorLike,
        num_segments: int | Tensor | None = None,
        sparse_gradient: bool = False,
        name: str | None = None,
    ) -> Tensor:
        rows = array.gather(data, indices)
        ids = convert_to_tensor(segment_ids)
        if num_segments is None:
            static_ids = ids.require_value(
                f"segment_ids of tf.sparse.segment_{reduction} without num_segments"
            )
            num_segments = int(static_ids[-1]) + 1 if static_ids.size else 0
        reduce = getattr(math, f"unsorted_segment_{reduction}")
        return reduce(rows, math.cast(ids, int64), num_segments)

    segment.__name__ = segment.__qualname__ = f"segment_{reduction}"
    segment.__doc__ = f"""Apply `tf.math.unsorted_segment_{reduction}` to selected rows of a tensor.

    Args:
      data: A tensor.
      indices: Indices of the selected rows.
      segment_ids: Segment of each selected row, in ascending order.
      num_segments: Number of segments; by default the last id plus 1.
      sparse_gradient: Ignored.
      name: Ignored.

    Returns:
      Tensor [num_segments, ...].

    Example:
      >>> import meshflow as tf
      >>> data = tf.constant([1.0, 2.0, 4.0])
      >>> print(tf.sparse.segment_{reduction}(data, [0, 0, 2], segment_ids=[0, 0, 1]).numpy().round(3))
      {example_result}
    """
    return segment


segment_sum = _make_row_segments("sum", "[2. 4.]")
segment_mean = _make_row_segments("mean", "[1. 4.]")
segment_sqrt_n = _make_row_segments("sqrt_n", "[1.414 4.   ]")
