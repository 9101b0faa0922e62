"""Structures of TensorFlow's private modules: functions of `nest`, wrappers, and collections by identity."""

from __future__ import annotations

from collections.abc import (
    Callable,
    Iterable,
    Iterator,
    Mapping,
    MutableMapping,
    MutableSet,
)
from typing import Any, TypeVar

from meshflow.core.runtime.import_paths import get_public_package
from meshflow.core.values import nest
from meshflow.environment.types import PyTree

_T = TypeVar("_T")

tf: Any = get_public_package()
_structures = tf.__internal__.nest

is_attrs, is_mapping = _structures.is_attrs, _structures.is_mapping
list_to_tuple, sequence_like = _structures.list_to_tuple, _structures.sequence_like
flatten_up_to, map_structure_up_to = _structures.flatten_up_to, _structures.map_structure_up_to
get_traverse_shallow_structure = _structures.get_traverse_shallow_structure
yield_flat_paths = _structures.yield_flat_paths


_sequence_like = sequence_like


def _is_namedtuple(instance: object, strict: bool = False) -> bool:
    """Return whether a value is a named tuple."""
    return isinstance(instance, tuple) and hasattr(instance, "_fields")


is_nested = is_nested_or_composite = is_sequence = is_sequence_or_composite = nest.is_nested


def flatten_with_tuple_paths(
    structure: PyTree, expand_composites: bool = False
) -> list[tuple[tuple[Any, ...], Any]]:
    """Return the leaves of a structure, each after its path of keys and indices."""
    structure = nest.split_composites(structure) if expand_composites else structure
    return list(zip(yield_flat_paths(structure), nest.flatten(structure), strict=True))


def flatten_with_joined_string_paths(
    structure: PyTree, separator: str = "/", expand_composites: bool = False
) -> list[tuple[str, Any]]:
    """Return the leaves of a structure, each after its path as text."""
    return [
        (separator.join(map(str, path)), leaf)
        for path, leaf in flatten_with_tuple_paths(structure, expand_composites)
    ]


def map_structure_with_paths(
    func: Callable[..., Any], *structures: PyTree, **options: Any
) -> PyTree:
    """Call a function with the path as text and values of the corresponding leaves of structures."""
    return map_structure_with_tuple_paths(
        lambda path, *leaves: func("/".join(map(str, path)), *leaves), *structures, **options
    )


def map_structure_with_tuple_paths(
    func: Callable[..., Any], *structures: PyTree, check_types: bool = True, **_: object
) -> PyTree:
    """Call a function with the path and values of the corresponding leaves of structures."""
    for other in structures[1:]:
        nest.assert_same_structure(structures[0], other, check_types)
    return map_structure_with_tuple_paths_up_to(structures[0], func, *structures)


def map_structure_with_tuple_paths_up_to(
    shallow_tree: PyTree, func: Callable[..., Any], *inputs: PyTree
) -> PyTree:
    """Call a function with the path of each leaf of a shallow structure and the parts of other structures."""
    paths = list(yield_flat_paths(shallow_tree))
    return map_structure_up_to(
        shallow_tree, func, nest.pack_sequence_as(shallow_tree, paths), *inputs
    )


def convert_variables_to_tensors(structure: PyTree) -> PyTree:
    """Return a structure with the values of its variables."""
    return nest.map_structure(
        lambda v: tf.convert_to_tensor(v) if isinstance(v, tf.Variable) else v, structure
    )


STRUCTURES_HAVE_MISMATCHING_TYPES = (
    "The two structures don't have the same sequence type. Input structure has type {input_type}, while shallow "
    "structure has type {shallow_type}."
)
STRUCTURES_HAVE_MISMATCHING_LENGTHS = (
    "The two structures don't have the same sequence length. Input structure has length {input_length}, while "
    "shallow structure has length {shallow_length}."
)
SHALLOW_TREE_HAS_INVALID_KEYS = (
    "The shallow_tree's keys are not a subset of the input_tree's keys. The input_tree lacks {}."
)


def assert_shallow_structure(
    shallow_tree: PyTree, input_tree: PyTree, check_types: bool = True, **_: object
) -> None:
    """Check that a structure has the containers of a shallow structure.

    Raises:
      TypeError: If a part is no container, or a container of another type.
      ValueError: If a container has other keys or another number of parts.
    """
    if not nest.is_nested(shallow_tree):
        return
    if not nest.is_nested(input_tree):
        raise TypeError(IF_SHALLOW_IS_SEQ_INPUT_MUST_BE_SEQ.format(type(input_tree)))
    kinds, is_mapped = (type(shallow_tree), type(input_tree)), is_mapping(shallow_tree)
    is_same = kinds[0] is kinds[1] or nest.have_same_type(shallow_tree, input_tree)
    if is_mapped != is_mapping(input_tree) or (check_types and not is_same):
        raise TypeError(
            STRUCTURES_HAVE_MISMATCHING_TYPES.format(input_type=kinds[1], shallow_type=kinds[0])
        )
    if len(shallow_tree) != len(input_tree):
        raise ValueError(
            STRUCTURES_HAVE_MISMATCHING_LENGTHS.format(
                input_length=len(input_tree), shallow_length=len(shallow_tree)
            )
        )
    if is_mapped and (missing := sorted(set(shallow_tree) - set(input_tree))):
        raise ValueError(SHALLOW_TREE_HAS_INVALID_KEYS.format(missing))
    for key in shallow_tree if is_mapped else range(len(shallow_tree)):
        assert_shallow_structure(shallow_tree[key], input_tree[key], check_types)


def flatten_with_tuple_paths_up_to(
    shallow_tree: PyTree, input_tree: PyTree, check_types: bool = True, **_: object
) -> list[tuple[tuple[Any, ...], Any]]:
    """Return the parts of a structure at the leaves of a shallow structure, each after its path."""
    assert_shallow_structure(shallow_tree, input_tree, check_types)
    parts = flatten_up_to(shallow_tree, input_tree)
    return list(zip(yield_flat_paths(shallow_tree), parts, strict=True))


is_namedtuple = _is_namedtuple
IF_SHALLOW_IS_SEQ_INPUT_MUST_BE_SEQ = (
    "If shallow structure is a sequence, input must also be a sequence. Input has type: {}."
)


def flatten_dict_items(dictionary: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return a dictionary with one item for each leaf of its keys, which are structures like their values.

    Raises:
      TypeError: If the argument is no dictionary.
      ValueError: If a key has another structure than its value, or a leaf of the keys is not unique.
    """
    if not is_mapping(dictionary):
        raise TypeError(f"input must be a dictionary, got {type(dictionary).__name__}.")
    items: dict[Any, Any] = {}
    for key, value in dictionary.items():
        keys = nest.flatten(key) if nest.is_nested(key) else [key]
        values = nest.flatten(value) if nest.is_nested(key) else [value]
        if len(keys) != len(values):
            raise ValueError(
                f"Could not flatten dictionary. Key had {len(keys)} elements, but value had {len(values)} "
                f"elements. Key: {keys}, value: {values}."
            )
        for k, v in zip(keys, values, strict=True):
            if k in items:
                raise ValueError(f"Could not flatten dictionary: the key {k} is not unique.")
            items[k] = v
    return items


def unwrap_value(value: _T) -> _T:
    """Return a value unchanged, because attributes hold no wrappers."""
    return value


def _TupleWrapper(original_wrapped_tuple: tuple[Any, ...] = ()) -> tuple[Any, ...]:
    """Return a tuple unchanged, because attributes hold no wrappers."""
    return original_wrapped_tuple


wrap_or_unwrap = NoDependency = unwrap_value
ListWrapper, _DictWrapper = list, dict


class ObjectIdentityDictionary(MutableMapping[Any, Any]):
    """A dictionary that compares its keys by identity."""

    def __init__(self, *args: Any) -> None:
        self._items: dict[int, tuple[Any, Any]] = {}
        self.update(*args)

    def __getitem__(self, key: Any) -> PyTree:
        return self._items[id(key)][1]

    def __setitem__(self, key: Any, value: Any) -> None:
        self._items[id(key)] = (key, value)

    def __delitem__(self, key: Any) -> None:
        del self._items[id(key)]

    def __iter__(self) -> Iterator[Any]:
        return (key for key, _ in self._items.values())

    def __len__(self) -> int:
        return len(self._items)


class ObjectIdentitySet(MutableSet[Any]):
    """A set that compares its elements by identity."""

    def __init__(self, elements: Iterable[Any] = ()) -> None:
        self._elements = {id(element): element for element in elements}

    def __contains__(self, element: object) -> bool:
        return id(element) in self._elements

    def __iter__(self) -> Iterator[Any]:
        return iter(self._elements.values())

    def __len__(self) -> int:
        return len(self._elements)

    def add(self, element: Any) -> None:
        """Add an element."""
        self._elements[id(element)] = element

    def discard(self, element: Any) -> None:
        """Remove an element if the set has it."""
        self._elements.pop(id(element), None)
