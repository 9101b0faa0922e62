"""Values made up for traced tensors while only the shape of a result is wanted.

A layer whose result's size depends on values (`tf.boolean_mask`) is described by tracing it twice with different
probes: sizes that differ are unknown.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np

from meshflow.core.runtime.context import context
from meshflow.core.values.tensor import Tensor

__all__ = ["Probe", "probing"]


class Probe:
    """One way of making up values.

    Args:
      number: 0 or 1, for the first trace and the second.

    Attributes:
      used: whether a value was made up.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.used = False

    def value(self, tensor: Tensor) -> np.ndarray:
        """Flags of which all or half are True; other numbers are 2 or 4, which divide most sizes."""
        self.used = True
        shape, dtype = tensor._value.shape, tensor.dtype.as_numpy_dtype
        if not tensor.dtype.is_bool:
            return np.full(shape, 2 * (self.number + 1), dtype)
        size = int(np.prod(shape))
        return (np.arange(size) < (size if self.number == 0 else (size + 1) // 2)).reshape(shape)


@contextlib.contextmanager
def probing(probe: Probe) -> Iterator[None]:
    """While values are made up that only a running program would know."""
    saved, context.probe = context.probe, probe
    try:
        yield
    finally:
        context.probe = saved
