"""Rules of gathers, scatters, and slices at dynamic positions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.lib.stride_tricks import as_strided

from meshflow.interpreter.elementwise import get_compute_dtype
from meshflow.interpreter.symbolic_sizes import has_symbols
from meshflow.interpreter.table import Compute, Equation, HostArray, Writer, rule

_Mode = jax.lax.GatherScatterMode


@rule("dynamic_slice")
def _slice(equation: Equation) -> Compute:
    sizes = equation.params["slice_sizes"]
    limits = [n - s for n, s in zip(equation.inputs[0].shape, sizes, strict=True)]

    def run(x: HostArray, *starts: HostArray) -> HostArray:
        return np.array(x[_find_block(starts, sizes, limits)])

    return run


@rule("dynamic_update_slice", is_writer=True, is_elementwise=True)
def _update_slice(equation: Equation) -> Writer:
    (shape, dtype), sizes = equation.outputs[0], equation.inputs[1].shape
    limits = [n - s for n, s in zip(shape, sizes, strict=True)]

    def write(x: HostArray, update: HostArray, *rest: HostArray) -> HostArray:
        *starts, out = rest
        block = _find_block(starts, sizes, limits)
        if out is not x and sizes != shape:
            out[...] = x
        out[block] = update
        return out

    return Writer(lambda *xs: write(*xs, np.empty(shape, dtype)), write)


def _find_block(
    starts: Sequence[HostArray], sizes: Sequence[int], limits: Sequence[int]
) -> tuple[slice, ...]:
    """Return the index of a block; its starts are moved into the range from 0 to `limits`."""
    index = []
    for start, size, limit in zip(starts, sizes, limits, strict=True):
        first = min(max(int(start), 0), limit)
        index.append(slice(first, first + size))
    return tuple(index)


# Slices of fewer elements are copied element by element.
_MIN_COPIED = 16


class _Slices:
    """The slices of an array that a gather reads or a scatter updates.

    Args:
      shape: Shape of the array.
      window: Shape of a slice.
      axes: Axes of the array that a slice has, too. The sizes of the others are 1.
      start_map: Axes of the array that the index vectors refer to.
      batching: Pairs of an axis of the array and an axis of the batch of index vectors that are the same.
      num_batch: Number of axes of the batch.
      checks: Whether to find the slices that are not inside the array.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        window: Sequence[int],
        axes: Sequence[int],
        start_map: Sequence[int],
        batching: Sequence[tuple[int, int]],
        num_batch: int,
        checks: bool,
    ) -> None:
        self._shape, self._slice = shape, [window[axis] for axis in axes]
        self._limits = [n - size for n, size in zip(shape, window, strict=True)]
        # Slices are rows of contiguous elements if they have one position on each axis before the rows' axes.
        self._row_axis = len(shape)
        while self._row_axis and window[self._row_axis - 1] == shape[self._row_axis - 1]:
            self._row_axis -= 1
        self._are_rows = all(size == 1 for size in window[: self._row_axis])
        self._start_map, self._num_axes, self._checks = start_map, len(axes), checks
        # For each axis of the array, the starts of slices that no index vector determines.
        self._starts: list[Any] = [np.zeros((1,) * num_batch, np.int64)] * len(shape)
        for axis, batch_axis in batching:
            view = [1] * num_batch
            view[batch_axis] = shape[axis]
            self._starts[axis] = np.arange(shape[axis]).reshape(view)
        self._offsets = {}
        for k, axis in enumerate(axes):
            view = [1] * (num_batch + len(axes))
            view[num_batch + k] = window[axis]
            self._offsets[axis] = np.arange(window[axis]).reshape(view)

    def _find_starts(self, vectors: HostArray) -> tuple[list[HostArray], Any]:
        """Return the first index of all slices on each axis, and which slices were inside; see `make_index`."""
        starts, is_inside = list(self._starts), np.asarray(True)
        for k, axis in enumerate(self._start_map):
            start, limit = vectors[..., k].astype(np.int64), self._limits[axis]
            if self._checks:
                is_inside = is_inside & (start >= 0) & (start <= limit)
            starts[axis] = np.clip(start, 0, max(limit, 0))
        return starts, is_inside

    def take(self, x: HostArray, vectors: HostArray) -> tuple[HostArray, Any]:
        """Return the slices of an array, with a shape that broadcasts to [*batch, *slice]; see `make_index`."""
        if not self._are_rows and math.prod(self._slice) >= _MIN_COPIED and min(self._limits) >= 0:
            # A view of all possible slices, of which complete ones are copied.
            sizes = [limit + 1 for limit in self._limits]
            strides = [x.strides[axis] for axis in self._offsets]
            view = as_strided(x, (*sizes, *self._slice), (*x.strides, *strides), writeable=False)
            starts, is_inside = self._find_starts(vectors)
            return view[tuple(starts)], is_inside
        if not (self._are_rows and x.flags.c_contiguous):
            index, is_inside = self.make_index(vectors)
            return x[tuple(index)] if index else x, is_inside
        starts, is_inside = self._find_starts(vectors)
        row: HostArray = np.zeros((1,) * (vectors.ndim - 1), np.int64)
        for start, size in zip(starts[: self._row_axis], self._shape, strict=False):
            row = row * size + start
        rows = x.reshape(-1, *self._shape[self._row_axis :])
        return rows.take(row, 0, mode="clip").reshape((*row.shape, *self._slice)), is_inside

    def make_index(self, vectors: HostArray) -> tuple[list[HostArray], Any]:
        """Return the index of the elements of all slices, moved into the array, and which were inside.

        Args:
          vectors: Index vectors [*batch, len(start_map)].

        Returns:
          For each axis of the array, indices that broadcast to [*batch, *slice]; and Booleans that broadcast to
          `batch`, which are true without checks.
        """
        starts, is_inside = self._find_starts(vectors)
        index = []
        for axis, start in enumerate(starts):
            start = start.reshape(start.shape + (1,) * self._num_axes)
            index.append(start + self._offsets[axis] if axis in self._offsets else start)
        return index, is_inside


@rule("gather", accepts_symbols=True)
def _gather(equation: Equation) -> Compute | None:
    p = equation.params
    numbers, window, mode = p["dimension_numbers"], tuple(p["slice_sizes"]), p["mode"]
    (shape, dtype), batch = equation.inputs[0], equation.inputs[1].shape[:-1]
    result = equation.outputs[0].shape
    fill = _choose_fill(p["fill_value"], dtype)
    fills = mode == _Mode.FILL_OR_DROP
    collapsed = (*numbers.collapsed_slice_dims, *numbers.operand_batching_dims)
    kept = [i for i in range(len(shape)) if i not in collapsed]
    axis = numbers.start_index_map[0] if len(numbers.start_index_map) == 1 else 0
    is_row_gather = (
        numbers.collapsed_slice_dims == numbers.start_index_map == (axis,)
        and not numbers.operand_batching_dims
        and window == (*shape[:axis], 1, *shape[axis + 1 :])
        and numbers.offset_dims == (*range(axis), *range(axis + len(batch), len(result)))
    )
    if is_row_gather:

        def take_rows(x: HostArray, indices: HostArray) -> HostArray:
            rows, size = indices[..., 0], x.shape[axis]
            if not size:
                return np.full((*x.shape[:axis], *rows.shape, *x.shape[axis + 1 :]), fill, dtype)
            out = np.asarray(x.take(rows, axis, mode="clip"))
            if fills:
                is_inside = (rows >= 0) & (rows < size)
                if not is_inside.all():
                    out[(slice(None),) * axis + (~is_inside,)] = fill
            return out

        return take_rows
    if has_symbols(shape, batch, result):
        return None
    if not batch and not numbers.operand_batching_dims:
        return _make_box_gather(equation, fill, fills)
    batching = tuple(
        zip(
            numbers.operand_batching_dims,
            numbers.start_indices_batching_dims,
            strict=True,
        )
    )
    slices = _Slices(shape, window, kept, numbers.start_index_map, batching, len(batch), fills)
    batch_axes = [i for i in range(len(result)) if i not in numbers.offset_dims]
    order = np.argsort([*batch_axes, *numbers.offset_dims])
    is_ordered = list(order) == list(range(len(result)))
    full = (*batch, *(window[i] for i in kept))

    def run(x: HostArray, indices: HostArray) -> HostArray:
        if 0 in full or 0 in shape:
            out = np.full(full, fill, dtype)
        else:
            out, is_inside = slices.take(x, indices)
            out = out if out.shape == full else np.broadcast_to(out, full)
            if fills and not np.all(is_inside):
                mask = np.broadcast_to(is_inside, batch).reshape(batch + (1,) * len(kept))
                out = np.where(mask, out, np.asarray(fill, dtype))
        if is_ordered and out.flags.owndata and out.flags.c_contiguous and out is not x:
            return out
        return np.array(out if is_ordered else out.transpose(order), order="C")

    return run


def _make_box_gather(equation: Equation, fill: HostArray, fills: bool) -> Compute:
    """Return the rule of a gather of one slice, such as a slice of an array with an unknown size."""
    numbers, window = (equation.params[name] for name in ("dimension_numbers", "slice_sizes"))
    limits = [n - size for n, size in zip(equation.inputs[0].shape, window, strict=True)]
    collapsed, start_map = numbers.collapsed_slice_dims, numbers.start_index_map

    def take_box(x: HostArray, indices: HostArray) -> HostArray:
        starts = [0] * x.ndim
        for axis, start in zip(start_map, indices.tolist(), strict=True):
            starts[axis] = min(max(start, 0), limits[axis])
            if fills and start != starts[axis]:
                return np.full([n for i, n in enumerate(window) if i not in collapsed], fill)
        index = [
            start if axis in collapsed else slice(start, start + size)
            for axis, (start, size) in enumerate(zip(starts, window, strict=True))
        ]
        return np.array(x[tuple(index)])

    return take_box


def _choose_fill(value: Any, dtype: np.dtype) -> HostArray:
    if value is not None:
        return np.asarray(value, dtype)
    if jnp.issubdtype(dtype, np.inexact):
        return np.asarray(np.nan, dtype)
    if dtype == np.bool_:
        return np.array(True)
    info = jnp.iinfo(dtype)
    return np.asarray(info.max if info.min == 0 else info.min, dtype)


_UPDATES = {
    "scatter": None,
    "scatter-add": np.add,
    "scatter_add": np.add,
    "scatter-sub": np.subtract,
    "scatter_sub": np.subtract,
    "scatter-mul": np.multiply,
    "scatter_mul": np.multiply,
    "scatter-min": np.minimum,
    "scatter_min": np.minimum,
    "scatter-max": np.maximum,
    "scatter_max": np.maximum,
}


@rule(*_UPDATES, accepts_symbols=True)
def _scatter(equation: Equation) -> Compute | None:
    p, function = equation.params, _UPDATES[equation.name]
    numbers, mode = p["dimension_numbers"], p["mode"]
    (shape, dtype), batch = equation.inputs[0], equation.inputs[1].shape[:-1]
    updates_shape = equation.inputs[2].shape
    inserted = (*numbers.inserted_window_dims, *numbers.operand_batching_dims)
    kept = [i for i in range(len(shape)) if i not in inserted]
    window = [1] * len(shape)
    for axis, k in zip(kept, numbers.update_window_dims, strict=True):
        window[axis] = updates_shape[k]
    batch_axes = [i for i in range(len(updates_shape)) if i not in numbers.update_window_dims]
    order = (*batch_axes, *numbers.update_window_dims)
    drops, start_map = mode != _Mode.CLIP, numbers.scatter_dims_to_operand_dims
    wide = dtype if function is None else get_compute_dtype(dtype)
    if inserted == start_map == (0,) and tuple(window) == (1, *shape[1:]):

        def run_rows(x: HostArray, indices: HostArray, updates: HostArray) -> HostArray:
            out = np.array(x, wide, order="C")
            if updates.size and out.size:
                updates = updates.transpose(order).astype(wide, copy=False)
                rows, updates = indices[..., 0].reshape(-1), updates.reshape(-1, *out.shape[1:])
                update_rows(function, out, rows, updates, drops)
            return out.astype(dtype, copy=False)

        return run_rows
    if has_symbols(shape, batch, updates_shape):
        return None
    batching = tuple(
        zip(numbers.operand_batching_dims, numbers.scatter_indices_batching_dims, strict=True)
    )
    slices = _Slices(shape, window, kept, start_map, batching, len(batch), drops)
    full = tuple(updates_shape[i] for i in order)

    def run(x: HostArray, indices: HostArray, updates: HostArray) -> HostArray:
        out = np.array(x, wide, order="C")
        if 0 in updates_shape or 0 in shape:
            return out.astype(dtype, copy=False)
        updates = updates.transpose(order)
        if wide != dtype:
            updates = updates.astype(wide)
        index, is_inside = slices.make_index(indices)
        index = [np.broadcast_to(i, full) for i in index]
        if drops and not np.all(is_inside):
            mask = np.broadcast_to(is_inside, batch).reshape(batch + (1,) * len(kept))
            mask = np.broadcast_to(mask, full)
            index = [i[mask] for i in index]
            updates = updates[mask]
        if not shape:
            flat = np.broadcast_to(updates, full).reshape(-1)
            for u in flat:
                out = np.asarray(u if function is None else function(out, u))
        elif function is None:
            out[tuple(index)] = updates
        else:
            function.at(out, tuple(index), updates)
        return out.astype(dtype, copy=False)

    return run


def update_rows(
    function: np.ufunc | None, out: HostArray, rows: HostArray, updates: HostArray, drops: bool
) -> None:
    """Update rows of an array in place; rows with equal indices are all used."""
    last = len(out) - 1
    if drops:
        is_inside = (rows >= 0) & (rows <= last)
        if not is_inside.all():
            rows, updates = rows[is_inside], updates[is_inside]
    else:
        rows = np.clip(rows, 0, last)
    if function is None:
        out[rows] = updates
        return
    if out.ndim == 1:
        function.at(out, rows, updates)
        return
    # `at` is fast for one axis only.
    width = math.prod(out.shape[1:])
    index = (rows.astype(np.int64)[:, None] * width + np.arange(width)).reshape(-1)
    function.at(out.reshape(-1), index, updates.reshape(-1))
