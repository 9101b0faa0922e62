"""Base classes of transformations, and datasets that hold their elements in memory."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import Any

from meshflow.core.variables.random import kept_seed
from meshflow.data import sources
from meshflow.data.dataset import Dataset
from meshflow.data.epoch import Epoch
from meshflow.data.execution import chunks
from meshflow.data.execution.resumable import Raising, Resuming
from meshflow.data.node import DatasetNode, IndexStream
from meshflow.data.options import Options
from meshflow.data.static_shapes import StaticShapes
from meshflow.environment.types import PyTree

# Larger chunks, in bytes, are kept separately, because concatenating them would need twice the
# memory.
_JOINED = 1 << 30


class Unary(Dataset):
    """Base class of transformations with one parent.

    Args:
      parent: The dataset that is transformed.
    """

    def __init__(self, parent: DatasetNode) -> None:
        self._parents = (parent,)

    @property
    def _parent(self) -> DatasetNode:
        return self._parents[0]


class RandomTransformation(Unary):
    """Base class of transformations with a seed of their own, which is drawn on first use.

    Args:
      parent: The dataset that is transformed.
    """

    reshuffles = True
    epoch = 0
    _words: list[int] | None = None

    def __init__(self, parent: DatasetNode) -> None:
        super().__init__(parent)
        self._seed = kept_seed()

    def seed(self) -> list[int]:
        """Return the words of the seed."""
        if self._words is None:
            self._words = self._seed()
        return self._words


class ElementList(Dataset):
    """A list of elements as a dataset.

    Args:
      elements: The elements, structures of host arrays; failures are raised when they are reached.
      spec: Spec of the elements.
    """

    _tensorflow_name = "_VariantDataset"

    def __init__(self, elements: list[Any], spec: PyTree) -> None:
        self._list, self._own_spec = elements, spec

    def _known_spec(self) -> PyTree:
        return self._own_spec

    def _count(self) -> int:
        return len(self._list)

    def _elements(self, epoch: Epoch) -> Generator[Any, None, None]:
        return Raising(iter(self._list))


class Stacked(Dataset):
    """A list of chunks as a dataset.

    Small chunks of equal shapes are concatenated, so that their elements can be gathered by index.

    Args:
      parts: The chunks.
      spec: Spec of the elements.
    """

    def __init__(self, parts: list[chunks.Chunk], spec: PyTree) -> None:
        self._own_spec = spec
        self._size = sum(map(chunks.length, parts))
        can_concatenate = all(chunks.alike(part, parts[0]) for part in parts)
        num_bytes = sum(leaf.nbytes for part in parts for leaf in part)
        self._parts = [chunks.joined(parts)] if can_concatenate and num_bytes < _JOINED else parts

    def _known_spec(self) -> PyTree:
        return self._own_spec

    def _count(self) -> int:
        return self._size

    def _vector(self, epoch: Epoch) -> IndexStream | None:
        if len(self._parts) > 1:
            return None
        return sources.rows_of(self._parts[0])

    def _by_chunks(self, epoch: Epoch) -> Iterator[Any] | None:
        return iter(self._parts)


class Arranged(Unary):
    """Elements with their components rearranged into another structure.

    Args:
      parent: The dataset.
      arrange: Function from an element, or its spec, to the same components in another structure.
    """

    def __init__(self, parent: DatasetNode, arrange: Callable[[Any], Any]) -> None:
        super().__init__(parent)
        self._arrange = arrange

    def _known_spec(self) -> PyTree:
        return self._arrange(self._parent.element_spec)

    def _elements(self, epoch: Epoch) -> Generator[Any, None, None]:
        parent = self._parent._elements(epoch)
        return Resuming(lambda: map(self._arrange, parent), parent)


class WithOptions(Unary):
    """A dataset with additional options.

    Args:
      parent: The dataset.
      options: Options that override those of the parent.
    """

    _tensorflow_name = "OptionsDataset"

    def __init__(self, parent: DatasetNode, options: Options) -> None:
        super().__init__(parent)
        self._own_options = options

    @property
    def _options(self) -> Options:
        return self._parent._options.merge(self._own_options)

    def _static_shapes(self) -> StaticShapes | None:
        return self._parent._static_shapes()

    def _elements(self, epoch: Epoch) -> Generator[Any, None, None]:
        return self._parent._elements(epoch)

    def _by_chunks(self, epoch: Epoch) -> Iterator[Any] | None:
        return self._parent._in_chunks(epoch)

    def _vector(self, epoch: Epoch) -> IndexStream | None:
        return self._parent._vector(epoch)


def is_live(dataset: DatasetNode) -> bool:
    """Check whether a dataset depends on a generator, so that elements may arrive slowly.

    Such elements are passed on at once, without waiting for further ones.
    """
    return isinstance(dataset, sources.Generator) or any(map(is_live, dataset._parents))
