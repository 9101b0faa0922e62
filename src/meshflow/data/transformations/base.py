"""What transformations have in common, and the plainest of them."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

from meshflow.data.dataset import (
    Dataset,
    Vector,
)
from meshflow.data.failures import Raising, Resuming
from meshflow.data.options import Options
from meshflow.data.running import Run


class Unary(Dataset):
    """A transformation of one dataset."""

    def __init__(self, parent: Dataset) -> None:
        self._parents = (parent,)

    @property
    def _parent(self) -> Dataset:
        return self._parents[0]


class Fixed(Dataset):
    """Elements held in a list."""

    def __init__(self, elements: list[Any], spec: Any) -> None:
        self._held, self._own_spec = elements, spec

    def _known_spec(self) -> Any:
        return self._own_spec

    def _count(self) -> int:
        return len(self._held)

    def _elements(self, run: Run) -> Generator[Any, None, None]:
        return Raising(iter(self._held))


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

    def _elements(self, run: Run) -> Generator[Any, None, None]:
        parent = self._parent._elements(run)
        return Resuming(lambda: map(self._arrange, parent), parent)


class WithOptions(Unary):
    """A dataset with options."""

    def __init__(self, parent: Dataset, options: Options) -> None:
        super().__init__(parent)
        self._own = options

    @property
    def _options(self) -> Options:
        return self._parent._options.merge(self._own)

    def _elements(self, run: Run) -> Generator[Any, None, None]:
        return self._parent._elements(run)

    def _vector(self, run: Run) -> Vector | None:
        return self._parent._vector(run)
