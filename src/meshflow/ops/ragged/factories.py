"""Functions of `tf.ragged` that create ragged tensors and row partitions."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from meshflow.core.dispatch.shape_probing import vary_length
from meshflow.core.runtime.context import context
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import DTypeLike, as_dtype, float32, float64, int32, int64, string
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.core.values.unknown_sizes import compute_on_host
from meshflow.environment.types import Array, PyTree
from meshflow.ops.array import reshape
from meshflow.ops.ragged.partition import (
    RowPartition,
    convert_integers,
    expand_rows,
    find_value,
    get_namespace,
    take,
)
from meshflow.ops.ragged.tensor import RaggedTensor


def constant(
    pylist: PyTree,
    dtype: DTypeLike | None = None,
    ragged_rank: int | None = None,
    inner_shape: PyTree = None,
    name: str | None = None,
    row_splits_dtype: DTypeLike = int64,
) -> RaggedTensor:
    """Create a ragged tensor of nested lists; without ragged dimensions, the result is a tensor.

    Args:
      pylist: The lists.
      dtype: Dtype of the values.
      ragged_rank: Number of ragged dimensions; by default all but the outermost.
      inner_shape: Shape of the innermost values; default scalars.
      name: Ignored.
      row_splits_dtype: Dtype of the row splits.

    Example:
      >>> tf.ragged.constant([[1, 2], [3]])
      <tf.RaggedTensor [[1, 2], [3]]>
    """
    if isinstance(pylist, RaggedTensor) or hasattr(pylist, "to_ragged_tensor"):
        raise TypeError("pylist may not be a RaggedTensor or RaggedTensorValue.")
    if ragged_rank is not None and ragged_rank < 0:
        raise ValueError(f"Invalid ragged_rank={ragged_rank}: must be nonnegative")
    if _is_scalar(pylist):
        if ragged_rank:
            raise ValueError(
                f"Invalid pylist={pylist!r}: incompatible with ragged_rank={ragged_rank}"
            )
        if inner_shape:
            raise ValueError(
                f"Invalid pylist={pylist!r}: incompatible with dim(inner_shape)={len(inner_shape)}"
            )
        return convert_to_tensor(pylist, dtype)
    if isinstance(inner_shape, int):
        inner_shape = (inner_shape,)
    depth, scalar_depth = _find_depths(pylist)
    if scalar_depth is not None and depth > scalar_depth:
        raise ValueError(
            f"Invalid pylist={pylist!r}: empty list nesting is greater than scalar value nesting"
        )
    if ragged_rank is not None and scalar_depth is not None and ragged_rank >= depth:
        raise ValueError(
            f"Invalid pylist={pylist!r}: pylist has scalar values depth {depth}, but ragged_rank={ragged_rank} requires "
            f"scalar value depth greater than {ragged_rank}"
        )
    if inner_shape is not None and ragged_rank is not None:
        expected = ragged_rank + 1 + len(inner_shape)
        if (scalar_depth is not None and scalar_depth != expected) or (
            scalar_depth is None and depth > expected
        ):
            raise ValueError(
                f"Invalid pylist={pylist!r}: incompatible with ragged_rank={ragged_rank} and dim(inner_shape)={len(inner_shape)}"
            )
    if ragged_rank is None:
        if inner_shape is None:
            ragged_rank = max(1, depth - 1) if scalar_depth is None else scalar_depth - 1
            if scalar_depth is None:
                ragged_rank = max(depth - 1, 0)
        else:
            total = depth if scalar_depth is None else scalar_depth
            ragged_rank = total - 1 - len(inner_shape)
    if ragged_rank < 0:
        # All dimensions are uniform.
        values = _to_values(list(pylist), dtype, np.shape(pylist))
        if values.shape.num_elements() != np.prod(inner_shape, dtype=int):
            raise TypeError(
                f"Invalid pylist={pylist!r}: cannot reshape array of shape {values.shape} into shape {inner_shape}"
            )
        return reshape(values, inner_shape)
    if inner_shape is None:
        inner_shape = _find_inner_shape(pylist, ragged_rank)
    splits: list[np.ndarray] = []
    level = list(pylist)
    splits_dtype = as_dtype(row_splits_dtype).dtype
    for _ in np.arange(ragged_rank):
        splits.append(np.cumsum([0, *[len(row) for row in level]]).astype(splits_dtype))
        level = [item for row in level for item in row]
    shape = (len(level), *inner_shape)
    values = _to_values(level, dtype, shape)
    return RaggedTensor.from_nested_row_splits(values, splits, validate=False)


def _to_values(level: list[Any], dtype: DTypeLike | None, shape: tuple[int, ...]) -> Tensor:
    if not level or 0 in shape:
        empty = np.zeros(shape, as_dtype(dtype or "float32").dtype)
        return Tensor(
            np.full(shape, b"", object)
            if dtype is not None and as_dtype(dtype) is string
            else empty
        )
    try:
        values = convert_to_tensor([_to_item(item) for item in level], dtype)
    except (TypeError, ValueError) as error:
        raise type(error)(f"Invalid pylist: {error}") from error
    if tuple(values.shape) != shape:
        raise ValueError(f"Invalid pylist: expected values of shape {shape}, got {values.shape}.")
    return values


def _to_item(item: Any) -> Any:
    return (
        item.tolist()
        if isinstance(item, np.ndarray | np.generic)
        else item.numpy()
        if isinstance(item, Tensor)
        else item
    )


def _is_scalar(value: object) -> bool:
    return not isinstance(value, list | tuple | np.ndarray) or (
        isinstance(value, np.ndarray) and not value.ndim
    )


def _find_depths(pylist: PyTree) -> tuple[int, int | None]:
    """Return the depth of nested lists, and that of their scalars, or None if there are none.

    Raises:
      ValueError: If the scalars have different depths.
    """
    if _is_scalar(pylist):
        return 0, 0
    depth, scalar_depth = 1, None
    for item in pylist:
        item_depth, item_scalar_depth = _find_depths(item)
        depth = max(depth, item_depth + 1)
        if item_scalar_depth is not None:
            if scalar_depth not in (None, item_scalar_depth + 1):
                raise ValueError("all scalar values must have the same nesting depth")
            scalar_depth = item_scalar_depth + 1
    return depth, scalar_depth


def _find_inner_shape(pylist: PyTree, ragged_rank: int) -> tuple[int, ...]:
    items: list[Any] = [pylist]
    for _ in np.arange(ragged_rank + 1):
        items = [item for part in items if not _is_scalar(part) for item in part]
    shape: list[int] = []
    while items and not _is_scalar(items[0]):
        sizes = {-1 if _is_scalar(item) else len(item) for item in items}
        if len(sizes) > 1:
            raise ValueError("inner values have inconsistent shape")
        shape.append(sizes.pop())
        items = [item for part in items for item in part]
    return tuple(shape)


# A number of a dtype is converted to each later one.
_RANGE_DTYPES = (int32, int64, float32, float64)


def range(
    starts: TensorLike,
    limits: TensorLike | None = None,
    deltas: TensorLike = 1,
    dtype: DTypeLike | None = None,
    name: str | None = None,
    row_splits_dtype: DTypeLike = int64,
) -> RaggedTensor:
    """Create a row of numbers for each start, limit and step.

    Example:
      >>> tf.ragged.range([2, 0, 3]).to_list()
      [[0, 1], [], [0, 1, 2]]
    """
    first, last = (0, starts) if limits is None else (starts, limits)
    hint = next((as_dtype(v.dtype) for v in (last, first, deltas) if hasattr(v, "dtype")), dtype)
    tensors = [convert_to_tensor(v, dtype_hint=hint) for v in (first, last, deltas)]
    if any(t.ndim > 1 for t in tensors):
        raise InvalidValueError(
            "tf.ragged.range: starts, limits and deltas must be scalars or vectors."
        )
    common = (
        max((t.dtype for t in tensors), key=_RANGE_DTYPES.index)
        if dtype is None
        else as_dtype(dtype)
    )
    sizes = {t.array.shape[0] for t in tensors if t.ndim}
    if len(sizes) > 1:
        raise InvalidValueError(
            f"starts, limits, and deltas must have the same shape, got sizes {sorted(sizes)}"
        )
    count = sizes.pop() if sizes else 1

    def make_rows(*bounds: Array) -> list[Array]:
        xp = get_namespace(*bounds)
        vectors = [xp.atleast_1d(b).astype(common.dtype) for b in bounds]
        start, limit, delta = xp.broadcast_arrays(*vectors)
        if xp is np and (delta == 0).any():
            raise InvalidValueError("Requires delta != 0")
        lengths = xp.maximum(xp.ceil((limit - start) / delta), 0).astype(np.int64)
        rows, steps = expand_rows(lengths)
        return [take(start, rows) + steps * take(delta, rows), lengths]

    results = [((None,), common.dtype), ((count,), as_dtype(row_splits_dtype).dtype)]
    values, lengths = compute_on_host(make_rows, tensors, results, "bounds of tf.ragged.range")
    return RaggedTensor.from_row_lengths(values, lengths)


def row_splits_to_segment_ids(
    splits: TensorLike, name: str | None = None, out_type: DTypeLike | None = None
) -> Tensor:
    """Return the row of each value for row splits.

    Example:
      >>> tf.ragged.row_splits_to_segment_ids([0, 2, 3]).numpy().tolist()
      [0, 0, 1]
    """
    tensor = convert_integers(splits)
    tensor.shape.assert_has_rank(1)
    if tensor.shape[0] == 0:
        raise ValueError("Invalid row_splits: []. They must have at least one element.")
    partition = RowPartition.from_row_splits(tensor, validate=False)
    return convert_integers(
        partition.value_rowids(), partition.dtype if out_type is None else as_dtype(out_type)
    )


def segment_ids_to_row_splits(
    segment_ids: TensorLike,
    num_segments: TensorLike | None = None,
    out_type: DTypeLike | None = None,
    name: str | None = None,
) -> Tensor:
    """Return row splits for the ascending rows of values.

    Example:
      >>> tf.ragged.segment_ids_to_row_splits([0, 0, 2]).numpy().tolist()
      [0, 2, 2, 3]
    """
    ids = convert_integers(segment_ids, name="segment_ids")
    ids.shape.assert_has_rank(1)
    if num_segments is not None:
        if len(convert_integers(num_segments).shape):
            raise ValueError("num_segments must be a scalar")
        known, count = find_value(ids), find_value(convert_integers(num_segments))
        if known is not None and count is not None:
            ids = Tensor(known[known < count])
    partition = RowPartition.from_value_rowids(ids, num_segments, validate=False)
    return convert_integers(
        partition.row_splits(), int64 if out_type is None else as_dtype(out_type)
    )


def split_strings(
    texts: np.ndarray, split: Callable[[bytes], list[Any]], to_tensor: Callable[[list[Any]], Tensor]
) -> PyTree:
    """Split strings: a scalar to a vector, and others to rows.

    Args:
      texts: Host array of strings.
      split: Function that splits one string.
      to_tensor: Function that makes a tensor of the parts of all strings.
    """
    if not texts.ndim:
        return to_tensor(vary_length(split(texts.item())))
    rows = list(map(split, texts.reshape(-1).tolist()))
    if context.size_probe is not None:
        rows = list(map(vary_length, rows))
    lengths = np.array(list(map(len, rows)), np.int64)
    parts = to_tensor(list(itertools.chain.from_iterable(rows)))
    result = RaggedTensor.from_row_lengths(parts, lengths, validate=False)
    for k in np.arange(texts.ndim - 1, 0, -1):
        outer = int(np.prod(texts.shape[:k]))
        result = RaggedTensor.from_uniform_row_length(result, texts.shape[k], outer)
    return result
