"""Elements stacked to batches, padded or not, and taken apart again."""

from __future__ import annotations

import itertools
import math
from collections.abc import Generator, Iterator
from typing import Any

import numpy as np

from meshflow.core import nest
from meshflow.core.errors import InvalidArgumentError
from meshflow.core.specs import TensorSpec
from meshflow.data import padding, structure
from meshflow.data.dataset import (
    INFINITE_CARDINALITY,
    UNKNOWN_CARDINALITY,
    Dataset,
    Vector,
    integer,
    reblocked,
)
from meshflow.data.running import Run
from meshflow.data.transformations.base import Unary

# Elements that a vectorized map computes at once, and the bytes they may take.
_CHUNK, _CHUNK_BYTES = 1024, 1 << 24


class Batch(Unary):
    """Consecutive elements, stacked."""

    def __init__(self, parent: Dataset, size: Any, drop_remainder: bool) -> None:
        super().__init__(parent)
        self._size = integer(size, "batch_size")
        if self._size < 1:
            raise InvalidArgumentError(f"Batch size must be greater than zero, got {self._size}.")
        self._drop = bool(drop_remainder)

    def _known_spec(self) -> Any:
        return structure.batched(self._parent.element_spec, self._size if self._drop else None)

    def _count(self) -> int:
        count = self._parent._count()
        if count < 0:
            return count
        return count // self._size if self._drop else math.ceil(count / self._size)

    def _elements(self, run: Run) -> Generator[Any, None, None]:
        vector = self._parent._vector(run)
        if vector is not None:
            yield from self._gathered(vector)
            return
        elements = self._parent._elements(run)
        while chunk := list(itertools.islice(elements, self._size)):
            if len(chunk) == self._size or not self._drop:
                yield structure.stack(chunk)

    def _gathered(self, vector: Vector) -> Iterator[Any]:
        spec, size = self._parent.element_spec, self._size
        # Several batches at once when they are small, known after the first.
        group = [1]
        for block in _growing(vector.blocks, size, group):
            leaves = vector.gather(block)
            if group[0] == 1:
                bytes_each = sum(a.nbytes for a in leaves) // len(block) + 1
                group[0] = max(1, min(_CHUNK, _CHUNK_BYTES // bytes_each) // size)
            for start in range(0, len(block), size):
                rows = [a[start : start + size] for a in leaves]
                if len(rows[0]) == size or not self._drop:
                    yield nest.pack_sequence_as(spec, rows)


def _growing(blocks: Iterator[np.ndarray], size: int, several: list[int]) -> Iterator[np.ndarray]:
    """Index blocks for one batch at first, then for several."""
    single = reblocked(blocks, size)
    while True:
        group = list(itertools.islice(single, several[0]))
        if not group:
            return
        yield group[0] if len(group) == 1 else np.concatenate(group)


class PaddedBatch(Unary):
    """Consecutive elements, padded and stacked."""

    def __init__(
        self, parent: Dataset, size: Any, shapes: Any, values: Any, drop_remainder: bool
    ) -> None:
        super().__init__(parent)
        self._size, self._drop = integer(size, "batch_size"), bool(drop_remainder)
        spec = parent.element_spec
        leaves = nest.flatten(spec)
        if shapes is None:
            if any(s.shape.rank is None for s in leaves):
                raise ValueError(
                    "Unable to infer `padded_shapes`: a component has an unknown rank. Give padded_shapes."
                )
            self._shapes = [s.shape.as_list() for s in leaves]
        else:
            self._shapes = [padding.sizes(s) for s in padding.flat_up_to(spec, shapes)]
        given = [None] * len(leaves) if values is None else padding.flat_values(spec, values)
        self._values = [padding.padding_value(v, s) for v, s in zip(given, leaves, strict=True)]

    def _known_spec(self) -> Any:
        first = self._size if self._drop else None
        leaves = [
            TensorSpec([first, *[None if n in (None, -1) else n for n in shape]], s.dtype)
            for shape, s in zip(self._shapes, nest.flatten(self._parent.element_spec), strict=True)
        ]
        return nest.pack_sequence_as(self._parent.element_spec, leaves)

    def _count(self) -> int:
        return Batch._count(self)  # type: ignore[arg-type]

    def _elements(self, run: Run) -> Generator[Any, None, None]:
        elements = self._parent._elements(run)
        while chunk := list(itertools.islice(elements, self._size)):
            if len(chunk) == self._size or not self._drop:
                yield structure.padded(chunk, self._shapes, self._values)


class Unbatch(Unary):
    """The rows of every element."""

    def _known_spec(self) -> Any:
        return structure.unbatched(self._parent.element_spec)

    def _count(self) -> int:
        count = self._parent._count()
        leaves = nest.flatten(self._parent.element_spec)
        rows = leaves[0].shape.as_list()[0] if leaves and leaves[0].shape.rank else None
        if count == INFINITE_CARDINALITY or count == 0:
            return count
        return count * rows if count >= 0 and rows is not None else UNKNOWN_CARDINALITY

    def _elements(self, run: Run) -> Generator[Any, None, None]:
        for element in self._parent._elements(run):
            leaves = nest.flatten(element)
            if len({len(a) for a in leaves}) > 1:
                raise InvalidArgumentError(
                    f"Input element must have the same batch size in each component, got {[len(a) for a in leaves]}."
                )
            for row in zip(*leaves, strict=True):
                yield nest.pack_sequence_as(element, [_scalar(v) for v in row])


def _scalar(value: Any) -> np.ndarray:
    return np.array(value, object) if isinstance(value, bytes) else np.asarray(value)
