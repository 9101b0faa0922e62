"""Lowering rules of data movement, reductions and gathers to LiteRT's operators."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from meshflow.deployment.equations import DimSize, Equation
from meshflow.deployment.gather_patterns import RowGather, classify_gather, order_gathered_axes
from meshflow.deployment.lowering import LoweringError
from meshflow.lite.graph import LiteTensor
from meshflow.lite.lowering import LiteLowering, is_static, register_rule


@register_rule("concatenate")
def _lower_concatenate(l: LiteLowering, e: Equation) -> LiteTensor:
    parts = [l.get_tensor(v) for v in e.inputs]
    return l.emit("CONCATENATION", parts, e.outputs[0].shape, parts[0].dtype, "ConcatenationOptions", axis=e.params["dimension"])  # fmt: skip


@register_rule("stack")
def _lower_stack(l: LiteLowering, e: Equation) -> LiteTensor:
    parts = [l.get_tensor(v) for v in e.inputs]
    return l.emit("PACK", parts, e.outputs[0].shape, parts[0].dtype, "PackOptions", valuesCount=len(parts), axis=e.params["axis"])  # fmt: skip


@register_rule("pad")
def _lower_pad(l: LiteLowering, e: Equation) -> LiteTensor:
    value, filler = l.get_tensor(e.inputs[0]), e.inputs[1].constant
    config = [tuple(map(int, c)) for c in e.params["padding_config"]]
    if filler is None:
        raise LoweringError("LiteRT pads with a constant only")
    for axis, (low, high, inner) in enumerate(config):
        if inner:
            value = _pad_between_elements(l, value, axis, inner, filler)
            config[axis] = low, high - inner, 0
    starts = [max(-low, 0) for low, _, _ in config]
    limits = [n + min(high, 0) if high < 0 else n for n, (_, high, _) in zip(value.shape, config, strict=True)]  # fmt: skip
    value = l.slice(value, starts, limits)
    return l.pad(value, [(max(low, 0), max(high, 0)) for low, high, _ in config], filler)


def _pad_between_elements(
    l: LiteLowering, value: LiteTensor, axis: int, inner: int, filler: ArrayLike
) -> LiteTensor:
    """Insert a constant after each element along a dimension."""
    before, (size, *after) = value.shape[:axis], value.shape[axis:]
    flat = l.reshape(value, [math.prod(before), size, 1, math.prod(after)])
    padded = l.pad(flat, [(0, 0), (0, 0), (0, inner), (0, 0)], filler)
    return l.reshape(padded, [*before, size * (inner + 1), *after])


@register_rule("rev")
def _lower_reverse(l: LiteLowering, e: Equation) -> LiteTensor:
    return l.reverse(l.get_tensor(e.inputs[0]), e.params["dimensions"])


@register_rule("split")
def _lower_split(l: LiteLowering, e: Equation) -> list[LiteTensor]:
    value = l.get_tensor(e.inputs[0])
    results = [l.new_tensor(v.shape, v.dtype, "split") for v in e.outputs]
    sizes = l.get_constant(np.asarray(e.params["sizes"], np.int32))
    axis = l.get_constant(np.int32(e.params["axis"]))
    l.add("SPLIT_V", [value, sizes, axis], results, "SplitVOptions", numSplits=len(results))
    return results


_REDUCTIONS = {
    "reduce_sum": "SUM", "reduce_max": "REDUCE_MAX", "reduce_min": "REDUCE_MIN",
    "reduce_prod": "REDUCE_PROD", "reduce_and": "REDUCE_ALL", "reduce_or": "REDUCE_ANY", "reduce_mean": "MEAN",
}  # fmt: skip


@register_rule(*_REDUCTIONS)
def _lower_reduce(l: LiteLowering, e: Equation) -> LiteTensor:
    value = l.get_tensor(e.inputs[0])
    axes = l.get_constant(np.asarray(e.params["axes"], np.int32))
    code, keep = _REDUCTIONS[e.name], bool(e.params.get("keepdims"))
    return l.emit(code, [value, axes], e.outputs[0].shape, value.dtype, "ReducerOptions", keepDims=keep)  # fmt: skip


@register_rule("argmax", "argmin")
def _lower_arg_reduce(l: LiteLowering, e: Equation) -> LiteTensor:
    value, (axis,) = l.get_tensor(e.inputs[0]), e.params["axes"]
    is_max = e.name == "argmax"
    dtype = np.dtype(np.int64 if e.outputs[0].dtype == np.int64 else np.int32)
    code, kind = ("ARG_MAX", "ArgMaxOptions") if is_max else ("ARG_MIN", "ArgMinOptions")
    inputs = [value, l.get_constant(np.int32(axis))]
    index = l.emit(code, inputs, e.outputs[0].shape, dtype, kind, outputType=4 if dtype.itemsize == 8 else 2)  # fmt: skip
    return l.cast(index, e.outputs[0].dtype)


@register_rule("cumsum")
def _lower_cumsum(l: LiteLowering, e: Equation) -> LiteTensor:
    value = l.get_tensor(e.inputs[0])
    inputs = [value, l.get_constant(np.int32(e.params["axis"]))]
    return l.emit("CUMSUM", inputs, value.shape, value.dtype, "CumsumOptions", exclusive=bool(e.params.get("exclusive")), reverse=bool(e.params["reverse"]))  # fmt: skip


@register_rule("top_k")
def _lower_top_k(l: LiteLowering, e: Equation) -> list[LiteTensor]:
    value = l.get_tensor(e.inputs[0])
    if e.params.get("axis", len(value.shape) - 1) != len(value.shape) - 1:
        raise LoweringError("LiteRT's TOPK_V2 works on the last dimension only")
    results = [l.new_tensor(v.shape, d, "topk") for v, d in zip(e.outputs, (value.dtype, np.dtype(np.int32)), strict=True)]  # fmt: skip
    l.add("TOPK_V2", [value, l.get_constant(np.int32(e.params["k"]))], results, "TopKV2Options")
    return results


# ---- gathering -----------------------------------------------------------------------------


@register_rule("gather")
def _lower_gather(l: LiteLowering, e: Equation) -> LiteTensor:
    value, indices = l.get_tensor(e.inputs[0]), l.get_tensor(e.inputs[1])
    form = classify_gather(e, value.shape, indices.shape)
    if form == "along":
        return _gather_batched(l, e, value, indices)
    if not isinstance(form, RowGather):
        return _gather_block(l, e, value, indices)
    row_indices = l.cast(indices, np.int32)
    if len(form.axes) == 1:
        axis = form.axes[0]
        vector = l.reshape(row_indices, indices.shape[:-1])
        shape = [*value.shape[:axis], *vector.shape, *value.shape[axis + 1 :]]
        result = l.emit("GATHER", [value, vector], shape, value.dtype, "GatherOptions", axis=axis)
    else:
        other_axes = [i for i in range(len(value.shape)) if i not in form.axes]
        value, axis = l.transpose(value, [*form.axes, *other_axes]), 0
        shape = [*indices.shape[:-1], *value.shape[len(form.axes) :]]
        result = l.emit("GATHER_ND", [value, row_indices], shape, value.dtype, "GatherNdOptions")
    return l.transpose(
        result, order_gathered_axes(len(result.shape), form.offsets, len(indices.shape) - 1, axis)
    )


def _gather_block(
    l: LiteLowering, e: Equation, value: LiteTensor, indices: LiteTensor
) -> LiteTensor:
    """Slice one block, and remove the dimensions of size 1 that XLA collapses."""
    d, sizes = e.params["dimension_numbers"], list(e.params["slice_sizes"])
    starts: list[Any] = [0] * len(sizes)
    if indices.data is not None:
        for axis, start in zip(d.start_index_map, indices.data.tolist(), strict=True):
            starts[axis] = min(start, value.shape[axis] - sizes[axis]) if is_static(value.shape[axis]) else start  # fmt: skip
        limits = [n if s == 0 and n is value.shape[i] else s + n for i, (s, n) in enumerate(zip(starts, sizes, strict=True))]  # fmt: skip
        block = l.slice(value, starts, limits)
    else:
        scalars = {
            p: l.get_element(l.cast(indices, np.int32), i) for i, p in enumerate(d.start_index_map)
        }
        block = _slice_dynamically(l, value, [scalars.get(i, l.get_constant(np.int32(0))) for i in range(len(sizes))], sizes)  # fmt: skip
    return l.reshape(block, e.outputs[0].shape)


def _gather_batched(
    l: LiteLowering, e: Equation, value: LiteTensor, indices: LiteTensor
) -> LiteTensor:
    """Gather along a dimension with a separate index for each position of the leading dimensions."""
    batch = len(e.params["dimension_numbers"].operand_batching_dims)
    indices = l.cast(l.reshape(indices, indices.shape[:-1]), np.int32)
    shape = [*indices.shape, *value.shape[batch + 1 :]]
    result = l.emit("GATHER", [value, indices], shape, value.dtype, "GatherOptions", axis=batch, batchDims=batch)  # fmt: skip
    return l.reshape(result, e.outputs[0].shape)


def _slice_dynamically(
    l: LiteLowering, value: LiteTensor, starts: list[LiteTensor], sizes: list[DimSize]
) -> LiteTensor:
    """Slice a block at computed starts."""
    shape = l.make_shape_tensor(sizes)
    inputs = [value, _pack_scalars(l, starts), shape]
    return l.emit("SLICE", inputs, sizes, value.dtype, "SliceOptions")


def _pack_scalars(l: LiteLowering, scalars: list[LiteTensor]) -> LiteTensor:
    scalars = [l.cast(n, np.int32) for n in scalars]
    if all(n.data is not None for n in scalars):
        return l.get_constant(np.asarray([int(n.data) for n in scalars], np.int32))  # type: ignore[arg-type]
    return l.emit("PACK", scalars, [len(scalars)], np.int32, "PackOptions", valuesCount=len(scalars), axis=0)  # fmt: skip


@register_rule("dynamic_slice")
def _lower_dynamic_slice(l: LiteLowering, e: Equation) -> LiteTensor:
    value, *starts = map(l.get_tensor, e.inputs)
    sizes = list(e.params["slice_sizes"])
    clamped = []
    for start, size, full_size in zip(starts, sizes, value.shape, strict=True):
        # XLA moves a block that exceeds the end to the end.
        last = l.emit_binary("SUB", l.get_size(full_size), l.get_size(size)) if not (is_static(full_size) and is_static(size)) else l.get_constant(np.int32(full_size - size))  # fmt: skip
        start = (
            l.emit_binary("MINIMUM", l.cast(start, np.int32), last) if start.data is None else start
        )
        clamped.append(l.emit_binary("MAXIMUM", start, l.get_constant(np.int32(0))) if start.data is None else start)  # fmt: skip
    return _slice_dynamically(l, value, clamped, sizes)


@register_rule("dynamic_update_slice")
def _lower_dynamic_update_slice(l: LiteLowering, e: Equation) -> LiteTensor:
    value, update, *starts = map(l.get_tensor, e.inputs)
    inputs = [value, update, _pack_scalars(l, starts)]
    return l.emit("DYNAMIC_UPDATE_SLICE", inputs, value.shape, value.dtype)
