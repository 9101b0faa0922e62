"""Lists and dictionaries that report new elements to a pending restoration."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any, Self, SupportsIndex, TypeAlias, TypeVar

__all__ = ["growing"]

ItemT = TypeVar("ItemT")
ObservedContainer: TypeAlias = "_List | _Dict"


def growing(
    value: list[Any] | dict[Any, Any], on_addition: Callable[[], None]
) -> ObservedContainer:
    """Return a copy of a list or dictionary that reports new elements, including nested ones.

    Args:
      value: List or dictionary.
      on_addition: Function to call after an element was added.
    """
    if isinstance(value, list):
        observed_list = _List()
        observed_list._tell = on_addition
        list.extend(observed_list, map(observed_list._taken, value))
        return observed_list
    observed_dict = _Dict()
    observed_dict._tell = on_addition
    dict.update(observed_dict, {key: observed_dict._taken(item) for key, item in value.items()})
    return observed_dict


def _nothing() -> None:
    pass


class _Growing:
    _tell: Callable[[], None] = staticmethod(_nothing)

    def _taken(self, item: ItemT) -> ItemT | ObservedContainer:
        """Return an element to store: a plain list or dictionary becomes an observed one."""
        if isinstance(item, (list, dict)) and type(item) in (list, dict):
            return growing(item, self._tell)
        return item


class _List(_Growing, list[Any]):
    def append(self, value: object) -> None:
        super().append(self._taken(value))
        self._tell()

    def extend(self, values: Iterable[Any]) -> None:
        super().extend(map(self._taken, values))
        self._tell()

    def insert(self, index: SupportsIndex, value: object) -> None:
        super().insert(index, self._taken(value))
        self._tell()

    def __iadd__(self, values: Iterable[Any]) -> Self:  # type: ignore[misc]
        self.extend(values)
        return self

    def __setitem__(self, index: Any, value: Any) -> None:
        is_slice = isinstance(index, slice)
        super().__setitem__(
            index, list(map(self._taken, value)) if is_slice else self._taken(value)
        )
        self._tell()

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (list(self),)


class _Dict(_Growing, dict[Any, Any]):
    def __setitem__(self, key: Hashable, value: object) -> None:
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

    def __ior__(self, values: Any) -> Self:  # type: ignore[misc]
        self.update(values)
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)
