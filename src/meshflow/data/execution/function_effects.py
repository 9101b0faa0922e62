"""Effects of users' functions beyond their results: random numbers of Python and NumPy, and variables."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable
from typing import Any

import numpy as np


def holds_variables(function: Callable[..., Any]) -> bool:
    """Check whether a function refers to variables, layers or generators."""
    try:
        closure = inspect.getclosurevars(function)
    except TypeError:
        return False
    values = (*closure.nonlocals.values(), *closure.globals.values())
    attributes = ("assign_add", "trainable_weights", "uniform_full_int")
    return any(hasattr(value, name) for value in values for name in attributes)


def get_random_states() -> tuple[Any, ...]:
    """Return the states of the global random number generators of Python and NumPy."""
    return random.getstate(), np.random.get_state()


def are_states_equal(before: tuple[Any, ...], after: tuple[Any, ...]) -> bool:
    """Check whether no random number was drawn between two states."""
    _, first, position, *_ = before[1]
    _, second, position_after, *_ = after[1]
    has_drawn = position != position_after or not np.array_equal(first, second)
    return not has_drawn and before[0] == after[0]
