"""Sizes of dimensions as objects, which version 1 of TensorFlow introduced."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import jax.export

from meshflow.environment.types import PyTree


class Dimension:
    """Size of a dimension in `TensorShape.dims`; iteration over a shape yields integers and None instead.

    Args:
      value: The size, another dimension, or None.

    Raises:
      ValueError: If the size is negative.
    """

    def __init__(self, value: Any) -> None:
        value = value.value if isinstance(value, Dimension) else value
        if value is not None and not jax.export.is_symbolic_dim(value):
            value = int(value)
            if value < 0:
                raise ValueError(f"Dimension {value} must be >= 0")
        self._value: int | None = value

    @property
    def value(self) -> int | None:
        """Return the size, or None if it is not known."""
        return self._value

    def is_compatible_with(self, other: PyTree) -> bool:
        """Check whether two sizes may be equal."""
        other = Dimension(other)
        return self._value is None or other.value is None or self._value == other.value

    def merge_with(self, other: PyTree) -> Dimension:
        """Return the known one of two compatible sizes."""
        other = Dimension(other)
        if not self.is_compatible_with(other):
            raise ValueError(f"Dimensions {self} and {other} are not compatible")
        return other if self._value is None else self

    def _combine(self, other: PyTree, function: Callable[[int, int], int]) -> Dimension:
        other = Dimension(other)
        known = self._value is not None and other.value is not None
        return Dimension(function(self._value, other.value) if known else None)  # type: ignore[arg-type]

    def __add__(self, other: Any) -> Dimension:
        return self._combine(other, lambda a, b: a + b)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Dimension:
        return self._combine(other, lambda a, b: a - b)

    def __mul__(self, other: Any) -> Dimension:
        return self._combine(other, lambda a, b: a * b)

    __rmul__ = __mul__

    def __floordiv__(self, other: Any) -> Dimension:
        return self._combine(other, lambda a, b: a // b)

    def __mod__(self, other: Any) -> Dimension:
        return self._combine(other, lambda a, b: a % b)

    def __eq__(self, other: object) -> Any:
        value = other.value if isinstance(other, Dimension) else other
        return None if self._value is None or value is None else self._value == value

    def _compare(self, other: Any, function: Callable[[int, int], bool]) -> bool | None:
        value = Dimension(other).value
        return None if self._value is None or value is None else function(self._value, value)

    def __lt__(self, other: Any) -> bool | None:
        return self._compare(other, operator.lt)

    def __le__(self, other: Any) -> bool | None:
        return self._compare(other, operator.le)

    def __gt__(self, other: Any) -> bool | None:
        return self._compare(other, operator.gt)

    def __ge__(self, other: Any) -> bool | None:
        return self._compare(other, operator.ge)

    def __hash__(self) -> int:
        return hash(self._value)

    def __int__(self) -> int:
        return self._value  # type: ignore[return-value]

    __index__ = __int__

    def __repr__(self) -> str:
        return f"Dimension({self._value})"

    def __str__(self) -> str:
        return "?" if self._value is None else str(self._value)
