"""Indexing of ragged tensors: rows, slices of rows, and of the values in rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshflow.core.dispatch.operands import to_static_value
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.values.dtypes import int64
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.core.values.unknown_sizes import Result, compute_on_host
from meshflow.environment.types import Array, PyTree
from meshflow.ops import array
from meshflow.ops.ragged.partition import (
    SPLITS_USE,
    concatenate_ranges,
    convert_integers,
    expand_rows,
    find_value,
    get_namespace,
    take,
)


def get_item(rows: PyTree, key: list[Any]) -> PyTree:
    """Return `rows[key]`."""
    if not key:
        return rows
    first, *rest = _expand_ellipsis(key, len(rows.shape))
    if first is None:
        inner = get_item(rows, rest)
        count = inner.shape[0]
        return type(rows).from_uniform_row_length(inner, _match(rows, count), nrows=1)
    if isinstance(first, slice):
        return _get_inner(_slice_rows(rows, first), rest)
    if isinstance(first, bool):
        raise ValueError(f"Expected an integer index of a RaggedTensor, got {first!r}.")
    is_other_dtype = hasattr(first, "dtype") and first.dtype not in (
        *(np.int32, np.int64),
        *("int32", "int64"),
    )
    if is_other_dtype or isinstance(first, float | str | bytes):
        raise TypeError(f"Expected an integer index of a RaggedTensor, got {first!r}.")
    splits = rows.partition.row_splits()
    if _is_traced(first):
        indices = array.reshape(convert_integers(first), [1])
        row = _take_row(rows, _find_row_values, [splits, indices])
        return row[tuple(rest)] if rest else row
    index = int(to_static_value(first, "index"))
    count = rows.partition.static_nrows
    if index >= count > 0 or (index >= 0 and not count):
        raise IndexError(f"Row key {index} out of bounds")
    if index < -count:
        raise InvalidValueError(f"slice index {index} of dimension 0 out of bounds.")
    known = find_value(splits)
    if known is not None:
        row = rows.values[int(known[:-1][index]) : int(known[1:][index])]
    else:
        single = slice(index, None if index == -1 else index + 1)
        row = _take_row(rows, lambda splits: _find_row_values(splits, single), [splits])
    return row[tuple(rest)] if rest else row


def _is_traced(value: object) -> bool:
    """Check whether a value is an integer that only the running program knows."""
    return isinstance(value, Tensor) and find_value(value) is None


def _take_row(
    rows: PyTree, find: Callable[..., Sequence[Array]], operands: Sequence[Any]
) -> PyTree:
    """Return the values of the row that `find` finds."""
    find_positions = lambda *arrays: [find(*arrays)[0]]
    results: list[Result] = [((None,), np.int64)]
    (positions,) = compute_on_host(find_positions, operands, results, SPLITS_USE)
    row = gather_values(rows.values, positions)
    return _restore_lengths(row, rows.values, True) if hasattr(row, "row_splits") else row


def _match(rows: PyTree, value: Any) -> Any:
    """Return an integer in the dtype of the row splits."""
    return np.asarray(value, rows.partition.dtype.dtype) if isinstance(value, int) else value


def _expand_ellipsis(key: list[Any], rank: int) -> list[Any]:
    positions = [i for i, item in enumerate(key) if item is Ellipsis]
    if not positions:
        return key
    first = positions[0]
    others = [item for i, item in enumerate(key) if i != first and item is not Ellipsis]
    missing = rank - sum(item is not None for item in others)
    return [
        *key[:first],
        *[slice(None)] * max(missing, 0),
        *[k for k in key[first + 1 :] if k is not Ellipsis],
    ]


def _to_slice(key: slice) -> slice:
    """Convert the bounds of a slice to integers, except traced ones."""
    step = None if key.step is None else int(to_static_value(key.step, "slice"))
    if step == 0:
        raise InvalidValueError("slice step cannot be zero")
    start, stop = (
        p if p is None or _is_traced(p) else int(to_static_value(p, "slice"))
        for p in (key.start, key.stop)
    )
    return slice(start, stop, step)


def _list_traced_bounds(key: slice) -> list[Tensor]:
    return [bound for bound in (key.start, key.stop) if isinstance(bound, Tensor)]


def _replace_bounds(key: slice, bounds: Sequence[Array]) -> slice:
    """Replace the traced bounds of a slice by their values."""
    supply = iter(int(b) if isinstance(b, np.ndarray) else b for b in bounds)
    start, stop = (next(supply) if isinstance(b, Tensor) else b for b in (key.start, key.stop))
    return slice(start, stop, key.step)


def _is_full(key: slice) -> bool:
    return key.start is None and key.stop is None and key.step is None


def _slice_rows(rows: PyTree, key: slice) -> PyTree:
    if _is_full(key):
        return rows
    key, nrows = _to_slice(key), rows.partition.static_nrows
    bounds = _list_traced_bounds(key)
    if isinstance(nrows, int) and not bounds:
        result = take_rows(rows, np.arange(nrows)[key], key.step in (None, 1))
    else:
        find = lambda splits, *values: _find_row_values(splits, _replace_bounds(key, values))
        result = select_values(rows, find, None, bounds)
    return _restore_lengths(result, rows, key.step in (None, 1))


def _restore_lengths(result: PyTree, rows: PyTree, is_contiguous: bool) -> PyTree:
    """Return a slice of rows with their uniform row lengths, of inner rows only if the slice is contiguous."""
    values = result.values
    if is_contiguous and hasattr(values, "row_splits"):
        values = _restore_lengths(values, rows.values, True)
    length = rows.partition.static_uniform_row_length
    if length is None:
        return result if values is result.values else result.with_values(values)
    count = result.partition.static_nrows
    return type(rows).from_uniform_row_length(values, _match(rows, length), count)


def select_values(
    rows: PyTree,
    find: Callable[..., Sequence[Any]],
    count: Any,
    operands: Sequence[TensorLike] = (),
) -> PyTree:
    """Return rows of selected values.

    Args:
      rows: The ragged tensor.
      find: Returns the positions of the values and the lengths of the rows, given the row splits and the
        operands on the host.
      count: Number of rows of the result.
      operands: Further operands of `find`.
    """
    results = [((None,), np.int64), ((count,), rows.partition.dtype.dtype)]
    operands = [rows.partition.row_splits(), *operands]
    positions, lengths = compute_on_host(find, operands, results, SPLITS_USE)
    values = gather_values(rows.values, positions)
    return type(rows).from_row_lengths(values, lengths, validate=False)


def take_rows(rows: PyTree, indices: TensorLike, is_slice: bool = False) -> PyTree:
    """Return some rows; rows of one length are a ragged dimension of the result unless it is a slice."""
    splits = find_value(rows.partition.row_splits())
    if is_slice and splits is not None and indices.size and (np.diff(indices) == 1).all():
        values = rows.values[int(splits[indices[0]]) : int(splits[indices[-1] + 1])]
        return type(rows).from_row_lengths(values, np.diff(splits)[indices], validate=False)
    indices = convert_integers(indices)
    return select_values(rows, _find_row_values, indices.array.shape[0], [indices])


def _find_row_values(splits: Array, indices: Array | slice) -> Sequence[Array]:
    starts, lengths = splits[:-1], splits[1:] - splits[:-1]
    if isinstance(indices, slice):
        starts, lengths = starts[indices], lengths[indices]
    else:
        if isinstance(indices, np.ndarray) and isinstance(splits, np.ndarray):
            count = len(lengths)
            if ((indices < -count) | (indices >= count)).any():
                raise InvalidValueError(f"indices = {indices.tolist()} is not in [0, {count})")
        starts, lengths = take(starts, indices), take(lengths, indices)
    return concatenate_ranges(starts, lengths), lengths


def gather_values(values: PyTree, positions: TensorLike) -> PyTree:
    """Return values or rows at some positions."""
    positions = convert_integers(positions, int64)
    if hasattr(values, "row_splits"):
        return take_rows(values, positions)
    return array.gather(values, positions)


def _get_inner(rows: PyTree, key: list[Any]) -> PyTree:
    """Return `rows[:, *key]`."""
    if not key:
        return rows
    if not hasattr(rows, "row_splits"):
        return rows[(slice(None), *key)]
    first, *rest = _expand_ellipsis(key, len(rows.shape) - 1)
    if first is None:
        inner = _get_inner(rows, rest)
        return type(rows).from_uniform_row_length(inner, _match(rows, 1), inner.shape[0])
    if isinstance(first, slice):
        if _is_full(first):
            return rows.with_values(_get_inner(rows.values, rest))
        return _slice_columns(rows.with_values(_get_inner(rows.values, rest)), _to_slice(first))
    length = rows.partition.static_uniform_row_length
    if length is None:
        raise ValueError("Cannot index into an inner ragged dimension.")
    index = int(to_static_value(first, "index"))
    if not -length <= index < length:
        raise InvalidValueError(f"slice index {index} of dimension 1 out of bounds.")
    positions = np.arange(rows.partition.static_nrows) * length + index % length
    return _get_inner(gather_values(rows.values, positions), rest)


def _find_bound(bound: int, lengths: Array, step: int) -> Array:
    """Return a bound of a slice in rows of some lengths."""
    xp = get_namespace(lengths)
    value = xp.where(bound < 0, bound + lengths, bound)
    return (
        xp.minimum(xp.maximum(value, 0), lengths)
        if step > 0
        else xp.minimum(xp.maximum(value, -1), lengths - 1)
    )


def _slice_columns(rows: PyTree, key: slice) -> PyTree:
    step = 1 if key.step is None else key.step

    def find(splits: Array, *bounds: Array) -> Sequence[Array]:
        known, lengths = _replace_bounds(key, bounds), splits[1:] - splits[:-1]
        first: Any = 0 if step > 0 else lengths - 1
        last: Any = lengths if step > 0 else -1
        if known.start is not None:
            first = _find_bound(known.start, lengths, step)
        if known.stop is not None:
            last = _find_bound(known.stop, lengths, step)
        # The number of steps is rounded up.
        counts = ((last - first + step - (1 if step > 0 else -1)) // step).clip(0)
        rows, offsets = expand_rows(counts)
        return take(splits[:-1] + first, rows) + offsets * step, counts

    count = rows.partition.static_nrows
    bounds = _list_traced_bounds(key)
    result = select_values(rows, find, count, bounds)
    length = rows.partition.static_uniform_row_length
    if length is None or bounds:
        return result
    size = _match(rows, len(range(length)[key]))
    return type(rows).from_uniform_row_length(result.values, size, count)
