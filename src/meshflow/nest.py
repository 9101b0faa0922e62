"""`tf.nest`: nested structures.

What a strategy keeps for its replicas is one value here, while the functions of `core.values.nest` find the
tensors in it; `expand_composites=True` does so too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from meshflow.core.values import nest as _nest

__all__ = ["assert_same_structure", "flatten", "is_nested", "map_structure", "pack_sequence_as"]


class _Closed:
    """A value that is a leaf although it holds others."""

    def __init__(self, value: Any) -> None:
        self.value = value


def _close(structure: Any) -> Any:
    """The structure, with a `_Closed` for each leaf that holds others."""
    if getattr(structure, "leaf_of_nests", False):
        return _Closed(structure)
    if not _nest.is_nested(structure):
        return structure
    mapping = isinstance(structure, Mapping)
    items = list(structure.values()) if mapping else list(structure)
    closed = [_close(item) for item in items]
    if all(new is old for new, old in zip(closed, items, strict=True)):
        return structure
    if mapping:
        return _nest.like_mapping(structure, dict(zip(structure, closed, strict=True)))
    return _nest.like(structure, closed)


def _open(leaf: Any) -> Any:
    return leaf.value if isinstance(leaf, _Closed) else leaf


def _seen(structure: Any, expand_composites: bool) -> Any:
    return structure if expand_composites else _close(structure)


@functools.wraps(_nest.is_nested)
def is_nested(structure: Any) -> bool:
    return _nest.is_nested(_close(structure))


@functools.wraps(_nest.flatten)
def flatten(structure: Any, expand_composites: bool = False) -> list[Any]:
    return [_open(leaf) for leaf in _nest.flatten(_seen(structure, expand_composites))]


@functools.wraps(_nest.pack_sequence_as)
def pack_sequence_as(structure: Any, flat_sequence: Any, expand_composites: bool = False) -> Any:
    return _nest.pack_sequence_as(_seen(structure, expand_composites), flat_sequence)


@functools.wraps(_nest.map_structure)
def map_structure(func: Callable[..., Any], *structure: Any, **kwargs: Any) -> Any:
    expand = bool(kwargs.pop("expand_composites", False))

    def of_leaves(*leaves: Any) -> Any:
        return func(*[_open(leaf) for leaf in leaves])

    call = of_leaves if callable(func) else func
    return _nest.map_structure(call, *[_seen(s, expand) for s in structure], **kwargs)


@functools.wraps(_nest.assert_same_structure)
def assert_same_structure(
    nest1: Any, nest2: Any, check_types: bool = True, expand_composites: bool = False
) -> None:
    first, second = _seen(nest1, expand_composites), _seen(nest2, expand_composites)
    _nest.assert_same_structure(first, second, check_types)
