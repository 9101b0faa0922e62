"""Sizes of dimensions as objects, which version 1 of TensorFlow introduced."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import jax.export

from meshflow.core.values.dtypes import DType
from meshflow.environment.types import PyTree


class Dimension:
    """Size of a dimension in `TensorShape.dims`; iteration over a shape yields integers and None instead.

    Args:
      value: The size, another dimension, or None.

    Raises:
      ValueError: If the size is negative.
      TypeError: If the size is no integer.
    """

    def __init__(self, value: Any) -> None:
        value = value.value if isinstance(value, Dimension) else value
        if value is not None and not jax.export.is_symbolic_dim(value):
            value = _read_integer(value)
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
        try:
            other = Dimension(other)
        except TypeError:
            return NotImplemented
        known = self._value is not None and other.value is not None
        return Dimension(function(self._value, other.value) if known else None)  # type: ignore[arg-type]

    def __add__(self, other: Any) -> Dimension:
        return self._combine(other, lambda a, b: a + b)

    __radd__ = __add__

    def __rsub__(self, other: PyTree) -> Dimension:
        return self._combine(other, lambda a, b: b - a)

    def __rfloordiv__(self, other: PyTree) -> Dimension:
        return self._combine(other, lambda a, b: b // a)

    def __rmod__(self, other: PyTree) -> Dimension:
        return self._combine(other, lambda a, b: b % a)

    def __truediv__(self, other: PyTree) -> Dimension:
        raise _explain_division("Dimension", type(other).__name__)

    def __rtruediv__(self, other: PyTree) -> Dimension:
        raise _explain_division(type(other).__name__, "Dimension")

    def __bool__(self) -> bool:
        return bool(self._value)

    def __reduce__(self) -> tuple[type[Dimension], tuple[int | None]]:
        return Dimension, (self._value,)

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
        if not (value is None or isinstance(value, int) or hasattr(value, "__index__")):
            return NotImplemented
        return None if self._value is None or value is None else self._value == value

    def __ne__(self, other: object) -> PyTree:
        is_equal = self.__eq__(other)
        return is_equal if is_equal is None or is_equal is NotImplemented else not is_equal

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


def _read_integer(value: PyTree) -> int:
    """Return an integer, also of text, a float or an array that has the value of one.

    Raises:
      TypeError: If the value is no integer.
    """
    try:
        integer = value if type(value) is int else int(value)
        is_integer = integer == value or isinstance(value, str | bytes)
    except (TypeError, ValueError):
        is_integer = False
    # A dtype has an integer value, which is no size.
    if not is_integer or isinstance(value, DType):
        raise TypeError(
            f"Dimension value must be integer or None or have an __index__ method, got {value!r}."
        )
    return integer


def _explain_division(left: str, right: str) -> TypeError:
    return TypeError(
        f"unsupported operand type(s) for /: {left!r} and {right!r}, please use // instead"
    )
