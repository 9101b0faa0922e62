"""Lowering rules of data movement, reductions, gathers and scatters to ONNX nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from meshflow.deployment.equations import DimSize, Equation
from meshflow.deployment.gather_patterns import RowGather, classify_gather, order_gathered_axes
from meshflow.onnx.lowering import LoweringError, OnnxLowering, OnnxTensor, is_static, register_rule


@register_rule("concatenate")
def _lower_concatenate(l: OnnxLowering, e: Equation) -> OnnxTensor:
    parts = [l.get_tensor(v) for v in e.inputs]
    return l.emit("Concat", parts, e.outputs[0].shape, parts[0].dtype, axis=int(e.params["dimension"]))  # fmt: skip


@register_rule("stack")
def _lower_stack(l: OnnxLowering, e: Equation) -> OnnxTensor:
    axis, shape = int(e.params["axis"]), e.outputs[0].shape
    part_shape = [1 if i == axis else d for i, d in enumerate(shape)]
    parts = [l.reshape(l.get_tensor(v), part_shape) for v in e.inputs]
    return l.emit("Concat", parts, shape, parts[0].dtype, axis=axis)


@register_rule("pad")
def _lower_pad(l: OnnxLowering, e: Equation) -> OnnxTensor:
    value, filler = l.get_tensor(e.inputs[0]), e.inputs[1].constant
    config = [tuple(map(int, c)) for c in e.params["padding_config"]]
    if filler is None or any(inner for _, _, inner in config):
        raise LoweringError(
            "ONNX pads with a constant around a tensor only, not between its elements"
        )
    # Negative padding crops, as in XLA.
    return l.pad(value, [(low, high) for low, high, _ in config], filler)


@register_rule("rev")
def _lower_reverse(l: OnnxLowering, e: Equation) -> OnnxTensor:
    value, axes = l.get_tensor(e.inputs[0]), [int(a) for a in e.params["dimensions"]]
    minus_ones = l.make_vector([-1] * len(axes))
    ends = l.make_vector([np.iinfo(np.int64).min] * len(axes))
    return l.emit(
        "Slice",
        [value, minus_ones, ends, l.make_vector(axes), minus_ones],
        value.shape,
        value.dtype,
    )


@register_rule("split")
def _lower_split(l: OnnxLowering, e: Equation) -> list[OnnxTensor]:
    value = l.get_tensor(e.inputs[0])
    results = [l.new_tensor(v.shape, v.dtype, "Split") for v in e.outputs]
    l.add("Split", [value, l.make_vector(map(int, e.params["sizes"]))], results, axis=int(e.params["axis"]))  # fmt: skip
    return results


_REDUCTIONS = {
    "reduce_sum": "ReduceSum", "reduce_max": "ReduceMax", "reduce_min": "ReduceMin",
    "reduce_prod": "ReduceProd", "reduce_mean": "ReduceMean", "reduce_and": "ReduceMin", "reduce_or": "ReduceMax",
}  # fmt: skip


@register_rule(*_REDUCTIONS)
def _lower_reduce(l: OnnxLowering, e: Equation) -> OnnxTensor:
    value = l.get_tensor(e.inputs[0])
    operand = l.cast(value, np.int32) if value.dtype == np.bool_ else value
    axes, keep = [int(axis) for axis in e.params["axes"]], bool(e.params.get("keepdims"))
    result = l.reduce(_REDUCTIONS[e.name], operand, axes, e.outputs[0].shape, keep)
    return l.cast(result, value.dtype)


@register_rule("argmax", "argmin")
def _lower_arg_reduce(l: OnnxLowering, e: Equation) -> OnnxTensor:
    (axis,) = e.params["axes"]
    code = "ArgMax" if e.name == "argmax" else "ArgMin"
    index = l.emit(code, [l.get_tensor(e.inputs[0])], e.outputs[0].shape, np.int64, axis=int(axis), keepdims=0)  # fmt: skip
    return l.cast(index, e.outputs[0].dtype)


@register_rule("cumsum")
def _lower_cumsum(l: OnnxLowering, e: Equation) -> OnnxTensor:
    value = l.get_tensor(e.inputs[0])
    axis = l.get_constant(np.asarray(e.params["axis"], np.int64))
    return l.emit("CumSum", [value, axis], value.shape, value.dtype, reverse=int(e.params["reverse"]))  # fmt: skip


_CUMULATIVE_REDUCTIONS = {
    "cumprod": ("ReduceProd", 1), "cummax": ("ReduceMax", -np.inf), "cummin": ("ReduceMin", np.inf),
}  # fmt: skip


@register_rule(*_CUMULATIVE_REDUCTIONS)
def _lower_cumulative(l: OnnxLowering, e: Equation) -> OnnxTensor:
    """Reduce, for each element, a copy of the operand in which later elements are masked."""
    value, axis = l.get_tensor(e.inputs[0]), int(e.params["axis"])
    size, (code, neutral) = value.shape[axis], _CUMULATIVE_REDUCTIONS[e.name]
    if not is_static(size) or value.dtype.kind != "f":
        raise LoweringError("it is made for floats, along a dimension of static size")
    mask_matrix = np.tri(size, dtype=bool)
    mask_matrix = mask_matrix.T if e.params["reverse"] else mask_matrix
    rest = [1] * (len(value.shape) - axis - 1)
    expanded = l.reshape(value, [*value.shape[:axis], 1, *value.shape[axis:]])
    shape = [*value.shape[:axis], size, *value.shape[axis:]]
    mask = l.get_constant(mask_matrix.reshape(size, size, *rest))
    masked = l.emit("Where", [mask, expanded, l.make_scalar(value, neutral)], shape, value.dtype)
    return l.reduce(code, masked, [axis + 1], value.shape, False)


@register_rule("top_k")
def _lower_top_k(l: OnnxLowering, e: Equation) -> list[OnnxTensor]:
    value = l.get_tensor(e.inputs[0])
    axis = e.params.get("axis", len(value.shape) - 1)
    values, indices = l.new_tensor(e.outputs[0].shape, value.dtype, "TopK"), l.new_tensor(e.outputs[1].shape, np.int64, "TopK")  # fmt: skip
    l.add("TopK", [value, l.make_vector([int(e.params["k"])])], [values, indices], axis=int(axis))
    return [values, l.cast(indices, e.outputs[1].dtype)]


@register_rule("sort")
def _lower_sort(l: OnnxLowering, e: Equation) -> list[OnnxTensor]:
    """Sort by the first operand, and gather the others in its order."""
    first, *others = (l.get_tensor(v) for v in e.inputs)
    axis = int(e.params["dimension"])
    if e.params["num_keys"] != 1 or not is_static(first.shape[axis]):
        raise LoweringError("ONNX sorts by one tensor, along a dimension of static size")
    results = [
        l.new_tensor(first.shape, first.dtype, "TopK"),
        l.new_tensor(first.shape, np.int64, "TopK"),
    ]
    count = l.make_vector([int(first.shape[axis])])
    l.add("TopK", [first, count], results, axis=axis, largest=0)
    gathered = [
        l.emit("GatherElements", [o, results[1]], o.shape, o.dtype, axis=axis) for o in others
    ]
    return [results[0], *gathered]


# ---- gathering -----------------------------------------------------------------------------


@register_rule("gather")
def _lower_gather(l: OnnxLowering, e: Equation) -> OnnxTensor:
    value, indices = l.get_tensor(e.inputs[0]), l.get_tensor(e.inputs[1])
    form = classify_gather(e, value.shape, indices.shape)
    if isinstance(form, RowGather):
        indices = l.cast(indices, np.int64)
        if len(form.axes) == 1:
            index_vector = l.reshape(indices, indices.shape[:-1])
            axis = form.axes[0]
            shape = [*value.shape[:axis], *index_vector.shape, *value.shape[axis + 1 :]]
            result = l.emit("Gather", [value, index_vector], shape, value.dtype, axis=axis)
        else:
            rest = [i for i in range(len(value.shape)) if i not in form.axes]
            value = l.transpose(value, [*form.axes, *rest])
            axis = 0
            shape = [*indices.shape[:-1], *value.shape[len(form.axes) :]]
            result = l.emit("GatherND", [value, indices], shape, value.dtype)
        order = order_gathered_axes(len(result.shape), form.offsets, len(indices.shape) - 1, axis)
        return l.transpose(result, order)
    if form == "block":
        sizes, axes = e.params["slice_sizes"], e.params["dimension_numbers"].start_index_map
        return l.reshape(_slice_block(l, value, indices, axes, list(sizes)), e.outputs[0].shape)
    batch = len(e.params["dimension_numbers"].operand_batching_dims)
    return l.emit("GatherND", [value, l.cast(indices, np.int64)], e.outputs[0].shape, value.dtype, batch_dims=batch)  # fmt: skip


def _slice_block(l: OnnxLowering, value: OnnxTensor, indices: OnnxTensor, axes: Sequence[int], sizes: list[DimSize]) -> OnnxTensor:  # fmt: skip
    """Slice a block that starts at indices along some axes."""
    if indices.data is not None:
        starts: list[Any] = [0] * len(sizes)
        for axis, start in zip(axes, indices.data.tolist(), strict=True):
            last = value.shape[axis] - sizes[axis] if is_static(value.shape[axis]) else start
            starts[axis] = min(start, last)
        limits = [s + n if s else n for s, n in zip(starts, sizes, strict=True)]
        return l.slice(value, starts, limits)
    begins, axis_tensor = l.cast(indices, np.int64), l.make_vector(map(int, axes))
    ends = l.emit_binary("Add", begins, l.make_shape_tensor([sizes[i] for i in axes]))
    return l.emit("Slice", [value, begins, ends, axis_tensor], sizes, value.dtype)


@register_rule("dynamic_slice")
def _lower_dynamic_slice(l: OnnxLowering, e: Equation) -> OnnxTensor:
    value, *starts = map(l.get_tensor, e.inputs)
    sizes = list(e.params["slice_sizes"])
    return _slice_block(l, value, _clamp_starts(l, value, starts, sizes), range(len(sizes)), sizes)


def _clamp_starts(
    l: OnnxLowering, value: OnnxTensor, starts: list[OnnxTensor], sizes: list[DimSize]
) -> OnnxTensor:
    """Clamp the starts of a block so that it does not exceed the end, as XLA does."""
    parts = [l.reshape(l.cast(s, np.int64), [1]) for s in starts]
    vector = l.emit("Concat", parts, [len(parts)], np.int64, axis=0)
    last = l.emit_binary("Sub", l.make_shape_tensor(value.shape), l.make_shape_tensor(sizes))
    return l.emit_binary("Max", l.emit_binary("Min", vector, last), l.make_vector([0]))


@register_rule("dynamic_update_slice")
def _lower_dynamic_update_slice(l: OnnxLowering, e: Equation) -> OnnxTensor:
    value, update, *starts = map(l.get_tensor, e.inputs)
    changed = [i for i, (a, b) in enumerate(zip(value.shape, update.shape, strict=True)) if a is not b and a != b]  # fmt: skip
    if len(changed) > 1:
        raise LoweringError("it updates a block of several dimensions")
    if not changed:
        return update
    axis = changed[0]
    begins = _clamp_starts(l, value, starts, list(update.shape))
    first = l.emit(
        "Slice", [begins, l.make_vector([axis]), l.make_vector([axis + 1])], [1], np.int64
    )
    end = l.emit_binary("Add", first, l.make_shape_tensor([update.shape[axis]]))
    axis_vector, end_of_axis = l.make_vector([axis]), l.make_vector([np.iinfo(np.int64).max])
    before = l.emit(
        "Slice", [value, l.make_vector([0]), first, axis_vector], value.shape, value.dtype
    )
    after = l.emit("Slice", [value, end, end_of_axis, axis_vector], value.shape, value.dtype)
    return l.emit("Concat", [before, update, after], value.shape, value.dtype, axis=axis)


# ---- scattering ----------------------------------------------------------------------------

# Reduction of updates of the same index, and the first opset version that has it.
_SCATTERS = {
    "scatter": ("none", 11), "scatter-add": ("add", 16), "scatter-mul": ("mul", 16), "scatter-max": ("max", 18),
    "scatter-min": ("min", 18),
}  # fmt: skip


@register_rule(*_SCATTERS)
def _lower_scatter(l: OnnxLowering, e: Equation) -> OnnxTensor:
    value, indices, updates = map(l.get_tensor, e.inputs)
    reduction, min_opset = _SCATTERS[e.name]
    if l.names.opset < min_opset:
        raise LoweringError(
            f"ONNX has it since opset_version={min_opset}, and the file has {l.names.opset}"
        )
    d, lead, count = e.params["dimension_numbers"], len(indices.shape) - 1, indices.shape[-1]
    axes = tuple(range(count)) if is_static(count) else ()
    has_full_rows = tuple(d.scatter_dims_to_operand_dims) == tuple(d.inserted_window_dims) == axes
    has_trailing_windows = tuple(d.update_window_dims) == tuple(range(lead, len(updates.shape)))
    if not axes or not has_full_rows or not has_trailing_windows or d.operand_batching_dims:
        raise LoweringError("ONNX scatters full rows only")
    # XLA drops updates out of bounds, so an extra row takes them.
    row_indices = l.cast(indices, np.int64)
    sizes = l.make_shape_tensor(value.shape[:count])
    low = l.emit("Less", [row_indices, l.make_scalar(row_indices, 0)], row_indices.shape, np.bool_)
    high = l.emit("GreaterOrEqual", [row_indices, sizes], row_indices.shape, np.bool_)
    outside = l.emit("Or", [low, high], row_indices.shape, np.bool_)
    is_dropped = l.reduce(
        "ReduceMax", l.cast(outside, np.int32), [lead], [*row_indices.shape[:-1], 1], True
    )
    extra_row = l.emit("Concat", [l.make_shape_tensor(value.shape[:1]), l.make_vector([0] * (count - 1))], [count], np.int64, axis=0)  # fmt: skip
    row_indices = l.emit(
        "Where", [l.cast(is_dropped, np.bool_), extra_row, row_indices], row_indices.shape, np.int64
    )
    padded = l.pad(value, [(0, 1), *((0, 0),) * (len(value.shape) - 1)], 0)
    result = l.emit("ScatterND", [padded, row_indices, updates], padded.shape, value.dtype, reduction=reduction)  # fmt: skip
    ends = l.make_shape_tensor(value.shape[:1])
    return l.emit("Slice", [result, l.make_vector([0]), ends, l.make_vector([0])], value.shape, value.dtype)  # fmt: skip
