"""`tf.nest`: nested structures.

Values of replicas, such as `tf.distribute.DistributedValues`, are leaves here unless
`expand_composites` is True, while the functions of `core.values.nest` find the tensors in them.
"""

# ruff: noqa: D103 - `functools.wraps` copies the docstrings.
from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from meshflow.core.values import nest as _nest
from meshflow.environment.types import PyTree

__all__ = ["assert_same_structure", "flatten", "is_nested", "map_structure", "pack_sequence_as"]


class _Closed:
    """A value that contains others, but is a leaf."""

    def __init__(self, value: object) -> None:
        self.value = value


def _close(structure: PyTree) -> PyTree:
    """Wrap each leaf that contains other values in a `_Leaf`."""
    if getattr(structure, "leaf_of_nests", False):
        return _Closed(structure)
    if not _nest.is_nested(structure):
        return structure
    mapping = isinstance(structure, Mapping)
    items = list(structure.values()) if mapping else list(structure)
    wrapped = [_close(item) for item in items]
    if all(new is old for new, old in zip(wrapped, items, strict=True)):
        return structure
    if mapping:
        return _nest.like_mapping(structure, dict(zip(structure, wrapped, strict=True)))
    return _nest.like(structure, wrapped)


def _open(leaf: PyTree) -> PyTree:
    return leaf.value if isinstance(leaf, _Closed) else leaf


def _seen(structure: PyTree, expand_composites: bool) -> PyTree:
    return structure if expand_composites else _close(structure)


@functools.wraps(_nest.is_nested)
def is_nested(structure: PyTree) -> bool:
    return _nest.is_nested(_close(structure))


@functools.wraps(_nest.flatten)
def flatten(structure: PyTree, expand_composites: bool = False) -> list[Any]:
    return [_open(leaf) for leaf in _nest.flatten(_seen(structure, expand_composites))]


@functools.wraps(_nest.pack_sequence_as)
def pack_sequence_as(structure: PyTree, flat_sequence: Any, expand_composites: bool = False) -> PyTree:  # fmt: skip
    return _nest.pack_sequence_as(_seen(structure, expand_composites), flat_sequence)


@functools.wraps(_nest.map_structure)
def map_structure(func: Callable[..., Any], *structure: PyTree, **kwargs: Any) -> PyTree:
    expand = bool(kwargs.pop("expand_composites", False))

    def call_unwrapped(*leaves: PyTree) -> PyTree:
        return func(*[_open(leaf) for leaf in leaves])

    call = call_unwrapped if callable(func) else func
    return _nest.map_structure(call, *[_seen(s, expand) for s in structure], **kwargs)


@functools.wraps(_nest.assert_same_structure)
def assert_same_structure(
    nest1: PyTree, nest2: PyTree, check_types: bool = True, expand_composites: bool = False
) -> None:
    first, second = _seen(nest1, expand_composites), _seen(nest2, expand_composites)
    _nest.assert_same_structure(first, second, check_types)
