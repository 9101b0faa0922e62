"""Text of ragged values."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshflow.core.values.dtypes import DType


def format_rows(rows: list[Any], dtype: DType) -> str:
    """Format nested lists of the values of a tensor."""
    if isinstance(rows, list):
        return f"[{', '.join(format_rows(row, dtype) for row in rows)}]"
    if dtype.is_floating or dtype.is_complex:
        return str(np.asarray(rows, dtype.dtype)[()])
    return repr(rows)
