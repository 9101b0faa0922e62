"""Primitives that move elements, or gather a result from many, as LiteRT's operators."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from meshflow.deployment.equations import Equation
from meshflow.deployment.gathering import Rows, placed, read
from meshflow.lite.graph import Tensor
from meshflow.lite.lowering import Lowering, Refused, is_number, lowers

__all__: list[str] = []


@lowers("concatenate")
def _concatenate(l: Lowering, e: Equation) -> Tensor:
    parts = [l.full(v) for v in e.inputs]
    return l.emit("CONCATENATION", parts, e.outputs[0].shape, parts[0].dtype, "ConcatenationOptions", axis=e.params["dimension"])  # fmt: skip


@lowers("stack")
def _stack(l: Lowering, e: Equation) -> Tensor:
    parts = [l.full(v) for v in e.inputs]
    return l.emit("PACK", parts, e.outputs[0].shape, parts[0].dtype, "PackOptions", valuesCount=len(parts), axis=e.params["axis"])  # fmt: skip


@lowers("pad")
def _pad(l: Lowering, e: Equation) -> Tensor:
    value, filler = l.full(e.inputs[0]), e.inputs[1].constant
    config = [tuple(map(int, c)) for c in e.params["padding_config"]]
    if filler is None:
        raise Refused("LiteRT pads with a constant only")
    for axis, (low, high, inner) in enumerate(config):
        if inner:
            value = _apart(l, value, axis, inner, filler)
            config[axis] = low, high - inner, 0
    starts = [max(-low, 0) for low, _, _ in config]
    limits = [n + min(high, 0) if high < 0 else n for n, (_, high, _) in zip(value.shape, config, strict=True)]  # fmt: skip
    value = l.slice(value, starts, limits)
    return l.pad(value, [(max(low, 0), max(high, 0)) for low, high, _ in config], filler)


def _apart(l: Lowering, value: Tensor, axis: int, inner: int, filler: Any) -> Tensor:
    """A tensor with a constant behind each element along a dimension."""
    before, (size, *after) = value.shape[:axis], value.shape[axis:]
    flat = l.reshape(value, [math.prod(before), size, 1, math.prod(after)])
    wide = l.pad(flat, [(0, 0), (0, 0), (0, inner), (0, 0)], filler)
    return l.reshape(wide, [*before, size * (inner + 1), *after])


@lowers("rev")
def _reverse(l: Lowering, e: Equation) -> Tensor:
    return l.reverse(l.full(e.inputs[0]), e.params["dimensions"])


@lowers("split")
def _split(l: Lowering, e: Equation) -> list[Tensor]:
    value = l.full(e.inputs[0])
    results = [l.new(v.shape, v.dtype, "split") for v in e.outputs]
    sizes = l.constant(np.asarray(e.params["sizes"], np.int32))
    axis = l.constant(np.int32(e.params["axis"]))
    l.add("SPLIT_V", [value, sizes, axis], results, "SplitVOptions", numSplits=len(results))
    return results


_REDUCTIONS = {
    "reduce_sum": "SUM", "reduce_max": "REDUCE_MAX", "reduce_min": "REDUCE_MIN",
    "reduce_prod": "REDUCE_PROD", "reduce_and": "REDUCE_ALL", "reduce_or": "REDUCE_ANY", "reduce_mean": "MEAN",
}  # fmt: skip


@lowers(*_REDUCTIONS)
def _reduce(l: Lowering, e: Equation) -> Tensor:
    value = l.full(e.inputs[0])
    axes = l.constant(np.asarray(e.params["axes"], np.int32))
    code, keep = _REDUCTIONS[e.name], bool(e.params.get("keepdims"))
    return l.emit(code, [value, axes], e.outputs[0].shape, value.dtype, "ReducerOptions", keepDims=keep)  # fmt: skip


@lowers("argmax", "argmin")
def _arg(l: Lowering, e: Equation) -> Tensor:
    value, (axis,) = l.full(e.inputs[0]), e.params["axes"]
    big = e.name == "argmax"
    dtype = np.dtype(np.int64 if e.outputs[0].dtype == np.int64 else np.int32)
    code, kind = ("ARG_MAX", "ArgMaxOptions") if big else ("ARG_MIN", "ArgMinOptions")
    inputs = [value, l.constant(np.int32(axis))]
    found = l.emit(code, inputs, e.outputs[0].shape, dtype, kind, outputType=4 if dtype.itemsize == 8 else 2)  # fmt: skip
    return l.cast(found, e.outputs[0].dtype)


@lowers("cumsum")
def _cumsum(l: Lowering, e: Equation) -> Tensor:
    value = l.full(e.inputs[0])
    inputs = [value, l.constant(np.int32(e.params["axis"]))]
    return l.emit("CUMSUM", inputs, value.shape, value.dtype, "CumsumOptions", exclusive=bool(e.params.get("exclusive")), reverse=bool(e.params["reverse"]))  # fmt: skip


@lowers("top_k")
def _top_k(l: Lowering, e: Equation) -> list[Tensor]:
    value = l.full(e.inputs[0])
    if e.params.get("axis", len(value.shape) - 1) != len(value.shape) - 1:
        raise Refused("LiteRT looks along the last dimension only")
    results = [l.new(v.shape, d, "topk") for v, d in zip(e.outputs, (value.dtype, np.int32), strict=True)]  # fmt: skip
    l.add("TOPK_V2", [value, l.constant(np.int32(e.params["k"]))], results, "TopKV2Options")
    return results


# ---- gathering -----------------------------------------------------------------------------


@lowers("gather")
def _gather(l: Lowering, e: Equation) -> Tensor:
    value, indices = l.full(e.inputs[0]), l.full(e.inputs[1])
    how = read(e, value.shape, indices.shape)
    if how == "along":
        return _along(l, e, value, indices)
    if not isinstance(how, Rows):
        return _block(l, e, value, indices)
    numbers = l.cast(indices, np.int32)
    if len(how.axes) == 1:
        axis = how.axes[0]
        line = l.reshape(numbers, indices.shape[:-1])
        shape = [*value.shape[:axis], *line.shape, *value.shape[axis + 1 :]]
        found = l.emit("GATHER", [value, line], shape, value.dtype, "GatherOptions", axis=axis)
    else:
        rest = [i for i in range(len(value.shape)) if i not in how.axes]
        value, axis = l.transpose(value, [*how.axes, *rest]), 0
        shape = [*indices.shape[:-1], *value.shape[len(how.axes) :]]
        found = l.emit("GATHER_ND", [value, numbers], shape, value.dtype, "GatherNdOptions")
    return l.transpose(found, placed(len(found.shape), how.offsets, len(indices.shape) - 1, axis))


def _block(l: Lowering, e: Equation, value: Tensor, indices: Tensor) -> Tensor:
    """One block of a tensor, without the dimensions of size 1 that are dropped."""
    d, sizes = e.params["dimension_numbers"], list(e.params["slice_sizes"])
    starts: list[Any] = [0] * len(sizes)
    if indices.data is not None:
        for place, start in zip(d.start_index_map, indices.data.tolist(), strict=True):
            starts[place] = min(start, value.shape[place] - sizes[place]) if is_number(value.shape[place]) else start  # fmt: skip
        limits = [n if s == 0 and n is value.shape[i] else s + n for i, (s, n) in enumerate(zip(starts, sizes, strict=True))]  # fmt: skip
        block = l.slice(value, starts, limits)
    else:
        numbers = {p: l.part(l.cast(indices, np.int32), i) for i, p in enumerate(d.start_index_map)}
        block = _moving(l, value, [numbers.get(i, l.constant(np.int32(0))) for i in range(len(sizes))], sizes)  # fmt: skip
    return l.reshape(block, e.outputs[0].shape)


def _along(l: Lowering, e: Equation, value: Tensor, indices: Tensor) -> Tensor:
    """Elements along one dimension, another for each place of leading dimensions."""
    batch = len(e.params["dimension_numbers"].operand_batching_dims)
    indices = l.cast(l.reshape(indices, indices.shape[:-1]), np.int32)
    shape = [*indices.shape, *value.shape[batch + 1 :]]
    found = l.emit("GATHER", [value, indices], shape, value.dtype, "GatherOptions", axis=batch, batchDims=batch)  # fmt: skip
    return l.reshape(found, e.outputs[0].shape)


def _moving(l: Lowering, value: Tensor, starts: list[Tensor], sizes: list[Any]) -> Tensor:
    """A block that starts where tensors say."""
    shape = l.shape_tensor(sizes)
    inputs = [value, _line(l, starts), shape]
    return l.emit("SLICE", inputs, sizes, value.dtype, "SliceOptions")


def _line(l: Lowering, numbers: list[Tensor]) -> Tensor:
    numbers = [l.cast(n, np.int32) for n in numbers]
    if all(n.data is not None for n in numbers):
        return l.constant(np.asarray([int(n.data) for n in numbers], np.int32))  # type: ignore[arg-type]
    return l.emit("PACK", numbers, [len(numbers)], np.int32, "PackOptions", valuesCount=len(numbers), axis=0)  # fmt: skip


@lowers("dynamic_slice")
def _dynamic_slice(l: Lowering, e: Equation) -> Tensor:
    value, *starts = map(l.full, e.inputs)
    sizes = list(e.params["slice_sizes"])
    kept = []
    for start, size, whole in zip(starts, sizes, value.shape, strict=True):
        # As XLA: a block that would reach over the end starts earlier.
        last = l.binary("SUB", l.size(whole), l.size(size)) if not (is_number(whole) and is_number(size)) else l.constant(np.int32(whole - size))  # fmt: skip
        start = l.binary("MINIMUM", l.cast(start, np.int32), last) if start.data is None else start
        kept.append(l.binary("MAXIMUM", start, l.constant(np.int32(0))) if start.data is None else start)  # fmt: skip
    return _moving(l, value, kept, sizes)


@lowers("dynamic_update_slice")
def _dynamic_update_slice(l: Lowering, e: Equation) -> Tensor:
    value, update, *starts = map(l.full, e.inputs)
    inputs = [value, update, _line(l, starts)]
    return l.emit("DYNAMIC_UPDATE_SLICE", inputs, value.shape, value.dtype)
