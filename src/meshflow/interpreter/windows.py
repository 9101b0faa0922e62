"""Rules of reductions over sliding windows, and of their gradients.

Windows are processed by offset: the elements at one offset of all windows are a strided slice.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from meshflow.interpreter.elementwise import (
    BLOCK_SIZE,
    get_compute_dtype,
    is_small_float,
    make_selection,
    widen,
)
from meshflow.interpreter.reductions import get_identity
from meshflow.interpreter.shapes import Padding, plan_padding
from meshflow.interpreter.table import Compute, Equation, HostArray, Spec, rule
from meshflow.kernels import pooling


@dataclasses.dataclass(frozen=True)
class Geometry:
    """Windows on an array, with one entry per dimension in each attribute."""

    shape: tuple[int, ...]
    size: Sequence[int]
    strides: Sequence[int]
    padding: Sequence[tuple[int, int]]
    dilation: Sequence[int]
    base_dilation: Sequence[int]

    @functools.cached_property
    def _padding(self) -> Padding:
        pairs = zip(self.padding, self.base_dilation, strict=True)
        return plan_padding(self.shape, [(low, high, d - 1) for (low, high), d in pairs])

    @property
    def padded_shape(self) -> tuple[int, ...]:
        """Return the shape of the array with padding."""
        return self._padding.shape

    @functools.cached_property
    def grid(self) -> tuple[int, ...]:
        """Return the number of windows along each dimension."""
        sizes = zip(self.padded_shape, self.size, self.strides, self.dilation, strict=True)
        return tuple(max(0, (n - (k - 1) * d - 1) // s + 1) for n, k, s, d in sizes)

    @property
    def inner(self) -> tuple[slice, ...]:
        """Return the index of the elements in the padded array."""
        return self._padding.target

    def pad(self, x: HostArray, value: Any) -> HostArray:
        """Return the array with padding and base dilation."""
        if not any(map(any, self.padding)) and all(d == 1 for d in self.base_dilation):
            return x
        out = np.full(self.padded_shape, value, x.dtype)
        out[self.inner] = x[self._padding.source]
        return out

    def iter_offsets(self) -> Iterator[tuple[slice, ...]]:
        """Yield the index of the elements at each offset of the windows."""
        for offset in np.ndindex(*self.size):
            steps = zip(offset, self.dilation, self.grid, self.strides, strict=True)
            yield tuple(slice(o * d, o * d + (n - 1) * s + 1, s) for o, d, n, s in steps)

    def run_by_blocks(self, make: Callable[[Geometry], Compute]) -> Compute:
        """Return a function that processes a few examples at a time; intermediate values then fit into caches.

        Args:
          make: Returns the function of arrays for a geometry.
        """
        batch, count = self.shape[0], max(1, 2 * BLOCK_SIZE // max(1, math.prod(self.shape[1:])))
        first = self.size[0], self.strides[0], tuple(self.padding[0]), self.base_dilation[0]
        if count >= batch or first != (1, 1, (0, 0), 1):
            return make(self)
        sizes = {min(count, batch - start) for start in range(0, batch, count)}
        functions = {n: make(dataclasses.replace(self, shape=(n, *self.shape[1:]))) for n in sizes}

        def run(*arrays: HostArray) -> HostArray:
            parts = [
                functions[min(count, batch - i)](*[a[i : i + count] for a in arrays])
                for i in range(0, batch, count)
            ]
            return np.concatenate(parts)

        return run

    def split_axes(self) -> list[Geometry]:
        """Return the windows along one axis each, to be applied in turn to a padded array."""
        shape, parts, ones = list(self.padded_shape), [], [1] * len(self.shape)
        for axis, (k, s, d) in enumerate(zip(self.size, self.strides, self.dilation, strict=True)):
            if (k, s) == (1, 1):
                continue
            lists = [[*ones[:axis], value, *ones[axis + 1 :]] for value in (k, s, d)]
            size, strides, dilation = lists
            padding = [(0, 0)] * len(shape)
            part = Geometry(tuple(shape), size, strides, padding, dilation, ones)
            shape[axis] = part.grid[axis]
            parts.append(part)
        return parts


def read_geometry(equation: Equation, operand: int = 0) -> Geometry:
    """Return the windows of an equation on one of its operands."""
    p, ndim = equation.params, equation.inputs[operand].ndim
    ones = (1,) * ndim
    return Geometry(
        equation.inputs[operand].shape,
        p["window_dimensions"],
        p.get("window_strides") or ones,
        p["padding"],
        p.get("window_dilation") or ones,
        p.get("base_dilation") or ones,
    )


_FUNCTIONS = {
    "reduce_window_sum": np.add,
    "reduce_window_max": np.maximum,
    "reduce_window_min": np.minimum,
}


@rule(*_FUNCTIONS)
def _reduce_windows(equation: Equation) -> Compute:
    dtype = equation.inputs[0].dtype
    run = reduce_windows(read_geometry(equation), _FUNCTIONS[equation.name], dtype)
    return widen(run, dtype) if is_small_float(dtype) else run


def reduce_windows(geometry: Geometry, function: np.ufunc, dtype: np.dtype) -> Compute:
    """Return a function that reduces each window, one axis after the other."""
    return geometry.run_by_blocks(lambda part: _reduce_block(part, function, dtype))


def _reduce_block(geometry: Geometry, function: np.ufunc, dtype: np.dtype) -> Compute:
    identity = get_identity(function, dtype)
    parts = geometry.split_axes()
    grid = geometry.grid

    def run(x: HostArray) -> HostArray:
        x = geometry.pad(x, identity)
        if 0 in grid:
            return np.zeros(grid, x.dtype)
        for part in parts:
            first, *others = part.iter_offsets()
            total = x[first].copy()
            for index in others:
                function(total, x[index], out=total)
            x = total
        return x if parts else np.array(x)

    return run


@rule("reduce_window")
def _reduce_windows_generally(equation: Equation) -> Compute:
    num = len(equation.inputs) // 2
    combine = equation.bind(equation.params["jaxpr"], ()).run
    geometry = read_geometry(equation)

    def run(*arrays: HostArray) -> list[HostArray]:
        padded = [geometry.pad(x, v) for x, v in zip(arrays[:num], arrays[num:], strict=True)]
        totals = [
            np.full(geometry.grid, v, x.dtype) for x, v in zip(padded, arrays[num:], strict=True)
        ]
        for index in geometry.iter_offsets():
            totals = combine([*totals, *[x[index] for x in padded]])
        return [np.array(t) for t in totals]

    return run


class _ExtremeSearch:
    """The search for the first extreme of each window of the second operand.

    Args:
      equation: An equation with a comparison `select_prim`.

    Attributes:
      geometry: The windows.
      dtype: Dtype of the operands in the computation.
    """

    def __init__(self, equation: Equation) -> None:
        self.geometry, dtype = read_geometry(equation, 1), equation.inputs[1].dtype
        self.dtype = get_compute_dtype(dtype)
        is_max = str(equation.params["select_prim"]) == "ge"
        self._is_better = np.greater_equal if is_max else np.less_equal
        self._identity = get_identity(np.maximum if is_max else np.minimum, self.dtype)

    def run(self, x: HostArray) -> HostArray:
        """Return the index of the offset at which each window has its extreme.

        An element replaces the previous one unless that is equal or better, as in XLA, so NaN is
        replaced by the next element. Padding is never selected.
        """
        geometry = self.geometry
        inside = np.zeros(geometry.padded_shape, np.bool_)
        inside[geometry.inner] = True
        padded_x = geometry.pad(x.astype(self.dtype, copy=False), self._identity)
        best = np.full(geometry.grid, self._identity, self.dtype)
        first = np.full(geometry.grid, -1, np.int32)
        for k, index in enumerate(geometry.iter_offsets()):
            element = padded_x[index]
            replaces = (~self._is_better(best, element) | (first < 0)) & inside[index]
            first[replaces] = k
            best = np.where(replaces, element, best)
        return first


@rule("select_and_scatter_add")
def _scatter_to_extremes(equation: Equation) -> Compute:
    search, dtype = _ExtremeSearch(equation), equation.inputs[1].dtype
    geometry = search.geometry

    def run(source: HostArray, x: HostArray) -> HostArray:
        first = search.run(x)
        source = source.astype(search.dtype, copy=False)
        total = np.zeros(geometry.padded_shape, source.dtype)
        for k, index in enumerate(geometry.iter_offsets()):
            total[index] += np.where(first == k, source, source.dtype.type(0))
        return total[geometry.inner].astype(dtype, copy=False)

    return run


@rule("select_and_gather_add")
def _gather_from_extremes(equation: Equation) -> Compute:
    search = _ExtremeSearch(equation)
    geometry = search.geometry

    def run(tangents: HostArray, x: HostArray) -> HostArray:
        first = search.run(x)
        padded = geometry.pad(tangents, tangents.dtype.type(0))
        out = np.zeros(geometry.grid, tangents.dtype)
        for k, index in enumerate(geometry.iter_offsets()):
            np.copyto(out, padded[index], where=first == k)
        return out

    return run


@rule("reduce")
def _reduce_generally(equation: Equation) -> Compute:
    num = len(equation.inputs) // 2
    combine = equation.bind(equation.params["jaxpr"], ()).run
    axes = tuple(sorted(equation.params["dimensions"]))

    def run(*arrays: HostArray) -> list[HostArray]:
        parts = [np.moveaxis(x, axes, range(len(axes))) for x in arrays[:num]]
        parts = [p.reshape(-1, *p.shape[len(axes) :]) for p in parts]
        totals = [np.broadcast_to(v, p.shape[1:]) for v, p in zip(arrays[num:], parts, strict=True)]
        for elements in zip(*parts, strict=True):
            totals = combine([*totals, *elements])
        return [np.array(t) for t in totals]

    return run


@rule("max_windows", "max_windows_gradient", "max_windows_gated_gradient")
def _take_maxima(equation: Equation) -> Compute:
    """Compute the maxima of windows or their gradient (`ops/nn/windows.py`)."""
    windows, dtype = equation.params["windows"], equation.inputs[0].dtype
    shape, wide = equation.inputs[0].shape, get_compute_dtype(dtype)
    is_gated = equation.name == "max_windows_gated_gradient"
    call = pooling.make_call(shape, windows, dtype, len(equation.inputs), is_gated)
    if call is not None:
        return _call_kernel(call, equation.outputs[0])
    geometry = Geometry(
        shape, windows.size, windows.strides, windows.pads, windows.dilations, (1,) * len(shape)
    )
    if equation.name == "max_windows":
        run = reduce_windows(geometry, np.maximum, wide)
        return widen(run, dtype) if wide != dtype else run
    return geometry.run_by_blocks(lambda part: _scatter_to_maxima(part, dtype, wide, is_gated))


def _call_kernel(call: Callable[..., None], result: Spec) -> Compute:
    def run(*arrays: HostArray) -> HostArray:
        out = np.empty(*result)
        call(*map(np.ascontiguousarray, arrays), out)
        return out

    return run


def _scatter_to_maxima(
    geometry: Geometry, dtype: np.dtype, wide: np.dtype, is_gated: bool
) -> Compute:
    # Padding never equals a maximum, and windows with NaN have none.
    padding = wide.type(np.nan) if wide.kind == "f" else get_identity(np.maximum, wide)
    select = make_selection(wide)
    zeros, zeros_of_image = (
        np.broadcast_to(wide.type(0), shape) for shape in (geometry.grid, geometry.shape)
    )

    def scatter(x: HostArray, y: HostArray, g: HostArray) -> HostArray:
        x, y, g = (a.astype(wide, copy=False) for a in (x, y, g))
        padded_x = geometry.pad(x, padding)
        total = np.zeros(geometry.padded_shape, wide)
        is_pending = np.ones(y.shape, np.bool_)
        for index in geometry.iter_offsets():
            is_first = np.equal(padded_x[index], y)
            np.logical_and(is_first, is_pending, is_first)
            np.logical_xor(is_pending, is_first, is_pending)
            total[index] += select(is_first, zeros, g)
        result = total[geometry.inner]
        if is_gated:
            result = select(x > 0, zeros_of_image, result)
        return np.array(result, dtype)

    return scatter
