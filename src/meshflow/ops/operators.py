"""Python's operators on tensors and variables.

`install_operators` adds the operators to a class; Keras also adds them to its symbolic tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
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

# Binary operators of Python by name, with their public ops.
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

# All methods that `install_operators` defines, except `__pos__`, which computes nothing.
OPERATOR_METHODS = (
    *(f"__{name}__" for name in (*BINARY, *COMPARISONS, *UNARY, "eq", "ne")),
    *(f"__r{name}__" for name in BINARY),
)


def install(cls: type) -> None:
    """Add the operators to a class as methods."""
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

    def method(self: Any, other: object) -> Any:
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
            # Two similar tensors that nothing observes are passed directly to the compiled op.
            try:
                return dispatch.wrap(op.compiled(defaults)(self._value, other._value))
            except FloatingPointError as error:
                raise dispatch.explain(name, error, (self, other)) from error
            except ValueError:
                pass  # The general path below raises the error with an explanation.
        if context.on_host and op is not None and op.host is not None:
            result = _on_host(op.host, self, other, defaults)
            if result is not None:
                return dispatch.wrap(result)
        if _gives_way(self, other):
            return NotImplemented
        return function(*_promoted(self, other))

    method.__name__ = f"__{name}__"
    return method


def _promoted(x: object, y: object) -> Sequence[Any]:
    """Return two operands, promoted to a common dtype where NumPy's promotion rules are enabled."""
    return (x, y) if NumpyRules.promote is None else NumpyRules.promote([x, y])


def _on_host(
    host: Callable[..., np.ndarray | None], x: object, y: object, static: tuple[Any, ...]
) -> np.ndarray | None:
    """Compute an op of a float32 host array and a similar array or number; None if it needs XLA."""
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
    def method(self: Any, other: object) -> Any:
        return function(*_promoted(other, self))

    method.__name__ = f"__r{name}__"
    return method


def _unary(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    def method(self: Any) -> Any:
        return function(self)

    method.__name__ = f"__{name}__"
    return method


def _gives_way(self: object, other: object) -> bool:
    """Check whether the operator of the other operand, a symbolic Keras tensor, must run."""
    return getattr(other, "_symbolic_priority", 0) > getattr(self, "_symbolic_priority", 0)


def _fit(first: Iterable[Any], second: Iterable[Any]) -> bool:
    try:
        np.broadcast_shapes(tuple(first), tuple(second))
    except ValueError:
        return False
    return True


def _equality(function: Callable[..., Any], default: bool) -> Callable[..., Any]:
    def method(self: Any, other: Any) -> Any:
        if other is None:
            return default
        if _gives_way(self, other):
            return NotImplemented
        try:
            return function(*_promoted(self, other))
        except (TypeError, ValueError):
            if not isinstance(other, (Tensor, Variable, np.ndarray)):
                return default
            if self.dtype == other.dtype and not _fit(self.shape, other.shape):
                return Tensor(np.array(default))
            raise

    method.__name__ = "__ne__" if default else "__eq__"
    return method


_hash = {cls: cls.__hash__ for cls in (Tensor, Variable, ShardedVariable, Pending)}
for _cls in _hash:
    install(_cls)
    # Assigning __eq__ to a class does not remove its __hash__, which raises an explanatory error.
    _cls.__hash__ = _hash[_cls]  # type: ignore[method-assign]
