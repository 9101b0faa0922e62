"""The state of a staged block at run time: what its parts are, and reading and restoring them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType
from typing import Any

from meshflow.core.autograph.control_flow_lowering import RETURNED, VALUE
from meshflow.core.staging.structure import undefined
from meshflow.core.values import nest
from meshflow.core.values.tensor import Tensor

# What reading an attribute or item that does not exist may raise.
_ABSENT = (NameError, AttributeError, LookupError, TypeError)


@dataclass(frozen=True)
class StructureTemplate:
    """The parts of a block's state: variables, then places, then containers.

    Attributes:
      labels: the name of each part.
      outputs: how many of the variables are used afterwards; these come first.
      needed: for each part, whether the block uses its old value.
      variables: how many parts are variables.
    """

    labels: tuple[str, ...]
    outputs: int
    needed: tuple[bool, ...]
    variables: int

    def live(self) -> list[int]:
        """Positions of the parts that are used after the block."""
        return [*range(self.outputs), *range(self.variables, len(self.labels))]


def label(name: str) -> str:
    """How errors call a part."""
    if name == VALUE:
        return "the return value"
    if name.startswith(RETURNED[: RETURNED.index("_") + 2]):
        return "a jump"
    return f"'{name}'"


def place_of(block: FunctionType) -> str:
    """Where a generated block stands in the user's file: `model.py:12`."""
    code = block.__code__
    return f"{code.co_filename}:{code.co_firstlineno}"


def get(read: Callable[[], Any]) -> Any:
    """The value of one part, or `undefined`."""
    try:
        return read()
    except _ABSENT:
        return undefined


class _Plain:
    """Stands for a container without tensors: changing it is a side effect of tracing, as in Python."""

    def __repr__(self) -> str:
        return "a container without tensors"


plain = _Plain()


def contents(read: Callable[[], Any]) -> Any:
    """A copy of a list or dictionary that holds tensors, whose items then belong to the state."""
    container = get(read)
    if not isinstance(container, (list, dict)):
        return undefined
    items = container if isinstance(container, list) else container.values()
    try:
        holds_tensors = any(
            isinstance(leaf, Tensor) for item in items for leaf in nest.flatten(item)
        )
    except (TypeError, RecursionError):
        return plain  # no structure that tensors could be found in
    if not holds_tensors:
        return plain
    return list(container) if isinstance(container, list) else dict(container)


def refill(read: Callable[[], Any], items: Any) -> None:
    """Gives a list or dictionary the items of an earlier `contents`, in place."""
    if items is undefined or items is plain:
        return
    container = get(read)
    if isinstance(container, list):
        container[:] = items
    elif isinstance(container, dict):
        container.clear()
        container.update(items)
