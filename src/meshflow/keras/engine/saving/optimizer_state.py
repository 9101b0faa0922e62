"""The optimizer's state in files: the orders in which the versions of Keras write it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from meshflow.core.variables.sharded_variable import whole_variables
from meshflow.distribute.parallel.compress import ERRORS

# Keras 2.11 and later go through the slots of each variable, except these, which go slot by slot.
_SLOT_BY_SLOT = ("RMSprop",)
_BY_VARIABLE = ("Adam", "AdamW", "Adamax", "Adadelta", "Lion", "SGD")


def state_of(optimizer: Any) -> list[Any]:
    """What files hold of an optimizer: its weights, and a moving loss scale with its counter."""
    return whole_variables([*optimizer.weights, *getattr(optimizer, "_scale_weights", ())])


def restore(optimizer: Any, variables: Sequence[Any], names: Sequence[str], values: Any) -> bool:
    """Puts a stored state into an optimizer.

    Args:
      optimizer: the optimizer.
      variables: the variables it trains.
      names: names of the stored arrays, in the order they were written; may be empty strings.
      values: the stored arrays.

    Returns:
      Whether they fitted; otherwise the optimizer starts anew.
    """
    if not values or not hasattr(optimizer, "build"):
        return False
    optimizer.build(variables)
    own = state_of(optimizer)
    without_scale = whole_variables(optimizer.weights)
    if len(values) == len(without_scale):
        own = without_scale
    values = [np.asarray(v) for v in values]
    if _shapes(values) != _shapes(own):
        # What devices keep of rounding is of one mesh, and of steps that round; others begin without.
        known = zip(values, names or [""] * len(values), strict=True)
        values = [v for v, name in known if not _is_error(name)]
        own = [w for w in own if not _is_error(w.name)]
    # Keras 3 writes the optimizer's name before it.
    if not any(names) or names[0].rpartition("/")[2].startswith("iteration"):
        # Keras 2.11 and later may keep the learning rate second.
        if len(values) == len(own) + 1 and values[1].shape == ():
            values = [values[0], *values[2:]]
        values = _slot_by_slot(values, len(whole_variables(variables)), optimizer)
    if _shapes(values) != _shapes(own):
        return False
    for variable, value in zip(own, values, strict=True):
        variable.assign(value.astype(variable.dtype.dtype))
    return True


def _shapes(values: Sequence[Any]) -> list[tuple[int, ...]]:
    return [tuple(v.shape) for v in values]


def _is_error(name: str) -> bool:
    return name.partition(":")[0].rpartition("/")[2] in ERRORS


def by_variable(optimizer: Any, variables: int) -> list[Any] | None:
    """What files hold of an optimizer as Keras 2.11 and later order it: the slots of each variable in turn.

    Args:
      optimizer: the optimizer.
      variables: how many variables it trains.

    Returns:
      Its weights, or None for an optimizer that those versions keep otherwise.
    """
    own = state_of(optimizer)
    slots, kind = own[1:], type(optimizer).__name__
    if kind not in _BY_VARIABLE or not variables or len(slots) not in (variables, 2 * variables):
        return None
    return own[:1] + [slot for i in range(variables) for slot in slots[i::variables]]


def of_keras_3(optimizer: Any, variables: int) -> list[Any] | None:
    """What files of Keras 3 hold of an optimizer: its steps, its learning rate where it is a number, and its slots.

    Args:
      optimizer: the optimizer.
      variables: how many variables it trains.

    Returns:
      Variables and arrays, or None for an optimizer that Keras 3 keeps otherwise.
    """
    own = state_of(optimizer)
    slots, kind = own[1:], type(optimizer).__name__
    if not variables or len(slots) % variables or getattr(optimizer, "use_ema", False):
        return None
    if kind in _BY_VARIABLE:
        paired = slots[: 2 * variables]
        slots[: 2 * variables] = [slot for i in range(variables) for slot in paired[i::variables]]
    elif kind not in (*_SLOT_BY_SLOT, "Adagrad"):
        return None
    scheduled = isinstance(optimizer.get_config()["learning_rate"], dict)
    rate = [] if scheduled else [np.asarray(optimizer.learning_rate, "float32")]
    return [own[0], *rate, *slots]


def _slot_by_slot(values: list[Any], variables: int, optimizer: Any) -> list[Any]:
    """From the slots of each variable to the variables of each slot, the order of `weights`."""
    kind, rest = type(optimizer).__name__, values[1:]
    if kind in (*_SLOT_BY_SLOT, "Ftrl", "OptaxOptimizer") or not variables:
        return values
    paired = 2 * variables if len(rest) >= 2 * variables else len(rest)
    pairs, others = rest[:paired], rest[paired:]
    step = max(1, paired // variables)
    grouped = [value for start in range(step) for value in pairs[start::step]]
    cache = getattr(optimizer, "_momentum_cache", None)
    start = values[:1] if cache is None else [values[0], np.asarray(cache.numpy())]
    return [*start, *grouped, *others]
