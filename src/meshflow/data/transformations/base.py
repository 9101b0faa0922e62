"""What transformations have in common, and the plainest of them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import Any

from meshflow.core.variables.random import kept_seed
from meshflow.data import sources
from meshflow.data.dataset import (
    Dataset,
    Vector,
)
from meshflow.data.epoch import Epoch
from meshflow.data.execution import chunks
from meshflow.data.execution.resumable import Raising, Resuming
from meshflow.data.options import Options
from meshflow.data.static_shapes import StaticShapes

# Bytes above which what is kept is not copied once more.
_JOINED = 1 << 30


class Unary(Dataset):
    """A transformation of one dataset."""

    def __init__(self, parent: Dataset) -> None:
        self._parents = (parent,)

    @property
    def _parent(self) -> Dataset:
        return self._parents[0]


class RandomTransformation(Unary):
    """A transformation with a seed of its own, which is drawn when it is first needed."""

    reshuffles = True
    epoch = 0
    _words: list[int] | None = None

    def __init__(self, parent: Dataset) -> None:
        super().__init__(parent)
        self._seed = kept_seed()

    def seed(self) -> list[int]:
        """The words of the seed."""
        if self._words is None:
            self._words = self._seed()
        return self._words


class Fixed(Dataset):
    """Elements held in a list."""

    def __init__(self, elements: list[Any], spec: Any) -> None:
        self._held, self._own_spec = elements, spec

    def _known_spec(self) -> Any:
        return self._own_spec

    def _count(self) -> int:
        return len(self._held)

    def _elements(self, epoch: Epoch) -> Generator[Any, None, None]:
        return Raising(iter(self._held))


class Stacked(Dataset):
    """Elements held in chunks.

    Args:
      parts: the chunks; few of them are made one array each, through which indices go.
      spec: the spec of the elements.
    """

    def __init__(self, parts: list[chunks.Chunk], spec: Any) -> None:
        self._own_spec = spec
        self._size = sum(map(chunks.length, parts))
        alike = all(chunks.alike(part, parts[0]) for part in parts)
        bytes_ = sum(leaf.nbytes for part in parts for leaf in part)
        self._parts = [chunks.joined(parts)] if alike and bytes_ < _JOINED else parts

    def _known_spec(self) -> Any:
        return self._own_spec

    def _count(self) -> int:
        return self._size

    def _vector(self, epoch: Epoch) -> Vector | None:
        if len(self._parts) > 1:
            return None
        return sources.rows_of(self._parts[0])

    def _by_chunks(self, epoch: Epoch) -> Iterator[Any] | None:
        return iter(self._parts)


class Arranged(Unary):
    """Elements with their parts in another structure.

    Args:
      parent: the dataset.
      arrange: from an element, or its spec, to the same parts in another structure.
    """

    def __init__(self, parent: Dataset, arrange: Callable[[Any], Any]) -> None:
        super().__init__(parent)
        self._arrange = arrange

    def _known_spec(self) -> Any:
        return self._arrange(self._parent.element_spec)

    def _elements(self, epoch: Epoch) -> Generator[Any, None, None]:
        parent = self._parent._elements(epoch)
        return Resuming(lambda: map(self._arrange, parent), parent)


class WithOptions(Unary):
    """A dataset with options."""

    def __init__(self, parent: Dataset, options: Options) -> None:
        super().__init__(parent)
        self._own = options

    @property
    def _options(self) -> Options:
        return self._parent._options.merge(self._own)

    def _static_shapes(self) -> StaticShapes | None:
        return self._parent._static_shapes()

    def _elements(self, epoch: Epoch) -> Generator[Any, None, None]:
        return self._parent._elements(epoch)

    def _by_chunks(self, epoch: Epoch) -> Iterator[Any] | None:
        return self._parent._in_chunks(epoch)

    def _vector(self, epoch: Epoch) -> Vector | None:
        return self._parent._vector(epoch)


def is_live(dataset: Dataset) -> bool:
    """Whether elements may come in slowly, so that none is waited for while another is there."""
    return isinstance(dataset, sources.Generator) or any(map(is_live, dataset._parents))
