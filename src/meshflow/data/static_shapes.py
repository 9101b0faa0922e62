"""The shapes of a dataset's elements as far as they are known before there are any: for loops that are compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from meshflow.core.tracing.trace import init_scope
from meshflow.core.values import nest
from meshflow.data import structure
from meshflow.data.arguments import INFINITE_CARDINALITY


class StaticShapes(NamedTuple):
    """What is known of a dataset's elements.

    Attributes:
      spec: the spec of all but the last.
      count: their number, INFINITE_CARDINALITY for no end.
      last: the spec of the last where it is another, or None.
    """

    spec: Any
    count: int  # type: ignore[assignment]  # hides a method of tuples
    last: Any

    def batched(self, size: int, drop: bool) -> StaticShapes | None:
        """Those of batches of the elements.

        Args:
          size: of the batches.
          drop: whether a smaller last one is left out.
        """
        if self.last is not None:
            return None
        spec = structure.batched(self.spec, size)
        if self.count == INFINITE_CARDINALITY:
            return StaticShapes(spec, self.count, None)
        left = 0 if drop else self.count % size
        last = structure.batched(self.spec, left) if left else None
        return StaticShapes(spec, self.count // size, last)

    def mapped(self, results_of: Callable[[Any], Any]) -> StaticShapes | None:
        """Those of the results of a function.

        Args:
          results_of: from the spec of an element to that of the function's result, None where it is not known.
        """
        spec = results_of(self.spec)
        last = None if self.last is None else results_of(self.last)
        if spec is None or (self.last is not None and last is None):
            return None
        return StaticShapes(spec, self.count, last)


def example_of(spec: Any, prepare: Callable[[Any], Any]) -> Any:
    """Zeros of a spec, prepared as elements are."""
    zeros = nest.map_structure(lambda s: np.zeros(tuple(s.shape.as_list()), s.dtype.dtype), spec)
    with init_scope():
        return prepare(zeros)


def examples(shapes: StaticShapes | None, prepare: Callable[[Any], Any]) -> tuple[Any, Any] | None:
    """Elements like those of a dataset, and like its last one, None where that is no other.

    Args:
      shapes: of the dataset's elements.
      prepare: what is done to each element.

    Returns:
      None when they are not known.
    """
    if shapes is None:
        return None
    last = None if shapes.last is None else example_of(shapes.last, prepare)
    return example_of(shapes.spec, prepare), last


def described(shapes: StaticShapes | None) -> str:
    """A text that tells datasets apart whose elements' sizes differ, where these are known."""
    return "" if shapes is None else f"{shapes.spec} {shapes.last}"
