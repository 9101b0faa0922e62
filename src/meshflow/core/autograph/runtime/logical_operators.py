"""Execution of `and`, `or`, `not`, chained comparisons and `assert`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meshflow.core.staging.scalar_logic import is_symbolic, logical_and, logical_not, logical_or
from meshflow.core.values.tensor import Tensor


def and_(value: Any, *operands: Callable[[], Any]) -> Any:
    """Compute `value and others[0]() and ...`.

    After the first symbolic operand, all other operands are computed and combined.
    """
    for compute in operands:
        if is_symbolic(value):
            value = logical_and(value, compute())
        elif not value:
            return value
        else:
            value = compute()
    return value


def or_(value: Any, *operands: Callable[[], Any]) -> Any:
    """Compute `value or others[0]() or ...`."""
    for compute in operands:
        if is_symbolic(value):
            value = logical_or(value, compute())
        elif value:
            return value
        else:
            value = compute()
    return value


def not_(value: object) -> Tensor | bool:
    """Compute `not value`."""
    return logical_not(value) if is_symbolic(value) else not value


def compare_chain(left: Any, *steps: Callable[..., Any]) -> Any:
    """Compute `a < b < c`; `steps` alternate between a comparison and its right side."""
    result: Any = True
    for compare, right_side in zip(steps[::2], steps[1::2], strict=True):
        right = right_side()
        outcome = compare(left, right)
        result = logical_and(result, outcome) if is_symbolic(result) else outcome
        if not is_symbolic(result) and not result:
            return result
        left = right
    return result


_assertions: list[Callable[..., Any]] = []


def register_assertion(function: Callable[..., Any]) -> None:
    """Make `assert` of a symbolic tensor call `function(test, data)`."""
    _assertions[:] = [function]


def assert_(test: object, message: Callable[[], Any] | None, text: str) -> None:
    """Execute `assert test, message`; a symbolic tensor is checked when the function runs."""
    if not __debug__:
        return
    if is_symbolic(test):
        data = message() if message is not None else f"assertion failed: {text}"
        _assertions[0](test, [data])
    elif not test:
        raise AssertionError(*(() if message is None else (message(),)))
