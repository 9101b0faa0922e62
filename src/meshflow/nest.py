"""`tf.nest`: nested structures.

With `expand_composites`, the components of composite tensors are leaves. Values of replicas, such as `tf.distribute.DistributedValues`, are leaves here unless
`expand_composites` is True, while the functions of `core.values.nest` find the tensors in them.
"""

# ruff: noqa: D103 -- `functools.wraps` copies the docstrings.
from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from meshflow.core.values import nest as _nest
from meshflow.core.values.composite import CompositeTensor, is_composite_spec
from meshflow.core.values.specs import type_spec_from_value
from meshflow.environment.types import PyTree

__all__ = ["assert_same_structure", "flatten", "is_nested", "map_structure", "pack_sequence_as"]


class _Leaf:
    """A value that contains others, but is a leaf."""

    def __init__(self, value: object) -> None:
        self.value = value


def _wrap_leaves(structure: PyTree) -> PyTree:
    """Wrap each leaf that contains other values in a `_Leaf`."""
    if getattr(structure, "leaf_of_nests", False):
        return _Leaf(structure)
    if not _nest.is_nested(structure):
        return structure
    if _nest.has_parts(structure):
        metadata, parts = _nest.split_parts(structure)
        return _nest.join_parts(type(structure), metadata, tuple(map(_wrap_leaves, parts)))
    mapping = isinstance(structure, Mapping)
    items = list(structure.values()) if mapping else list(structure)
    wrapped = [_wrap_leaves(item) for item in items]
    if all(new is old for new, old in zip(wrapped, items, strict=True)):
        return structure
    if mapping:
        return _nest.rebuild_mapping(structure, dict(zip(structure, wrapped, strict=True)))
    return _nest.rebuild_sequence(structure, wrapped)


def _unwrap(leaf: PyTree) -> PyTree:
    return leaf.value if isinstance(leaf, _Leaf) else leaf


def _expand(structure: PyTree) -> PyTree:
    """Replace composite tensors and specs of them by structures of their components."""

    def expand(leaf: PyTree) -> PyTree:
        if isinstance(leaf, CompositeTensor):
            return _expand(type_spec_from_value(leaf)._to_components(leaf))
        if is_composite_spec(leaf):
            return _expand(leaf._component_specs)
        return leaf

    return _nest.map_structure(expand, structure)


def _contract(structure: PyTree, components: PyTree) -> PyTree:
    """Undo `_expand`."""

    def contract(leaf: PyTree, value: PyTree) -> PyTree:
        if isinstance(leaf, CompositeTensor):
            spec = type_spec_from_value(leaf)
            return spec._from_components(_contract(spec._to_components(leaf), value))
        if is_composite_spec(leaf):
            return leaf._from_components(_contract(leaf._component_specs, value))
        return value

    leaves = _nest.flatten(structure)
    values = map(contract, leaves, _nest.flatten_up_to(structure, components))
    return _nest.pack_sequence_as(structure, values)


def _prepare(structure: PyTree, expand_composites: bool) -> PyTree:
    return _expand(structure) if expand_composites else _wrap_leaves(structure)


@functools.wraps(_nest.is_nested)
def is_nested(structure: PyTree) -> bool:
    return _nest.is_nested(_wrap_leaves(structure))


@functools.wraps(_nest.flatten)
def flatten(structure: PyTree, expand_composites: bool = False) -> list[Any]:
    return [_unwrap(leaf) for leaf in _nest.flatten(_prepare(structure, expand_composites))]


@functools.wraps(_nest.pack_sequence_as)
def pack_sequence_as(structure: PyTree, flat_sequence: Any, expand_composites: bool = False) -> PyTree:  # fmt: skip
    packed = _nest.pack_sequence_as(_prepare(structure, expand_composites), flat_sequence)
    return _contract(structure, packed) if expand_composites else packed


@functools.wraps(_nest.map_structure)
def map_structure(func: Callable[..., Any], *structure: PyTree, **kwargs: Any) -> PyTree:
    expand = bool(kwargs.pop("expand_composites", False))

    def call_unwrapped(*leaves: PyTree) -> PyTree:
        return func(*[_unwrap(leaf) for leaf in leaves])

    call = call_unwrapped if callable(func) else func
    result = _nest.map_structure(call, *[_prepare(s, expand) for s in structure], **kwargs)
    return _contract(structure[0], result) if expand else result


@functools.wraps(_nest.assert_same_structure)
def assert_same_structure(
    nest1: PyTree, nest2: PyTree, check_types: bool = True, expand_composites: bool = False
) -> None:
    first, second = _wrap_leaves(nest1), _wrap_leaves(nest2)
    _nest.assert_same_structure(first, second, check_types)
    if expand_composites:
        for one, two in zip(_nest.flatten(first), _nest.flatten(second), strict=True):
            _check_same_components(_unwrap(one), _unwrap(two), check_types)


def _check_same_components(first: PyTree, second: PyTree, check_types: bool) -> None:
    """Raise a ValueError if one of two leaves is composite, and no spec covers both."""
    specs = [
        type_spec_from_value(leaf) if isinstance(leaf, CompositeTensor) else leaf
        for leaf in (first, second)
    ]
    are_composite = [is_composite_spec(spec) for spec in specs]
    if not any(are_composite):
        return
    if not all(are_composite):
        raise ValueError(
            f"The two structures don't have the same nested structure: {first!r} and {second!r}."
        )
    if check_types and specs[0].most_specific_common_supertype([specs[1]]) is None:
        raise ValueError(
            f"The two structures don't have the same nested structure: no TypeSpec covers both {first!r} and {second!r}."
        )
