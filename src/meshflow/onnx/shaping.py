"""Primitives that move elements, or gather a result from many, as ONNX nodes."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshflow.deployment.equations import Equation
from meshflow.deployment.gathering import Rows, placed, read
from meshflow.onnx.lowering import Lowering, Refused, Tensor, is_number, lowers

__all__: list[str] = []


@lowers("concatenate")
def _concatenate(l: Lowering, e: Equation) -> Tensor:
    parts = [l.full(v) for v in e.inputs]
    return l.emit("Concat", parts, e.outputs[0].shape, parts[0].dtype, axis=int(e.params["dimension"]))  # fmt: skip


@lowers("stack")
def _stack(l: Lowering, e: Equation) -> Tensor:
    axis, shape = int(e.params["axis"]), e.outputs[0].shape
    one = [1 if i == axis else d for i, d in enumerate(shape)]
    parts = [l.reshape(l.full(v), one) for v in e.inputs]
    return l.emit("Concat", parts, shape, parts[0].dtype, axis=axis)


@lowers("pad")
def _pad(l: Lowering, e: Equation) -> Tensor:
    value, filler = l.full(e.inputs[0]), e.inputs[1].constant
    config = [tuple(map(int, c)) for c in e.params["padding_config"]]
    if filler is None or any(inner for _, _, inner in config):
        raise Refused("ONNX pads with a constant around a tensor only, not between elements")
    # Negative padding cuts, as XLA's.
    return l.pad(value, [(low, high) for low, high, _ in config], filler)


@lowers("rev")
def _reverse(l: Lowering, e: Equation) -> Tensor:
    value, axes = l.full(e.inputs[0]), [int(a) for a in e.params["dimensions"]]
    back = l.integers([-1] * len(axes))
    ends = l.integers([np.iinfo(np.int64).min] * len(axes))
    return l.emit("Slice", [value, back, ends, l.integers(axes), back], value.shape, value.dtype)


@lowers("split")
def _split(l: Lowering, e: Equation) -> list[Tensor]:
    value = l.full(e.inputs[0])
    results = [l.new(v.shape, v.dtype, "Split") for v in e.outputs]
    l.add("Split", [value, l.integers(map(int, e.params["sizes"]))], results, axis=int(e.params["axis"]))  # fmt: skip
    return results


_REDUCTIONS = {
    "reduce_sum": "ReduceSum", "reduce_max": "ReduceMax", "reduce_min": "ReduceMin",
    "reduce_prod": "ReduceProd", "reduce_mean": "ReduceMean", "reduce_and": "ReduceMin", "reduce_or": "ReduceMax",
}  # fmt: skip


@lowers(*_REDUCTIONS)
def _reduce(l: Lowering, e: Equation) -> Tensor:
    value = l.full(e.inputs[0])
    given = l.cast(value, np.int32) if value.dtype == np.bool_ else value
    axes, keep = [int(axis) for axis in e.params["axes"]], bool(e.params.get("keepdims"))
    found = l.reduce(_REDUCTIONS[e.name], given, axes, e.outputs[0].shape, keep)
    return l.cast(found, value.dtype)


@lowers("argmax", "argmin")
def _arg(l: Lowering, e: Equation) -> Tensor:
    (axis,) = e.params["axes"]
    code = "ArgMax" if e.name == "argmax" else "ArgMin"
    found = l.emit(code, [l.full(e.inputs[0])], e.outputs[0].shape, np.int64, axis=int(axis), keepdims=0)  # fmt: skip
    return l.cast(found, e.outputs[0].dtype)


@lowers("cumsum")
def _cumsum(l: Lowering, e: Equation) -> Tensor:
    value = l.full(e.inputs[0])
    axis = l.constant(np.asarray(e.params["axis"], np.int64))
    return l.emit("CumSum", [value, axis], value.shape, value.dtype, reverse=int(e.params["reverse"]))  # fmt: skip


_RUNNING = {
    "cumprod": ("ReduceProd", 1), "cummax": ("ReduceMax", -np.inf), "cummin": ("ReduceMin", np.inf),
}  # fmt: skip


@lowers(*_RUNNING)
def _running(l: Lowering, e: Equation) -> Tensor:
    """A line for each element, of those up to it."""
    value, axis = l.full(e.inputs[0]), int(e.params["axis"])
    size, (code, neutral) = value.shape[axis], _RUNNING[e.name]
    if not is_number(size) or value.dtype.kind != "f":
        raise Refused("it is made for floats, along a dimension of known size")
    before = np.tri(size, dtype=bool)
    before = before.T if e.params["reverse"] else before
    rest = [1] * (len(value.shape) - axis - 1)
    apart = l.reshape(value, [*value.shape[:axis], 1, *value.shape[axis:]])
    shape = [*value.shape[:axis], size, *value.shape[axis:]]
    mask = l.constant(before.reshape(size, size, *rest))
    lines = l.emit("Where", [mask, apart, l.number(value, neutral)], shape, value.dtype)
    return l.reduce(code, lines, [axis + 1], value.shape, False)


@lowers("top_k")
def _top_k(l: Lowering, e: Equation) -> list[Tensor]:
    value = l.full(e.inputs[0])
    axis = e.params.get("axis", len(value.shape) - 1)
    values, places = l.new(e.outputs[0].shape, value.dtype, "TopK"), l.new(e.outputs[1].shape, np.int64, "TopK")  # fmt: skip
    l.add("TopK", [value, l.integers([int(e.params["k"])])], [values, places], axis=int(axis))
    return [values, l.cast(places, e.outputs[1].dtype)]


@lowers("sort")
def _sort(l: Lowering, e: Equation) -> list[Tensor]:
    """Sorted by the first operand; the others are put into its order."""
    first, *others = (l.full(v) for v in e.inputs)
    axis = int(e.params["dimension"])
    if e.params["num_keys"] != 1 or not is_number(first.shape[axis]):
        raise Refused("ONNX sorts by one tensor, along a dimension of known size")
    results = [l.new(first.shape, first.dtype, "TopK"), l.new(first.shape, np.int64, "TopK")]
    count = l.integers([int(first.shape[axis])])
    l.add("TopK", [first, count], results, axis=axis, largest=0)
    moved = [l.emit("GatherElements", [o, results[1]], o.shape, o.dtype, axis=axis) for o in others]
    return [results[0], *moved]


# ---- gathering -----------------------------------------------------------------------------


@lowers("gather")
def _gather(l: Lowering, e: Equation) -> Tensor:
    value, indices = l.full(e.inputs[0]), l.full(e.inputs[1])
    how = read(e, value.shape, indices.shape)
    if isinstance(how, Rows):
        indices = l.cast(indices, np.int64)
        if len(how.axes) == 1:
            line = l.reshape(indices, indices.shape[:-1])
            axis = how.axes[0]
            shape = [*value.shape[:axis], *line.shape, *value.shape[axis + 1 :]]
            found = l.emit("Gather", [value, line], shape, value.dtype, axis=axis)
        else:
            rest = [i for i in range(len(value.shape)) if i not in how.axes]
            value = l.transpose(value, [*how.axes, *rest])
            axis = 0
            shape = [*indices.shape[:-1], *value.shape[len(how.axes) :]]
            found = l.emit("GatherND", [value, indices], shape, value.dtype)
        order = placed(len(found.shape), how.offsets, len(indices.shape) - 1, axis)
        return l.transpose(found, order)
    if how == "block":
        sizes, places = e.params["slice_sizes"], e.params["dimension_numbers"].start_index_map
        return l.reshape(_block(l, value, indices, places, list(sizes)), e.outputs[0].shape)
    batch = len(e.params["dimension_numbers"].operand_batching_dims)
    found = l.emit("GatherND", [value, l.cast(indices, np.int64)], e.outputs[0].shape, value.dtype, batch_dims=batch)  # fmt: skip
    return found


def _block(l: Lowering, value: Tensor, indices: Tensor, places: Any, sizes: list[Any]) -> Tensor:
    """One block of a tensor that starts where a line of numbers says."""
    if indices.data is not None:
        starts: list[Any] = [0] * len(sizes)
        for place, start in zip(places, indices.data.tolist(), strict=True):
            room = value.shape[place] - sizes[place] if is_number(value.shape[place]) else start
            starts[place] = min(start, room)
        limits = [s + n if s else n for s, n in zip(starts, sizes, strict=True)]
        return l.slice(value, starts, limits)
    axes = l.integers(map(int, places))
    first = l.cast(indices, np.int64)
    ends = l.binary("Add", first, l.shape_tensor([sizes[p] for p in places]))
    return l.emit("Slice", [value, first, ends, axes], sizes, value.dtype)


@lowers("dynamic_slice")
def _dynamic_slice(l: Lowering, e: Equation) -> Tensor:
    value, *starts = map(l.full, e.inputs)
    sizes = list(e.params["slice_sizes"])
    return _block(l, value, _starts(l, value, starts, sizes), range(len(sizes)), sizes)


def _starts(l: Lowering, value: Tensor, starts: list[Tensor], sizes: list[Any]) -> Tensor:
    """Where a block starts; as XLA's, one that would reach over the end starts earlier."""
    parts = [l.reshape(l.cast(s, np.int64), [1]) for s in starts]
    line = l.emit("Concat", parts, [len(parts)], np.int64, axis=0)
    last = l.binary("Sub", l.shape_tensor(value.shape), l.shape_tensor(sizes))
    return l.binary("Max", l.binary("Min", line, last), l.integers([0]))


@lowers("dynamic_update_slice")
def _dynamic_update_slice(l: Lowering, e: Equation) -> Tensor:
    value, update, *starts = map(l.full, e.inputs)
    changed = [i for i, (a, b) in enumerate(zip(value.shape, update.shape, strict=True)) if a is not b and a != b]  # fmt: skip
    if len(changed) > 1:
        raise Refused("it writes a block of several dimensions")
    if not changed:
        return update
    axis = changed[0]
    begin = _starts(l, value, starts, list(update.shape))
    first = l.emit("Slice", [begin, l.integers([axis]), l.integers([axis + 1])], [1], np.int64)
    end = l.binary("Add", first, l.shape_tensor([update.shape[axis]]))
    line, far = l.integers([axis]), l.integers([np.iinfo(np.int64).max])
    before = l.emit("Slice", [value, l.integers([0]), first, line], value.shape, value.dtype)
    after = l.emit("Slice", [value, end, far, line], value.shape, value.dtype)
    return l.emit("Concat", [before, update, after], value.shape, value.dtype, axis=axis)


# ---- scattering ----------------------------------------------------------------------------

# How ONNX joins what falls on one place, and since which version.
_SCATTERS = {
    "scatter": ("none", 11), "scatter-add": ("add", 16), "scatter-mul": ("mul", 16), "scatter-max": ("max", 18),
    "scatter-min": ("min", 18),
}  # fmt: skip


@lowers(*_SCATTERS)
def _scatter(l: Lowering, e: Equation) -> Tensor:
    value, indices, updates = map(l.full, e.inputs)
    reduction, since = _SCATTERS[e.name]
    if l.names.opset < since:
        raise Refused(f"ONNX has it since opset_version={since}, and the file has {l.names.opset}")
    d, lead, count = e.params["dimension_numbers"], len(indices.shape) - 1, indices.shape[-1]
    axes = tuple(range(count)) if is_number(count) else ()
    rows = tuple(d.scatter_dims_to_operand_dims) == tuple(d.inserted_window_dims) == axes
    behind = tuple(d.update_window_dims) == tuple(range(lead, len(updates.shape)))
    if not axes or not rows or not behind or d.operand_batching_dims:
        raise Refused("it scatters other things than whole rows")
    # What falls outside is not written: a row of its own takes it.
    places = l.cast(indices, np.int64)
    sizes = l.shape_tensor(value.shape[:count])
    low = l.emit("Less", [places, l.number(places, 0)], places.shape, np.bool_)
    high = l.emit("GreaterOrEqual", [places, sizes], places.shape, np.bool_)
    outside = l.emit("Or", [low, high], places.shape, np.bool_)
    flags = l.reduce("ReduceMax", l.cast(outside, np.int32), [lead], [*places.shape[:-1], 1], True)
    spare = l.emit("Concat", [l.shape_tensor(value.shape[:1]), l.integers([0] * (count - 1))], [count], np.int64, axis=0)  # fmt: skip
    places = l.emit("Where", [l.cast(flags, np.bool_), spare, places], places.shape, np.int64)
    more = l.pad(value, [(0, 1), *((0, 0),) * (len(value.shape) - 1)], 0)
    found = l.emit("ScatterND", [more, places, updates], more.shape, value.dtype, reduction=reduction)  # fmt: skip
    ends = l.shape_tensor(value.shape[:1])
    return l.emit("Slice", [found, l.integers([0]), ends, l.integers([0])], value.shape, value.dtype)  # fmt: skip
