"""State of a staged block at run time, and functions to read and restore its parts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType
from typing import Any

from meshflow.core.autograph.control_flow_lowering import RETURN_VALUE, RETURNED_FLAG
from meshflow.core.staging.structure import undefined
from meshflow.core.values import nest
from meshflow.core.values.tensor import Tensor

# Errors of reading an attribute or item that does not exist.
_READ_ERRORS = (NameError, AttributeError, LookupError, TypeError)


@dataclass(frozen=True)
class StructureTemplate:
    """Parts of a block's state: variables, then attributes and items, then containers.

    Attributes:
      labels: Names of the parts.
      outputs: Number of variables that are used after the block; these are the first parts.
      needed: For each part, whether the block uses its old value.
      variables: Number of parts that are variables.
    """

    labels: tuple[str, ...]
    outputs: int
    needed: tuple[bool, ...]
    variables: int

    def list_live_parts(self) -> list[int]:
        """List the positions of the parts that are used after the block."""
        return [*range(self.outputs), *range(self.variables, len(self.labels))]


def format_label(name: str) -> str:
    """Return the name of a part in error messages."""
    if name == RETURN_VALUE:
        return "the return value"
    if name.startswith(RETURNED_FLAG[: RETURNED_FLAG.index("_") + 2]):
        return "a jump"
    return f"'{name}'"


def get_location(block: FunctionType) -> str:
    """Return the location of a generated block in the user's file, such as `model.py:12`."""
    code = block.__code__
    return f"{code.co_filename}:{code.co_firstlineno}"


def read_part(read: Callable[[], Any]) -> Any:
    """Return the value of one part, or `undefined`."""
    try:
        return read()
    except _READ_ERRORS:
        return undefined


class _TensorlessContainer:
    """Placeholder of a container without tensors; its changes are side effects of tracing."""

    def __repr__(self) -> str:
        return "a container without tensors"


TENSORLESS = _TensorlessContainer()


def copy_items(read: Callable[[], Any]) -> Any:
    """Copy a list or dictionary that holds tensors, so that its items belong to the state."""
    container = read_part(read)
    if not isinstance(container, (list, dict)):
        return undefined
    if not _list_tensor_items(container):
        return TENSORLESS
    return list(container) if isinstance(container, list) else dict(container)


def restore_items(read: Callable[[], Any], items: Any) -> None:
    """Replace the items of a list or dictionary by those of an earlier `copy_items`, in place."""
    if items is undefined:
        return
    container = read_part(read)
    if items is TENSORLESS:
        # Only a block that ran since then can have added tensors; other changes are side effects.
        if isinstance(container, (list, dict)):
            for key in reversed(_list_tensor_items(container)):
                del container[key]
    elif isinstance(container, list):
        container[:] = items
    elif isinstance(container, dict):
        container.clear()
        container.update(items)


def _list_tensor_items(container: list[Any] | dict[Any, Any]) -> list[Any]:
    """List the indices or keys of items that hold tensors; none if an item is no nested structure."""
    items = enumerate(container) if isinstance(container, list) else container.items()
    try:
        return [
            key
            for key, item in items
            if any(isinstance(leaf, Tensor) for leaf in nest.flatten(item))
        ]
    except (TypeError, RecursionError):
        return []  # Such an object is no structure that could contain tensors.
