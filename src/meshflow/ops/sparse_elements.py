"""Sparse tensors joined, cut and computed with: places on the host, elements as tensors.

Results have as many elements as their places say, so the places must be known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshflow.core.dispatch.composite import SparseTensor
from meshflow.core.dispatch.operands import static_value
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import int64
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.ops import array, math
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


def _sparse(value: Any, name: str) -> SparseTensor:
    if not isinstance(value, SparseTensor):
        raise TypeError(f"{name} must be a SparseTensor, got {type(value).__name__}.")
    return value


def _ordered(places: np.ndarray, values: Any, order_of: Any, shape: Any) -> SparseTensor:
    order = np.lexsort(places.T[::-1])
    return SparseTensor(places[order], array.gather(values, order_of[order]), shape)


def _merged(
    a: SparseTensor, b: SparseTensor, combine: Callable[[Tensor, Tensor], Tensor]
) -> SparseTensor:
    """An operation of two sparse tensors: an element missing in one counts as 0."""
    if a.shape.as_list() != b.shape.as_list():
        raise InvalidValueError(f"Operands' shapes do not match: {a.shape} and {b.shape}.")
    both = np.concatenate([a.indices.numpy(), b.indices.numpy()])
    places, owner = np.unique(both, axis=0, return_inverse=True)
    count = len(a.indices.numpy())
    owner = owner.reshape(-1)
    left = array.scatter_nd(owner[:count, None], a.values, [len(places)])
    right = array.scatter_nd(owner[count:, None], b.values, [len(places)])
    return SparseTensor(places, combine(left, right), a.shape.as_list())


def _ones(a: SparseTensor) -> SparseTensor:
    return a.with_values(array.ones([a.values.shape[0]], "int32"))


def add(a: Any, b: Any, threshold: Any = 0) -> Tensor | SparseTensor:
    """The sum of two tensors of which at least one is sparse.

    Args:
      a: a sparse or dense tensor.
      b: a sparse or dense tensor of the same dtype and shape.
      threshold: elements of both sparse tensors whose sum is smaller than it are left out.

    Returns:
      A sparse tensor for two sparse ones, else a dense one.

    Raises:
      TypeError: when neither is sparse.

    Example:
      >>> import meshflow as tf
      >>> a = tf.SparseTensor([[0]], [1], [3])
      >>> b = tf.SparseTensor([[0], [2]], [5, 7], [3])
      >>> print(tf.sparse.to_dense(tf.sparse.add(a, b)).numpy(), tf.sparse.add(a, [1, 1, 1]).numpy())
      [6 0 7] [2 1 1]
    """
    if isinstance(a, SparseTensor) and isinstance(b, SparseTensor):
        total = _merged(a, b, math.add)
        limit = static_value(threshold, "threshold")
        if not limit:
            return total
        # Only elements of both are sums.
        counts = _merged(_ones(a), _ones(b), math.add).values.numpy()
        return retain(total, (np.abs(total.values.numpy()) >= limit) | (counts < 2))
    if not isinstance(a, SparseTensor) and not isinstance(b, SparseTensor):
        raise TypeError("tf.sparse.add: at least one argument must be a SparseTensor.")
    sparse, dense = (a, b) if isinstance(a, SparseTensor) else (b, a)
    return array.tensor_scatter_nd_add(dense, sparse.indices, sparse.values)


def maximum(sp_a: SparseTensor, sp_b: SparseTensor, name: str | None = None) -> SparseTensor:
    """The larger of two elements; one that is missing counts as 0.

    Args:
      sp_a: a sparse tensor.
      sp_b: a sparse tensor of the same shape.
      name: ignored.

    Example:
      >>> import meshflow as tf
      >>> a, b = tf.SparseTensor([[0]], [4], [3]), tf.SparseTensor([[0], [1]], [6, -1], [3])
      >>> print(tf.sparse.to_dense(tf.sparse.maximum(a, b)).numpy())
      [6 0 0]
    """
    return _merged(_sparse(sp_a, "sp_a"), _sparse(sp_b, "sp_b"), math.maximum)


def minimum(sp_a: SparseTensor, sp_b: SparseTensor, name: str | None = None) -> SparseTensor:
    """The smaller of two elements; one that is missing counts as 0.

    Args:
      sp_a: a sparse tensor.
      sp_b: a sparse tensor of the same shape.
      name: ignored.

    Example:
      >>> import meshflow as tf
      >>> a, b = tf.SparseTensor([[0]], [4], [3]), tf.SparseTensor([[0], [1]], [6, -1], [3])
      >>> print(tf.sparse.to_dense(tf.sparse.minimum(a, b)).numpy())
      [ 4 -1  0]
    """
    return _merged(_sparse(sp_a, "sp_a"), _sparse(sp_b, "sp_b"), math.minimum)


def map_values(op: Callable[..., Any], *args: Any, **kwargs: Any) -> SparseTensor:
    """Calls a function with the elements of sparse tensors, and puts its results at their places.

    Args:
      op: a function of tensors that keeps the number of elements.
      *args: arguments; sparse ones, which must have the same places, are replaced by their elements.
      **kwargs: likewise.

    Returns:
      A sparse tensor of the same shape.

    Raises:
      ValueError: when there is no sparse argument.

    Example:
      >>> import meshflow as tf
      >>> a = tf.sparse.from_dense([[0, 2], [3, 0]])
      >>> print(tf.sparse.to_dense(tf.sparse.map_values(tf.add, a, 10)).numpy())
      [[ 0 12]
       [13  0]]
    """
    found = [v for v in (*args, *kwargs.values()) if isinstance(v, SparseTensor)]
    if not found:
        raise ValueError("No SparseTensor in argument list of map_values")
    for other in found[1:]:
        if not np.array_equal(other.indices.numpy(), found[0].indices.numpy()):
            raise InvalidValueError("map_values: sparse arguments must have the same indices.")
    plain = [v.values if isinstance(v, SparseTensor) else v for v in args]
    named = {k: v.values if isinstance(v, SparseTensor) else v for k, v in kwargs.items()}
    return found[0].with_values(op(*plain, **named))


def retain(sp_input: SparseTensor, to_retain: TensorLike) -> SparseTensor:
    """Some of the elements, in a sparse tensor of the same shape.

    Args:
      sp_input: a sparse tensor of n elements.
      to_retain: n booleans.

    Raises:
      ValueError: when their numbers differ.

    Example:
      >>> import meshflow as tf
      >>> a = tf.sparse.from_dense([5, 0, 6, 7])
      >>> print(tf.sparse.retain(a, [True, False, True]).indices.numpy().tolist())
      [[0], [3]]
    """
    kept = np.asarray(convert_to_tensor(to_retain)._concrete("to_retain of tf.sparse.retain"))
    if kept.shape != (sp_input.values.shape[0],):
        raise ValueError(
            f"to_retain must have shape {[sp_input.values.shape[0]]}, got {list(kept.shape)}."
        )
    order = np.flatnonzero(kept)
    return SparseTensor(
        sp_input.indices.numpy()[order],
        array.gather(sp_input.values, order),
        sp_input.shape.as_list(),
    )


def concat(
    axis: int,
    sp_inputs: Sequence[SparseTensor],
    expand_nonconcat_dims: bool = False,
    name: str | None = None,
) -> SparseTensor:
    """Joins sparse tensors along a dimension.

    Args:
      axis: the dimension.
      sp_inputs: sparse tensors of one rank and dtype.
      expand_nonconcat_dims: whether other dimensions may differ; the result has the largest.
      name: ignored.

    Raises:
      InvalidArgumentError: when other dimensions differ.

    Example:
      >>> import meshflow as tf
      >>> a = tf.sparse.from_dense([[1, 0]])
      >>> print(tf.sparse.to_dense(tf.sparse.concat(0, [a, a])).numpy())
      [[1 0]
       [1 0]]
    """
    if isinstance(sp_inputs, SparseTensor):
        sp_inputs = [sp_inputs]
    shapes = np.asarray([_sparse(s, "sp_inputs").shape.as_list() for s in sp_inputs])
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
    places = []
    for start, part in zip(np.cumsum(shapes[:, axis]) - shapes[:, axis], sp_inputs, strict=True):
        moved = part.indices.numpy().copy()
        moved[:, axis] += start
        places.append(moved)
    joined = np.concatenate(places)
    values = array.concat([s.values for s in sp_inputs], 0)
    return _ordered(joined, values, np.arange(len(joined)), shape.tolist())


def slice(
    sp_input: SparseTensor, start: TensorLike, size: TensorLike, name: str | None = None
) -> SparseTensor:
    """A box cut out of a sparse tensor.

    Args:
      sp_input: a sparse tensor.
      start: where the box starts in each dimension.
      size: its sizes; what reaches beyond the tensor is cut off.
      name: ignored.

    Example:
      >>> import meshflow as tf
      >>> a = tf.sparse.from_dense([[1, 2, 0], [0, 3, 4]])
      >>> print(tf.sparse.to_dense(tf.sparse.slice(a, start=[0, 1], size=[2, 2])).numpy())
      [[2 0]
       [3 4]]
    """
    first = np.asarray(static_value(start, "start"))
    own = np.asarray(sp_input.shape.as_list())
    sizes = np.maximum(np.minimum(np.asarray(static_value(size, "size")), own - first), 0)
    places = sp_input.indices.numpy()
    order = np.flatnonzero(((places >= first) & (places < first + sizes)).all(1))
    values = array.gather(sp_input.values, order)
    return SparseTensor(places[order] - first, values, sizes.tolist())


def split(
    sp_input: SparseTensor, num_split: int, axis: int, name: str | None = None
) -> list[SparseTensor]:
    """Cuts a dimension into parts of equal size; the first ones are longer by 1 if need be.

    Args:
      sp_input: a sparse tensor.
      num_split: number of parts.
      axis: the dimension.
      name: ignored.

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
    share, more = divmod(shape[axis], num_split)
    parts, start = [], [0] * rank
    for number in range(num_split):
        size = list(shape)
        size[axis] = share + (number < more)
        parts.append(slice(sp_input, start, size))
        start = [*start]
        start[axis] += size[axis]
    return parts


def reset_shape(sp_input: SparseTensor, new_shape: Any = None) -> SparseTensor:
    """The same elements in a tensor of another size.

    Args:
      sp_input: a sparse tensor.
      new_shape: sizes not below those of the input; default the least that hold all elements.

    Raises:
      InvalidArgumentError: when `new_shape` is too small or has another rank.

    Example:
      >>> import meshflow as tf
      >>> a = tf.SparseTensor([[0, 1]], [5], [4, 4])
      >>> tf.sparse.reset_shape(a).shape, tf.sparse.reset_shape(a, [8, 9]).shape
      (TensorShape([1, 2]), TensorShape([8, 9]))
    """
    places, own = sp_input.indices.numpy(), sp_input.shape.as_list()
    if new_shape is None:
        tight = (places.max(0) + 1).tolist() if len(places) else [0] * len(own)
        return SparseTensor(places, sp_input.values, tight)
    shape = list(static_value(new_shape, "new_shape"))
    if len(shape) != len(own) or any(n < o for n, o in zip(shape, own, strict=True)):
        raise InvalidValueError(f"tf.sparse.reset_shape: {shape} does not hold shape {own}.")
    return SparseTensor(places, sp_input.values, shape)


def fill_empty_rows(
    sp_input: SparseTensor, default_value: Any, name: str | None = None
) -> tuple[SparseTensor, Tensor]:
    """Gives each row of a matrix without elements one, in its first place.

    Args:
      sp_input: a sparse matrix (rows, columns).
      default_value: the element.
      name: ignored.

    Returns:
      The filled matrix of the same shape, and which rows were empty, (rows,).

    Example:
      >>> import meshflow as tf
      >>> filled, empty = tf.sparse.fill_empty_rows(tf.sparse.from_dense([[1, 2], [0, 0]]), -1)
      >>> print(tf.sparse.to_dense(filled).numpy().tolist(), empty.numpy())
      [[1, 2], [-1, 0]] [False  True]
    """
    _sparse(sp_input, "sp_input")
    places, shape = sp_input.indices.numpy(), sp_input.shape.as_list()
    rows = np.setdiff1d(np.arange(shape[0]), places[:, 0])
    extra = np.zeros((len(rows), len(shape)), np.int64)
    extra[:, 0] = rows
    filler = array.fill([len(rows)], convert_to_tensor(default_value, dtype=sp_input.dtype))
    joined = np.concatenate([places, extra])
    values = array.concat([sp_input.values, filler], 0)
    filled = _ordered(joined, values, np.arange(len(joined)), shape)
    return filled, convert_to_tensor(np.isin(np.arange(shape[0]), rows))


def softmax(sp_input: SparseTensor, name: str | None = None) -> SparseTensor:
    """Softmax over the elements of each row; missing ones count as minus infinity.

    The result has the shape of the argument.

    Args:
      sp_input: a sparse tensor of rank 2 or more.
      name: ignored.

    Example:
      >>> import meshflow as tf
      >>> a = tf.sparse.from_dense([[1.0, 1.0, 0.0]])
      >>> print(tf.sparse.to_dense(tf.sparse.softmax(a)).numpy())
      [[0.5 0.5 0. ]]
    """
    places, shape = sp_input.indices.numpy(), sp_input.shape.as_list()
    rows = places[:, :-1]
    if not len(rows):
        return sp_input
    _, owner = np.unique(rows, axis=0, return_inverse=True)
    owner = owner.reshape(-1)
    count = int(owner.max()) + 1
    largest = array.stop_gradient(math.unsorted_segment_max(sp_input.values, owner, count))
    powers = math.exp(sp_input.values - array.gather(largest, owner))
    total = math.unsorted_segment_sum(powers, owner, count)
    return SparseTensor(places, powers / array.gather(total, owner), shape)


def to_indicator(sp_input: SparseTensor, vocab_size: int, name: str | None = None) -> Tensor:
    """Which numbers each row holds, as booleans.

    Args:
      sp_input: sparse integers of shape [..., n].
      vocab_size: numbers are below it.
      name: ignored.

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
    places = sp_input.indices.numpy().copy()
    places[:, -1] = sp_input.values.numpy()
    found = np.zeros(shape, bool)
    inside = (places[:, -1] >= 0) & (places[:, -1] < vocab_size)
    found[tuple(places[inside].T)] = True
    return convert_to_tensor(found)


def bincount(
    values: Any,
    weights: Any = None,
    axis: int = 0,
    minlength: int | None = None,
    maxlength: int | None = None,
    binary_output: bool = False,
    name: str | None = None,
) -> SparseTensor:
    """`tf.math.bincount` as a sparse tensor.

    Args:
      values: a tensor of non-negative integers, dense or sparse (then missing ones do not count).
      weights: what each value counts, of the same form; default 1.
      axis: 0 counts in the whole tensor, -1 in each row.
      minlength: smallest size of the last dimension.
      maxlength: largest one; larger numbers are left out.
      binary_output: whether 1 stands for any count.
      name: ignored.

    Returns:
      A sparse tensor, int64 or of the dtype of `weights`.

    Example:
      >>> import meshflow as tf
      >>> print(tf.sparse.to_dense(tf.sparse.bincount([1, 3, 1])).numpy())
      [0 2 0 1]
    """
    if axis not in (0, -1):
        raise ValueError(f"tf.sparse.bincount: axis must be 0 or -1, got {axis}.")
    if isinstance(values, SparseTensor):
        numbers, owner = values.values.numpy(), values.indices.numpy()[:, 0]
        rows, by_row = values.shape.as_list()[0], axis == -1 and len(values.shape) > 1
        amounts = None if weights is None else weights.values.numpy()
    else:
        dense = np.asarray(convert_to_tensor(values)._concrete("values of tf.sparse.bincount"))
        rows, by_row = (len(dense) if dense.ndim else 1), axis == -1 and dense.ndim > 1
        numbers = dense.reshape(-1)
        owner = np.repeat(np.arange(rows), numbers.size // max(rows, 1))
        amounts = None if weights is None else np.asarray(convert_to_tensor(weights)).reshape(-1)
    if (numbers < 0).any():
        raise InvalidValueError("tf.sparse.bincount: the numbers must be non-negative.")
    size = max(int(numbers.max(initial=-1)) + 1, minlength or 0)
    size = size if maxlength is None else min(size, maxlength)
    amounts = np.ones(numbers.size, np.int64) if amounts is None else amounts
    kept = numbers < size
    owner = owner if by_row else np.zeros_like(owner)
    pairs = np.stack([owner[kept], numbers[kept]], 1).astype(np.int64)
    places, which = np.unique(pairs, axis=0, return_inverse=True)
    counts = np.zeros(len(places), amounts.dtype)
    np.add.at(counts, which.reshape(-1), amounts[kept])
    if binary_output:
        counts = np.ones_like(counts)
    if by_row:
        return SparseTensor(places, counts, [rows, size])
    return SparseTensor(places[:, 1:], counts, [size])


def _segment(kind: str, gives: str) -> RowSegments:
    """An op over chosen rows; `gives` is what the example in its docstring prints."""

    def segment(
        data: TensorLike,
        indices: TensorLike,
        segment_ids: TensorLike,
        num_segments: Any = None,
        sparse_gradient: bool = False,
        name: str | None = None,
    ) -> Tensor:
        rows = array.gather(data, indices)
        ids = convert_to_tensor(segment_ids)
        if num_segments is None:
            known = ids._concrete(f"segment_ids of tf.sparse.segment_{kind} without num_segments")
            num_segments = int(known[-1]) + 1 if known.size else 0
        reduce = getattr(math, f"unsorted_segment_{kind}")
        return reduce(rows, math.cast(ids, int64), num_segments)

    segment.__name__ = segment.__qualname__ = f"segment_{kind}"
    segment.__doc__ = f"""`tf.math.unsorted_segment_{kind}` of some rows of a tensor.

    Args:
      data: a tensor.
      indices: numbers of its rows.
      segment_ids: the segment of each chosen row, rising.
      num_segments: number of segments; default one more than the last id.
      sparse_gradient: ignored.
      name: ignored.

    Returns:
      Tensor [num_segments, ...].

    Example:
      >>> import meshflow as tf
      >>> data = tf.constant([1.0, 2.0, 4.0])
      >>> print(tf.sparse.segment_{kind}(data, [0, 0, 2], segment_ids=[0, 0, 1]).numpy().round(3))
      {gives}
    """
    return segment


segment_sum = _segment("sum", "[2. 4.]")
segment_mean = _segment("mean", "[1. 4.]")
segment_sqrt_n = _segment("sqrt_n", "[1.414 4.   ]")
