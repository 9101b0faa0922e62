"""Lists and dictionaries that tell when something is put into them: a checkpoint may hold its value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["growing"]


def growing(value: list[Any] | dict[Any, Any], tell: Callable[[], None]) -> Any:
    """A copy of a list or dictionary that tells of new elements, also of those of lists and dictionaries in it.

    Args:
      value: the list or dictionary.
      tell: called when an element has been added.
    """
    made: Any = _List() if isinstance(value, list) else _Dict()
    made._tell = tell
    if isinstance(value, list):
        list.extend(made, map(made._taken, value))
    else:
        dict.update(made, {key: made._taken(item) for key, item in value.items()})
    return made


def _nothing() -> None:
    pass


class _Growing:
    _tell: Callable[[], None] = staticmethod(_nothing)

    def _taken(self, item: Any) -> Any:
        """An element as it is kept."""
        return growing(item, self._tell) if type(item) in (list, dict) else item


class _List(_Growing, list[Any]):
    def append(self, value: Any) -> None:
        super().append(self._taken(value))
        self._tell()

    def extend(self, values: Any) -> None:
        super().extend(map(self._taken, values))
        self._tell()

    def insert(self, place: Any, value: Any) -> None:
        super().insert(place, self._taken(value))
        self._tell()

    def __iadd__(self, values: Any) -> Any:  # type: ignore[misc]
        self.extend(values)
        return self

    def __setitem__(self, place: Any, value: Any) -> None:
        slots = isinstance(place, slice)
        super().__setitem__(place, list(map(self._taken, value)) if slots else self._taken(value))
        self._tell()

    def __reduce__(self) -> Any:
        return list, (list(self),)


class _Dict(_Growing, dict[Any, Any]):
    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key, self._taken(value))
        self._tell()

    def update(self, *values: Any, **more: Any) -> None:
        new = dict(*values, **more)
        super().update({key: self._taken(item) for key, item in new.items()})
        self._tell()

    def setdefault(self, key: Any, default: Any = None) -> Any:
        if key not in self:
            self[key] = default
        return self[key]

    def __ior__(self, values: Any) -> Any:  # type: ignore[misc]
        self.update(values)
        return self

    def __reduce__(self) -> Any:
        return dict, (dict(self),)
