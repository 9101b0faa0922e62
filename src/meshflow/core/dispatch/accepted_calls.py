"""Calls of ops for which all checks have succeeded before.

Whether the arguments of an op are valid, and the tensors and static values that they become, depends only on the
dtypes of tensors and on the values of other arguments. A second call that is equal in these therefore needs neither
checks nor conversions.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from meshflow.core.values.dtypes import DType
from meshflow.core.values.shapes import TensorShape
from meshflow.core.values.tensor import Tensor

# Limits of the calls of an op, and of the items in a list: tables of data are rarely passed twice.
_MAX_CALLS, _MAX_ITEMS = 512, 16
# Types of immutable arguments; an op treats equal ones alike.
_SCALARS = frozenset((int, bool, str, type(None), DType, type))

_MakeOperands: TypeAlias = Callable[[list[Tensor]], list[Any]]


class AcceptedCalls:
    """The checked calls of an op.

    Example:
      >>> calls = AcceptedCalls()
      >>> x = tf.constant([1.0, 2.0])
      >>> key, tensors = calls.describe((x, 0.5), {})
      >>> calls.add(key, tensors, [x, 0.5], [x, tf.constant(0.5)], static=())
      >>> y = tf.constant([3.0])
      >>> operands, static = calls.find(*calls.describe((y, 0.5), {}))
      >>> operands[0] is y, operands[1].numpy().item(), static
      (True, 0.5, ())
    """

    __slots__ = ("_calls",)

    def __init__(self) -> None:
        # The static arguments, and a function from the tensors to the operands, None if these are equal.
        self._calls: dict[Hashable, tuple[tuple[Any, ...], _MakeOperands | None]] = {}

    def describe(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[Hashable, list[Tensor]]:
        """Return the key of a call, None if it is not remembered, and the tensors among its arguments."""
        key: list[Any] = []
        tensors: list[Tensor] = []
        is_known = _describe(args, key, tensors)
        if kwargs and is_known:
            key += kwargs
            is_known = _describe(kwargs.values(), key, tensors)
        return (tuple(key) if is_known else None), tensors

    def find(
        self, key: Hashable, tensors: list[Tensor]
    ) -> tuple[Sequence[Any], tuple[Any, ...]] | None:
        """Return the operands and static arguments of a call; None if it is not known."""
        found = self._calls.get(key)
        if found is None:
            return None
        static, make_operands = found
        return (tensors if make_operands is None else make_operands(tensors)), static

    def add(
        self,
        key: Hashable,
        tensors: Sequence[Tensor],
        arguments: Sequence[Any],
        operands: Sequence[Any],
        static: tuple[Any, ...],
    ) -> None:
        """Remember a call unless a tensor was converted or has become a static argument.

        Args:
          key: The key of the call.
          tensors: The tensors among its arguments, in the order of the op's parameters.
          arguments: The arguments that are operands.
          operands: What they were converted to.
          static: The static arguments.
        """
        positions = itertools.count()
        try:
            template = [
                _make_template(a, o, positions) for a, o in zip(arguments, operands, strict=True)
            ]
        except TypeError:
            return
        if next(positions) == len(tensors):
            if len(self._calls) >= _MAX_CALLS:
                self._calls.clear()
            # Most calls pass only tensors, or one list of them.
            make_operands: _MakeOperands | None = functools.partial(_fill, template)
            if _has_only_positions(template):
                make_operands = None
            elif len(template) == 1 and _has_only_positions(template[0]):
                make_operands = _wrap_in_list
            self._calls[key] = static, make_operands


def _wrap_in_list(tensors: list[Tensor]) -> list[Any]:
    return [tensors]


def _has_only_positions(template: Any) -> bool:
    return type(template) is list and all(type(t) is int for t in template)


def _describe(values: Collection[Any], key: list[Any], tensors: list[Tensor]) -> bool:
    """Extend the key and the tensors of a call; return False if a value is not remembered."""
    for value in values:
        kind = type(value)
        if kind is Tensor:
            key.append(value._value.dtype)
            tensors.append(value)
        elif kind in _SCALARS:
            key += (kind, value)
        elif kind is float:
            key += (kind, value or str(value))  # 0.0 equals -0.0.
        elif (kind is list or kind is tuple) and len(value) <= _MAX_ITEMS:
            key += (kind, len(value))
            if not _describe(value, key, tensors):
                return False
        elif kind is TensorShape and value.is_fully_defined():
            key += (kind, tuple(value))
        else:
            return False
    return True


def _make_template(argument: Any, operand: Any, positions: Iterator[int]) -> Any:
    """Return an operand with positions in the list of tensors instead of tensors that are arguments."""
    if type(operand) is Tensor:
        array = operand.array
        # Ops compute strings in another way, and the value of a device depends on the context.
        if array.dtype.hasobject:
            raise TypeError("the operand depends on more than the dtypes")
        if type(argument) is Tensor and argument is operand:
            return next(positions)
        if type(argument) is not Tensor and type(array) is np.ndarray:
            return operand
    elif operand is None:
        return None
    elif isinstance(argument, (list, tuple)) and isinstance(operand, list):
        return [_make_template(a, o, positions) for a, o in zip(argument, operand, strict=True)]
    raise TypeError("the argument was converted")


def _fill(template: list[Any], tensors: list[Tensor]) -> list[Any]:
    return [
        tensors[t] if type(t) is int else _fill(t, tensors) if type(t) is list else t
        for t in template
    ]
