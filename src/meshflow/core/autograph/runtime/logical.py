"""`and`, `or`, `not`, chained comparisons and `assert`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meshflow.core.staging.logic import both, either, is_symbolic, negated


def and_(value: Any, *others: Callable[[], Any]) -> Any:
    """`value and others[0]() and ...`.

    Once an operand is symbolic, the following ones are all computed and combined.
    """
    for other in others:
        if is_symbolic(value):
            value = both(value, other())
        elif not value:
            return value
        else:
            value = other()
    return value


def or_(value: Any, *others: Callable[[], Any]) -> Any:
    """`value or others[0]() or ...`."""
    for other in others:
        if is_symbolic(value):
            value = either(value, other())
        elif value:
            return value
        else:
            value = other()
    return value


def not_(value: Any) -> Any:
    """`not value`."""
    return negated(value) if is_symbolic(value) else not value


def chain(left: Any, *steps: Callable[..., Any]) -> Any:
    """`a < b < c`: `steps` alternate between a comparison and the computation of its right side."""
    result: Any = True
    for compare, right_side in zip(steps[::2], steps[1::2], strict=True):
        right = right_side()
        outcome = compare(left, right)
        result = both(result, outcome) if is_symbolic(result) else outcome
        if not is_symbolic(result) and not result:
            return result
        left = right
    return result


_assertions: list[Callable[..., Any]] = []


def register_assertion(function: Callable[..., Any]) -> None:
    """Has `assert` of a symbolic tensor call `function(test, data)`."""
    _assertions[:] = [function]


def assert_(test: Any, message: Callable[[], Any] | None, text: str) -> None:
    """`assert test, message`; of a symbolic tensor it is checked when the function runs."""
    if not __debug__:
        return
    if is_symbolic(test):
        shown = message() if message is not None else f"assertion failed: {text}"
        _assertions[0](test, [shown])
    elif not test:
        raise AssertionError(*(() if message is None else (message(),)))
