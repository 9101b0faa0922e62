"""Values kept beside objects for as long as these live."""

from __future__ import annotations

import weakref
from typing import Any


class IdentityWeakDict:
    """Values by object identity, dropped when the object goes; objects need not be hashable."""

    def __init__(self) -> None:
        self._items: dict[int, tuple[weakref.ref[Any], Any]] = {}

    def get(self, key: Any) -> Any:
        """The value for `key`, or None."""
        found = self._items.get(id(key))
        return None if found is None else found[1]

    def __setitem__(self, key: Any, value: Any) -> None:
        number, items = id(key), self._items
        items[number] = weakref.ref(key, lambda _: items.pop(number, None)), value
