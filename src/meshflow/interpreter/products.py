"""Rules of matrix products."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Sequence

import numpy as np

from meshflow.interpreter.elementwise import get_compute_dtype
from meshflow.interpreter.memory import SlotEquation, ValueType
from meshflow.interpreter.table import (
    Compute,
    Equation,
    HostArray,
    UnsupportedPrimitive,
    Writer,
    rule,
)


@rule("dot_general", is_writer=True)
def _multiply(equation: Equation) -> Compute | Writer:
    ((left_sum, right_sum), (left_batch, right_batch)) = equation.params["dimension_numbers"]
    (left, left_type), (right, right_type) = equation.inputs
    shape, dtype = equation.outputs[0]
    left_free = [i for i in range(len(left)) if i not in (*left_sum, *left_batch)]
    right_free = [i for i in range(len(right)) if i not in (*right_sum, *right_batch)]
    batch = tuple(left[i] for i in left_batch)
    m, n = math.prod(left[i] for i in left_free), math.prod(right[i] for i in right_free)
    k = math.prod(left[i] for i in left_sum)
    compute_type = get_compute_dtype(dtype)
    if dtype.kind in "iu" and dtype.itemsize <= 4 and k < 1 << 20:
        # BLAS has no integers; products of 16-bit integers are exact in float64.
        sizes = [t.itemsize for t in (left_type, right_type)]
        compute_type = np.dtype(np.float64) if sum(sizes) <= 4 else dtype
    elif dtype == np.bool_:
        compute_type = np.dtype(np.int64)
    left_order, right_order = (
        (*left_batch, *left_free, *left_sum),
        (*right_batch, *right_sum, *right_free),
    )
    prepare_left = _make_preparation(left_order, (*batch, m, k), left, left_type, compute_type)
    prepare_right = _make_preparation(right_order, (*batch, k, n), right, right_type, compute_type)
    product = (*batch, m, n)

    if (
        prepare_left is None
        and prepare_right is None
        and product == shape
        and compute_type == dtype
    ):
        return Writer(np.matmul, np.matmul)

    def run(x: HostArray, y: HostArray) -> HostArray:
        x = x if prepare_left is None else prepare_left(x)
        y = y if prepare_right is None else prepare_right(y)
        return np.matmul(x, y).reshape(shape).astype(dtype, copy=False)

    if product != shape or compute_type != dtype:
        return run

    def write(x: HostArray, y: HostArray, out: HostArray) -> HostArray:
        x = x if prepare_left is None else prepare_left(x)
        y = y if prepare_right is None else prepare_right(y)
        return np.matmul(x, y, out)

    return Writer(run, write)


def _make_preparation(
    order: tuple[int, ...],
    target: tuple[int, ...],
    shape: tuple[int, ...],
    dtype: np.dtype,
    compute_type: np.dtype,
) -> Compute | None:
    """Return a function that makes matrices of an operand; None if it already consists of them."""
    is_ordered = order == tuple(range(len(order)))
    if is_ordered and target == shape and dtype == compute_type:
        return None

    def prepare(x: HostArray) -> HostArray:
        if dtype != compute_type:
            x = x.astype(compute_type)
        return (x if is_ordered else x.transpose(order)).reshape(target)

    return prepare


@rule("ragged_dot_general")
def _multiply_groups(equation: Equation) -> Compute:
    """Multiply consecutive groups of rows by one matrix each, or sum their products by group."""
    numbers, (shape, dtype) = equation.params["ragged_dot_dimension_numbers"], equation.outputs[0]
    (left_sum, right_sum), (left_batch, _) = numbers.dot_dimension_numbers
    (ragged,), group_axes = numbers.lhs_ragged_dimensions, numbers.rhs_group_dimensions
    if left_batch or len(equation.inputs[2].shape) != 1:
        raise UnsupportedPrimitive([equation.name])
    wide = get_compute_dtype(dtype)
    is_summed = ragged in left_sum
    row_axis = ragged - sum(axis < ragged for axis in left_sum)

    def run(x: HostArray, w: HostArray, sizes: HostArray) -> HostArray:
        x, w = x.astype(wide, copy=False), w.astype(wide, copy=False)
        out, start = np.zeros(shape, wide), 0
        for group, size in enumerate(sizes.tolist()):
            rows = slice(start, start + size)
            part = x[(slice(None),) * ragged + (rows,)]
            if is_summed:
                axis = right_sum[left_sum.index(ragged)]
                other = w[(slice(None),) * axis + (rows,)]
                out[group] = np.tensordot(part, other, (left_sum, right_sum))
            else:
                matrix = np.take(w, group, group_axes[0])
                axes = [axis - (axis > group_axes[0]) for axis in right_sum]
                target = (slice(None),) * row_axis + (rows,)
                out[target] = np.tensordot(part, matrix, (left_sum, axes))
            start += size
        return out.astype(dtype, copy=False)

    return run


def fold_transposes(
    nodes: Sequence[SlotEquation], values: Sequence[ValueType], outputs: Collection[int]
) -> list[SlotEquation]:
    """Exchange the operands of matrix products with results that are only used transposed."""
    maker = {node.outputs[0]: i for i, node in enumerate(nodes) if node.name == "dot_general"}
    uses = Counter([slot for node in nodes for slot in node.inputs])
    folded = list(nodes)
    for k, node in enumerate(nodes):
        i = maker.get(node.inputs[0]) if node.name == "transpose" else None
        if i is None or uses[node.inputs[0]] > 1 or node.inputs[0] in outputs:
            continue
        product = nodes[i]
        sums, batch = product.params["dimension_numbers"]
        rank, num_batch = len(values[node.inputs[0]].shape), len(batch[0])
        left = len(values[product.inputs[0]].shape) - len(sums[0])
        order = (*range(num_batch), *range(left, rank), *range(num_batch, left))
        if order == tuple(node.params["permutation"]):
            params = {**product.params, "dimension_numbers": (sums[::-1], batch[::-1])}
            folded[k] = product._replace(
                params=params, inputs=product.inputs[::-1], outputs=node.outputs
            )
    read = {slot for node in folded for slot in node.inputs}.union(outputs)
    return [n for n in folded if n.name != "dot_general" or not read.isdisjoint(n.outputs)]
