"""XLA's general gather as one of the kinds that other runtimes have."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal

from meshflow.deployment.equations import Equation
from meshflow.deployment.lowering import Refused

__all__ = ["Rows", "placed", "read"]


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
