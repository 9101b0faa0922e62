"""Conversion of ragged rows to padded rows and coordinates."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from meshflow.core.runtime.context import context
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import DType, string
from meshflow.core.values.shapes import TensorShape
from meshflow.core.values.symbolic_sizes import make_range
from meshflow.core.values.tensor import Tensor
from meshflow.core.values.unknown_sizes import compute_size
from meshflow.environment.types import Array, PyTree
from meshflow.ops import array
from meshflow.ops.ragged.partition import Namespace, Size, define_array_function, take

# Larger tables are computed by ops, which may use a device.
_MAX_HOST_SIZE = 1 << 16


@define_array_function
def _find_positions(
    xp: Namespace, splits: Array, count: Size, width: Size, num_values: Size
) -> Array:
    """Return the position of the value of each cell of a table; that of padding is `num_values`."""
    rows = splits.shape[0] - 1
    positions = splits[:-1, None] + xp.arange(width, dtype=splits.dtype)
    table = xp.where(positions < splits[1:, None], positions, xp.asarray(num_values, splits.dtype))
    if not isinstance(count, int) or count == rows:
        return table
    if count < rows:
        return table[:count]
    return xp.pad(table, [(0, count - rows), (0, 0)], constant_values=num_values)


def _find_longest(splits: Array) -> Array:
    return (splits[1:] - splits[:-1]).max(initial=0)


def pad_rows(rows: PyTree, default_value: PyTree = None, shape: PyTree = None) -> Tensor:
    """Return a dense tensor, with a default value after the end of each row."""
    rank = len(rows.shape)
    if isinstance(shape, Tensor):
        shape = [None if n < 0 else int(n) for n in shape.require_value("shape of to_tensor")]
    requested = [None] * rank if shape is None else TensorShape(shape).as_list()
    if len(requested) != rank:
        raise InvalidValueError(
            f"to_tensor: rt_input.shape and shape={_format_sizes(requested)} are incompatible: rt_input.rank = {rank} but "
            f"shape.rank = {len(requested)}."
        )
    if default_value is not None:
        default_value = convert_to_tensor(default_value, rows.dtype)
        given, inner = default_value.shape, rows.flat_values.shape
        problem = ""
        if len(given) >= max(len(inner), 1):
            problem = f"default_value.rank = {len(given)}  must be less than rt_input.flat_values.rank = {len(inner)}"
        else:
            for axis in range(-1, -len(given) - 1, -1):
                if given[axis] not in (1, inner[axis]):
                    problem = f"default_value.shape[{axis}] = {given[axis]} but rt_input.flat_values.shape[{axis}] = {inner[axis]}"
        if problem:
            raise InvalidValueError(
                f"to_tensor: default_value.shape={given} and rt_input.flat_values.shape={inner} are incompatible: {problem}."
            )
    return _pad(rows, default_value, requested)


def _pad(rows: PyTree, default_value: Tensor | None, requested: list[Any]) -> Tensor:
    values, partition = rows.values, rows.partition
    if hasattr(values, "row_splits"):
        values = _pad(values, default_value, [None, *requested[2:]])
    else:
        for axis, size in enumerate(values.shape.as_list()[1:], 2):
            if requested[axis] not in (None, size):
                raise InvalidValueError(
                    f"to_tensor: rt_input.shape and shape={_format_sizes(requested)} are incompatible: rt_input.shape[{axis}] "
                    f"= {size} but shape[{axis}] = {requested[axis]}."
                )
    width = requested[1]
    if width is None:
        width = partition.static_uniform_row_length
    if width is None:
        width = compute_size(_find_longest, [partition.row_splits()], "the longest row")
    sizes = values.shape.as_list()
    count = partition.static_nrows if requested[0] is None else requested[0]
    padded = _pad_on_host(values, partition.row_splits(), count, width, default_value)
    if padded is not None:
        return padded
    table = _find_positions(partition.row_splits(), static=(count, width, sizes[0]))
    filler = array.broadcast_to(_make_fill(default_value, values.dtype), [1, *sizes[1:]])
    return array.gather(array.concat([values, filler], 0), table)


def _pad_on_host(
    values: Tensor, splits: Tensor, count: Size, width: Size, default_value: Tensor | None
) -> Tensor | None:
    """Pad host arrays without ops; return None for other arrays and where a trace or a tape observes the ops."""
    fill = _make_fill(default_value, values.dtype)
    if context.trace is not None or (context.tapes and values.dtype is not string):
        return None
    arrays = [t._value for t in (values, splits, fill) if type(t) is Tensor]
    if len(arrays) < 3 or any(type(a) is not np.ndarray for a in arrays):
        return None
    rows, ends, filler = arrays
    if math.prod((count, width, *rows.shape[1:])) > _MAX_HOST_SIZE or len(rows) != ends[-1]:
        return None
    return Tensor(pad_values(rows, np.diff(ends), count, width, filler))


def pad_values(
    values: np.ndarray, lengths: np.ndarray, count: int, width: int, filler: PyTree
) -> np.ndarray:
    """Return rows of host values as a table.

    Args:
      values: The values of all rows, [n, ...].
      lengths: The length of each row.
      count: Number of rows of the table.
      width: Number of columns; longer rows are cut.
      filler: Value after the end of a row.

    Example:
      >>> pad_values(np.arange(3), np.array([2, 1]), 2, 3, -1)
      array([[ 0,  1, -1],
             [ 2, -1, -1]])
    """
    table = np.empty((count, width, *values.shape[1:]), values.dtype)
    table[...] = filler
    if lengths.max(initial=0) > width or len(lengths) > count:
        starts = np.cumsum(lengths) - lengths
        columns = np.arange(len(values)) - np.repeat(starts, lengths)
        numbers = np.repeat(np.arange(len(lengths)), lengths)
        values = values[(columns < width) & (numbers < count)]
        lengths = np.minimum(lengths[:count], width)
    table[: len(lengths)][np.arange(width) < lengths[:, None]] = values
    return table


def _format_sizes(sizes: list[Any]) -> str:
    return f"[{','.join('?' if n is None else str(n) for n in sizes)}]"


def _make_fill(default_value: Tensor | None, dtype: DType) -> Tensor:
    if default_value is not None:
        return default_value
    return Tensor(np.full((), b"" if dtype is string else 0, dtype.dtype))


@define_array_function
def _gather_coordinates(xp: Namespace, outer: Array, rows: Array, columns: Array) -> Array:
    outer = take(xp.asarray(outer), rows)
    return xp.concatenate([outer, columns[:, None].astype(outer.dtype)], 1)


@define_array_function
def _repeat_coordinates(xp: Namespace, outer: Array, sizes: tuple[int, ...]) -> Array:
    inner = np.indices(sizes).reshape(len(sizes), -1).T
    size = inner.shape[0]
    return xp.concatenate(
        [xp.repeat(outer, size, axis=0), xp.tile(xp.asarray(inner), (outer.shape[0], 1))], 1
    )


def list_row_coordinates(rows: PyTree) -> Tensor:
    """Return the int64 coordinates of all innermost values along the ragged dimensions."""
    coordinates = array.expand_dims(Tensor(make_range(rows.partition.static_nrows)), 1)
    while hasattr(rows, "row_splits"):
        partition, rows = rows.partition, rows.values
        coordinates = _gather_coordinates(
            coordinates, partition.value_rowids(), partition.offsets_in_rows()
        )
    return coordinates


def list_coordinates(rows: PyTree) -> Tensor:
    """Return the int64 coordinates of all values."""
    sizes = tuple(rows.flat_values.shape.as_list()[1:])
    coordinates = list_row_coordinates(rows)
    return _repeat_coordinates(coordinates, static=(sizes,)) if sizes else coordinates


def flatten_values(rows: PyTree) -> Tensor:
    """Return all values as a vector."""
    values = rows.flat_values
    return array.reshape(values, [-1]) if len(values.shape) > 1 else values
