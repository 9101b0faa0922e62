"""Placeholder values for traced tensors while only the shape of a result is determined.

The result shape of some layers depends on values (`tf.boolean_mask`). Such a layer is traced twice,
with different placeholder values. Sizes that differ between the traces are unknown.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np

from meshflow.core.runtime.context import context
from meshflow.core.values.tensor import Tensor

__all__ = ["ShapeProbe", "probe_shapes"]


class ShapeProbe:
    """A source of placeholder values for one trace.

    Args:
      trace_index: 0 for the first trace, 1 for the second.

    Attributes:
      used: Whether a placeholder value was created.
    """

    def __init__(self, trace_index: int) -> None:
        self.trace_index = trace_index
        self.used = False

    def make_value(self, tensor: Tensor) -> np.ndarray:
        """Return a placeholder value.

        Booleans are all True in the first trace and half True in the second. Numbers are 2 or 4,
        which divide most sizes.
        """
        self.used = True
        shape, dtype = tensor.array.shape, tensor.dtype.as_numpy_dtype
        if not tensor.dtype.is_bool:
            return np.full(shape, 2 * (self.trace_index + 1), dtype)
        size = int(np.prod(shape))
        return (np.arange(size) < (size if self.trace_index == 0 else (size + 1) // 2)).reshape(
            shape
        )


@contextlib.contextmanager
def probe_shapes(probe: ShapeProbe) -> Iterator[None]:
    """Use placeholder values where a trace needs values that only a running program knows."""
    saved, context.value_probe = context.value_probe, probe
    try:
        yield
    finally:
        context.value_probe = saved
