"""Traces that serve calls with many sizes.

The calls of one function whose arguments differ only in their sizes form a family. The first call is
traced for its sizes; the second one, with symbols for the sizes that differ, for all sizes that the
guards of that trace admit (`size_guards.py`). Such a trace runs with the interpreter; if calls with
certain sizes are frequent, the function is traced and compiled for these sizes.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from meshflow.core.runtime.tracebacks import is_raised_by_user
from meshflow.core.values.size_guards import GuardedSizes

_log = logging.getLogger("meshflow")

T = TypeVar("T")
Shapes = Sequence[tuple[int, ...]]

# A family has at most this number of traces with symbols for arguments with the same axes of size 1. If new sizes
# still differ in other axes or fail the guards, each of them is traced separately.
_MAX_TRACES = 4
# Sizes of this number of calls determine which axes vary, and which of them have equal sizes.
_MAX_CALLS = 4


class TraceFamily(Generic[T]):
    """The traces of a function for arguments that differ only in their sizes.

    Args:
      known_sizes: The sizes of each argument, with None for those that vary, so that the first call is traced
        with symbols. By default, the sizes of two calls determine which ones vary.

    Attributes:
      identity_arguments: Arguments that the key of the family refers to by id.

    Example:
      >>> family = TraceFamily()
      >>> trace = lambda sizes: f"trace for {sizes.shapes}"
      >>> [family.find([(rows, 2)], trace) for rows in (3, 4, 5)]
      [None, 'trace for [(d0, 2)]', 'trace for [(d0, 2)]']
    """

    def __init__(self, known_sizes: Sequence[Sequence[int | None]] | None = None) -> None:
        self._known_sizes = known_sizes
        self._calls: list[list[tuple[int, ...]]] = []
        self._traces: list[tuple[GuardedSizes, T]] = []
        self._num_attempts: Counter[tuple[bool, ...]] = Counter()
        # Shapes with symbols, as text, for which the function could not be traced.
        self._failures: set[str] = set()
        self.identity_arguments: list[Any] = []

    @property
    def is_declared(self) -> bool:
        """Return whether the caller declared which sizes vary."""
        return self._known_sizes is not None

    def add_call(self, shapes: Shapes) -> None:
        """Add the shapes of a call that is expected, so that the next call is traced with symbols."""
        self._calls.append(list(shapes))

    def find(self, shapes: Shapes, trace: Callable[[GuardedSizes], T]) -> T | None:
        """Return a trace with symbolic sizes for a call, and make it if necessary.

        Args:
          shapes: Shapes of the arguments.
          trace: Traces the function for the given sizes. Its errors are ignored, because any code may
            need the value of a size, and the trace for exact sizes runs that code again; errors of
            `raise` statements of the user are raised.

        Returns:
          A trace that is valid for these shapes; None if they must be traced exactly, such as those of
          the first call.
        """
        found = self._find_valid(shapes)
        if found is not None or list(shapes) in self._calls:
            return found
        hints = list(shapes)
        if self._known_sizes is not None and not self._num_attempts:
            hints = _raise_unknown_sizes(shapes, self._known_sizes)
            self._calls.append(vary_unknown_sizes(hints, self._known_sizes))
        # Axes of size 1 may be broadcast, so they differ from all others.
        ones = _find_ones(hints)
        if self._num_attempts[ones] == _MAX_TRACES:
            return None
        similar = [call for call in self._calls if _find_ones(call) == ones]
        if not similar and self._known_sizes is None:
            # An axis that had the size 1 before may have any size from now on.
            similar = [call for call in self._calls if not _has_more_ones(hints, call)]
        self._calls = [*self._calls[: _MAX_CALLS - 1], list(shapes)]
        if not similar:
            return None
        sizes = GuardedSizes([*similar, hints])
        pattern = str(sizes.shapes)
        if pattern in self._failures:
            self._num_attempts[ones] = _MAX_TRACES
            return None
        self._num_attempts[ones] += 1
        try:
            with sizes.record():
                self._traces.insert(0, (sizes, trace(sizes)))
        except Exception as error:
            if is_raised_by_user(error) and sizes.bind(shapes) is not None:
                # The trace for exact sizes would raise it as well, after a second run of the function.
                self._num_attempts[ones] -= 1
                self._calls = [call for call in self._calls if call != list(shapes)]
                raise
            _log.debug("No trace with symbolic sizes: %r", error)
            # The next sizes may be related differently to each other.
            self._calls = [list(shapes)]
            self._failures.add(pattern)
        return self._find_valid(shapes)

    def _find_valid(self, shapes: Shapes) -> T | None:
        for sizes, traced in self._traces:
            if sizes.bind(shapes) is not None:
                return traced
        return None


def vary_unknown_sizes(
    shapes: Shapes, known_sizes: Sequence[Sequence[int | None]]
) -> list[tuple[int, ...]]:
    """Return shapes that differ from those of a call in all axes of unknown size.

    Args:
      shapes: Shapes of the arguments of the call.
      known_sizes: The sizes of each argument, with None for unknown ones.

    Example:
      >>> vary_unknown_sizes([(8, 5), (8,)], [(None, 5), (None,)])
      [(9, 5), (9,)]
    """
    # Sizes of different axes are unlikely to be related, so they change by different amounts.
    return [
        tuple([n + axis + 1 if s[axis] is None else n for axis, n in enumerate(shape)])
        for shape, s in zip(shapes, known_sizes, strict=True)
    ]


def _raise_unknown_sizes(
    shapes: Shapes, known_sizes: Sequence[Sequence[int | None]]
) -> list[tuple[int, ...]]:
    """Replace unknown sizes of 0 and 1, for which many functions have special cases."""
    return [
        tuple([n if size is not None else max(n, 2) for n, size in zip(shape, s, strict=True)])
        for shape, s in zip(shapes, known_sizes, strict=True)
    ]


def _has_more_ones(shapes: Shapes, earlier: Shapes) -> bool:
    """Check whether an axis has the size 1 that was larger in an earlier call."""
    pairs = zip(_find_ones(shapes), _find_ones(earlier), strict=True)
    return any(now and not before for now, before in pairs)


def _find_ones(shapes: Shapes) -> tuple[bool, ...]:
    return tuple([size == 1 for shape in shapes for size in shape])
