"""Weak mapping from objects to values, by identity."""

from __future__ import annotations

import weakref
from typing import Any


class IdentityWeakDict:
    """A mapping by object identity, which drops an entry when its key is deleted.

    Keys need not be hashable, but must support weak references.
    """

    def __init__(self) -> None:
        self._items: dict[int, tuple[weakref.ref[Any], Any]] = {}

    def get(self, key: object) -> Any:
        """Return the value of `key`, or None."""
        entry = self._items.get(id(key))
        return None if entry is None else entry[1]

    def __setitem__(self, key: object, value: Any) -> None:
        key_id, items = id(key), self._items
        items[key_id] = weakref.ref(key, lambda _: items.pop(key_id, None)), value
