"""Shared parts of the converters that lower flat programs by one rule per primitive.

A rule is a function of the lowering `l` and an equation `e`. It emits operators of the runtime and
returns the tensors of the results.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Generic, Protocol, TypeAlias, TypeVar

import numpy as np
from jax import lax
from numpy.typing import DTypeLike

from meshflow.core.runtime.errors import UnimplementedError
from meshflow.deployment.equations import DimSize, Equation, Program, Value
from meshflow.environment.types import ArrayLike

# Padding before and after each dimension; symbolic where it depends on symbolic sizes.
Pads: TypeAlias = Sequence[tuple[DimSize, ...]]


class LoweredTensor(Protocol):
    """Tensor of a runtime's graph."""

    shape: tuple[DimSize, ...]
    dtype: np.dtype
    data: np.ndarray | None


TensorT = TypeVar("TensorT", bound=LoweredTensor)
RuleT = TypeVar("RuleT", bound=Callable[..., Any])


class LoweringError(Exception):
    """Error of an equation that cannot be converted; the message states the reason."""


def is_static(size: DimSize) -> bool:
    """Check whether a size is an integer, not symbolic."""
    return isinstance(size, (int, np.integer))


def find_tensor_with_size(tensors: Iterable[TensorT], name: str) -> tuple[TensorT, int, int]:
    """Find a tensor with a dimension that is a symbolic size or a multiple of it.

    Returns:
      The tensor, the dimension, and the multiple.

    Raises:
      LoweringError: if no tensor has such a dimension.
    """
    for tensor in tensors:
        for axis, size in enumerate(tensor.shape):
            multiple, _, symbol = str(size).rpartition("*")
            if symbol == name and (not multiple or multiple.isdigit()):
                return tensor, axis, int(multiple or 1)
    raise LoweringError(f"no input has the symbolic size {name}")


def compute_same_padding(
    shape: Sequence[DimSize], windows: Sequence[int], strides: Sequence[int]
) -> Pads:
    """Compute the padding of each dimension by XLA's rule 'SAME'.

    Args:
      shape: sizes of the spatial dimensions; may be symbolic.
      windows: sizes of the dilated windows.
      strides: strides of the windows.
    """
    pads = lax.padtype_to_pads(shape, windows, strides, "SAME")
    return [tuple(int(n) if is_static(n) else n for n in pair) for pair in pads]


class Lowering(Generic[TensorT]):
    """Base of the classes that lower a program for a runtime.

    Attributes:
      runtime: name of the runtime in errors.
      caller: public function or module that errors name.
      rules: rule of each primitive.
      operators: operators of primitives of one or two operands, which need no other rule.
      dtype_replacements: dtypes in which the runtime computes instead of others.
    """

    runtime: ClassVar[str]
    caller: ClassVar[str]
    rules: ClassVar[dict[str, Rule]]
    operators: ClassVar[Mapping[str, str]]
    dtype_replacements: ClassVar[Mapping[str, str]]

    def __init__(self) -> None:
        self._tensors: dict[Value, TensorT] = {}
        self._size_tensors: dict[DimSize, TensorT] = {}
        self._constants: dict[Any, tuple[np.ndarray, TensorT]] = {}
        self.scope = ""

    @classmethod
    def register_rule(cls, *names: str) -> Callable[[RuleT], RuleT]:
        """Return a decorator that registers a rule for primitives."""

        def register(rule: RuleT) -> RuleT:
            cls.rules.update(dict.fromkeys(names, rule))
            return rule

        return register

    # ---- operations that each runtime implements ---------------------------------------------

    def make_constant(self, array: np.ndarray) -> TensorT:
        """Create a tensor of constant elements."""
        raise NotImplementedError

    def broadcast(self, tensor: TensorT, shape: Sequence[DimSize]) -> TensorT:
        """Repeat a tensor along its dimensions of size 1."""
        raise NotImplementedError

    def slice(self, tensor: TensorT, starts: Sequence[DimSize], limits: Sequence[DimSize], strides: Sequence[int] | None = None) -> TensorT:  # fmt: skip
        """Slice a tensor; a limit that is the symbolic size itself means all elements."""
        raise NotImplementedError

    def get_symbol_size(self, name: str) -> TensorT:
        """Return the scalar value of a symbolic size."""
        raise NotImplementedError

    def emit(self, code: str, inputs: Iterable[TensorT | None], shape: Iterable[DimSize], dtype: DTypeLike, **options: Any) -> TensorT:  # fmt: skip
        """Add an operator of one result, and return the result."""
        raise NotImplementedError

    def emit_binary(self, code: str, x: TensorT, y: TensorT) -> TensorT:
        """Add an elementwise operator of two operands, which broadcast."""
        raise NotImplementedError

    def emit_reshape(self, tensor: TensorT, shape: Sequence[DimSize]) -> TensorT:
        """Add an operator that reshapes a tensor."""
        raise NotImplementedError

    def emit_transpose(self, tensor: TensorT, order: Sequence[int]) -> TensorT:
        """Add an operator that permutes the dimensions of a tensor."""
        raise NotImplementedError

    def emit_cast(self, tensor: TensorT, dtype: np.dtype) -> TensorT:
        """Add an operator that converts a tensor to another dtype."""
        raise NotImplementedError

    size_dtype: ClassVar[DTypeLike] = np.int32

    # ---- operators that many rules use ------------------------------------------------------

    @classmethod
    def to_supported_dtype(cls, dtype: DTypeLike) -> np.dtype:
        """Return the dtype in which the runtime computes."""
        dtype = np.dtype(dtype)
        return np.dtype(cls.dtype_replacements.get(dtype.name, dtype))

    def compute(self, primitive: str, *operands: TensorT) -> TensorT:
        """Add the operator of an elementwise primitive of one or two operands."""
        code = self.operators[primitive]
        return (
            self.emit_unary(code, *operands)
            if len(operands) == 1
            else self.emit_binary(code, *operands)
        )

    def emit_unary(self, code: str, tensor: TensorT) -> TensorT:
        """Add an elementwise operator of one operand."""
        return self.emit(code, [tensor], tensor.shape, tensor.dtype)

    def make_scalar(self, like: TensorT, value: float) -> TensorT:
        """Return a scalar of the dtype of a tensor."""
        return self.get_constant(np.asarray(value, like.dtype))

    def reshape(self, tensor: TensorT, shape: Sequence[DimSize]) -> TensorT:
        """Reshape a tensor."""
        if tuple(shape) == tensor.shape:
            return tensor
        if tensor.data is not None and all(map(is_static, shape)):
            return self.get_constant(tensor.data.reshape(shape))
        return self.emit_reshape(tensor, shape)

    def transpose(self, tensor: TensorT, order: Iterable[int]) -> TensorT:
        """Permute the dimensions of a tensor."""
        order = [int(i) for i in order]
        if order == list(range(len(order))):
            return tensor
        if tensor.data is not None:
            return self.get_constant(tensor.data.transpose(order))
        return self.emit_transpose(tensor, order)

    def cast(self, tensor: TensorT, dtype: DTypeLike) -> TensorT:
        """Convert a tensor to another dtype."""
        dtype = self.to_supported_dtype(dtype)
        if tensor.dtype == dtype:
            return tensor
        if tensor.data is not None:
            return self.get_constant(tensor.data.astype(dtype))
        return self.emit_cast(tensor, dtype)

    # ---- programs --------------------------------------------------------------------------

    def lower_program(self, program: Program, inputs: Sequence[TensorT]) -> list[TensorT]:
        """Lower a program and return its results.

        Args:
          program: the program.
          inputs: tensors of its inputs.

        Raises:
          UnimplementedError: if a primitive cannot be converted; names the primitive and its layer.
        """
        self._tensors.update(zip(program.inputs, inputs, strict=True))
        for equation in program.equations:
            self._lower_equation(equation)
        return [self.get_tensor(value) for value in program.outputs]

    def _lower_equation(self, equation: Equation) -> None:
        self.scope = equation.scope
        rule = self.rules.get(equation.name, _COMMON_RULES.get(equation.name))
        if rule is None and equation.name in self.operators:
            rule = _lower_operator
        try:
            if rule is None:
                raise LoweringError(
                    f"{self.runtime} has no operator for it, and Meshflow no composition"
                )
            results = rule(self, equation)
        except LoweringError as error:
            location = f"of layer {equation.scope!r}" if equation.scope else "outside of layers"
            shapes = ", ".join(f"{v.dtype.name}{list(v.shape)}" for v in equation.inputs)
            raise UnimplementedError(
                f"{self.caller}: the primitive {equation.name!r} {location} with operands {shapes} cannot be converted: "
                f"{error}."
            ) from None
        results = results if isinstance(results, list) else [results]
        self._tensors.update(zip(equation.outputs, results, strict=True))

    # ---- tensors and sizes -------------------------------------------------------------------

    def get_base(self, value: Value) -> TensorT:
        """Return the tensor of a value before broadcasting."""
        value = value.base
        if value.data is not None:
            return self.get_constant(value.data)
        return self._tensors[value]

    def get_tensor(self, value: Value) -> TensorT:
        """Return the tensor of a value after broadcasting."""
        if value not in self._tensors:
            tensor = self.get_base(value)
            if tensor.shape == value.shape:
                return tensor
            self._tensors[value] = self.broadcast(tensor, value.shape)
        return self._tensors[value]

    def get_constant(self, array: ArrayLike) -> TensorT:
        """Return a constant tensor; small constants with equal elements are shared."""
        data = np.asarray(array)
        small = data.size < 64
        key = (data.dtype.str, data.shape, data.tobytes()) if small else id(data)
        if key not in self._constants:
            # The entry holds the array, so that no other array can have its id.
            self._constants[key] = data, self.make_constant(data)
        return self._constants[key][1]

    def get_size(self, size: DimSize) -> TensorT:
        """Return a size as a scalar tensor."""
        if is_static(size):
            return self.get_constant(np.asarray(size, self.size_dtype))
        if size not in self._size_tensors:
            terms = [self._lower_term(term, count) for term, count in size._sorted_terms]
            self._size_tensors[size] = functools.reduce(
                functools.partial(self.compute, "add"), terms
            )
        return self._size_tensors[size]

    def _lower_term(self, term: Any, count: int) -> TensorT:
        """Multiply the factors of a term of a symbolic size; the empty product is 1."""
        factors = [self._lower_factor(f) for f, power in term._factors for _ in range(power)]
        if count != 1 or not factors:
            factors.append(self.get_size(count))
        return functools.reduce(functools.partial(self.compute, "mul"), factors)

    def _lower_factor(self, factor: Any) -> TensorT:
        if factor.var is not None:
            return self.get_symbol_size(factor.var)
        return self.compute(factor.operation, *map(self.get_size, factor.operands))


# ---- rules that all runtimes share -----------------------------------------------------------


Rule: TypeAlias = Callable[[Any, Equation], Any]


def _lower_reshape(l: Lowering[TensorT], e: Equation) -> TensorT:
    value, order = l.get_tensor(e.inputs[0]), e.params.get("dimensions")
    if e.name == "reshape" and order is not None:
        value = l.transpose(value, order)
    return l.reshape(value, e.outputs[0].shape)


def _lower_transpose(l: Lowering[TensorT], e: Equation) -> TensorT:
    return l.transpose(l.get_tensor(e.inputs[0]), e.params["permutation"])


def _lower_slice(l: Lowering[TensorT], e: Equation) -> TensorT:
    p = e.params
    return l.slice(l.get_tensor(e.inputs[0]), p["start_indices"], p["limit_indices"], p["strides"])


def _lower_broadcast(l: Lowering[TensorT], e: Equation) -> TensorT:
    return l.broadcast(l.get_base(e.inputs[0]), e.outputs[0].shape)


def _lower_tile(l: Lowering[TensorT], e: Equation) -> TensorT:
    # A repeated dimension gets a dimension of size 1 before it, which is broadcast.
    value, split, repeated = l.get_tensor(e.inputs[0]), [], []
    for size, count in zip(value.shape, e.params["reps"], strict=True):
        split += [size] if count == 1 else [1, size]
        repeated += [size] if count == 1 else [count, size]
    return l.reshape(l.broadcast(l.reshape(value, split), repeated), e.outputs[0].shape)


def _lower_dim_as_value(l: Lowering[TensorT], e: Equation) -> TensorT:
    return l.cast(l.get_size(e.params["dim"]), e.outputs[0].dtype)


def _lower_operator(l: Lowering[TensorT], e: Equation) -> TensorT:
    return l.compute(e.name, *map(l.get_base, e.inputs))


def _lower_clamp(l: Lowering[TensorT], e: Equation) -> TensorT:
    low, value, high = map(l.get_base, e.inputs)
    return l.compute("min", l.compute("max", value, low), high)


def _lower_log1p(l: Lowering[TensorT], e: Equation) -> TensorT:
    value = l.get_base(e.inputs[0])
    return l.compute("log", l.compute("add", value, l.make_scalar(value, 1)))


def _lower_expm1(l: Lowering[TensorT], e: Equation) -> TensorT:
    value = l.get_base(e.inputs[0])
    return l.compute("sub", l.compute("exp", value), l.make_scalar(value, 1))


def _lower_exp2(l: Lowering[TensorT], e: Equation) -> TensorT:
    value = l.get_base(e.inputs[0])
    return l.compute("exp", l.compute("mul", value, l.make_scalar(value, np.log(2.0))))


def _lower_round(l: Lowering[TensorT], e: Equation) -> TensorT:
    value = l.get_base(e.inputs[0])
    if int(e.params["rounding_method"]) == 1:
        return l.compute("round", value)
    half = l.compute("add", l.compute("abs", value), l.make_scalar(value, 0.5))
    return l.compute("mul", l.compute("sign", value), l.compute("floor", half))


def _lower_is_finite(l: Lowering[TensorT], e: Equation) -> TensorT:
    value = l.compute("abs", l.get_base(e.inputs[0]))
    return l.compute("le", value, l.make_scalar(value, np.finfo(value.dtype).max))


_COMMON_RULES: dict[str, Rule] = {
    **dict.fromkeys(("reshape", "squeeze", "expand_dims"), _lower_reshape),
    "transpose": _lower_transpose,
    "slice": _lower_slice,
    "tile": _lower_tile,
    "broadcast": _lower_broadcast,
    "dim_as_value": _lower_dim_as_value,
    "clamp": _lower_clamp,
    "log1p": _lower_log1p,
    "expm1": _lower_expm1,
    "exp2": _lower_exp2,
    "round": _lower_round,
    "is_finite": _lower_is_finite,
}
