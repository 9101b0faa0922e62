"""XLA's general gather as one of the kinds that other runtimes have."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from meshflow.deployment.equations import Equation
from meshflow.deployment.lowering import Refused

__all__ = ["Rows", "as_slice", "placed", "read", "rows_of"]


@dataclasses.dataclass
class Rows:
    """Whole rows are picked by numbers.

    Attributes:
      axes: the dimensions that the numbers count along.
      offsets: where the other dimensions go in the result.
    """

    axes: list[int]
    offsets: Sequence[int]


def read(
    equation: Equation, shape: Sequence[Any], indices: Sequence[Any]
) -> Rows | Literal["block", "along"]:
    """What a gather does.

    Args:
      equation: the gather.
      shape, indices: shapes of its operands.

    Returns:
      `Rows`; 'block' where one block is cut out that starts at the indices; 'along' where each place of leading
      dimensions has an index of its own along the next one.

    Raises:
      Refused: for anything else.
    """
    d, sizes = equation.params["dimension_numbers"], equation.params["slice_sizes"]
    whole = [n is shape[i] or n == shape[i] for i, n in enumerate(sizes)]
    batch = len(d.operand_batching_dims)
    if batch or d.start_indices_batching_dims:
        leading = tuple(range(batch))
        plain = tuple(d.operand_batching_dims) == leading == tuple(d.start_indices_batching_dims)
        next_one = (batch,) == tuple(d.start_index_map) == tuple(d.collapsed_slice_dims)
        if not (plain and next_one and all(whole[batch + 1 :])):
            raise Refused(
                "it gathers along other dimensions than the one behind those it goes through"
            )
        return "along"
    if len(indices) == 1:
        return "block"
    axes = list(d.start_index_map)
    if not all(full or i in axes for i, full in enumerate(whole)):
        raise Refused(f"it takes parts of size {sizes} of a tensor of shape {list(shape)}")
    if sorted(d.collapsed_slice_dims) != sorted(axes) or any(sizes[i] != 1 for i in axes):
        raise Refused("it gathers ranges of rows, not single ones")
    return Rows(axes, d.offset_dims)


def rows_of(equation: Equation) -> Rows | str | None:
    """What `read` says of a gather, or None for what it refuses.

    Args:
      equation: the gather.
    """
    try:
        return read(equation, equation.inputs[0].shape, equation.inputs[1].shape)
    except Refused:
        return None


def as_slice(equation: Equation) -> Equation | None:
    """A gather at known places that are one behind the other, or every so many, as a slice: x[:, ::2, 1:-1].

    Args:
      equation: any equation.
    """
    if equation.name != "gather" or equation.inputs[1].constant is None:
        return None
    operand, places = equation.inputs
    d, sizes = equation.params["dimension_numbers"], list(equation.params["slice_sizes"])
    free = [i for i in range(len(operand.shape)) if i not in d.offset_dims]
    if len(places.shape) != 2 or d.operand_batching_dims or free != list(d.collapsed_slice_dims):
        return None
    indices = np.broadcast_to(equation.inputs[1].constant, places.shape)
    starts, limits, strides = [0] * len(sizes), sizes, [1] * len(sizes)
    for axis, column in zip(d.start_index_map, indices.T, strict=True):
        steps = set(np.diff(column).tolist()) if axis in free else {0}
        whole = operand.shape[axis]
        if not column.size or len(steps) > 1 or (axis not in free and np.ptp(column)):
            return None
        starts[axis], strides[axis] = int(column[0]), int(max(steps, default=0)) or 1
        limits[axis] = int(column[-1]) + sizes[axis]
        # What lies outside, or goes backward, is left to who gathers.
        inside = isinstance(whole, int) and 0 <= starts[axis] < limits[axis] <= whole
        if not inside or strides[axis] < 0 or (len(column) > 1 and axis in free and 0 in steps):
            return None
    bounds = {"start_indices": starts, "limit_indices": limits, "strides": strides}
    return Equation("slice", [operand], [], bounds)


def placed(rank: int, offsets: Sequence[int], count: int, axis: int) -> list[int]:
    """The order that brings gathered dimensions to their places.

    Args:
      rank: of what was gathered, where the dimensions of the indices come together at `axis`.
      offsets: where the other dimensions go.
      count: how many dimensions the indices have.
      axis: where these come.
    """
    of_indices = list(range(axis, axis + count))
    of_slices = [i for i in range(rank) if i not in of_indices]
    free = [i for i in range(rank) if i not in offsets]
    order = [0] * rank
    for place, source in zip([*offsets, *free], [*of_slices, *of_indices], strict=True):
        order[place] = source
    return order
