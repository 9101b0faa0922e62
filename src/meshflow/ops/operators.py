"""Python's operators on tensors and variables.

`install_operators` adds the operators to a class; Keras also adds them to its symbolic tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from meshflow.core.dispatch import dispatch
from meshflow.core.dispatch.composite import SparseTensor
from meshflow.core.dispatch.operands import MAX_FLOAT32, NumpyRules
from meshflow.core.runtime.context import context
from meshflow.core.runtime.tracebacks import hide_frames
from meshflow.core.values.composite import CompositeTensor
from meshflow.core.values.tensor import Tensor
from meshflow.core.variables.sharded_variable import ShardedVariable
from meshflow.core.variables.variable import Variable
from meshflow.ops import math
from meshflow.ops.deferred_host_values import DeferredValue

# Binary operators of Python by name, with their public ops.
BINARY_OPS: dict[str, Callable[..., Any]] = {
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
COMPARISON_OPS: dict[str, Callable[..., Any]] = {
    "lt": math.less,
    "le": math.less_equal,
    "gt": math.greater,
    "ge": math.greater_equal,
}
UNARY_OPS: dict[str, Callable[..., Any]] = {
    "neg": math.negative,
    "abs": math.abs,
    "invert": math.logical_or_bitwise_not,
}

# All methods that `install_operators` defines, except `__pos__`, which computes nothing.
OPERATOR_METHODS = (
    *(f"__{name}__" for name in (*BINARY_OPS, *COMPARISON_OPS, *UNARY_OPS, "eq", "ne")),
    *(f"__r{name}__" for name in BINARY_OPS),
)


def _overload_all_operators(cls: type) -> None:
    """Define the operators in a subclass, as TensorFlow's variables do."""
    install_operators(cls)


def _overload_operator(cls: type, operator: str) -> None:
    """Define one operator in a subclass."""
    if not isinstance(operator, str) or operator not in vars(Tensor):
        raise ValueError(f"{cls.__name__}: {operator!r} is no operator of tensors.")
    setattr(cls, operator, vars(Tensor)[operator])


def install_operators(cls: type) -> None:
    """Add the operators to a class as methods."""
    for name, function in BINARY_OPS.items():
        setattr(cls, f"__{name}__", _make_binary_method(function, name))
        setattr(cls, f"__r{name}__", _make_reflected_method(function, name))
    for name, function in COMPARISON_OPS.items():
        setattr(cls, f"__{name}__", _make_binary_method(function, name))
    for name, function in UNARY_OPS.items():
        setattr(cls, f"__{name}__", _make_unary_method(function, name))
    setattr(cls, "__pos__", lambda self: self)
    setattr(cls, "__eq__", _make_equality_method(math.equal, False))
    setattr(cls, "__ne__", _make_equality_method(math.not_equal, True))


def _make_binary_method(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    op = getattr(function, "op", None)
    defaults = getattr(function, "static_defaults", ())

    def method(self: Any, other: object) -> Any:
        if (
            op is not None
            and type(self) is Tensor
            and type(other) is Tensor
            and context.trace is None
            and self._value.dtype == other.array.dtype
            and self._value.shape == other.array.shape
            and not context.tapes
            and not context.computes_on_host
            and self._value.dtype.kind in "fi"
        ):
            # Two similar tensors that nothing observes are passed directly to the compiled op.
            try:
                return dispatch.wrap_outputs(op.get_eager(defaults)(self._value, other.array))
            except FloatingPointError as error:
                raise dispatch.translate_error(name, error, (self, other)) from error
            except ValueError:
                pass  # The general path below raises the error with an explanation.
        if context.computes_on_host and op is not None and op.host_function is not None:
            result = _compute_on_host(op.host_function, self, other, defaults)
            if result is not None:
                return dispatch.wrap_outputs(result)
        if _has_lower_priority(self, other) or (name == "mul" and isinstance(other, SparseTensor)):
            return NotImplemented
        try:
            operands = _promote(self, other)
            if context.graph is not None:
                return _record(function, name, operands)
            return function(*operands)
        except Exception as error:
            hide_frames(error)
            raise

    method.__name__ = f"__{name}__"
    return method


def _record(function: Callable[..., Any], name: str, operands: Sequence[Any]) -> Any:
    """Call the op of an operator in a version 1 graph, where the operation has the operator's name."""
    has_name = context.trace is None and name in BINARY_OPS
    return function(*operands, name=name) if has_name else function(*operands)


def _promote(x: object, y: object) -> Sequence[Any]:
    """Return two operands, promoted to a common dtype where NumPy's promotion rules are enabled."""
    return (x, y) if NumpyRules.promote is None else NumpyRules.promote([x, y])


def _compute_on_host(
    host: Callable[..., np.ndarray | None], x: object, y: object, static: tuple[Any, ...]
) -> np.ndarray | None:
    """Compute an op of a float32 host array and a similar array or number; None if it needs XLA."""
    if context.trace is not None or context.tapes or NumpyRules.promote is not None:
        return None
    array = x.array if type(x) is Tensor else None
    if type(array) is not np.ndarray or array.dtype != np.float32:
        return None
    if type(y) is float and abs(y) < MAX_FLOAT32:
        return host([array, np.asarray(y, np.float32)], static)
    other = y.array if type(y) is Tensor else None
    if type(other) is not np.ndarray or other.dtype != np.float32:
        return None
    return host([array, other], static)


def _make_reflected_method(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    def method(self: Any, other: object) -> Any:
        operands = _promote(other, self)
        return function(*operands) if context.graph is None else _record(function, name, operands)

    method.__name__ = f"__r{name}__"
    return method


def _make_unary_method(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    def method(self: Any) -> Any:
        return function(self)

    method.__name__ = f"__{name}__"
    return method


def _has_lower_priority(self: object, other: object) -> bool:
    """Check whether the operator of the other operand, a symbolic Keras tensor, must run."""
    return getattr(other, "_symbolic_priority", 0) > getattr(self, "_symbolic_priority", 0)


def _can_broadcast(first: Iterable[Any], second: Iterable[Any]) -> bool:
    try:
        np.broadcast_shapes(tuple(first), tuple(second))
    except ValueError:
        return False
    return True


def _make_equality_method(function: Callable[..., Any], default: bool) -> Callable[..., Any]:
    def method(self: Any, other: Any) -> Any:
        if other is None:
            return default
        if _has_lower_priority(self, other):
            return NotImplemented
        try:
            return function(*_promote(self, other))
        except (TypeError, ValueError):
            if isinstance(self, CompositeTensor) or not isinstance(
                other, (Tensor, Variable, np.ndarray)
            ):
                return default
            if self.dtype == other.dtype and not _can_broadcast(self.shape, other.shape):
                return Tensor(np.array(default))
            raise

    method.__name__ = "__ne__" if default else "__eq__"
    return method


_hash = {cls: cls.__hash__ for cls in (Tensor, Variable, ShardedVariable, DeferredValue)}
for _cls in _hash:
    install_operators(_cls)
    # Assigning __eq__ to a class does not remove its __hash__, which raises an explanatory error.
    _cls.__hash__ = _hash[_cls]  # type: ignore[method-assign]

# Names that classes derived from tensors and variables use in TensorFlow.
Tensor.OVERLOADABLE_OPERATORS = frozenset(  # type: ignore[attr-defined]
    (*OPERATOR_METHODS, "__getitem__")
)
Tensor.__nonzero__ = Tensor.__bool__  # type: ignore[attr-defined]
Variable._OverloadAllOperators = classmethod(_overload_all_operators)  # type: ignore[attr-defined]
Variable._OverloadOperator = classmethod(_overload_operator)  # type: ignore[attr-defined]
