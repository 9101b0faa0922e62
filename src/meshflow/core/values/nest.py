"""Nested structures of lists, tuples, named tuples and dictionaries.

The rules are those of `tf.nest`: dictionaries are visited in sorted key order, their views in the order of the
dictionary, objects of the package attrs in the order of their fields, and objects with the methods `__tf_flatten__` and
`__tf_unflatten__` in their own. None, tensors, arrays, strings and all other objects are leaves.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import jax
import numpy as np

from meshflow.core.values.composite import CompositeTensor, can_split, split_value
from meshflow.core.values.tensor import Tensor
from meshflow.environment.types import PyTree

# `tf.nest` treats the views of dictionaries, which are also the bases of those of an `OrderedDict`, as sequences.
_EMPTY: dict[Any, Any] = {}
_VIEWS = (type(_EMPTY.keys()), type(_EMPTY.values()), type(_EMPTY.items()))
_SEQUENCES = (list, tuple, *_VIEWS)
_CONTAINERS = (*_SEQUENCES, Mapping)
# Types of objects with parts: those of attrs, and those with methods that flatten them.
_types_with_parts: set[type] = set()


class _Dot:
    """The text of a leaf in messages."""

    def __repr__(self) -> str:
        return "."


# Common types of leaves; checks for mappings are slow.
_LEAF_TYPES = frozenset([Tensor, np.ndarray, int, float, bool, str, type(None)])


def is_nested(structure: PyTree) -> bool:
    """Check whether `structure` is a container: a list, tuple, dictionary or view of a dictionary.

    Example:
      >>> tf.nest.is_nested([1]), tf.nest.is_nested(1)
      (True, False)
    """
    return type(structure) not in _LEAF_TYPES and (
        isinstance(structure, _CONTAINERS) or has_parts(structure)
    )


def has_parts(structure: PyTree) -> bool:
    """Check for an object of attrs, or with `__tf_flatten__() -> (metadata, parts)` and its inverse `__tf_unflatten__`."""
    cls = type(structure)
    if cls in _types_with_parts:
        return True
    if not hasattr(cls, "__attrs_attrs__") and not (
        hasattr(cls, "__tf_flatten__") and hasattr(cls, "__tf_unflatten__")
    ):
        return False
    _types_with_parts.add(cls)
    # The keys of traces are based on JAX's trees, which must have the same leaves.
    with contextlib.suppress(ValueError):  # The user has registered it.
        jax.tree_util.register_pytree_node(
            cls,
            lambda value: split_parts(value)[::-1],
            lambda metadata, parts: join_parts(cls, metadata, parts),
        )
    return True


def split_parts(structure: PyTree) -> tuple[Any, tuple[Any, ...]]:
    """Return the metadata and the parts of an object for which `has_parts` is True."""
    if hasattr(type(structure), "__tf_flatten__"):
        return structure.__tf_flatten__()
    return None, tuple(getattr(structure, a.name) for a in type(structure).__attrs_attrs__)


def join_parts(cls: PyTree, metadata: PyTree, parts: Iterable[PyTree]) -> PyTree:
    """Undo `split_parts`."""
    if hasattr(cls, "__tf_flatten__"):
        return cls.__tf_unflatten__(metadata, parts)
    pairs = list(zip(cls.__attrs_attrs__, parts, strict=True))
    # Private fields have other names as arguments, and some fields are no arguments.
    names = {a.name: getattr(a, "alias", None) or a.name.lstrip("_") for a, _ in pairs}
    result = cls(**{names[a.name]: part for a, part in pairs if a.init})
    for field, part in pairs:
        if not field.init:
            object.__setattr__(result, field.name, part)
    return result


def sort_keys(mapping: Mapping[Any, Any]) -> list[Any]:
    """Return the keys of a dictionary in the order of its leaves.

    Raises:
      TypeError: If the keys cannot be compared.
    """
    try:
        return sorted(mapping)
    except TypeError:
        raise TypeError(
            f"nest only supports dicts with sortable keys, got {list(mapping)!r}."
        ) from None


def flatten(structure: PyTree, expand_composites: bool = False) -> list[Any]:
    """Return the leaves of a nested structure, in order.

    Args:
      structure: Any structure; a single leaf results in a list of one item.
      expand_composites: Whether the components of composite tensors, and the parts of a strategy's values, are leaves.

    Returns:
      A list.

    Example:
      >>> tf.nest.flatten({"b": [1, 2], "a": 3})
      [3, 1, 2]
    """
    leaves: list[Any] = []
    _flatten_into(structure, leaves)
    return leaves


def _flatten_into(structure: PyTree, leaves: list[Any]) -> None:
    if type(structure) in _LEAF_TYPES:
        leaves.append(structure)
    elif isinstance(structure, _SEQUENCES):
        for item in structure:
            _flatten_into(item, leaves)
    elif isinstance(structure, Mapping):
        for key in sort_keys(structure):
            _flatten_into(structure[key], leaves)
    elif has_parts(structure):
        _flatten_into(split_parts(structure)[1], leaves)
    else:
        leaves.append(structure)


def split_composites(structure: PyTree) -> PyTree:
    """Replace each composite tensor, and each spec of one, by a list of its parts.

    Composite tensors with strings remain, because they are constants of programs.
    """

    def split(leaf: PyTree) -> PyTree:
        if not can_split(leaf):
            return leaf
        if isinstance(leaf, CompositeTensor):
            return split_value(leaf)
        return map_structure(split, leaf._component_specs)

    return map_structure(split, structure) if any(map(can_split, flatten(structure))) else structure


def join_composites(structure: PyTree, parts: PyTree) -> PyTree:
    """Undo `split_composites`, with other parts.

    Args:
      structure: The argument of `split_composites`.
      parts: Its result, with other leaves.
    """
    if not any(map(can_split, flatten(structure))):
        return parts
    values = []
    for leaf, value in zip(flatten(structure), flatten_up_to(structure, parts), strict=True):
        if can_split(leaf):
            if isinstance(leaf, CompositeTensor):
                value = leaf.join_parts(value)
            else:
                value = leaf._from_components(join_composites(leaf._component_specs, value))
        values.append(value)
    return pack_sequence_as(structure, values)


def flatten_parts(structure: PyTree) -> list[Any]:
    """Return the leaves of a structure, with the parts of composite tensors instead of these."""
    return flatten(split_composites(structure))


def map_parts(func: Callable[[Any], Any], structure: PyTree) -> PyTree:
    """Apply a function to the leaves of a structure and to the parts of its composite tensors."""
    parts = map_structure(func, split_composites(structure))
    return join_composites(structure, parts)


def flatten_up_to(shallow: PyTree, structure: PyTree, path: str = "the root") -> list[Any]:
    """Return the parts of `structure` at the leaves of `shallow`.

    Args:
      shallow: A structure with the same outer containers as `structure`.
      structure: The structure.
      path: Path of `structure` in an outer structure, for the error.

    Raises:
      ValueError: If the containers do not match; the message contains the path.
    """
    if not is_nested(shallow):
        return [structure]
    shallow, structure = _make_indexable(shallow), _make_indexable(structure)
    keys = sort_keys(shallow) if isinstance(shallow, Mapping) else list(range(len(shallow)))
    if not is_nested(structure) or len(structure) != len(keys):
        raise ValueError(
            f"Structures differ at {path}: expected {len(keys)} parts {keys}, got {structure!r}."
        )
    parts: list[Any] = []
    for key in keys:
        parts.extend(flatten_up_to(shallow[key], structure[key], f"{path}[{key!r}]"))
    return parts


def pack_sequence_as(
    structure: PyTree, flat_sequence: Iterable[Any], expand_composites: bool = False
) -> PyTree:
    """Pack flat values into a structure like `structure`.

    Args:
      structure: The structure to copy.
      flat_sequence: As many values as `structure` has leaves.
      expand_composites: Whether the components of composite tensors, and the parts of a strategy's values, are leaves.

    Returns:
      A structure like `structure` with the given leaves.

    Raises:
      ValueError: If the number of values differs.

    Example:
      >>> tf.nest.pack_sequence_as({"a": 0, "b": (0, 0)}, [1, 2, 3])
      {'a': 1, 'b': (2, 3)}
    """
    if isinstance(flat_sequence, str | bytes) or not hasattr(flat_sequence, "__iter__"):
        raise TypeError(
            f"Attempted to pack value:\n  {flat_sequence!r}\ninto a structure, but found incompatible type "
            f"`{type(flat_sequence)}` instead. Pass a list of values."
        )
    flat = list(flat_sequence)
    is_simple = type(structure) in (tuple, list) and len(structure) == len(flat)
    if is_simple and not any(is_nested(item) for item in structure):
        # This is the usual case. It avoids a second visit of each leaf.
        return type(structure)(flat)
    expected = len(flatten(structure))
    if expected != len(flat):
        if not is_nested(structure):
            raise ValueError(
                f"The target structure is a single value ({structure!r}), but flat_sequence has {len(flat)} values; "
                "nest cannot guarantee that it is safe to map one to the other."
            )
        raise ValueError(
            f"Structure had {expected} atoms, but flat_sequence had {len(flat)} items. "
            f"Structure: {structure!r}."
        )
    return _pack(structure, iter(flat))


def _pack(structure: PyTree, supply: Iterator[Any]) -> PyTree:
    if type(structure) in _LEAF_TYPES:
        return next(supply)
    if isinstance(structure, _SEQUENCES):
        return rebuild_sequence(structure, [_pack(item, supply) for item in structure])
    if isinstance(structure, Mapping):
        # The values are in sorted key order, but the result keeps the order of the dictionary.
        packed = {key: _pack(structure[key], supply) for key in sort_keys(structure)}
        return rebuild_mapping(structure, {key: packed[key] for key in structure})
    if has_parts(structure):
        metadata, parts = split_parts(structure)
        return join_parts(type(structure), metadata, _pack(parts, supply))
    return next(supply)


def rebuild_sequence(structure: PyTree, items: list[Any]) -> PyTree:
    """Return a list or tuple of the structure's type, or a list instead of a view, with other items."""
    if isinstance(structure, tuple) and hasattr(structure, "_fields"):
        return type(structure)(*items)
    if type(structure) in (list, tuple):
        return type(structure)(items)
    return type(structure)(items) if isinstance(structure, tuple) else list(items)


def _make_indexable(structure: PyTree) -> PyTree:
    """Return the items of a view, or the parts of an object, which have no indices, or another structure itself."""
    if has_parts(structure):
        return split_parts(structure)[1]
    return list(structure) if isinstance(structure, _VIEWS) else structure


def rebuild_mapping(structure: Mapping[Any, Any], items: dict[Any, Any]) -> Mapping[Any, Any]:
    """Return a mapping of the structure's type with other values."""
    if type(structure) is dict:
        return items
    if hasattr(structure, "default_factory"):
        return type(structure)(structure.default_factory, items)  # type: ignore[call-arg]
    try:
        return type(structure)(items)  # type: ignore[call-arg]
    except TypeError:
        return items


def map_structure(func: Callable[..., Any], *structure: PyTree, **kwargs: Any) -> PyTree:
    """Apply `func` to the corresponding leaves of one or more structures.

    Args:
      func: Called with one leaf of each structure.
      *structure: Structures of the same form.
      **kwargs: `check_types` (True by default) and `expand_composites`.

    Returns:
      A structure like the first one.

    Raises:
      ValueError: If the structures differ, or for an unknown keyword.
      TypeError: If `func` is not callable.

    Example:
      >>> tf.nest.map_structure(lambda a, b: a + b, [1, (2,)], [10, (20,)])
      [11, (22,)]
    """
    if len(structure) == 1 and type(structure[0]) in _LEAF_TYPES and callable(func) and not kwargs:
        return func(*structure)
    unknown = sorted(kwargs.keys() - {"check_types", "expand_composites"})
    if unknown:
        raise ValueError(
            "Only valid keyword arguments are check_types and expand_composites, not: "
            f"{', '.join(unknown)}."
        )
    if not callable(func):
        raise TypeError(f"func must be callable, got: {func!r}")
    if not structure:
        raise ValueError("Must provide at least one structure")
    for other in structure[1:]:
        assert_same_structure(structure[0], other, check_types=kwargs.get("check_types", True))
    leaves = [flatten(s) for s in structure]
    return pack_sequence_as(structure[0], [func(*items) for items in zip(*leaves, strict=True)])


def assert_same_structure(
    nest1: PyTree, nest2: PyTree, check_types: bool = True, expand_composites: bool = False
) -> None:
    """Check that two structures have the same form.

    Args:
      nest1: A structure.
      nest2: A structure.
      check_types: Whether containers of other types, and dictionaries of other keys, count as different.
      expand_composites: Whether the components of composite tensors, and the parts of a strategy's values, are leaves.

    Raises:
      ValueError: If the structures differ in form; the message contains the path of the difference.
      TypeError: If containers differ in type.

    Example:
      >>> tf.nest.assert_same_structure([1, {"a": 2}], [3, {"a": "b"}])
      >>> tf.nest.assert_same_structure([1, 2], [1, [2]])  # doctest: +IGNORE_EXCEPTION_DETAIL
      Traceback (most recent call last):
        ...
      ValueError: The two structures don't have the same nested structure
    """
    try:
        _assert_same_structure(nest1, nest2, check_types, "the root")
    except (TypeError, ValueError) as error:
        first, second = (f"type={type(n).__name__} str={n}" for n in (nest1, nest2))
        dots = [pack_sequence_as(n, [_Dot()] * len(flatten(n))) for n in (nest1, nest2)]
        difference, path = error.args
        raise type(error)(
            f"The two structures don't have the same nested structure.\n\nFirst structure: {first}\n\n"
            f"Second structure: {second}\n\nMore specifically: {difference}\n"
            f"Entire first structure:\n{dots[0]}\nEntire second structure:\n{dots[1]}\nThey differ at {path}."
        ) from None


def _assert_same_structure(a: PyTree, b: PyTree, check_types: bool, path: str) -> None:
    """Raise an error with a message and the path if the structures differ."""
    if is_nested(a) != is_nested(b):
        nested, leaf = (a, b) if is_nested(a) else (b, a)
        raise ValueError(
            f'Substructure "type={type(nested).__name__} str={nested}" is a sequence, while substructure '
            f'"type={type(leaf).__name__} str={leaf}" is not',
            path,
        )
    if not is_nested(a):
        return
    if check_types and not have_same_type(a, b):
        raise TypeError(
            f"they don't have the same sequence type: the first is a {type(a).__name__}, the second a {type(b).__name__}.",
            path,
        )
    a, b = _make_indexable(a), _make_indexable(b)
    keys_a = sort_keys(a) if isinstance(a, Mapping) else list(range(len(a)))
    keys_b = sort_keys(b) if isinstance(b, Mapping) else list(range(len(b)))
    if isinstance(a, Mapping) and check_types and keys_a != keys_b:
        raise ValueError(
            f"they don't have the same set of keys: the first has {keys_a}, the second {keys_b}.",
            path,
        )
    for key, other in zip(keys_a, keys_b, strict=False):
        _assert_same_structure(a[key], b[other], check_types, f"{path}[{key!r}]")
    if len(keys_a) != len(keys_b):
        raise ValueError(
            f"they don't have the same number of elements: the first has {len(keys_a)}, the second {len(keys_b)}.",
            path,
        )


def have_same_type(a: PyTree, b: PyTree) -> bool:
    """Check whether two containers count as the same type: two mappings, lists, or equal named tuples."""
    if isinstance(a, Mapping) or isinstance(b, Mapping):
        return isinstance(a, Mapping) and isinstance(b, Mapping)
    if has_parts(a) or has_parts(b):
        return type(a) is type(b)
    if hasattr(a, "_fields") or hasattr(b, "_fields"):
        same_fields = getattr(a, "_fields", None) == getattr(b, "_fields", None)
        return same_fields and type(a).__name__ == type(b).__name__
    return isinstance(a, list) == isinstance(b, list)
