"""Python's operators on tensors and variables, as one table.

`install` gives a class the operators; Keras installs them on its symbolic tensors too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from meshflow.core.dispatch import dispatch
from meshflow.core.dispatch.operands import FITS_FLOAT32, NumpyRules
from meshflow.core.runtime.context import context
from meshflow.core.values.tensor import Tensor
from meshflow.core.variables.sharded_variable import ShardedVariable
from meshflow.core.variables.variable import Variable
from meshflow.ops import math
from meshflow.ops.deferred_host_values import Pending

# Python method -> public op of two operands.
BINARY: dict[str, Callable[..., Any]] = {
    "add": math.add,
    "sub": math.subtract,
    "mul": math.multiply,
    "truediv": math.truediv,
    "floordiv": math.floordiv,
    "mod": math.floormod,
    "pow": math.pow,
    "matmul": math.matmul,
    "and": math.logical_or_bitwise_and,
    "or": math.logical_or_bitwise_or,
    "xor": math.logical_or_bitwise_xor,
}
COMPARISONS: dict[str, Callable[..., Any]] = {
    "lt": math.less,
    "le": math.less_equal,
    "gt": math.greater,
    "ge": math.greater_equal,
}
UNARY: dict[str, Callable[..., Any]] = {
    "neg": math.negative,
    "abs": math.abs,
    "invert": math.logical_or_bitwise_not,
}

# The methods that `install` defines, but `__pos__`, which computes nothing.
OPERATOR_METHODS = (
    *(f"__{name}__" for name in (*BINARY, *COMPARISONS, *UNARY, "eq", "ne")),
    *(f"__r{name}__" for name in BINARY),
)


def install(cls: type) -> None:
    """Defines the operators as methods of `cls`."""
    for name, function in BINARY.items():
        setattr(cls, f"__{name}__", _forward(function, name))
        setattr(cls, f"__r{name}__", _reflected(function, name))
    for name, function in COMPARISONS.items():
        setattr(cls, f"__{name}__", _forward(function, name))
    for name, function in UNARY.items():
        setattr(cls, f"__{name}__", _unary(function, name))
    setattr(cls, "__pos__", lambda self: self)
    setattr(cls, "__eq__", _equality(math.equal, False))
    setattr(cls, "__ne__", _equality(math.not_equal, True))


def _forward(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    op = getattr(function, "op", None)
    defaults = getattr(function, "static_defaults", ())

    def method(self: Any, other: Any) -> Any:
        if (
            op is not None
            and type(self) is Tensor
            and type(other) is Tensor
            and self._value.dtype == other._value.dtype
            and self._value.shape == other._value.shape
            and context.trace is None
            and not context.tapes
            and not context.on_host
            and self._value.dtype.kind in "fi"
        ):
            # Two like tensors, nobody looking on: straight to the compiled op.
            try:
                return dispatch.wrap(op.compiled(defaults)(self._value, other._value))
            except FloatingPointError as error:
                raise dispatch.explain(name, error, (self, other)) from error
            except ValueError:
                pass  # the long way says what is wrong
        if context.on_host and op is not None and op.host is not None:
            found = _on_host(op.host, self, other, defaults)
            if found is not None:
                return dispatch.wrap(found)
        if _gives_way(self, other):
            return NotImplemented
        return function(*_promoted(self, other))

    method.__name__ = f"__{name}__"
    return method


def _promoted(x: Any, y: Any) -> Any:
    """Two operands, in one dtype of NumPy's choice where its rules are in force."""
    return (x, y) if NumpyRules.promote is None else NumpyRules.promote([x, y])


def _on_host(host: Callable[..., Any], x: Any, y: Any, static: tuple[Any, ...]) -> Any:
    """What an op gives for a float32 array in an input pipeline and another or a number; or None."""
    if context.trace is not None or context.tapes or NumpyRules.promote is not None:
        return None
    array = x._value if type(x) is Tensor else None
    if type(array) is not np.ndarray or array.dtype != np.float32:
        return None
    if type(y) is float and abs(y) < FITS_FLOAT32:
        return host([array, np.asarray(y, np.float32)], static)
    other = y._value if type(y) is Tensor else None
    if type(other) is not np.ndarray or other.dtype != np.float32:
        return None
    return host([array, other], static)


def _reflected(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    def method(self: Any, other: Any) -> Any:
        return function(*_promoted(other, self))

    method.__name__ = f"__r{name}__"
    return method


def _unary(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    def method(self: Any) -> Any:
        return function(self)

    method.__name__ = f"__{name}__"
    return method


def _gives_way(self: Any, other: Any) -> bool:
    """Whether the other operand's own operator should run: for symbolic Keras tensors."""
    return getattr(other, "_symbolic_priority", 0) > getattr(self, "_symbolic_priority", 0)


def _fit(one: Any, other: Any) -> bool:
    """Whether two shapes broadcast."""
    try:
        np.broadcast_shapes(tuple(one), tuple(other))
    except ValueError:
        return False
    return True


def _equality(function: Callable[..., Any], otherwise: bool) -> Callable[..., Any]:
    def method(self: Any, other: Any) -> Any:
        if other is None:
            return otherwise
        if _gives_way(self, other):
            return NotImplemented
        try:
            return function(*_promoted(self, other))
        except (TypeError, ValueError):
            if not isinstance(other, (Tensor, Variable, np.ndarray)):
                return otherwise
            if self.dtype == other.dtype and not _fit(self.shape, other.shape):
                return Tensor(np.array(otherwise))
            raise

    method.__name__ = "__ne__" if otherwise else "__eq__"
    return method


_hash = {cls: cls.__hash__ for cls in (Tensor, Variable, ShardedVariable, Pending)}
for _cls in _hash:
    install(_cls)
    # Defining __eq__ from outside does not drop __hash__, which explains why tensors have none.
    _cls.__hash__ = _hash[_cls]  # type: ignore[method-assign]
