"""Arguments of datasets' methods: their constants, and checks of what is given."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Sequence
from typing import Any

from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.values.tensor import Tensor

AUTOTUNE = -1
INFINITE_CARDINALITY = -1
UNKNOWN_CARDINALITY = -2
# Stands for the number of workers, and for a worker's own, in `shard`.
SHARD_HINT = -1


def takes(fn: Callable[..., Any]) -> int:
    """How many positional arguments a function takes; a large number for any number."""
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):
        return 1
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return 1 << 30
    return sum(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters)


def integer(value: Any, name: str) -> int:
    """An argument as an integer.

    Raises:
      TypeError: when it is none.
    """
    if isinstance(value, Tensor):
        value = value._concrete(f"`{name}` of a dataset")[()]
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an integer, got {value!r}.") from None


def as_sequence(value: Any) -> Sequence[Any]:
    """A value as a list of one, a list or tuple as it is."""
    return value if isinstance(value, (list, tuple)) else [value]


def threads_of(calls: Any) -> int:
    """How many calls may run at a time; -1 where that is left open.

    Raises:
      InvalidArgumentError: when it is not greater than zero.
    """
    number = integer(calls, "num_parallel_calls")
    if number < 1 and number != AUTOTUNE:
        raise InvalidValueError(f"num_parallel_calls must be greater than zero, got {number}.")
    return number
