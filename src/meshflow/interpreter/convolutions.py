"""Rules of convolutions.

A convolution copies the windows of the image to the rows of a matrix (im2col) and multiplies it by
the kernel. Gradients of kernels have few results and large windows: each result is one product.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np

from meshflow.interpreter.elementwise import get_compute_dtype
from meshflow.interpreter.shapes import plan_padding
from meshflow.interpreter.table import Compute, Equation, HostArray, rule
from meshflow.kernels import descriptors, library, lowerings

# Bytes of the matrix of windows above which the batch is processed in parts.
MAX_WINDOW_BYTES = 1 << 25
# Multiply-adds from which oneDNN is used. It generates code for each shape, which takes about half a millisecond.
# NumPy needs several calls for each group.
MIN_KERNEL_WORK, MIN_GROUPED_WORK = 1 << 20, 1 << 16
# Multiply-adds up to which NumPy computes convolutions over one axis if sizes vary: it takes up to a fourth longer, but needs no code
# for each size. For images, it takes two to three times as long.
MAX_RESIZED_WORK = 1 << 25
# Multiply-adds up to which one thread is used: on a busy machine, threads that wait for each other take
# several times as long.
MAX_INLINE_WORK = 1 << 28


class _ImageWindows(NamedTuple):
    """The windows of a convolution on an image with padding.

    Attributes:
      grid: Number of windows along each spatial axis.
      strides: Distances of windows.
      dilations: Distances of the elements of a window.
      groups: Number of groups of features.
    """

    grid: tuple[int, ...]
    strides: Sequence[int]
    dilations: Sequence[int]
    groups: int


@rule("conv_general_dilated")
def _convolve(equation: Equation) -> Compute:
    p, dtype = equation.params, equation.outputs[0].dtype
    kernel = _find_kernel(equation)
    if kernel is not None:
        return kernel
    left_spec, right_spec, out_spec = p["dimension_numbers"]
    groups, batch_groups = p["feature_group_count"], p["batch_group_count"]
    left_order = (left_spec[0], *left_spec[2:], left_spec[1])
    # Kernels are [*spatial, in, out].
    right_order = (*right_spec[2:], right_spec[1], right_spec[0])
    position = {axis: i for i, axis in enumerate((out_spec[0], *out_spec[2:], out_spec[1]))}
    out_order = tuple(position[axis] for axis in range(len(position)))
    grid = tuple(equation.outputs[0].shape[a] for a in out_spec[2:])
    windows = _ImageWindows(grid, p["window_strides"], p["rhs_dilation"], groups)
    prepare = _make_padding(equation, left_order)
    compute_type = _choose_type(dtype)
    kernel_shape = [equation.inputs[1].shape[a] for a in right_order]
    *size, num_in, num_out = kernel_shape
    batch = equation.inputs[0].shape[left_spec[0]]
    out_shape = equation.outputs[0].shape
    convolve = _choose_method(math.prod(grid), math.prod(size), groups, num_in)
    is_empty = 0 in out_shape or 0 in equation.inputs[0].shape or 0 in equation.inputs[1].shape

    def run(x: HostArray, w: HostArray) -> HostArray:
        if is_empty:
            return np.zeros(out_shape, dtype)
        x = prepare(x.astype(compute_type, copy=False).transpose(left_order))
        w = w.astype(compute_type, copy=False).transpose(right_order)
        if batch_groups == 1:
            y = convolve(x, w, windows)
        else:
            count, features = batch // batch_groups, num_out // batch_groups
            y = np.concatenate(
                [
                    convolve(
                        x[i * count : (i + 1) * count],
                        w[..., i * features : (i + 1) * features],
                        windows,
                    )
                    for i in range(batch_groups)
                ],
                -1,
            )
        return y.transpose(out_order).astype(dtype, copy=False)

    return run


def _find_kernel(equation: Equation) -> Compute | None:
    """Return a function that calls oneDNN, or None if the convolution is small, of rare sizes, or unsupported."""
    specs = [jax.ShapeDtypeStruct(*spec) for spec in (*equation.inputs, *equation.outputs)]
    image, kernel, result = specs
    p = equation.params
    is_grouped = p["feature_group_count"] > 1 or p["batch_group_count"] > 1
    limit = MIN_GROUPED_WORK if is_grouped else MIN_KERNEL_WORK
    work = lowerings.count_multiply_adds(image, kernel, result, p)
    if work < limit:
        return None
    is_sequence = not is_grouped and tuple(p["lhs_dilation"]) == (1,)
    if equation.is_resized and is_sequence and work <= MAX_RESIZED_WORK:
        return None
    loaded, code = library.load(), lowerings.choose_code(image, kernel, result, p)
    if loaded is None or code is None:
        return None
    descriptor, ((left_type, right_type), out_type) = code
    if work <= MAX_INLINE_WORK:
        descriptor = descriptors.with_inline_flag(descriptor)
    names = [np.dtype(t).name for t in (left_type, right_type, out_type)]
    call = loaded.make_call(descriptor, names)
    if call is None:
        return None
    shape, dtype = equation.outputs[0]
    is_flipped = descriptors.get_computation(descriptor) == descriptors.INPUT_GRADIENT
    is_transposed = lowerings.is_transposed_gradient(descriptor, p)
    numbers = p["dimension_numbers"]

    def run(x: HostArray, w: HostArray) -> HostArray:
        out = np.empty(shape, out_type)
        w = np.flip(w, numbers.rhs_spec[2:]) if is_flipped else w
        operands = np.ascontiguousarray(x, left_type), np.ascontiguousarray(w, right_type)
        call(*(operands[::-1] if is_transposed else operands), out)
        out = np.flip(out, numbers.out_spec[2:]) if is_transposed else out
        return out.astype(dtype, copy=False)

    return run


def _choose_type(dtype: np.dtype) -> np.dtype:
    if dtype.kind in "iu" and dtype.itemsize <= 4:
        return np.dtype(np.float64)
    return get_compute_dtype(dtype)


def _choose_method(grid: int, size: int, groups: int, num_in: int) -> Compute:
    if groups > 1 and num_in == 1:
        return _convolve_depthwise
    if grid < size and groups == 1:
        return _multiply_positions
    return _multiply_windows


def _make_padding(equation: Equation, order: tuple[int, ...]) -> Compute:
    """Return a function of an image [batch, *spatial, features] that pads and dilates it."""
    pairs = zip(equation.params["padding"], equation.params["lhs_dilation"], strict=True)
    config = [(low, high, dilation - 1) for (low, high), dilation in pairs]
    if not any(map(any, config)):
        return lambda x: x
    shape = [equation.inputs[0].shape[a] for a in order]
    padded_shape, source, target = plan_padding(shape, [(0, 0, 0), *config, (0, 0, 0)])

    def pad(x: HostArray) -> HostArray:
        out = np.zeros(padded_shape, x.dtype)
        out[target] = x[source]
        return out

    return pad


def _view_windows(x: HostArray, size: Sequence[int], windows: _ImageWindows) -> HostArray:
    """Return a view [batch, *grid, *size, features] of an image."""
    grid, strides, dilations, _ = windows
    step = x.strides[1:-1]
    return np.lib.stride_tricks.as_strided(
        x,
        (x.shape[0], *grid, *size, x.shape[-1]),
        (
            x.strides[0],
            *(a * b for a, b in zip(step, strides, strict=True)),
            *(a * b for a, b in zip(step, dilations, strict=True)),
            x.strides[-1],
        ),
        writeable=False,
    )


def _multiply_windows(x: HostArray, w: HostArray, windows: _ImageWindows) -> HostArray:
    *size, num_in, num_out = w.shape
    batch, k = len(x), math.prod(size) * num_in
    groups, grid = windows.groups, windows.grid
    if groups > 1:
        x = x.reshape(*x.shape[:-1], groups, num_in)
        w = w.reshape(*w.shape[:-1], groups, num_out // groups)
        single = windows._replace(groups=1)
        parts = [_multiply_windows(x[..., g, :], w[..., g, :], single) for g in range(groups)]
        return np.concatenate(parts, -1)
    kernel = w.reshape(k, num_out)
    out = np.empty((batch, *grid, num_out), x.dtype)
    count = math.prod(grid)
    step = max(1, min(batch, MAX_WINDOW_BYTES // max(1, count * k * x.itemsize)))
    for i in range(0, batch, step):
        part = x[i : i + step]
        rows = _view_windows(part, size, windows).reshape(len(part) * count, k)
        target = out[i : i + step].reshape(len(part) * count, num_out)
        np.matmul(rows, kernel, target)
    return out


def _multiply_positions(x: HostArray, w: HostArray, windows: _ImageWindows) -> HostArray:
    *size, _, num_out = w.shape
    kernel = w.reshape(-1, num_out)
    out = np.empty((len(x), *windows.grid, num_out), np.result_type(x, w))
    for position in np.ndindex(*windows.grid):
        index = [slice(None)]
        for i, s, d, k in zip(position, windows.strides, windows.dilations, size, strict=True):
            index.append(slice(i * s, i * s + (k - 1) * d + 1, d))
        window = x[tuple(index)]
        # The order in memory is that of the kernel in the usual layouts.
        out[(slice(None), *position)] = window.reshape(len(x), -1) @ kernel
    return out


def _convolve_depthwise(x: HostArray, w: HostArray, windows: _ImageWindows) -> HostArray:
    *size, _, num_out = w.shape
    grid, strides, dilations, groups = windows
    multiplier = num_out // groups
    out = np.zeros((len(x), *grid, groups, multiplier), x.dtype)
    w = w.reshape(*size, groups, multiplier)
    for offset in np.ndindex(*size):
        index = [slice(None)]
        for o, s, d, n in zip(offset, strides, dilations, grid, strict=True):
            index.append(slice(o * d, o * d + (n - 1) * s + 1, s))
        out += x[tuple(index)][..., None] * w[offset]
    return out.reshape(*out.shape[:-2], num_out)
