"""Traces that serve calls with many sizes.

The calls of one function whose arguments differ only in their sizes form a family. Its first call is
traced for its sizes; the second one, with symbols for the sizes that differ, for all sizes that the
guards of that trace admit (`core/values/size_guards.py`). Such a trace runs op by op; if calls with
certain sizes are frequent, the function is traced and compiled for these sizes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from meshflow.core.functions.concrete_function import ConcreteFunction
from meshflow.core.values.size_guards import GuardedSizes

__all__ = ["TraceFamily"]

_log = logging.getLogger("meshflow")

Shapes = Sequence[tuple[int, ...]]

# A family has at most this number of traces with symbols. If new sizes still differ in other axes or
# fail the guards, each of them is traced separately.
_MAX_TRACES = 4
# Sizes of this number of calls determine which axes vary, and which of them have equal sizes.
_MAX_CALLS = 4


class TraceFamily:
    """The traces of a function for arguments that differ only in their sizes.

    Args:
      shapes: Shapes of the arguments of the first call.

    Attributes:
      identity_arguments: Arguments that the key of the family refers to by id.
    """

    def __init__(self, shapes: Shapes) -> None:
        self._calls = [list(shapes)]
        self._traces: list[tuple[GuardedSizes, ConcreteFunction]] = []
        self._num_attempts = 0
        self.identity_arguments: list[Any] = []

    def find(self, shapes: Shapes) -> ConcreteFunction | None:
        """Return a trace that is valid for arguments of these shapes, or None."""
        for sizes, concrete in self._traces:
            if sizes.bind(shapes) is not None:
                return concrete
        return None

    def generalize(
        self, shapes: Shapes, trace: Callable[[GuardedSizes], ConcreteFunction]
    ) -> ConcreteFunction | None:
        """Trace the function with symbols for the sizes that vary.

        Args:
          shapes: Shapes of the arguments of the present call, which differ from those of the calls
            before.
          trace: Traces the function for the given sizes.

        Returns:
          A trace that is valid for these shapes; None if they must be traced exactly.
        """
        if self._num_attempts == _MAX_TRACES:
            return None
        self._num_attempts += 1
        self._calls = [*self._calls[: _MAX_CALLS - 1], list(shapes)]
        sizes = GuardedSizes(self._calls)
        try:
            with sizes.record():
                concrete = trace(sizes)
        except Exception as error:
            # Any code of the function may need the value of a size. Its trace for exact sizes runs it
            # again, and raises its errors.
            _log.debug("No trace with symbolic sizes: %s", error)
            self._num_attempts = _MAX_TRACES
            return None
        self._traces.insert(0, (sizes, concrete))
        return self.find(shapes)
