"""Base classes of transformations, and datasets that hold their elements in memory."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import Any

from meshflow.core.variables.random_streams import reserve_seed
from meshflow.data import sources
from meshflow.data.dataset import Dataset
from meshflow.data.epoch import Epoch
from meshflow.data.execution import chunks
from meshflow.data.execution.failures import RaisingIterator, ResumingIterator
from meshflow.data.node import DatasetNode, IndexStream
from meshflow.data.options import Options
from meshflow.data.static_shapes import StaticShapes
from meshflow.environment.types import PyTree

# Larger chunks, in bytes, are kept separately, because concatenating them would need twice the
# memory.
_MAX_CONCATENATED_BYTES = 1 << 30


class Unary(Dataset):
    """Base class of transformations with one parent.

    Args:
      parent: The dataset that is transformed.
    """

    def __init__(self, parent: DatasetNode) -> None:
        self.parents = (parent,)

    @property
    def parent(self) -> DatasetNode:
        """Return the dataset that is transformed."""
        return self.parents[0]


class RandomTransformation(Unary):
    """Base class of transformations with a seed of their own, which is drawn on first use.

    Args:
      parent: The dataset that is transformed.
      seed: Function that returns the words of the seed, by default those of a new one.
    """

    reshuffles = True
    epoch = 0
    _words: list[int] | None = None

    def __init__(self, parent: DatasetNode, seed: Callable[[], list[int]] | None = None) -> None:
        super().__init__(parent)
        self._seed = reserve_seed() if seed is None else seed

    def get_seed_words(self) -> list[int]:
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

    def _infer_spec(self) -> PyTree:
        return self._own_spec

    def count_elements(self) -> int:
        """Return the length of the list, including failures."""
        return len(self._list)

    def iter_elements(self, epoch: Epoch) -> Generator[Any, None, None]:
        """Iterate over the list, and raise the failures in it."""
        return RaisingIterator(iter(self._list))


class ChunkList(Dataset):
    """A list of chunks as a dataset.

    Small chunks of equal shapes are concatenated, so that their elements can be gathered by index.

    Args:
      parts: The chunks.
      spec: Spec of the elements.
    """

    def __init__(self, parts: list[chunks.Chunk], spec: PyTree) -> None:
        self._own_spec = spec
        self._size = sum(map(chunks.count_elements, parts))
        can_concatenate = all(chunks.are_stackable(part, parts[0]) for part in parts)
        num_bytes = sum(leaf.nbytes for part in parts for leaf in part)
        self._parts = (
            [chunks.concatenate_chunks(parts)]
            if can_concatenate and num_bytes < _MAX_CONCATENATED_BYTES
            else parts
        )

    def _infer_spec(self) -> PyTree:
        return self._own_spec

    def count_elements(self) -> int:
        """Return the total number of elements of all chunks."""
        return self._size

    def vectorize(self, epoch: Epoch) -> IndexStream | None:
        """Return the rows as a stream of indices, or None if the chunks are not concatenated."""
        if len(self._parts) > 1:
            return None
        return sources.make_row_stream(self._parts[0])

    def _iter_chunks(self, epoch: Epoch) -> Iterator[Any] | None:
        return iter(self._parts)


class Rearrange(Unary):
    """Elements with their components rearranged into another structure.

    Args:
      parent: The dataset.
      arrange: Function from an element, or its spec, to the same components in another structure.
    """

    def __init__(self, parent: DatasetNode, arrange: Callable[[Any], Any]) -> None:
        super().__init__(parent)
        self._arrange = arrange

    def _infer_spec(self) -> PyTree:
        return self._arrange(self.parent.element_spec)

    def iter_elements(self, epoch: Epoch) -> Generator[Any, None, None]:
        """Iterate over the elements in the new structure."""
        parent = self.parent.iter_elements(epoch)
        return ResumingIterator(lambda: map(self._arrange, parent), parent)


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
    def merged_options(self) -> Options:
        """Return the options of the parent, overridden by those of this dataset."""
        return self.parent.merged_options.merge(self._own_options)

    def infer_static_shapes(self) -> StaticShapes | None:
        """Return the static shapes of the parent, which are also those of this dataset."""
        return self.parent.infer_static_shapes()

    def iter_elements(self, epoch: Epoch) -> Generator[Any, None, None]:
        """Iterate over the elements of the parent; options do not change them."""
        return self.parent.iter_elements(epoch)

    def _iter_chunks(self, epoch: Epoch) -> Iterator[Any] | None:
        return self.parent.iter_chunks(epoch)

    def vectorize(self, epoch: Epoch) -> IndexStream | None:
        """Return the index stream of the parent."""
        return self.parent.vectorize(epoch)


def is_live(dataset: DatasetNode) -> bool:
    """Check whether a dataset depends on a generator, so that elements may arrive slowly.

    Such elements are passed on at once, without waiting for further ones.
    """
    return isinstance(dataset, sources.Generator) or any(map(is_live, dataset.parents))
