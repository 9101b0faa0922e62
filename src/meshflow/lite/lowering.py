"""Programs as LiteRT's operators: one function for each primitive, found in one table.

The functions are in the modules `elementwise`, `shaping`, `products`, `loops`; here is what they share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from meshflow.core.runtime.errors import UnimplementedError
from meshflow.deployment.equations import Equation, Program, Value
from meshflow.lite.graph import Graph, Operator, Subgraph, Tensor

__all__ = ["Lowering", "Refused", "is_number", "kept_dtype", "lowers"]

Handler = Callable[["Lowering", Equation], "Tensor | list[Tensor]"]
_HANDLERS: dict[str, Handler] = {}
_COMPUTED_IN = {"bfloat16": "float32", "float16": "float32", "float64": "float32"}


class Refused(Exception):
    """A primitive cannot be converted; the message says why."""


def lowers(*names: str) -> Callable[[Handler], Handler]:
    """Says which primitives a function converts."""

    def remember(handler: Handler) -> Handler:
        _HANDLERS.update(dict.fromkeys(names, handler))
        return handler

    return remember


def is_number(size: Any) -> bool:
    """Whether a size is known."""
    return isinstance(size, (int, np.integer))


def kept_dtype(dtype: Any) -> np.dtype:
    """The dtype that LiteRT computes in: of floats, only float32 has operators."""
    dtype = np.dtype(dtype)
    return np.dtype(_COMPUTED_IN.get(dtype.name, dtype))


class Lowering:
    """Writes a program's operators into a subgraph.

    Args:
      graph: the model, which gets the subgraphs of loops and branches.
      subgraph: where operators go.
    """

    def __init__(self, graph: Graph, subgraph: Subgraph) -> None:
        self.graph, self.subgraph = graph, subgraph
        self._tensors: dict[Value, Tensor] = {}
        self._constants: dict[Any, tuple[np.ndarray, Tensor]] = {}
        self._sizes: dict[str, Tensor] = {}
        self._scope = ""

    # ---- programs --------------------------------------------------------------------------

    def run(self, program: Program, inputs: Sequence[Tensor]) -> list[Tensor]:
        """The results of a program.

        Args:
          program: the program.
          inputs: its inputs, tensors of this subgraph.

        Raises:
          UnimplementedError: for a primitive that cannot be converted, naming it, its layer and why.
        """
        self._tensors.update(zip(program.inputs, inputs, strict=True))
        for equation in program.equations:
            self._convert(equation)
        return [self.full(value) for value in program.outputs]

    def _convert(self, equation: Equation) -> None:
        self._scope = equation.scope
        handler = _HANDLERS.get(equation.name)
        try:
            if handler is None:
                raise Refused("LiteRT has no operator for it, nor is it made of others here")
            results = handler(self, equation)
        except Refused as error:
            where = f"of layer {equation.scope!r}" if equation.scope else "outside of layers"
            shapes = ", ".join(f"{v.dtype.name}{list(v.shape)}" for v in equation.inputs)
            raise UnimplementedError(
                f"tf.lite: the primitive {equation.name!r} {where} with operands {shapes} cannot be converted: {error}."
            ) from None
        results = results if isinstance(results, list) else [results]
        self._tensors.update(zip(equation.outputs, results, strict=True))

    # ---- tensors ---------------------------------------------------------------------------

    def least(self, value: Value) -> Tensor:
        """A value's tensor, without what broadcasting repeats."""
        value = value.least
        if value.known is not None:
            return self.constant(value.known)
        return self._tensors[value]

    def full(self, value: Value) -> Tensor:
        """A value's tensor in its whole shape."""
        if value not in self._tensors:
            tensor = self.least(value)
            if tensor.shape == value.shape:
                return tensor
            self._tensors[value] = self.broadcast(tensor, value.shape)
        return self._tensors[value]

    def constant(self, array: Any) -> Tensor:
        """A tensor of known elements."""
        given = np.asarray(array)
        small = given.size < 64
        key = (given.dtype.str, given.shape, given.tobytes()) if small else id(given)
        if key not in self._constants:
            made = given.astype(kept_dtype(given.dtype), copy=False)
            # With what it was made of, whose identity nothing else may get meanwhile.
            self._constants[key] = given, Tensor(made.shape, made.dtype, data=made)
        return self._constants[key][1]

    def emit(
        self,
        code: str,
        inputs: Iterable[Tensor | None],
        shape: Iterable[Any],
        dtype: Any,
        kind: str | None = None,
        version: int = 1,
        **fields: Any,
    ) -> Tensor:
        """The result of an operator of one result.

        Args:
          code: the operator's name.
          inputs: its operands.
          shape, dtype: of the result.
          kind: the table of its options.
          version: the operator's.
          **fields: its options.
        """
        result = self.new(shape, dtype, code)
        self.add(code, inputs, [result], kind, version, **fields)
        return result

    def new(self, shape: Iterable[Any], dtype: Any, code: str) -> Tensor:
        """A tensor that an operator is to make."""
        name = f"{self._scope}/{code.lower()}" if self._scope else code.lower()
        return Tensor(tuple(shape), kept_dtype(dtype), f"{name}_{len(self.subgraph.operators)}")

    def add(
        self,
        code: str,
        inputs: Iterable[Tensor | None],
        outputs: list[Tensor],
        kind: str | None = None,
        version: int = 1,
        **fields: Any,
    ) -> None:
        """Adds an operator of any number of results; arguments as in `emit`."""
        options = {"kind": kind, **fields} if kind else {}
        operator = Operator(code, list(inputs), outputs, options, version, self._scope)
        self.subgraph.operators.append(operator)

    # ---- sizes -----------------------------------------------------------------------------

    def shape_tensor(self, shape: Sequence[Any]) -> Tensor:
        """A shape as a tensor of int32."""
        if all(map(is_number, shape)):
            return self.constant(np.asarray(shape, np.int32))
        parts = [self.size(d) for d in shape]
        return self.emit(
            "PACK", parts, [len(shape)], np.int32, "PackOptions", valuesCount=len(parts), axis=0
        )

    def size(self, size: Any) -> Tensor:
        """A size as a scalar of int32."""
        if is_number(size):
            return self.constant(np.int32(size))
        names = size._get_vars()
        found = size._evaluate({name: _Number(self, self._variable(name)) for name in names})
        return found.tensor if isinstance(found, _Number) else self.constant(np.int32(found))

    def _variable(self, name: str) -> Tensor:
        """The size that a symbol stands for, from an input that has it."""
        if name not in self._sizes:
            for tensor in self.subgraph.inputs:
                for place, size in enumerate(tensor.shape):
                    if str(size) == name:
                        rank = [len(tensor.shape)]
                        shape = self.emit("SHAPE", [tensor], rank, np.int32, "ShapeOptions", outType=2)  # fmt: skip
                        self._sizes[name] = self.part(shape, place)
                        return self._sizes[name]
            raise Refused(f"the size {name} is not that of an input")
        return self._sizes[name]

    def part(self, line: Tensor, place: int) -> Tensor:
        """One element of a tensor of one dimension."""
        bounds = [self.constant(np.asarray([i], np.int32)) for i in (place, place + 1, 1)]
        return self.emit(
            "STRIDED_SLICE",
            [line, *bounds],
            [],
            line.dtype,
            "StridedSliceOptions",
            shrinkAxisMask=1,
        )

    # ---- operators that many others need ---------------------------------------------------

    def reshape(self, tensor: Tensor, shape: Sequence[Any]) -> Tensor:
        """A tensor's elements in another shape."""
        if tuple(shape) == tensor.shape:
            return tensor
        if tensor.data is not None and all(map(is_number, shape)):
            return self.constant(tensor.data.reshape(shape))
        unknown = [i for i, d in enumerate(shape) if not is_number(d)]
        if len(unknown) <= 1 and 0 not in shape:
            sizes = [d if is_number(d) else -1 for d in shape]
            target = self.constant(np.asarray(sizes, np.int32))
            return self.emit("RESHAPE", [tensor, target], shape, tensor.dtype, "ReshapeOptions", newShape=sizes)  # fmt: skip
        return self.emit("RESHAPE", [tensor, self.shape_tensor(shape)], shape, tensor.dtype)

    def transpose(self, tensor: Tensor, order: Sequence[int]) -> Tensor:
        """A tensor with its dimensions in another order."""
        if list(order) == list(range(len(order))):
            return tensor
        if tensor.data is not None:
            return self.constant(tensor.data.transpose(order))
        shape = [tensor.shape[i] for i in order]
        places = self.constant(np.asarray(order, np.int32))
        return self.emit("TRANSPOSE", [tensor, places], shape, tensor.dtype, "TransposeOptions")

    def broadcast(self, tensor: Tensor, shape: Sequence[Any]) -> Tensor:
        """A tensor repeated where it has size 1."""
        if tensor.shape == tuple(shape):
            return tensor
        if tensor.data is not None and all(map(is_number, shape)):
            return self.constant(np.broadcast_to(tensor.data, tuple(shape)))
        inputs = [tensor, self.shape_tensor(shape)]
        return self.emit("BROADCAST_TO", inputs, shape, tensor.dtype, version=2)

    def binary(self, code: str, one: Tensor, other: Tensor) -> Tensor:
        """Sum, product and the like, with broadcasting."""
        shape = joined(one.shape, other.shape)
        kind, fields = _BINARY.get(code, (None, {}))
        dtype = np.bool_ if kind in _TESTS else one.dtype
        return self.emit(code, [one, other], shape, dtype, kind, **fields)

    def unary(self, code: str, tensor: Tensor) -> Tensor:
        """Exponentials, roots and the like."""
        return self.emit(code, [tensor], tensor.shape, tensor.dtype)

    def copy(self, tensor: Tensor) -> Tensor:
        """A tensor of its own with the same elements."""
        shape = self.shape_tensor(tensor.shape)
        return self.emit("RESHAPE", [tensor, shape], tensor.shape, tensor.dtype)

    def cast(self, tensor: Tensor, dtype: Any) -> Tensor:
        """A tensor in another dtype."""
        dtype = kept_dtype(dtype)
        if tensor.dtype == dtype:
            return tensor
        if tensor.data is not None:
            return self.constant(tensor.data.astype(dtype))
        return self.emit("CAST", [tensor], tensor.shape, dtype)

    def slice(self, tensor: Tensor, starts: Any, limits: Any, strides: Any = None) -> Tensor:
        """Elements between bounds.

        Args:
          tensor: the tensor.
          starts, limits: for each dimension; the limit of a size that varies is the size itself.
          strides: steps; default 1.
        """
        strides = [1] * len(starts) if strides is None else list(strides)
        shape, end_mask = [], 0
        for i, (low, high, step) in enumerate(zip(starts, limits, strides, strict=True)):
            whole = high is tensor.shape[i] or high == tensor.shape[i]
            if whole and low == 0 and step == 1:
                shape.append(tensor.shape[i])
                end_mask |= 1 << i
            else:
                shape.append(-(-(high - low) // step))
        if tuple(shape) == tensor.shape:
            return tensor
        plain = [1 << 30 if end_mask >> i & 1 else d for i, d in enumerate(limits)]
        ends = self.shape_tensor(plain)
        begins = self.shape_tensor(list(starts))
        inputs = [tensor, begins, ends, self.constant(np.asarray(strides, np.int32))]
        return self.emit("STRIDED_SLICE", inputs, shape, tensor.dtype, "StridedSliceOptions", endMask=end_mask)  # fmt: skip

    def pad(self, tensor: Tensor, pads: Sequence[tuple[int, int]], value: Any) -> Tensor:
        """A tensor with a constant around it."""
        if not any(map(any, pads)):
            return tensor
        shape = [d + low + high for d, (low, high) in zip(tensor.shape, pads, strict=True)]
        sizes = self.constant(np.asarray(pads, np.int32))
        filler: Any = np.asarray(value)
        if filler.dtype.kind == "f" and np.isneginf(filler):
            filler = np.finfo(np.float32).min
        if not filler:
            return self.emit("PAD", [tensor, sizes], shape, tensor.dtype, "PadOptions")
        number = self.constant(np.asarray(filler, tensor.dtype))
        return self.emit("PADV2", [tensor, sizes, number], shape, tensor.dtype, "PadV2Options")


class _Number:
    """A size that is computed, for arithmetic of symbols."""

    def __init__(self, lowering: Lowering, tensor: Tensor) -> None:
        self._lowering, self.tensor = lowering, tensor

    def _with(self, code: str, other: Any, swapped: bool = False) -> _Number:
        other = other.tensor if isinstance(other, _Number) else self._lowering.size(int(other))
        pair = (other, self.tensor) if swapped else (self.tensor, other)
        return _Number(self._lowering, self._lowering.binary(code, *pair))

    def __add__(self, other: Any) -> _Number:
        return self._with("ADD", other)

    def __sub__(self, other: Any) -> _Number:
        return self._with("SUB", other)

    def __rsub__(self, other: Any) -> _Number:
        return self._with("SUB", other, True)

    def __mul__(self, other: Any) -> _Number:
        return self._with("MUL", other)

    def __floordiv__(self, other: Any) -> _Number:
        return self._with("FLOOR_DIV", other)

    def __rfloordiv__(self, other: Any) -> _Number:
        return self._with("FLOOR_DIV", other, True)

    def __mod__(self, other: Any) -> _Number:
        return self._with("FLOOR_MOD", other)

    def __pow__(self, power: int) -> _Number:
        found = self
        for _ in range(power - 1):
            found = found * self
        return found

    __radd__, __rmul__ = __add__, __mul__


def joined(one: Sequence[Any], other: Sequence[Any]) -> tuple[Any, ...]:
    """The shape that two shapes broadcast to."""
    rank = max(len(one), len(other))
    pairs = zip([1] * (rank - len(one)) + [*one], [1] * (rank - len(other)) + [*other], strict=True)
    return tuple(b if is_number(a) and a == 1 else a for a, b in pairs)


_TESTS = {"EqualOptions", "NotEqualOptions", "LessOptions", "LessEqualOptions", "GreaterOptions", "GreaterEqualOptions"}  # fmt: skip
_BINARY: dict[str, tuple[str, dict[str, Any]]] = {
    "ADD": ("AddOptions", {}), "SUB": ("SubOptions", {}), "MUL": ("MulOptions", {}), "DIV": ("DivOptions", {}),
    "MAXIMUM": ("MaximumMinimumOptions", {}), "MINIMUM": ("MaximumMinimumOptions", {}),
    "POW": ("PowOptions", {}), "FLOOR_DIV": ("FloorDivOptions", {}), "FLOOR_MOD": ("FloorModOptions", {}),
    "EQUAL": ("EqualOptions", {}), "NOT_EQUAL": ("NotEqualOptions", {}), "LESS": ("LessOptions", {}),
    "LESS_EQUAL": ("LessEqualOptions", {}), "GREATER": ("GreaterOptions", {}),
    "GREATER_EQUAL": ("GreaterEqualOptions", {}), "LOGICAL_AND": ("LogicalAndOptions", {}),
    "LOGICAL_OR": ("LogicalOrOptions", {}), "SQUARED_DIFFERENCE": ("SquaredDifferenceOptions", {}),
}  # fmt: skip
