"""`tf.__internal__.nest`: nested structures, down to the leaves of another structure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from meshflow.core.values.nest import has_parts, join_parts, split_parts
from meshflow.environment.types import PyTree
from meshflow.nest import is_nested


def is_mapping(obj: object) -> bool:
    """Check whether an object is a mapping."""
    return isinstance(obj, Mapping)


def is_attrs(obj: object) -> bool:
    """Check whether an object belongs to a class of the package attrs."""
    return hasattr(type(obj), "__attrs_attrs__")


def _iterate_children(structure: PyTree) -> Iterator[tuple[Any, PyTree]]:
    """Yield key and value of each child, in the order of `tf.nest.flatten`."""
    if isinstance(structure, Mapping):
        yield from ((key, structure[key]) for key in sorted(structure))
    elif hasattr(structure, "_fields"):
        yield from zip(structure._fields, structure, strict=True)
    elif is_attrs(structure):
        yield from ((a.name, getattr(structure, a.name)) for a in type(structure).__attrs_attrs__)
    elif has_parts(structure):
        yield from enumerate(split_parts(structure)[1])
    else:
        yield from enumerate(structure)


def sequence_like(instance: PyTree, args: Iterable[Any]) -> PyTree:
    """Return a structure of the type of another one, with other children."""
    values = list(args)
    if isinstance(instance, Mapping):
        by_key = dict(zip(sorted(instance), values, strict=True))
        items = [(key, by_key[key]) for key in instance]
        default = getattr(instance, "default_factory", None)
        return type(instance)(default, items) if default else type(instance)(items)  # type: ignore[call-arg]
    if hasattr(instance, "_fields"):
        return type(instance)(*values)
    if has_parts(instance):
        return join_parts(type(instance), split_parts(instance)[0], tuple(values))
    return type(instance)(values)


def _check_same_keys(shallow: PyTree, structure: PyTree) -> None:
    if not is_nested(structure):
        raise TypeError(
            f"If shallow structure is a sequence, input must also be a sequence. Input has type: {type(structure)}."
        )
    keys, found = ([k for k, _ in _iterate_children(s)] for s in (shallow, structure))
    if missing := [k for k in keys if isinstance(shallow, Mapping) and k not in found]:
        raise ValueError(
            f"The shallow_tree's keys are not a subset of the input_tree's keys. The input_tree lacks {missing}."
        )
    if len(keys) != len(found):
        raise ValueError(
            f"The two structures don't have the same sequence length. Input structure has {len(found)} elements, shallow "
            f"structure has {len(keys)} elements."
        )


def flatten_up_to(
    shallow_tree: PyTree,
    input_tree: PyTree,
    check_types: bool = True,
    expand_composites: bool = False,
) -> list[Any]:
    """Return the parts of a structure at the leaves of a shallow structure.

    Raises:
      TypeError: If the structure is a leaf where the shallow one is nested.
      ValueError: If the numbers of children differ.
    """
    if not is_nested(shallow_tree):
        return [input_tree]
    _check_same_keys(shallow_tree, input_tree)
    pairs = zip(_iterate_children(shallow_tree), _iterate_children(input_tree), strict=True)
    return [
        leaf
        for (_, a), (_, b) in pairs
        for leaf in flatten_up_to(a, b, check_types, expand_composites)
    ]


def map_structure_up_to(
    shallow_tree: PyTree, func: Callable[..., Any], *inputs: PyTree, **kwargs: Any
) -> PyTree:
    """Apply a function to the parts of structures at the leaves of a shallow structure."""
    if not inputs:
        raise ValueError("Cannot map over no sequences")
    if not is_nested(shallow_tree):
        return func(*inputs)
    for structure in inputs:
        _check_same_keys(shallow_tree, structure)
    children = [[value for _, value in _iterate_children(s)] for s in inputs]
    shallow = [value for _, value in _iterate_children(shallow_tree)]
    parts = [
        map_structure_up_to(s, func, *values) for s, *values in zip(shallow, *children, strict=True)
    ]
    return sequence_like(shallow_tree, parts)


def get_traverse_shallow_structure(
    traverse_fn: Callable[[PyTree], Any], structure: PyTree, expand_composites: bool = False
) -> PyTree:
    """Return a structure with True for each part that a function wants to traverse, otherwise False."""
    decision = traverse_fn(structure)
    if not is_nested(structure):
        if not isinstance(decision, bool):
            raise TypeError(
                f"traverse_fn returned structure: {decision} for non-structure: {structure}"
            )
        return decision
    if isinstance(decision, bool):
        if not decision:
            return False
        decision = sequence_like(structure, [True for _ in _iterate_children(structure)])
    if not is_nested(decision):
        raise TypeError(f"traverse_fn returned a non-bool scalar: {decision} for: {structure}")
    children = list(zip(_iterate_children(decision), _iterate_children(structure), strict=True))
    if not all(isinstance(a, bool) for (_, a), _ in children):
        raise TypeError(
            f"traverse_fn didn't return a depth=1 structure of bools. It returned {decision}."
        )
    parts = [
        get_traverse_shallow_structure(traverse_fn, b) if a is True else a
        for (_, a), (_, b) in children
    ]
    return sequence_like(structure, parts)


def list_to_tuple(structure: PyTree) -> PyTree:
    """Return a structure with tuples instead of lists."""
    if not is_nested(structure):
        return structure
    parts = [list_to_tuple(value) for _, value in _iterate_children(structure)]
    return tuple(parts) if isinstance(structure, list) else sequence_like(structure, parts)


def yield_flat_paths(nest: PyTree, expand_composites: bool = False) -> Iterator[tuple[Any, ...]]:
    """Yield the path of each leaf, a tuple of keys."""
    if not is_nested(nest):
        yield ()
        return
    for key, value in _iterate_children(nest):
        for path in yield_flat_paths(value):
            yield (key, *path)
