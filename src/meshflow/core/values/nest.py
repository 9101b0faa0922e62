"""Nested structures: lists, tuples, named tuples, dictionaries and attrs/dataclass-free leaves.

The rules are `tf.nest`'s: dictionaries are visited in sorted key order, None is a leaf, and so
are tensors, arrays, strings and every object that is none of the containers above.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def is_nested(structure: Any) -> bool:
    """Whether `structure` is a container: a list, tuple or dictionary.

    Example:
      >>> import meshflow as tf
      >>> tf.nest.is_nested([1]), tf.nest.is_nested(1)
      (True, False)
    """
    return isinstance(structure, (list, tuple, Mapping))


def _sorted_keys(mapping: Mapping[Any, Any]) -> list[Any]:
    try:
        return sorted(mapping)
    except TypeError:
        raise TypeError(
            f"nest only supports dicts with sortable keys, got {list(mapping)!r}."
        ) from None


def flatten(structure: Any, expand_composites: bool = False) -> list[Any]:
    """The leaves of a nested structure, in order.

    Args:
      structure: any structure; a single leaf gives a list of one.
      expand_composites: whether the parts of a strategy's values count, rather than the values.

    Returns:
      A list.

    Example:
      >>> import meshflow as tf
      >>> tf.nest.flatten({"b": [1, 2], "a": 3})
      [3, 1, 2]
    """
    leaves: list[Any] = []
    _flatten_into(structure, leaves)
    return leaves


def _flatten_into(structure: Any, leaves: list[Any]) -> None:
    if isinstance(structure, (list, tuple)):
        for item in structure:
            _flatten_into(item, leaves)
    elif isinstance(structure, Mapping):
        for key in _sorted_keys(structure):
            _flatten_into(structure[key], leaves)
    else:
        leaves.append(structure)


def flatten_up_to(shallow: Any, structure: Any, where: str = "the root") -> list[Any]:
    """The parts of `structure` at the leaves of `shallow`.

    Raises:
      ValueError: when `structure` does not reach down that far, saying where.
    """
    if not is_nested(shallow):
        return [structure]
    keys = _sorted_keys(shallow) if isinstance(shallow, Mapping) else list(range(len(shallow)))
    if not is_nested(structure) or len(structure) != len(keys):
        raise ValueError(
            f"Structures differ at {where}: expected {len(keys)} parts {keys}, got {structure!r}."
        )
    parts: list[Any] = []
    for key in keys:
        parts.extend(flatten_up_to(shallow[key], structure[key], f"{where}[{key!r}]"))
    return parts


def pack_sequence_as(structure: Any, flat_sequence: Any, expand_composites: bool = False) -> Any:
    """Puts flat values into the shape of `structure`.

    Args:
      structure: the structure to copy.
      flat_sequence: as many values as `structure` has leaves.
      expand_composites: whether the parts of a strategy's values count, rather than the values.

    Returns:
      A structure like `structure` with the given leaves.

    Raises:
      ValueError: when the number of values differs.

    Example:
      >>> import meshflow as tf
      >>> tf.nest.pack_sequence_as({"a": 0, "b": (0, 0)}, [1, 2, 3])
      {'a': 1, 'b': (2, 3)}
    """
    flat = list(flat_sequence)
    plain = type(structure) in (tuple, list) and len(structure) == len(flat)
    if plain and not any(is_nested(item) for item in structure):
        # The usual case, without looking at each leaf twice.
        return type(structure)(flat)
    expected = len(flatten(structure))
    if expected != len(flat):
        raise ValueError(
            f"Structure had {expected} elements, but flat_sequence had {len(flat)} elements. "
            f"Structure: {structure!r}."
        )
    return _pack(structure, iter(flat))


def _pack(structure: Any, supply: Any) -> Any:
    if isinstance(structure, (list, tuple)):
        return like(structure, [_pack(item, supply) for item in structure])
    if isinstance(structure, Mapping):
        # Values are supplied in sorted order, but the result keeps the dictionary's own order.
        packed = {key: _pack(structure[key], supply) for key in _sorted_keys(structure)}
        return like_mapping(structure, {key: packed[key] for key in structure})
    return next(supply)


def like(structure: Any, items: list[Any]) -> Any:
    """A list or tuple of the structure's type with other items."""
    if isinstance(structure, tuple) and hasattr(structure, "_fields"):
        return type(structure)(*items)
    if type(structure) in (list, tuple):
        return type(structure)(items)
    return type(structure)(items) if isinstance(structure, tuple) else list(items)


def like_mapping(structure: Mapping[Any, Any], items: dict[Any, Any]) -> Any:
    """A mapping of the structure's type with other values."""
    if type(structure) is dict:
        return items
    if hasattr(structure, "default_factory"):
        return type(structure)(structure.default_factory, items)  # type: ignore[call-arg]
    try:
        return type(structure)(items)  # type: ignore[call-arg]
    except TypeError:
        return items


def map_structure(func: Callable[..., Any], *structure: Any, **kwargs: Any) -> Any:
    """Applies `func` to the corresponding leaves of one or more structures.

    Args:
      func: called with one leaf of each structure.
      *structure: structures of the same form.
      **kwargs: `check_types` (default True) and `expand_composites`.

    Returns:
      A structure like the first one.

    Raises:
      ValueError: when the structures differ, or for another keyword.
      TypeError: when `func` is not callable.

    Example:
      >>> import meshflow as tf
      >>> tf.nest.map_structure(lambda a, b: a + b, [1, (2,)], [10, (20,)])
      [11, (22,)]
    """
    unknown = sorted(kwargs.keys() - {"check_types", "expand_composites"})
    if unknown:
        raise ValueError(
            f"map_structure takes the keywords check_types and expand_composites only, got {unknown}."
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
    nest1: Any, nest2: Any, check_types: bool = True, expand_composites: bool = False
) -> None:
    """Raises unless two structures have the same form.

    Args:
      nest1: a structure.
      nest2: a structure.
      check_types: whether a list and a tuple count as different.
      expand_composites: whether the parts of a strategy's values count, rather than the values.

    Raises:
      ValueError: when they differ in form, saying where.
      TypeError: when containers differ in type.

    Example:
      >>> import meshflow as tf
      >>> tf.nest.assert_same_structure([1, {"a": 2}], [3, {"a": "b"}])
      >>> tf.nest.assert_same_structure([1, 2], [1, [2]])  # doctest: +IGNORE_EXCEPTION_DETAIL
      Traceback (most recent call last):
        ...
      ValueError: The two structures don't have the same nested structure
    """
    _compare(nest1, nest2, check_types, "the root")


def _compare(a: Any, b: Any, check_types: bool, where: str) -> None:
    if is_nested(a) != is_nested(b):
        raise ValueError(
            f"The two structures don't have the same nested structure: at {where} the first has "
            f"{type(a).__name__} {a!r}, the second {type(b).__name__} {b!r}."
        )
    if not is_nested(a):
        return
    if isinstance(a, Mapping) != isinstance(b, Mapping) or (check_types and not _same_kind(a, b)):
        raise TypeError(
            "The two structures don't have the same sequence type: at "
            f"{where} the first is a {type(a).__name__}, the second a {type(b).__name__}."
        )
    keys_a = _sorted_keys(a) if isinstance(a, Mapping) else list(range(len(a)))
    keys_b = _sorted_keys(b) if isinstance(b, Mapping) else list(range(len(b)))
    if keys_a != keys_b:
        raise ValueError(
            f"The two structures don't have the same number of elements or keys: at {where} the "
            f"first has {keys_a}, the second {keys_b}."
        )
    for key in keys_a:
        _compare(a[key], b[key], check_types, f"{where}[{key!r}]")


def _same_kind(a: Any, b: Any) -> bool:
    if isinstance(a, Mapping):
        return True
    if hasattr(a, "_fields") or hasattr(b, "_fields"):
        same_fields = getattr(a, "_fields", None) == getattr(b, "_fields", None)
        return same_fields and type(a).__name__ == type(b).__name__
    return isinstance(a, list) == isinstance(b, list)
