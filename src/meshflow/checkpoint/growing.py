"""Lists and dictionaries that tell when something is put into them: a checkpoint may hold its value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["growing"]


def growing(value: list[Any] | dict[Any, Any], tell: Callable[[], None]) -> Any:
    """A copy of a list or dictionary that tells of new elements.

    Args:
      value: the list or dictionary.
      tell: called when an element has been added.
    """
    made: Any = _List(value) if isinstance(value, list) else _Dict(value)
    made._tell = tell
    return made


def _nothing() -> None:
    pass


class _List(list[Any]):
    _tell: Callable[[], None] = staticmethod(_nothing)

    def append(self, value: Any) -> None:
        super().append(value)
        self._tell()

    def extend(self, values: Any) -> None:
        super().extend(values)
        self._tell()

    def insert(self, place: Any, value: Any) -> None:
        super().insert(place, value)
        self._tell()

    def __iadd__(self, values: Any) -> Any:  # type: ignore[misc]
        self.extend(values)
        return self

    def __setitem__(self, place: Any, value: Any) -> None:
        super().__setitem__(place, value)
        self._tell()

    def __reduce__(self) -> Any:
        return list, (list(self),)


class _Dict(dict[Any, Any]):
    _tell: Callable[[], None] = staticmethod(_nothing)

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key, value)
        self._tell()

    def update(self, *values: Any, **more: Any) -> None:
        super().update(*values, **more)
        self._tell()

    def setdefault(self, key: Any, default: Any = None) -> Any:
        found = super().setdefault(key, default)
        self._tell()
        return found

    def __reduce__(self) -> Any:
        return dict, (dict(self),)
