"""Text of ragged values."""

from __future__ import annotations

import numpy as np


def format_rows(rows: np.ndarray) -> str:
    """Format an array of rows, which may be arrays of objects, with commas between the items."""
    with np.printoptions(formatter={"all": _format_item}):
        return _format_item(rows)


def _format_item(item: object) -> str:
    if isinstance(item, np.ndarray):
        return np.array2string(item, separator=", ") if item.size else repr(item.tolist())
    return repr(item) if isinstance(item, bytes) else str(item)
