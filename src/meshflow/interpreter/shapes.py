"""Rules of primitives that move elements without computing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from meshflow.interpreter.elementwise import repeat_scalar
from meshflow.interpreter.symbolic_sizes import has_symbols
from meshflow.interpreter.table import Compute, Equation, HostArray, Writer, rule


@rule("broadcast_in_dim", is_view=True, accepts_symbols=True)
def _broadcast(equation: Equation) -> Compute | None:
    shape, axes = equation.params["shape"], equation.params["broadcast_dimensions"]
    source = equation.inputs[0].shape
    view = [1] * len(shape)
    for axis, size in zip(axes, source, strict=True):
        view[axis] = size
    if has_symbols(shape):
        index = tuple([slice(None) if axis in axes else None for axis in range(len(shape))])
        return (lambda x, *_: x[index]) if view == list(shape) else None
    if view == list(shape):
        return lambda x, *_: np.reshape(x, shape)
    if not source and equation.inputs[0].dtype.kind in "biuf":
        return lambda x, *_: repeat_scalar(x, shape)
    if (
        len(source) == len(shape)
        or not source
        or axes[-1] == len(shape) - 1 == len(axes) + axes[0] - 1
    ):
        return lambda x, *_: np.broadcast_to(x, shape)
    return lambda x, *_: np.broadcast_to(np.reshape(x, view), shape)


@rule("reshape", is_view=True, accepts_symbols=True)
def _reshape(equation: Equation) -> Compute | None:
    shape, order = equation.outputs[0].shape, equation.params.get("dimensions")
    if has_symbols(equation.inputs[0].shape, shape):
        shape = tuple([-1 if has_symbols([n]) else n for n in shape])
        if shape.count(-1) != 1 or 0 in shape:
            return None
    if order is not None:
        return lambda x, *_: x.transpose(order).reshape(shape)
    return lambda x, *_: x.reshape(shape)


@rule("squeeze", is_view=True, accepts_symbols=True)
def _squeeze(equation: Equation) -> Compute:
    shape, axes = equation.outputs[0].shape, equation.params["dimensions"]
    if has_symbols(shape):
        index = tuple([0 if i in axes else slice(None) for i in range(equation.inputs[0].ndim)])
        return lambda x: x[index]
    return lambda x: x.reshape(shape)


@rule("transpose", is_view=True, uses_shapes=False)
def _transpose(equation: Equation) -> Compute:
    order = equation.params["permutation"]
    return lambda x: x.transpose(order)


@rule("rev", is_view=True, uses_shapes=False)
def _reverse(equation: Equation) -> Compute:
    axes = equation.params["dimensions"]
    index = tuple(
        slice(None, None, -1) if i in axes else slice(None) for i in range(equation.inputs[0].ndim)
    )
    return lambda x: x[index]


@rule("slice", is_view=True, accepts_symbols=True)
def _slice(equation: Equation) -> Compute | None:
    p = equation.params
    strides = p["strides"] or (1,) * equation.inputs[0].ndim
    # A complete axis may have any size.
    limits = [
        None if has_symbols([n]) and n is size else n
        for n, size in zip(p["limit_indices"], equation.inputs[0].shape, strict=True)
    ]
    if has_symbols(p["start_indices"], limits):
        return None
    index = tuple(map(slice, p["start_indices"], limits, strides))
    return lambda x: x[index]


@rule("split", is_view=True)
def _split(equation: Equation) -> Compute:
    axis, start, indices = equation.params["axis"], 0, []
    for size in equation.params["sizes"]:
        indices.append((slice(None),) * axis + (slice(start, start + size),))
        start += size
    return lambda x: [x[i] for i in indices]


@rule("concatenate", is_writer=True, uses_shapes=False)
def _concatenate(equation: Equation) -> Writer:
    axis = equation.params["dimension"]
    return Writer(
        lambda *xs: np.concatenate(xs, axis), lambda *xs: np.concatenate(xs[:-1], axis, xs[-1])
    )


class Padding(NamedTuple):
    """Padding between and around the elements of an array.

    Attributes:
      shape: Shape of the result.
      source: Index of the elements of the array that the result contains.
      target: Index of these elements in the result.
    """

    shape: tuple[int, ...]
    source: tuple[slice, ...]
    target: tuple[slice, ...]


def plan_padding(shape: Sequence[int], config: Sequence[tuple[int, int, int]]) -> Padding:
    """Plan the padding of an array.

    Args:
      shape: Shape of the array.
      config: For each axis, the number of elements to add before, after and between the elements, as in
        `jax.lax.pad`. Negative numbers remove elements.
    """
    sizes, source, target = [], [], []
    for n, (low, high, interior) in zip(shape, config, strict=True):
        step = interior + 1
        size = max(0, low + (n - 1) * step + 1 + high if n else low + high)
        first = max(0, -(low // step))
        stop = max(first, min(n, (size - low + step - 1) // step))
        begin = low + first * step
        sizes.append(size)
        source.append(slice(first, stop))
        target.append(slice(begin, begin + max(0, (stop - first - 1) * step + 1), step))
    return Padding(tuple(sizes), tuple(source), tuple(target))


@rule("pad")
def _pad(equation: Equation) -> Compute:
    dtype = equation.outputs[0].dtype
    config = equation.params["padding_config"]
    shape, source, target = plan_padding(equation.inputs[0].shape, config)

    def run(x: HostArray, value: HostArray) -> HostArray:
        out = np.full(shape, value, dtype)
        out[target] = x[source]
        return out

    return run


@rule("iota", is_view=True)
def _make_iota(equation: Equation) -> Compute:
    (shape, dtype), axis = equation.outputs[0], equation.params["dimension"]
    view = [1] * len(shape)
    view[axis] = shape[axis]
    return lambda *_: np.broadcast_to(np.arange(shape[axis]).astype(dtype).reshape(view), shape)


@rule("copy", "copy_p", uses_shapes=False)
def _copy(equation: Equation) -> Compute:
    return np.array


@rule("dim_as_value")
def _read_size(equation: Equation) -> Compute:
    value = np.asarray(equation.params["dim"], equation.outputs[0].dtype)
    return lambda: value.copy()


@rule("bitcast_convert_type", is_view=True)
def _bitcast(equation: Equation) -> Compute:
    shape, dtype = equation.outputs[0]

    def run(x: HostArray) -> HostArray:
        flat = np.ascontiguousarray(x).reshape(-1)
        return flat.view(dtype).reshape(shape)

    return run


@rule("tile")
def _tile(equation: Equation) -> Compute:
    reps = equation.params["reps"]
    return lambda x: np.tile(x, reps)


@rule("empty", "empty2")
def _make_empty(equation: Equation) -> Compute:
    shape, dtype = equation.outputs[0]
    return lambda *_: np.zeros(shape, dtype)


@rule("stack", is_writer=True, uses_shapes=False)
def _stack(equation: Equation) -> Writer:
    axis = equation.params["axis"]
    return Writer(lambda *xs: np.stack(xs, axis), lambda *xs: np.stack(xs[:-1], axis, xs[-1]))


@rule("unstack", is_view=True, uses_shapes=False)
def _unstack(equation: Equation) -> Compute:
    axis = equation.params["axis"]
    return lambda x: list(np.moveaxis(x, axis, 0))
