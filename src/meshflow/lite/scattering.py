"""Elements placed into tensors, as LiteRT's SCATTER_ND."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from meshflow.deployment.equations import Equation
from meshflow.lite.graph import Tensor
from meshflow.lite.lowering import Lowering, Refused, is_number, lowers

__all__: list[str] = []

# Elements of the table that says which row is written by which update.
_MOST = 1 << 22


@lowers("scatter-add", "scatter-sub", "scatter")
def _scatter(l: Lowering, e: Equation) -> Tensor:
    d = e.params["dimension_numbers"]
    target, indices, updates = map(l.full, e.inputs)
    axes = list(d.scatter_dims_to_operand_dims)
    if d.operand_batching_dims or sorted(d.inserted_window_dims) != sorted(axes):
        raise Refused("LiteRT writes whole rows at places of their own only")
    rest = [i for i in range(len(target.shape)) if i not in axes]
    windows = list(d.update_window_dims)
    if [updates.shape[i] for i in windows] != [target.shape[i] for i in rest]:
        raise Refused("LiteRT writes whole rows only, not parts of them")
    places = [i for i in range(len(updates.shape)) if i not in windows]
    order = [*axes, *rest]
    turned, rows = l.transpose(target, order), l.transpose(updates, [*places, *windows])
    numbers = l.cast(indices, np.int32)
    if e.name == "scatter":
        found = _replaced(l, turned, numbers, rows, len(axes))
    else:
        found = _added(l, turned, numbers, rows, "ADD" if e.name == "scatter-add" else "SUB")
    return l.transpose(found, np.argsort(order).tolist())


def _placed(l: Lowering, numbers: Tensor, rows: Tensor, shape: Any) -> Tensor:
    """Rows at their places among zeros; those of one place are added up."""
    inputs = [numbers, rows, l.shape_tensor(shape)]
    return l.emit("SCATTER_ND", inputs, shape, rows.dtype, "ScatterNdOptions")


def _added(l: Lowering, target: Tensor, numbers: Tensor, rows: Tensor, code: str) -> Tensor:
    found = _placed(l, numbers, rows, target.shape)
    empty = target.data is not None and not target.data.any()
    return found if empty and code == "ADD" else l.binary(code, target, found)


def _replaced(l: Lowering, target: Tensor, numbers: Tensor, rows: Tensor, depth: int) -> Tensor:
    """The target with rows written over its own: of several for one place, the last."""
    shape, count = target.shape[:depth], numbers.shape[:-1]
    if not all(map(is_number, (*shape, *count))) or math.prod(shape) * math.prod(count) > _MOST:
        raise Refused(
            f"{list(count)} writes over {list(shape)} rows are not known, or too many, for LiteRT"
        )
    many, total = math.prod(count), math.prod(shape)
    steps = np.asarray([math.prod(shape[i + 1 :]) for i in range(depth)], np.int32)
    flat = l.binary("MUL", l.reshape(numbers, (many, depth)), l.constant(steps))
    axis = l.constant(np.asarray([1], np.int32))
    line = l.emit("SUM", [flat, axis], (many,), np.int32, "ReducerOptions")
    every = l.constant(np.arange(total, dtype=np.int32)[:, None])
    writes = l.cast(l.binary("EQUAL", every, l.reshape(line, (1, many))), np.int32)
    numbered = l.binary("MUL", writes, l.constant(np.arange(1, many + 1, dtype=np.int32)))
    last = l.emit("REDUCE_MAX", [numbered, axis], (total,), np.int32, "ReducerOptions")
    zero, one = (l.constant(np.int32(i)) for i in (0, 1))
    row = l.binary("MAXIMUM", l.binary("SUB", last, one), zero)
    width = tuple(target.shape[depth:])
    source = l.reshape(rows, (many, *width))
    chosen = l.emit("GATHER", [source, row], (total, *width), rows.dtype, "GatherOptions", axis=0)
    written = l.reshape(l.binary("GREATER", last, zero), (total, *(1 for _ in width)))
    own = l.reshape(target, (total, *width))
    found = l.emit("SELECT_V2", [written, chosen, own], own.shape, own.dtype, "SelectV2Options")
    return l.reshape(found, target.shape)
