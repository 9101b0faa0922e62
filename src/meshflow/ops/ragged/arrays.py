"""Ops that join, select and rearrange the rows of ragged tensors."""

from __future__ import annotations

import functools
import math as python_math
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from meshflow.core.dispatch.operands import cast_numpy, to_static_value
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.values.dtypes import DType, DTypeLike, as_dtype, bool_, int32, int64
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.core.values.unknown_sizes import compute_on_host, read_sizes
from meshflow.environment.types import Array, PyTree
from meshflow.ops import array, math
from meshflow.ops.ragged.construction import convert_values
from meshflow.ops.ragged.elementwise import broadcast, check_splits_dtypes
from meshflow.ops.ragged.indexing import gather_values, select_values, take_rows
from meshflow.ops.ragged.partition import (
    Namespace,
    RowPartition,
    Size,
    concatenate_ranges,
    convert_integers,
    define_array_function,
    find_true,
    find_value,
    get_namespace,
    have_different_values,
    make_size,
    read_integers,
)
from meshflow.ops.ragged.tensor import (
    RaggedTensor,
    RaggedTensorSpec,
    get_positive_axis,
    join_parts,
)

__all__ = [
    "boolean_mask",
    "concat",
    "expand_dims",
    "gather",
    "gather_nd",
    "pack_rows",
    "reverse",
    "size",
    "split",
    "squeeze",
    "stack",
    "stack_dynamic_partitions",
    "tile",
    "to_ragged",
    "where",
]


def to_ragged(value: PyTree, ragged_rank: int, dtype: DType = int64) -> RaggedTensor:
    """Return a value with at least some ragged dimensions."""
    if isinstance(value, RaggedTensor):
        missing = ragged_rank - value.ragged_rank
        if missing <= 0:
            return value
        flat = to_ragged(value.flat_values, missing, value.partition.dtype)
        partitions = value.nested_partitions
        return functools.reduce(RaggedTensor.from_partition, reversed(partitions), flat)
    return RaggedTensor.from_tensor(value, ragged_rank=ragged_rank, row_splits_dtype=dtype)


def drop_uniform(rows: PyTree, keeps_first: bool = False) -> PyTree:
    """Make all row lengths dynamic, as in the results of TensorFlow's functions."""
    if not isinstance(rows, RaggedTensor):
        return rows
    partition = rows.partition
    length = partition.static_uniform_row_length if keeps_first else None
    partition = RowPartition(partition.row_splits(), length, partition.static_nvals, internal=True)
    return RaggedTensor.from_partition(drop_uniform(rows.values), partition)


def _convert_all(values: Sequence[Any]) -> list[Any]:
    converted = [convert_values(v) for v in values]
    check_splits_dtypes([v for v in converted if isinstance(v, RaggedTensor)])
    return converted


def _unify(values: Sequence[Any]) -> list[RaggedTensor]:
    """Convert to ragged tensors with the same number of ragged dimensions."""
    ranks = {len(v.shape) for v in values}
    if len(ranks) > 1:
        raise ValueError(f"all inputs must have the same rank, got ranks {sorted(ranks)}.")
    rank = max([1, *[v.ragged_rank for v in values if isinstance(v, RaggedTensor)]])
    dtype = next((v.partition.dtype for v in values if isinstance(v, RaggedTensor)), int64)
    return [to_ragged(v, rank, dtype) for v in values]


def concat(values: Sequence[Any], axis: PyTree, name: str | None = None) -> PyTree:
    """Concatenate ragged and dense tensors."""
    if isinstance(values, RaggedTensor):
        return values
    parts = _convert_all(values)
    if not parts:
        raise ValueError("tf.concat of ragged tensors: rt_inputs may not be empty.")
    axis = get_positive_axis(to_static_value(axis, "axis"), len(parts[0].shape))
    return drop_uniform(_concat(parts, axis)) if len(parts) > 1 else parts[0]


def _concat(parts: list[Any], axis: int) -> PyTree:
    if len(parts) == 1:
        return parts[0]
    is_dense = not any(isinstance(p, RaggedTensor) for p in parts)
    if is_dense and axis == len(parts[0].shape) - 1:
        return array.concat(parts, axis)
    rows = _unify(parts)
    if axis > 1:
        for other in rows[1:]:
            check_lengths(rows[0], other)
        return rows[0].with_values(_concat([r.values for r in rows], axis - 1))
    joined = _join([r.values for r in rows])
    lengths = [r.partition.row_lengths() for r in rows]
    if axis == 0:
        uniform = {r.partition.static_uniform_row_length for r in rows}
        if len(uniform) == 1 and None not in uniform:
            count = sum(r.partition.static_nrows for r in rows)
            length = rows[0].uniform_row_length
            return RaggedTensor.from_uniform_row_length(joined, length, count)
        return RaggedTensor.from_row_lengths(joined, array.concat(lengths, 0), validate=False)
    if len({r.partition.static_nrows for r in rows}) > 1:
        raise InvalidValueError(
            "Input tensors have incompatible shapes: the numbers of rows differ."
        )
    total = functools.reduce(lambda a, b: a + b, lengths)
    splits = [r.row_splits for r in rows]
    ids = [r.partition.value_rowids() for r in rows]
    order = _interleave(*splits, *ids)
    return RaggedTensor.from_row_lengths(gather_values(joined, order), total, validate=False)


def _join(parts: Sequence[Any]) -> PyTree:
    """Concatenate rows; the result is dense if all of them are."""
    is_ragged = any(isinstance(p, RaggedTensor) for p in parts)
    return _concat(list(parts), 0) if is_ragged else array.concat(parts, 0)


@define_array_function
def _interleave(xp: Namespace, *arrays: Array) -> Array:
    """Return the order of concatenated values that joins the rows of several partitions."""
    count = len(arrays) // 2
    splits, ids = arrays[:count], arrays[count:]
    # A value moves to the start of its row in all parts, after the values of the same row in earlier parts.
    targets = []
    total = sum(splits[1:], splits[0])
    before = xp.zeros_like(splits[0][1:])
    for split, rows in zip(splits, ids, strict=True):
        start = total[:-1] + before - split[:-1]
        targets.append(xp.arange(rows.shape[0], dtype=split.dtype) + start[rows])
        before = before + split[1:] - split[:-1]
    target = xp.concatenate(targets)
    positions = xp.arange(target.shape[0], dtype=target.dtype)
    if xp is np:
        order = np.empty_like(target)
        order[target] = positions
        return order
    return xp.zeros_like(target).at[target].set(positions)


def check_lengths(first: RaggedTensor, second: RaggedTensor, names: str = "Input tensors") -> None:
    """Raise an InvalidValueError if the rows of two ragged tensors have different lengths."""
    if have_different_values(first.row_splits, second.row_splits):
        lengths = [
            np.diff(read_integers(x.row_splits, "row splits")).tolist() for x in (first, second)
        ]
        raise InvalidValueError(
            f"{names} have incompatible ragged shapes. The lengths of their rows differ, {lengths[0]} and {lengths[1]}."
        )


def stack(values: Sequence[Any], axis: int = 0, name: str | None = None) -> Tensor | RaggedTensor:
    """Stack tensors of different sizes.

    Example:
      >>> tf.ragged.stack([[1, 2], [3]]).to_list()
      [[1, 2], [3]]
    """
    parts = _convert_all(values)
    if not parts:
        raise ValueError("tf.ragged.stack: rt_inputs may not be empty.")
    ranks = {len(p.shape) for p in parts}
    if len(ranks) > 1:
        raise ValueError(f"all inputs must have the same rank, got ranks {sorted(ranks)}.")
    rank = ranks.pop()
    axis = get_positive_axis(axis, rank + 1)
    if rank == 0:
        return array.stack(parts)
    return drop_uniform(_stack(parts, axis), axis == 1)


def _stack(parts: list[Any], axis: int) -> PyTree:
    is_dense = not any(isinstance(p, RaggedTensor) for p in parts)
    rank = len(parts[0].shape)
    if is_dense and axis in (rank, rank - 1) and axis:
        return array.stack(parts, axis)
    if axis == 0:
        if rank > 1:
            parts = _unify(parts)
        dtype = next((p.partition.dtype for p in parts if isinstance(p, RaggedTensor)), int32)
        counts = array.stack([make_size(p.shape[0], dtype) for p in parts])
        joined = concat(parts, 0) if len(parts) > 1 else parts[0]
        return RaggedTensor.from_row_lengths(joined, counts, validate=False)
    expanded = [
        expand_dims(p, axis) if isinstance(p, RaggedTensor) else array.expand_dims(p, axis)
        for p in parts
    ]
    return _concat(expanded, axis)


def expand_dims(input: PyTree, axis: PyTree, name: str | None = None) -> PyTree:
    """Insert an axis of size 1."""
    if not isinstance(input, RaggedTensor):
        return array.expand_dims(input, axis)
    axis = get_positive_axis(int(to_static_value(axis, "axis")), len(input.shape) + 1)
    if axis == 0:
        size = make_size(input.partition.static_nrows, input.partition.dtype)
        return RaggedTensor.from_uniform_row_length(input, size, 1)
    if axis == 1:
        one = Tensor(np.ones((), input.partition.dtype.dtype))
        return RaggedTensor.from_uniform_row_length(input, one, input.partition.static_nrows)
    return input.with_values(expand_dims(input.values, axis - 1))


def squeeze(input: PyTree, axis: PyTree = None, name: str | None = None) -> PyTree:
    """Remove axes of size 1."""
    input = convert_values(input)
    if not isinstance(input, RaggedTensor):
        return array.squeeze(input, axis)
    if isinstance(axis, Tensor):
        raise TypeError(
            "squeeze of a ragged tensor: axis must be an integer or a list, not a tensor."
        )
    axes = to_static_value(axis, "axis")
    if axes is None:
        raise ValueError("Ragged.squeeze must have an axis argument.")
    rank = len(input.shape)
    items = sorted(
        {get_positive_axis(int(a), rank) for a in (axes if isinstance(axes, tuple) else (axes,))}
    )
    result: PyTree = input
    for a in reversed(items):
        result = _squeeze(result, a)
    return drop_uniform(result)


def _squeeze(rows: PyTree, axis: int) -> PyTree:
    if not isinstance(rows, RaggedTensor):
        return array.squeeze(rows, axis)
    if axis == 0:
        if rows.partition.static_nrows != 1:
            raise InvalidValueError(
                f"squeeze: axis 0 has size {rows.partition.static_nrows}, expected 1."
            )
        return rows.values
    if axis > 1:
        return rows.with_values(_squeeze(rows.values, axis - 1))
    if rows.partition.static_uniform_row_length != 1 and (np.diff(rows.host_splits) != 1).any():
        raise InvalidValueError("squeeze: rows of axis 1 have lengths other than 1.")
    return rows.values


def gather(
    params: PyTree,
    indices: PyTree,
    validate_indices: bool | None = None,
    axis: PyTree = None,
    batch_dims: int = 0,
    name: str | None = None,
) -> PyTree:
    """Gather rows or values at indices; each of the two may be ragged."""
    if batch_dims:
        return _gather_batch(params, indices, axis, batch_dims)
    axis = 0 if axis is None else int(to_static_value(axis, "axis"))
    if isinstance(indices, RaggedTensor):
        return (
            indices.with_flat_values(gather(params, indices.flat_values, axis=axis))
            if axis == 0
            else _gather_inner(params, indices, axis)
        )
    if not isinstance(params, RaggedTensor):
        return array.gather(params, indices, axis=axis)
    axis = get_positive_axis(axis, len(params.shape))
    if axis:
        return _gather_inner(params, indices, axis)
    positions = convert_integers(indices)
    known, count = find_value(positions), params.partition.static_nrows
    if known is not None and isinstance(count, int):
        _check_positions(known, count)
    if positions.ndim == 0:
        return drop_uniform(params[positions])
    rows = take_rows(params, array.reshape(positions, [-1]))
    return drop_uniform(_restore_outer(rows, positions.array.shape))


def _restore_outer(rows: PyTree, shape: Sequence[Any]) -> PyTree:
    for k in range(len(shape) - 1, 0, -1):
        size = make_size(shape[k], rows.partition.dtype)
        rows = RaggedTensor.from_uniform_row_length(rows, size, python_math.prod(shape[:k]))
    return rows


def _gather_inner(params: PyTree, indices: PyTree, axis: int) -> PyTree:
    """Gather along an axis after the first one; every row takes the same indices."""
    if not isinstance(params, RaggedTensor):
        params = to_ragged(params, 1)
    if axis > 1:
        if isinstance(params.values, RaggedTensor) or isinstance(indices, RaggedTensor):
            return params.with_values(_gather_inner(params.values, indices, axis - 1))
        return params.with_values(array.gather(params.values, indices, axis=axis - 1))
    if isinstance(indices, RaggedTensor):
        count = params.partition.static_nrows
        tiled = tile(expand_dims(indices, 0), [count, *[1] * len(indices.shape)])
        return _gather_batch(params, tiled, None, 1)
    columns = convert_integers(indices, params.partition.dtype)
    known, lengths = find_value(columns), find_value(params.partition.row_lengths())
    if known is not None and lengths is not None and lengths.size:
        _check_positions(known, lengths.min())
    starts = params.row_starts()
    shape = [starts.array.shape[0], *[1] * columns.ndim]
    return gather(params.values, array.reshape(starts, shape) + columns)


def _gather_batch(params: PyTree, indices: PyTree, axis: PyTree, batch_dims: int) -> PyTree:
    params, indices = convert_values(params), convert_values(indices)
    rank = len(indices.shape)
    if batch_dims < 0:
        batch_dims = get_positive_axis(batch_dims, rank, "batch_dims")
    if batch_dims >= len(params.shape):
        raise ValueError(
            f"batch_dims must be less than rank(params), got {batch_dims} for params of shape {params.shape}."
        )
    axis = batch_dims if axis is None else int(to_static_value(axis, "axis")) % len(params.shape)
    if axis < batch_dims:
        raise ValueError(f"batch_dims={batch_dims} must be less than or equal to axis={axis}")
    if not isinstance(params, RaggedTensor) and not isinstance(indices, RaggedTensor):
        return array.gather(params, indices, axis=axis, batch_dims=batch_dims)
    if batch_dims == 0:
        return gather(params, indices, axis=axis)
    if batch_dims > 1:
        ragged = [v for v in (params, indices) if isinstance(v, RaggedTensor)]
        dtype = ragged[0].partition.dtype if ragged else int64
        params, indices = to_ragged(params, 1, dtype), to_ragged(indices, 1, dtype)
        names = (
            "batch shape from indices does not match params shape, a dimension size mismatch: they"
        )
        check_lengths(params, indices, names)
        inner = _gather_batch(params.values, indices.values, axis - 1, batch_dims - 1)
        return indices.with_values(inner)
    if axis > 1:
        params = to_ragged(params, 1)
        parts = [
            gather(row, index, axis=axis - 1) for row, index in zip(params, indices, strict=True)
        ]
        return stack(parts)
    dtype = next(v.partition.dtype for v in (params, indices) if isinstance(v, RaggedTensor))
    params = to_ragged(params, 1, dtype)
    count = params.partition.static_nrows
    if indices.shape[0] != count:
        raise InvalidValueError(
            f"tf.gather: the batch shape from indices {indices.shape} does not match params {params.shape}: they have "
            f"different numbers of rows, {count} and {indices.shape[0]}."
        )
    make: Callable[[Any], Any] = lambda values: values
    if not isinstance(indices, RaggedTensor):
        rows_of_indices, flat = Tensor(np.arange(count)), indices
    else:
        ids = indices.partition.value_rowids()
        for partition in indices.nested_partitions[1:]:
            ids = array.gather(ids, partition.value_rowids())
        rows_of_indices, flat, make = ids, indices.flat_values, indices.with_flat_values
    flat = convert_integers(flat)
    known, lengths = find_value(flat), find_value(params.partition.row_lengths())
    rows_of_indices = array.reshape(rows_of_indices, [-1, *[1] * (len(flat.shape) - 1)])
    if known is not None and lengths is not None:
        limits = lengths[rows_of_indices.numpy()]
        if ((known < 0) | (known >= limits)).any():
            raise InvalidValueError(
                f"indices {known.tolist()} are out of bounds of rows of lengths {lengths.tolist()}."
            )
    positions = math.cast(flat, dtype) + array.gather(params.row_starts(), rows_of_indices)
    return make(gather(params.values, positions))


def gather_nd(
    params: PyTree, indices: PyTree, batch_dims: int = 0, name: str | None = None
) -> PyTree:
    """Gather values or rows at coordinates; each of the two may be ragged."""
    if batch_dims:
        raise ValueError("batch_dims != 0 is not supported for ragged gather yet.")
    if isinstance(indices, RaggedTensor):
        if indices.shape[-1] is None:
            raise ValueError("The innermost dimension of indices may not be ragged")
        flat = indices.flat_values
        if len(flat.shape) > 1:
            return indices.with_flat_values(gather_nd(params, flat))
        size = indices.shape[-1]
        inner = array.reshape(flat, [-1, size])
        outer = _drop_inner_partition(indices)
        return outer(gather_nd(params, inner))
    if not isinstance(params, RaggedTensor):
        return array.gather_nd(params, indices)
    index = convert_integers(indices, params.partition.dtype)
    if index.ndim == 0:
        raise ValueError("gather_nd: indices.rank must be at least 1.")
    shape = index.array.shape
    if index.ndim > 2:
        flat = gather_nd(params, array.reshape(index, [-1, shape[-1]]))
        if isinstance(flat, RaggedTensor):
            return _restore_outer(flat, shape[:-1])
        return array.reshape(flat, [*shape[:-1], *flat.shape.as_list()[1:]])
    if index.ndim == 1:
        found = gather_nd(params, array.expand_dims(index, 0))
        # As in TensorFlow, the index of a row selects a batch of one row.
        return found if shape[0] == 1 else found[0]
    if shape[-1] == 0:
        return stack([params] * index.shape[0])
    if shape[-1] > len(params.shape):
        raise InvalidValueError("indices has more columns than params has dimensions")
    rows: PyTree = params
    positions = index[:, 0]
    known = find_value(positions)
    if known is not None and isinstance(params.partition.static_nrows, int):
        _check_positions(known, params.partition.static_nrows)
    for column in range(1, shape[-1]):
        if not isinstance(rows, RaggedTensor):
            first = array.expand_dims(positions, 1)
            return array.gather_nd(rows, array.concat([first, index[:, column:]], 1))
        columns, lengths = index[:, column], array.gather(rows.row_lengths(), positions)
        known, limits = find_value(columns), find_value(lengths)
        if known is not None and limits is not None:
            _check_positions(known, limits)
        positions = array.gather(rows.row_starts(), positions) + columns
        rows = rows.values
    return gather_values(rows, positions)


def _drop_inner_partition(rows: RaggedTensor) -> Callable[[PyTree], PyTree]:
    partitions = rows.nested_partitions[:-1]
    return lambda values: functools.reduce(
        RaggedTensor.from_partition, reversed(partitions), values
    )


def _check_positions(positions: np.ndarray, limits: PyTree) -> np.ndarray:
    is_outside = (positions < 0) | (positions >= limits)
    if is_outside.any():
        index = tuple(np.argwhere(is_outside)[0].tolist())
        limit = np.broadcast_to(limits, positions.shape)[index]
        place = f"indices[{','.join(map(str, index))}]" if index else "indices"
        raise InvalidValueError(f"{place} = {positions[index]} is not in [0, {limit})")
    return positions


def tile(input: RaggedTensor, multiples: TensorLike, name: str | None = None) -> RaggedTensor:
    """Repeat the rows and values of a ragged tensor."""
    numbers = convert_integers(multiples)
    if find_value(numbers) is None and len(input.shape) == 2:
        return drop_uniform(select_values(input, _find_tiles, None, [numbers]))
    counts = read_integers(numbers, "multiples of tf.tile").tolist()
    if len(counts) != len(input.shape):
        raise ValueError(f"multiples must have length {len(input.shape)}, got {len(counts)}.")
    if min(counts) < 0:
        raise InvalidValueError(f"multiples of tf.tile must not be negative, got {counts}.")
    return drop_uniform(_tile(input, counts)) if any(n != 1 for n in counts) else input


def _find_tiles(splits: Array, counts: Sequence[Any]) -> Sequence[Array]:
    """Return the positions and row lengths of rows that are repeated along two axes."""
    xp, lengths = get_namespace(splits), splits[1:] - splits[:-1]
    order = xp.repeat(xp.tile(xp.arange(lengths.shape[0]), counts[0]), counts[1])
    positions = concatenate_ranges(splits[:-1][order], lengths[order])
    return positions, xp.tile(lengths * counts[1], counts[0])


def _tile(rows: PyTree, counts: list[int]) -> PyTree:
    if all(n == 1 for n in counts):
        return rows
    if not isinstance(rows, RaggedTensor):
        return array.tile(rows, counts)
    first, *inner = counts
    if any(n != 1 for n in inner[1:]):
        rows = rows.with_values(_tile(rows.values, [1, *inner[1:]]))
    find = lambda splits: _find_tiles(splits, (first, inner[0]))
    partition = rows.partition
    count, length = first * partition.static_nrows, partition.static_uniform_row_length
    result = select_values(rows, find, count)
    if length is None:
        return result
    size = np.asarray(length * inner[0], partition.dtype.dtype)
    return RaggedTensor.from_uniform_row_length(result.values, size, count)


def boolean_mask(data: PyTree, mask: PyTree, name: str | None = None) -> Tensor | RaggedTensor:
    """Select values of rows; the result has the selected values of each row.

    Args:
      data: A ragged or dense tensor.
      mask: Booleans of the same rows, or one for each row.
      name: Ignored.

    Example:
      >>> rows = tf.ragged.constant([[1, 2, 3], [4]])
      >>> tf.ragged.boolean_mask(rows, rows > 1).to_list()
      [[2, 3], [4]]
    """
    data, mask = convert_values(data), convert_values(cast_numpy(mask, bool_))
    if not mask.dtype.is_bool:
        raise InvalidValueError(
            f"Tensor conversion requested dtype bool for {type(mask).__name__} with dtype {mask.dtype.name}: the mask "
            "must be bool."
        )
    rank = len(mask.shape)
    if rank == 0:
        raise ValueError("mask cannot be scalar.")
    if len(data.shape) < rank:
        raise ValueError(f"Shapes {mask.shape} and {data.shape} are incompatible")
    if not isinstance(mask, RaggedTensor) and rank == 1:
        if data.shape[0] != mask.shape[0]:
            raise InvalidValueError(f"Shapes {mask.shape} and {data.shape[:1]} are incompatible")
        (positions,) = compute_on_host(
            lambda flags: [find_true(flags)],
            [mask],
            [((None,), np.int64)],
            "a mask of tf.ragged.boolean_mask",
        )
        return gather_values(data, positions)
    ragged = [v for v in (data, mask) if isinstance(v, RaggedTensor)]
    check_splits_dtypes(ragged)
    dtype = ragged[0].partition.dtype if ragged else int64
    data, mask = to_ragged(data, rank - 1, dtype), to_ragged(mask, rank - 1, dtype)
    check_lengths(data, mask)
    if rank > 2:
        return drop_uniform(data.with_values(boolean_mask(data.values, mask.values)))
    return select_values(data, _find_true_values, data.partition.static_nrows, [mask.flat_values])


def _find_true_values(splits: Array, flags: Array) -> Sequence[Array]:
    xp = get_namespace(splits)
    if xp is np and splits[-1] != len(flags):
        raise InvalidValueError("data and mask have different row lengths")
    counts = xp.cumsum(xp.concatenate([xp.zeros(1, np.int64), flags]))[splits]
    return find_true(flags), counts[1:] - counts[:-1]


def where(condition: PyTree, x: PyTree = None, y: PyTree = None, name: str | None = None) -> PyTree:
    """Select values of x or y, or return the coordinates of true values."""
    if (x is None) != (y is None):
        raise ValueError("x and y must be either both None or both non-None")
    condition = convert_values(condition)
    if x is None:
        flags = array.reshape(condition.flat_values, [-1])
        return boolean_mask(condition.to_sparse().indices, math.cast(flags, "bool"))
    x, y = convert_values(x), convert_values(y)
    if not condition.dtype.is_bool:
        raise InvalidValueError(f"condition must be bool, got {condition.dtype.name}.")
    flat, make = broadcast([condition, x, y])
    return make(array.where(*flat))


def reverse(tensor: RaggedTensor, axis: PyTree, name: str | None = None) -> RaggedTensor:
    """Reverse rows or the values in rows along axes."""
    axes = np.atleast_1d(np.asarray(to_static_value(axis, "axis"))).tolist()
    if not all(isinstance(a, int) for a in axes):
        raise TypeError(f"`axis` must be a list of int or a constant tensor, got {axes}.")
    items = {get_positive_axis(int(a), len(tensor.shape), f"axis[{i}]") for i, a in enumerate(axes)}
    key = [
        slice(None, None, -1) if i in items else slice(None)
        for i in range(max(items, default=-1) + 1)
    ]
    return tensor[tuple(key)] if key else tensor


def size(input: RaggedTensor, out_type: DTypeLike = "int32", name: str | None = None) -> Tensor:
    """Return the number of values."""
    values = convert_values(input)
    flat = values.flat_values if isinstance(values, RaggedTensor) else values
    return array.size(flat, out_type=as_dtype(out_type))


def pack_rows(rows: Sequence[Any], spec: RaggedTensorSpec | None = None) -> RaggedTensor:
    """Return a ragged tensor with the given rows, which are tensors or ragged tensors.

    Args:
      rows: The rows.
      spec: Spec of a row, with the dtype of the row splits and the static row lengths of the result.
    """
    dtype = next((r.partition.dtype for r in rows if isinstance(r, RaggedTensor)), int64)
    counts = array.stack([make_size(r.shape[0], dtype) for r in rows])
    packed = RaggedTensor.from_row_lengths(drop_uniform(_join(rows)), counts, validate=False)
    return packed if spec is None else set_row_lengths(packed, spec)


def set_row_lengths(batch: RaggedTensor, row_spec: RaggedTensorSpec) -> RaggedTensor:
    """Return a batch with the dtype of row splits and the static row lengths of the spec of its rows."""
    if row_spec.shape.rank is None or row_spec.ragged_rank != batch.ragged_rank - 1:
        return batch
    typed = batch.with_row_splits_dtype(row_spec.row_splits_dtype)
    return join_parts(
        [typed.flat_values, *typed.nested_row_splits],
        row_spec.shape.as_list()[: typed.ragged_rank],
    )


def split(
    value: RaggedTensor,
    num_or_size_splits: PyTree,
    axis: PyTree = 0,
    num: int | None = None,
    name: str | None = None,
) -> list[Any]:
    """Split a ragged tensor along its rows, or along a uniform axis."""
    axis = get_positive_axis(int(to_static_value(axis, "axis")), len(value.shape))
    total = value.shape[axis]
    if to_static_value(num_or_size_splits, "num_or_size_splits") == 1:
        return [value]
    if total is None:
        raise ValueError(
            f"ragged split: axis {axis} is a ragged dimension. Split along a uniform dimension."
        )
    sizes = np.asarray(to_static_value(num_or_size_splits, "num_or_size_splits"))
    if sizes.ndim == 0:
        if sizes < 1 or total % sizes:
            raise InvalidValueError(
                f"Cannot exactly split axis {axis} of size {total} into {sizes} parts."
            )
        sizes = np.full(int(sizes), total // int(sizes))
    elif (sizes < 0).any():
        sizes = np.where(sizes < 0, total - sizes[sizes >= 0].sum(), sizes)
    if sizes.sum() != total or (sizes < 0).any():
        raise InvalidValueError(
            f"The sum of the sizes {sizes.tolist()} must be {total}, the size of axis {axis}."
        )
    ends = np.cumsum(sizes)
    prefix = (slice(None),) * axis
    return [value[(*prefix, slice(int(e - n), int(e)))] for n, e in zip(sizes, ends, strict=True)]


def stack_dynamic_partitions(
    data: PyTree, partitions: PyTree, num_partitions: TensorLike, name: str | None = None
) -> RaggedTensor:
    """Group values by the index of their group.

    Example:
      >>> tf.ragged.stack_dynamic_partitions([1, 2, 3], [1, 0, 1], 2).to_list()
      [[2], [1, 3]]
    """
    data, partitions = convert_values(data), convert_values(partitions)
    if isinstance(partitions, RaggedTensor):
        rank = len(partitions.shape)
        data = to_ragged(data, partitions.ragged_rank) if rank > 1 else data
        check_lengths(data, partitions, "data and partitions")
        grouped = stack_dynamic_partitions(data.values, partitions.values, num_partitions)
        return grouped.with_row_splits_dtype(partitions.partition.dtype)
    rank = len(partitions.shape)
    if rank > 1:
        if not isinstance(data, RaggedTensor):
            data.shape[:rank].assert_is_compatible_with(partitions.shape)
        data = _merge_leading(data, rank)
        partitions = array.reshape(partitions, [-1])
    elif rank == 0:
        data, partitions = array.expand_dims(data, 0), array.expand_dims(partitions, 0)
    groups = convert_integers(partitions)
    number = convert_integers(num_partitions)
    number.shape.assert_has_rank(0)
    count = read_sizes(number, "num_partitions")
    if data.shape[0] != groups.shape[0]:
        raise InvalidValueError(
            f"Shapes {data.shape[:1]} and {groups.shape} are incompatible: data must start with the shape of partitions."
        )
    known = find_value(groups)
    if known is not None and known.size and (known.min() < 0 or known.max() >= count):
        problem = "non-negative" if known.min() < 0 else f"less than num_partitions={count}"
        raise InvalidValueError(f"partitions must be {problem}, got {known.tolist()}.")
    dtype = data.partition.dtype.dtype if isinstance(data, RaggedTensor) else np.dtype(np.int32)
    lengths = _count_members(groups, static=(count, dtype))
    values = gather_values(data, _sort_groups(groups))
    return RaggedTensor.from_row_lengths(values, lengths, validate=False)


@define_array_function
def _sort_groups(xp: Namespace, groups: Array) -> Array:
    return xp.argsort(groups, stable=True)


@define_array_function
def _count_members(xp: Namespace, groups: Array, count: Size, dtype: np.dtype) -> Array:
    if xp is np:
        return np.bincount(groups, minlength=count).astype(dtype)
    return jnp.zeros((count,), dtype).at[groups].add(1)


def _merge_leading(data: PyTree, rank: int) -> PyTree:
    if isinstance(data, RaggedTensor):
        return data.merge_dims(0, rank - 1)
    return array.reshape(data, [-1, *data.shape.as_list()[rank:]])
