"""Element shapes that are known before a pass, which compiled loops over datasets rely on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from meshflow.core.tracing.trace import init_scope
from meshflow.core.values import nest
from meshflow.data import structure
from meshflow.data.arguments import INFINITE_CARDINALITY
from meshflow.environment.types import PyTree


class StaticShapes(NamedTuple):
    """The static shapes of the elements of a dataset.

    Attributes:
      spec: Spec of all elements except the last one.
      count: Number of elements, or INFINITE_CARDINALITY.
      last: Spec of the last element if it differs, else None.
    """

    spec: Any
    count: int  # type: ignore[assignment]  # The field hides a method of tuples.
    last: Any

    def batch(self, size: int, drop: bool) -> StaticShapes | None:
        """Return the static shapes of batches of the elements, or None if they are not known.

        Args:
          size: Batch size.
          drop: Whether to drop a smaller last batch.
        """
        if self.last is not None:
            return None
        spec = structure.batch_spec(self.spec, size)
        if self.count == INFINITE_CARDINALITY:
            return StaticShapes(spec, self.count, None)
        remainder = 0 if drop else self.count % size
        last = structure.batch_spec(self.spec, remainder) if remainder else None
        return StaticShapes(spec, self.count // size, last)

    def apply_function(self, infer_result: Callable[[Any], Any]) -> StaticShapes | None:
        """Return the static shapes of the results of a function, or None if they are not known.

        Args:
          infer_result: Function from the spec of an element to the spec of the result, or None if
            it is not known.
        """
        spec = infer_result(self.spec)
        last = None if self.last is None else infer_result(self.last)
        if spec is None or (self.last is not None and last is None):
            return None
        return StaticShapes(spec, self.count, last)


def make_example(spec: PyTree, prepare: Callable[[Any], Any]) -> PyTree:
    """Create an element of zeros that matches a spec.

    Args:
      spec: Static spec of the elements.
      prepare: Function that is applied to every element.
    """
    zeros = nest.map_structure(lambda s: np.zeros(tuple(s.shape.as_list()), s.dtype.dtype), spec)
    with init_scope():
        return prepare(zeros)


def make_examples(
    shapes: StaticShapes | None, prepare: Callable[[Any], Any]
) -> tuple[Any, Any] | None:
    """Create an element of zeros, and one that matches the last element.

    Args:
      shapes: Static shapes of the elements, None if they are not known.
      prepare: Function that is applied to every element.

    Returns:
      Both elements; the second is None if the last element has no other shapes. None if the shapes
      are not known.
    """
    if shapes is None:
        return None
    last = None if shapes.last is None else make_example(shapes.last, prepare)
    return make_example(shapes.spec, prepare), last


def describe_shapes(shapes: StaticShapes | None) -> str:
    """Return a text that differs if the static shapes of the elements differ."""
    return "" if shapes is None else f"{shapes.spec} {shapes.last}"
