"""Broadcasting of operands with sizes that depend on values.

A size of such an operand is usually equal to that of another operand, but only the running program knows it.
The trace assumes it, and the operand gets the size of the other one; see `core/values/size_guards.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from meshflow.core.dispatch.operands import flatten_tensors
from meshflow.core.dispatch.operation import Op
from meshflow.core.values.shapes import assume_equal
from meshflow.core.values.unknown_sizes import is_unknown_size

# Under the assumption, the slice is the complete array.
refine_sizes = Op(
    "refine_sizes",
    lambda operands, sizes: jax.lax.slice(operands[0], [0] * len(sizes), sizes),
)


def find_common_sizes(operands: Sequence[Any]) -> dict[int, tuple[Any, ...]]:
    """Return shapes that are equal except for sizes of 1, by the ids of the tensors that change.

    Args:
      operands: Operands of an op that broadcasts them.

    Returns:
      The shapes; empty if sizes cannot be assumed to be equal.
    """
    tensors = flatten_tensors(operands)
    shapes = [tuple(t.array.shape) for t in tensors]
    common: dict[int, Any] = {}
    for axis in range(1, 1 + max(map(len, shapes), default=0)):
        sizes = [shape[-axis] for shape in shapes if len(shape) >= axis]
        common[axis] = next((s for s in sizes if not is_unknown_size(s) and s != 1), sizes[0])
    changed = {}
    for tensor, shape in zip(tensors, shapes, strict=True):
        targets = [common[len(shape) - i] for i in range(len(shape))]
        sizes = [b if is_unknown_size(a) else a for a, b in zip(shape, targets, strict=True)]
        # Under the assumption, `==` also holds.
        pairs = [(a, b) for a, b in zip(shape, sizes, strict=True) if a is not b]
        if not all(assume_equal(a, b) for a, b in pairs):
            return {}
        if pairs:
            changed[id(tensor)] = tuple(sizes)
    return changed
