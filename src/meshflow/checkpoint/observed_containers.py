"""Lists and dictionaries that report new elements to a pending restoration."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any, Self, SupportsIndex, TypeAlias, TypeVar

ItemT = TypeVar("ItemT")
ObservedContainer: TypeAlias = "_ObservedList | _ObservedDict"


def observe_additions(
    value: list[Any] | dict[Any, Any], on_addition: Callable[[], None]
) -> ObservedContainer:
    """Return a copy of a list or dictionary that reports new elements, including nested ones.

    Args:
      value: List or dictionary.
      on_addition: Function to call after an element was added.
    """
    if isinstance(value, list):
        observed_list = _ObservedList()
        observed_list._on_addition = on_addition
        list.extend(observed_list, map(observed_list._wrap_container, value))
        return observed_list
    observed_dict = _ObservedDict()
    observed_dict._on_addition = on_addition
    dict.update(
        observed_dict, {key: observed_dict._wrap_container(item) for key, item in value.items()}
    )
    return observed_dict


def _ignore_addition() -> None:
    pass


class _AdditionObserver:
    _on_addition: Callable[[], None] = staticmethod(_ignore_addition)

    def _wrap_container(self, item: ItemT) -> ItemT | ObservedContainer:
        """Return an element to store: a plain list or dictionary becomes an observed one."""
        if isinstance(item, (list, dict)) and type(item) in (list, dict):
            return observe_additions(item, self._on_addition)
        return item


class _ObservedList(_AdditionObserver, list[Any]):
    def append(self, value: object) -> None:
        super().append(self._wrap_container(value))
        self._on_addition()

    def extend(self, values: Iterable[Any]) -> None:
        super().extend(map(self._wrap_container, values))
        self._on_addition()

    def insert(self, index: SupportsIndex, value: object) -> None:
        super().insert(index, self._wrap_container(value))
        self._on_addition()

    def __iadd__(self, values: Iterable[Any]) -> Self:  # type: ignore[misc]
        self.extend(values)
        return self

    def __setitem__(self, index: Any, value: Any) -> None:
        is_slice = isinstance(index, slice)
        super().__setitem__(
            index,
            list(map(self._wrap_container, value)) if is_slice else self._wrap_container(value),
        )
        self._on_addition()

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (list(self),)


class _ObservedDict(_AdditionObserver, dict[Any, Any]):
    def __setitem__(self, key: Hashable, value: object) -> None:
        super().__setitem__(key, self._wrap_container(value))
        self._on_addition()

    def update(self, *values: Any, **more: Any) -> None:
        new = dict(*values, **more)
        super().update({key: self._wrap_container(item) for key, item in new.items()})
        self._on_addition()

    def setdefault(self, key: Any, default: Any = None) -> Any:
        if key not in self:
            self[key] = default
        return self[key]

    def __ior__(self, values: Any) -> Self:  # type: ignore[misc]
        self.update(values)
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)
