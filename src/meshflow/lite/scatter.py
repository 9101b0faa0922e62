"""Lowering rules of scatters to LiteRT's SCATTER_ND."""

from __future__ import annotations

import math

import numpy as np

from meshflow.deployment.equations import Equation
from meshflow.deployment.lowering import LoweringError
from meshflow.lite.graph import LiteTensor
from meshflow.lite.lowering import LiteLowering, is_static, register_rule

# Limit on the elements of the table of all pairs of a row and an update.
_MAX_TABLE_ELEMENTS = 1 << 22


@register_rule("scatter-add", "scatter-sub", "scatter")
def _lower_scatter(l: LiteLowering, e: Equation) -> LiteTensor:
    d = e.params["dimension_numbers"]
    target, indices, updates = map(l.get_tensor, e.inputs)
    axes = list(d.scatter_dims_to_operand_dims)
    if d.operand_batching_dims or sorted(d.inserted_window_dims) != sorted(axes):
        raise LoweringError("LiteRT writes full rows at their indices only")
    rest = [i for i in range(len(target.shape)) if i not in axes]
    windows = list(d.update_window_dims)
    if [updates.shape[i] for i in windows] != [target.shape[i] for i in rest]:
        raise LoweringError("LiteRT writes full rows only, not slices of them")
    batch_axes = [i for i in range(len(updates.shape)) if i not in windows]
    order = [*axes, *rest]
    transposed, rows = l.transpose(target, order), l.transpose(updates, [*batch_axes, *windows])
    row_indices = l.cast(indices, np.int32)
    if e.name == "scatter":
        result = _scatter_replace(l, transposed, row_indices, rows, len(axes))
    else:
        code = "ADD" if e.name == "scatter-add" else "SUB"
        result = _scatter_add(l, transposed, row_indices, rows, code)
    return l.transpose(result, np.argsort(order).tolist())


def _scatter_add(
    l: LiteLowering, target: LiteTensor, indices: LiteTensor, rows: LiteTensor, code: str
) -> LiteTensor:
    inputs = [indices, rows, l.make_shape_tensor(target.shape)]
    scattered = l.emit("SCATTER_ND", inputs, target.shape, rows.dtype, "ScatterNdOptions")
    is_zero = target.data is not None and not target.data.any()
    return scattered if is_zero and code == "ADD" else l.emit_binary(code, target, scattered)


def _scatter_replace(
    l: LiteLowering, target: LiteTensor, indices: LiteTensor, rows: LiteTensor, depth: int
) -> LiteTensor:
    """Replace rows of a tensor; of several updates of a row, the last one is written."""
    shape, count = target.shape[:depth], indices.shape[:-1]
    if (
        not all(map(is_static, (*shape, *count)))
        or math.prod(shape) * math.prod(count) > _MAX_TABLE_ELEMENTS
    ):
        raise LoweringError(f"LiteRT cannot replace {list(shape)} rows by {list(count)} updates")
    m, n = math.prod(count), math.prod(shape)
    steps = np.asarray([math.prod(shape[i + 1 :]) for i in range(depth)], np.int32)
    flat = l.emit_binary("MUL", l.reshape(indices, (m, depth)), l.get_constant(steps))
    axis = l.get_constant(np.asarray([1], np.int32))
    flat_indices = l.emit("SUM", [flat, axis], (m,), np.int32, "ReducerOptions")
    all_rows = l.get_constant(np.arange(n, dtype=np.int32)[:, None])
    writes = l.cast(l.emit_binary("EQUAL", all_rows, l.reshape(flat_indices, (1, m))), np.int32)
    positions = l.emit_binary("MUL", writes, l.get_constant(np.arange(1, m + 1, dtype=np.int32)))
    last = l.emit("REDUCE_MAX", [positions, axis], (n,), np.int32, "ReducerOptions")
    zero, one = (l.get_constant(np.int32(i)) for i in (0, 1))
    row = l.emit_binary("MAXIMUM", l.emit_binary("SUB", last, one), zero)
    width = tuple(target.shape[depth:])
    source = l.reshape(rows, (m, *width))
    gathered = l.emit("GATHER", [source, row], (n, *width), rows.dtype, "GatherOptions", axis=0)
    is_written = l.reshape(l.emit_binary("GREATER", last, zero), (n, *(1 for _ in width)))
    old = l.reshape(target, (n, *width))
    result = l.emit("SELECT_V2", [is_written, gathered, old], old.shape, old.dtype, "SelectV2Options")  # fmt: skip
    return l.reshape(result, target.shape)
