"""Lowering rules of scatters to LiteRT's SCATTER_ND."""

from __future__ import annotations

import math

import numpy as np

from meshflow.deployment.equations import Equation
from meshflow.lite.graph import Tensor
from meshflow.lite.lowering import Lowering, Refused, is_number, lowers

__all__: list[str] = []

# Limit on the elements of the table of all pairs of a row and an update.
_MOST = 1 << 22


@lowers("scatter-add", "scatter-sub", "scatter")
def _scatter(l: Lowering, e: Equation) -> Tensor:
    d = e.params["dimension_numbers"]
    target, indices, updates = map(l.full, e.inputs)
    axes = list(d.scatter_dims_to_operand_dims)
    if d.operand_batching_dims or sorted(d.inserted_window_dims) != sorted(axes):
        raise Refused("LiteRT writes full rows at their indices only")
    rest = [i for i in range(len(target.shape)) if i not in axes]
    windows = list(d.update_window_dims)
    if [updates.shape[i] for i in windows] != [target.shape[i] for i in rest]:
        raise Refused("LiteRT writes full rows only, not slices of them")
    batch_axes = [i for i in range(len(updates.shape)) if i not in windows]
    order = [*axes, *rest]
    transposed, rows = l.transpose(target, order), l.transpose(updates, [*batch_axes, *windows])
    row_indices = l.cast(indices, np.int32)
    if e.name == "scatter":
        result = _replaced(l, transposed, row_indices, rows, len(axes))
    else:
        code = "ADD" if e.name == "scatter-add" else "SUB"
        result = _added(l, transposed, row_indices, rows, code)
    return l.transpose(result, np.argsort(order).tolist())


def _added(l: Lowering, target: Tensor, indices: Tensor, rows: Tensor, code: str) -> Tensor:
    inputs = [indices, rows, l.shape_tensor(target.shape)]
    scattered = l.emit("SCATTER_ND", inputs, target.shape, rows.dtype, "ScatterNdOptions")
    is_zero = target.data is not None and not target.data.any()
    return scattered if is_zero and code == "ADD" else l.binary(code, target, scattered)


def _replaced(l: Lowering, target: Tensor, indices: Tensor, rows: Tensor, depth: int) -> Tensor:
    """Replace rows of a tensor; of several updates of a row, the last one is written."""
    shape, count = target.shape[:depth], indices.shape[:-1]
    if not all(map(is_number, (*shape, *count))) or math.prod(shape) * math.prod(count) > _MOST:
        raise Refused(f"LiteRT cannot replace {list(shape)} rows by {list(count)} updates")
    m, n = math.prod(count), math.prod(shape)
    steps = np.asarray([math.prod(shape[i + 1 :]) for i in range(depth)], np.int32)
    flat = l.binary("MUL", l.reshape(indices, (m, depth)), l.constant(steps))
    axis = l.constant(np.asarray([1], np.int32))
    flat_indices = l.emit("SUM", [flat, axis], (m,), np.int32, "ReducerOptions")
    all_rows = l.constant(np.arange(n, dtype=np.int32)[:, None])
    writes = l.cast(l.binary("EQUAL", all_rows, l.reshape(flat_indices, (1, m))), np.int32)
    positions = l.binary("MUL", writes, l.constant(np.arange(1, m + 1, dtype=np.int32)))
    last = l.emit("REDUCE_MAX", [positions, axis], (n,), np.int32, "ReducerOptions")
    zero, one = (l.constant(np.int32(i)) for i in (0, 1))
    row = l.binary("MAXIMUM", l.binary("SUB", last, one), zero)
    width = tuple(target.shape[depth:])
    source = l.reshape(rows, (m, *width))
    gathered = l.emit("GATHER", [source, row], (n, *width), rows.dtype, "GatherOptions", axis=0)
    is_written = l.reshape(l.binary("GREATER", last, zero), (n, *(1 for _ in width)))
    old = l.reshape(target, (n, *width))
    result = l.emit("SELECT_V2", [is_written, gathered, old], old.shape, old.dtype, "SelectV2Options")  # fmt: skip
    return l.reshape(result, target.shape)
