"""Classification of XLA's general gather into the forms that other runtimes have."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Literal

import numpy as np

from meshflow.deployment.equations import DimSize, Equation
from meshflow.deployment.lowering import LoweringError


@dataclasses.dataclass
class RowGather:
    """Gather of full rows by their indices.

    Attributes:
      axes: dimensions of the operand that are indexed.
      offsets: positions of the other dimensions in the result.
    """

    axes: list[int]
    offsets: Sequence[int]


def classify_gather(
    equation: Equation, shape: Sequence[DimSize], indices: Sequence[DimSize]
) -> RowGather | Literal["block", "along"]:
    """Classify a gather.

    Args:
      equation: the gather.
      shape: shape of the operand.
      indices: shape of the indices.

    Returns:
      `RowGather`; 'block' if one block that starts at the indices is cut out; 'along' if each
      position of the leading dimensions has its own index along the next dimension.

    Raises:
      LoweringError: for any other gather.
    """
    d, sizes = equation.params["dimension_numbers"], equation.params["slice_sizes"]
    is_full = [n is shape[i] or n == shape[i] for i, n in enumerate(sizes)]
    batch = len(d.operand_batching_dims)
    if batch or d.start_indices_batching_dims:
        leading = tuple(range(batch))
        is_leading = (
            tuple(d.operand_batching_dims) == leading == tuple(d.start_indices_batching_dims)
        )
        is_next_axis = (batch,) == tuple(d.start_index_map) == tuple(d.collapsed_slice_dims)
        if not (is_leading and is_next_axis and all(is_full[batch + 1 :])):
            raise LoweringError(
                "its indexed dimension does not follow its batch dimensions directly"
            )
        return "along"
    if len(indices) == 1:
        return "block"
    axes = list(d.start_index_map)
    if not all(full or i in axes for i, full in enumerate(is_full)):
        raise LoweringError(f"it takes slices {sizes} of a tensor of shape {list(shape)}")
    if sorted(d.collapsed_slice_dims) != sorted(axes) or any(sizes[i] != 1 for i in axes):
        raise LoweringError("it gathers ranges of rows instead of single rows")
    return RowGather(axes, d.offset_dims)


def try_classify_gather(equation: Equation) -> RowGather | str | None:
    """Classify a gather as `classify_gather` does, or return None for an unsupported one."""
    try:
        return classify_gather(equation, equation.inputs[0].shape, equation.inputs[1].shape)
    except LoweringError:
        return None


def convert_gather_to_slice(equation: Equation) -> Equation | None:
    """Return the slice that a gather at constant, evenly spaced indices computes, such as x[:, ::2].

    Args:
      equation: any equation.

    Returns:
      The slice without outputs, or None for another equation.
    """
    if equation.name != "gather" or equation.inputs[1].constant is None:
        return None
    operand, index_value = equation.inputs
    d, sizes = equation.params["dimension_numbers"], list(equation.params["slice_sizes"])
    free = [i for i in range(len(operand.shape)) if i not in d.offset_dims]
    if (
        len(index_value.shape) != 2
        or d.operand_batching_dims
        or free != list(d.collapsed_slice_dims)
    ):
        return None
    indices = np.broadcast_to(equation.inputs[1].constant, index_value.shape)
    starts, limits, strides = [0] * len(sizes), sizes, [1] * len(sizes)
    for axis, column in zip(d.start_index_map, indices.T, strict=True):
        steps = set(np.diff(column).tolist()) if axis in free else {0}
        size = operand.shape[axis]
        if not column.size or len(steps) > 1 or (axis not in free and np.ptp(column)):
            return None
        starts[axis], strides[axis] = int(column[0]), int(max(steps, default=0)) or 1
        limits[axis] = int(column[-1]) + sizes[axis]
        # XLA clamps or drops indices out of bounds, and a slice does not.
        is_inside = isinstance(size, int) and 0 <= starts[axis] < limits[axis] <= size
        if not is_inside or strides[axis] < 0 or (len(column) > 1 and axis in free and 0 in steps):
            return None
    bounds = {"start_indices": starts, "limit_indices": limits, "strides": strides}
    return Equation("slice", [operand], [], bounds)


def order_gathered_axes(rank: int, offsets: Sequence[int], count: int, axis: int) -> list[int]:
    """Return the permutation that moves the dimensions of a gather to their positions in XLA.

    Args:
      rank: rank of the result, in which the dimensions of the indices are adjacent.
      offsets: positions of the other dimensions in XLA's result.
      count: number of dimensions of the indices.
      axis: position of the first of these.
    """
    index_axes = list(range(axis, axis + count))
    slice_axes = [i for i in range(rank) if i not in index_axes]
    free = [i for i in range(rank) if i not in offsets]
    order = [0] * rank
    for target, source in zip([*offsets, *free], [*slice_axes, *index_axes], strict=True):
        order[target] = source
    return order
