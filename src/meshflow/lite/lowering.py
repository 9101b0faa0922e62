"""Programs as LiteRT's operators: one function for each primitive, found in one table.

The functions are in the modules `elementwise`, `shaping`, `products`, `loops`; here is what they share.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import numpy as np

from meshflow.deployment import lowering
from meshflow.deployment.lowering import Refused, holder, is_number, joined, same_pads
from meshflow.lite.graph import Graph, Operator, Subgraph, Tensor

__all__ = ["SAME", "VALID", "Lowering", "Refused", "is_number", "kept_dtype", "lowers", "same_pads"]

# How convolutions and pooling pad.
SAME, VALID = 0, 1

# Operators take bytes for numbers that were quantized.
_COMPUTED_IN = {"bfloat16": "float32", "float16": "float32", "float64": "float32", "int8": "int32"}


def kept_dtype(dtype: Any) -> np.dtype:
    """The dtype that LiteRT computes in: of floats, only float32 has operators, and int8 are not those of numbers."""
    dtype = np.dtype(dtype)
    return np.dtype(_COMPUTED_IN.get(dtype.name, dtype))


class Lowering(lowering.Lowering):
    """Writes a program's operators into a subgraph.

    Args:
      graph: the model, which gets the subgraphs of loops and branches.
      subgraph: where operators go.
    """

    runtime, caller = "LiteRT", "tf.lite"
    handlers: ClassVar[dict[str, Any]] = {}

    def __init__(self, graph: Graph, subgraph: Subgraph) -> None:
        super().__init__()
        self.graph, self.subgraph = graph, subgraph
        self._sizes: dict[str, Tensor] = {}

    def make_constant(self, array: np.ndarray) -> Tensor:
        """A tensor of known elements."""
        made = array.astype(kept_dtype(array.dtype), copy=False)
        return Tensor(made.shape, made.dtype, data=made)

    def arithmetic(self, name: str, one: Tensor, other: Tensor) -> Tensor:
        """Arithmetic of sizes."""
        return self.binary(_ARITHMETIC[name], one, other)

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
        for tensor in self.subgraph.inputs:
            if tensor.shape == tuple(shape):
                return self.emit("SHAPE", [tensor], [len(shape)], np.int32, "ShapeOptions", outType=2)  # fmt: skip
        parts = [self.size(d) for d in shape]
        return self.emit(
            "PACK", parts, [len(shape)], np.int32, "PackOptions", valuesCount=len(parts), axis=0
        )

    def variable_size(self, name: str) -> Tensor:
        """The size that a symbol stands for, from an input that has it."""
        if name not in self._sizes:
            tensor, place, times = holder(self.subgraph.inputs, name)
            rank = [len(tensor.shape)]
            shape = self.emit("SHAPE", [tensor], rank, np.int32, "ShapeOptions", outType=2)
            found = self.part(shape, place)
            self._sizes[name] = found if times == 1 else self.binary("FLOOR_DIV", found, self.size(times))  # fmt: skip
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
        wide = [i for i in order if tensor.shape[i] != 1]
        if wide == sorted(wide) and sum(not is_number(d) for d in shape) <= 1:
            return self.reshape(tensor, shape)
        places = self.constant(np.asarray(order, np.int32))
        return self.emit("TRANSPOSE", [tensor, places], shape, tensor.dtype, "TransposeOptions")

    def reverse(self, tensor: Tensor, axes: Sequence[int]) -> Tensor:
        """A tensor with its elements in reverse order along some dimensions."""
        if tensor.data is not None:
            return self.constant(np.flip(tensor.data, tuple(axes)))
        for axis in axes:
            places = self.constant(np.asarray([axis], np.int32))
            tensor = self.emit("REVERSE_V2", [tensor, places], tensor.shape, tensor.dtype, "ReverseV2Options")  # fmt: skip
        return tensor

    def broadcast(self, tensor: Tensor, shape: Sequence[Any]) -> Tensor:
        """A tensor repeated where it has size 1."""
        if tensor.shape == tuple(shape):
            return tensor
        if tensor.data is not None and all(map(is_number, shape)):
            return self.constant(np.broadcast_to(tensor.data, tuple(shape)))
        if tensor.data is not None and tensor.data.size == 1:
            scalar = self.constant(tensor.data.reshape(()))
            return self.emit("FILL", [self.shape_tensor(shape), scalar], shape, tensor.dtype, "FillOptions")  # fmt: skip
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


lowers = Lowering.lowers
_ARITHMETIC = {"add": "ADD", "sub": "SUB", "mul": "MUL", "floordiv": "FLOOR_DIV", "mod": "FLOOR_MOD", "max": "MAXIMUM", "min": "MINIMUM"}  # fmt: skip
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
