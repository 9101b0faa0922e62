"""Lists of rows of a stacked tensor, which `tf.stack` need not join again.

After a loop that appends to a list, the list holds the rows of the outputs of a scan. XLA takes long
to compile the join of thousands of rows.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

from meshflow.core.values.tensor import Tensor

# The stacked tensor and its rows, by the `id` of the first row.
_lists: dict[int, tuple[Tensor, list[weakref.ref[Tensor]]]] = {}


def register_rows(stacked: Tensor, rows: Sequence[Tensor]) -> None:
    """Record that tensors are the rows of a stacked tensor."""
    key = id(rows[0])
    first = weakref.ref(rows[0], lambda _: _lists.pop(key, None))
    _lists[key] = stacked, [first, *(weakref.ref(row) for row in rows[1:])]


def find_stacked(values: Sequence[Any]) -> Tensor | None:
    """Return the tensor with the given rows, or None if they are not all the rows of one tensor."""
    stacked, rows = _lists.get(id(values[0]), (None, []))
    if stacked is None or len(rows) != len(values):
        return None
    is_same = all(row() is value for row, value in zip(rows, values, strict=True))
    return stacked if is_same else None
