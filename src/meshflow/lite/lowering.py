"""Lowering of flat programs to LiteRT's operators.

The rules are in the modules `elementwise`, `array_ops`, `products`, `loops`, `scatter` and
`pattern_operators`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from meshflow.deployment import lowering
from meshflow.deployment.equations import DimSize, broadcast_shapes
from meshflow.deployment.lowering import Pads, Rule, find_tensor_with_size, is_static
from meshflow.lite.graph import LiteModel, LiteOperator, LiteTensor, Subgraph

# Padding modes of convolutions and pooling.
SAME, VALID = 0, 1


class LiteLowering(lowering.Lowering[LiteTensor]):
    """Lowering of a program to operators of a subgraph.

    Args:
      graph: the model, to which subgraphs of loops and branches are added.
      subgraph: the subgraph to which operators are added.
    """

    runtime, caller = "LiteRT", "tf.lite"
    rules: ClassVar[dict[str, Rule]] = {}
    operators: ClassVar[dict[str, str]] = {
        "add": "ADD", "add_any": "ADD", "sub": "SUB", "mul": "MUL", "div": "DIV", "pow": "POW",
        "eq": "EQUAL", "ne": "NOT_EQUAL", "lt": "LESS", "le": "LESS_EQUAL", "gt": "GREATER",
        "ge": "GREATER_EQUAL", "lt_to": "LESS", "le_to": "LESS_EQUAL", "max": "MAXIMUM", "min": "MINIMUM",
        "floordiv": "FLOOR_DIV", "mod": "FLOOR_MOD", "abs": "ABS", "neg": "NEG", "exp": "EXP", "log": "LOG",
        "sqrt": "SQRT", "rsqrt": "RSQRT", "square": "SQUARE", "sin": "SIN", "cos": "COS", "tanh": "TANH",
        "logistic": "LOGISTIC", "floor": "FLOOR", "ceil": "CEIL", "round": "ROUND", "sign": "SIGN",
        "elu": "ELU", "hard_swish": "HARD_SWISH",
    }  # fmt: skip
    # LiteRT's operators take int8 for quantized values only.
    dtype_replacements: ClassVar[dict[str, str]] = {
        **dict.fromkeys(("bfloat16", "float16", "float64"), "float32"),
        "int8": "int32",
    }

    def __init__(self, graph: LiteModel, subgraph: Subgraph) -> None:
        super().__init__()
        self.graph, self.subgraph = graph, subgraph
        self._symbol_sizes: dict[str, LiteTensor] = {}

    def make_constant(self, array: np.ndarray) -> LiteTensor:
        """Create a tensor of constant elements."""
        data = array.astype(self.to_supported_dtype(array.dtype), copy=False)
        return LiteTensor(data.shape, data.dtype, data=data)

    def emit(
        self,
        code: str,
        inputs: Iterable[LiteTensor | None],
        shape: Iterable[DimSize],
        dtype: DTypeLike,
        table: str | None = None,
        version: int = 1,
        **fields: Any,
    ) -> LiteTensor:
        """Add an operator of one result, and return the result.

        Args:
          code: name of the operator.
          inputs: its operands.
          shape: shape of the result.
          dtype: dtype of the result.
          table: name of the FlatBuffers table of its options.
          version: version of the operator.
          **fields: its options.
        """
        result = self.new_tensor(shape, dtype, code)
        self.add(code, inputs, [result], table, version, **fields)
        return result

    def new_tensor(self, shape: Iterable[DimSize], dtype: DTypeLike, code: str) -> LiteTensor:
        """Create a tensor for the result of an operator."""
        name = f"{self.scope}/{code.lower()}" if self.scope else code.lower()
        return LiteTensor(
            tuple(shape), self.to_supported_dtype(dtype), f"{name}_{len(self.subgraph.operators)}"
        )

    def add(
        self,
        code: str,
        inputs: Iterable[LiteTensor | None],
        outputs: list[LiteTensor],
        table: str | None = None,
        version: int = 1,
        **fields: Any,
    ) -> None:
        """Add an operator of any number of results; arguments as in `emit`."""
        options = {"kind": table, **fields} if table else {}
        operator = LiteOperator(code, list(inputs), outputs, options, version, self.scope)
        self.subgraph.operators.append(operator)

    # ---- sizes -----------------------------------------------------------------------------

    def make_shape_tensor(self, shape: Sequence[DimSize]) -> LiteTensor:
        """Return a shape as a tensor of int32."""
        if all(map(is_static, shape)):
            return self.get_constant(np.asarray(shape, np.int32))
        for tensor in self.subgraph.inputs:
            if tensor.shape == tuple(shape):
                return self.emit("SHAPE", [tensor], [len(shape)], np.int32, "ShapeOptions", outType=2)  # fmt: skip
        parts = [self.get_size(d) for d in shape]
        return self.emit("PACK", parts, [len(shape)], np.int32, "PackOptions", valuesCount=len(parts), axis=0)  # fmt: skip

    def get_symbol_size(self, name: str) -> LiteTensor:
        """Return a symbolic size, read from the shape of an input."""
        if name not in self._symbol_sizes:
            tensor, axis, multiple = find_tensor_with_size(self.subgraph.inputs, name)
            shape = self.emit("SHAPE", [tensor], [len(tensor.shape)], np.int32, "ShapeOptions", outType=2)  # fmt: skip
            size = self.get_element(shape, axis)
            self._symbol_sizes[name] = size if multiple == 1 else self.emit_binary("FLOOR_DIV", size, self.get_size(multiple))  # fmt: skip
        return self._symbol_sizes[name]

    def get_element(self, vector: LiteTensor, index: int) -> LiteTensor:
        """Return an element of a vector as a scalar."""
        bounds = [self.get_constant(np.asarray([i], np.int32)) for i in (index, index + 1, 1)]
        return self.emit("STRIDED_SLICE", [vector, *bounds], [], vector.dtype, "StridedSliceOptions", shrinkAxisMask=1)  # fmt: skip

    # ---- operators that many rules use ------------------------------------------------------

    def emit_reshape(self, tensor: LiteTensor, shape: Sequence[DimSize]) -> LiteTensor:
        """Add an operator that reshapes a tensor."""
        unknown = [i for i, d in enumerate(shape) if not is_static(d)]
        if len(unknown) <= 1 and 0 not in shape:
            sizes = [d if is_static(d) else -1 for d in shape]
            target = self.get_constant(np.asarray(sizes, np.int32))
            return self.emit("RESHAPE", [tensor, target], shape, tensor.dtype, "ReshapeOptions", newShape=sizes)  # fmt: skip
        return self.emit("RESHAPE", [tensor, self.make_shape_tensor(shape)], shape, tensor.dtype)

    def emit_transpose(self, tensor: LiteTensor, order: Sequence[int]) -> LiteTensor:
        """Add an operator that permutes the dimensions of a tensor."""
        shape = [tensor.shape[i] for i in order]
        large_axes = [i for i in order if tensor.shape[i] != 1]
        if large_axes == sorted(large_axes) and sum(not is_static(d) for d in shape) <= 1:
            return self.reshape(tensor, shape)
        perm = self.get_constant(np.asarray(order, np.int32))
        return self.emit("TRANSPOSE", [tensor, perm], shape, tensor.dtype, "TransposeOptions")

    def reverse(self, tensor: LiteTensor, axes: Sequence[int]) -> LiteTensor:
        """Reverse the elements of a tensor along some dimensions."""
        if tensor.data is not None:
            return self.get_constant(np.flip(tensor.data, tuple(axes)))
        for axis in axes:
            axis_tensor = self.get_constant(np.asarray([axis], np.int32))
            tensor = self.emit("REVERSE_V2", [tensor, axis_tensor], tensor.shape, tensor.dtype, "ReverseV2Options")  # fmt: skip
        return tensor

    def broadcast(self, tensor: LiteTensor, shape: Sequence[DimSize]) -> LiteTensor:
        """Repeat a tensor along its dimensions of size 1."""
        if tensor.shape == tuple(shape):
            return tensor
        if tensor.data is not None and all(map(is_static, shape)):
            return self.get_constant(np.broadcast_to(tensor.data, tuple(shape)))
        if tensor.data is not None and tensor.data.size == 1:
            scalar = self.get_constant(tensor.data.reshape(()))
            return self.emit("FILL", [self.make_shape_tensor(shape), scalar], shape, tensor.dtype, "FillOptions")  # fmt: skip
        inputs = [tensor, self.make_shape_tensor(shape)]
        return self.emit("BROADCAST_TO", inputs, shape, tensor.dtype, version=2)

    def emit_binary(self, code: str, x: LiteTensor, y: LiteTensor) -> LiteTensor:
        """Add an elementwise operator of two operands, which broadcast."""
        table, fields = _BINARY_OPTIONS.get(code, (None, {}))
        dtype = np.bool_ if table in _COMPARISON_OPTIONS else x.dtype
        return self.emit(code, [x, y], broadcast_shapes(x.shape, y.shape), dtype, table, **fields)

    def copy(self, tensor: LiteTensor) -> LiteTensor:
        """Return a new tensor with the same elements."""
        shape = self.make_shape_tensor(tensor.shape)
        return self.emit("RESHAPE", [tensor, shape], tensor.shape, tensor.dtype)

    def emit_cast(self, tensor: LiteTensor, dtype: np.dtype) -> LiteTensor:
        """Add an operator that converts a tensor to another dtype."""
        return self.emit("CAST", [tensor], tensor.shape, dtype)

    def slice(self, tensor: LiteTensor, starts: Sequence[DimSize], limits: Sequence[DimSize], strides: Sequence[int] | None = None) -> LiteTensor:  # fmt: skip
        """Slice a tensor; a limit that is the symbolic size itself means all elements."""
        steps = [1] * len(starts) if strides is None else list(strides)
        shape, end_mask = [], 0
        for i, (low, high, step) in enumerate(zip(starts, limits, steps, strict=True)):
            is_full = high is tensor.shape[i] or high == tensor.shape[i]
            if is_full and low == 0 and step == 1:
                shape.append(tensor.shape[i])
                end_mask |= 1 << i
            else:
                shape.append(-(-(high - low) // step))
        if tuple(shape) == tensor.shape:
            return tensor
        bounds = [1 << 30 if end_mask >> i & 1 else d for i, d in enumerate(limits)]
        ends = self.make_shape_tensor(bounds)
        begins = self.make_shape_tensor(list(starts))
        inputs = [tensor, begins, ends, self.get_constant(np.asarray(steps, np.int32))]
        return self.emit("STRIDED_SLICE", inputs, shape, tensor.dtype, "StridedSliceOptions", endMask=end_mask)  # fmt: skip

    def pad(self, tensor: LiteTensor, pads: Pads, value: ArrayLike) -> LiteTensor:
        """Pad a tensor with a constant; LiteRT pads with float32's minimum for -inf."""
        if not any(map(any, pads)):
            return tensor
        shape = [d + low + high for d, (low, high) in zip(tensor.shape, pads, strict=True)]
        sizes = self.get_constant(np.asarray(pads, np.int32))
        filler: Any = np.asarray(value)
        if filler.dtype.kind == "f" and np.isneginf(filler):
            filler = np.finfo(np.float32).min
        if not filler:
            return self.emit("PAD", [tensor, sizes], shape, tensor.dtype, "PadOptions")
        scalar = self.get_constant(np.asarray(filler, tensor.dtype))
        return self.emit("PADV2", [tensor, sizes, scalar], shape, tensor.dtype, "PadV2Options")


register_rule = LiteLowering.register_rule
_COMPARISON_OPTIONS = {"EqualOptions", "NotEqualOptions", "LessOptions", "LessEqualOptions", "GreaterOptions", "GreaterEqualOptions"}  # fmt: skip
_BINARY_OPTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "ADD": ("AddOptions", {}), "SUB": ("SubOptions", {}), "MUL": ("MulOptions", {}), "DIV": ("DivOptions", {}),
    "MAXIMUM": ("MaximumMinimumOptions", {}), "MINIMUM": ("MaximumMinimumOptions", {}),
    "POW": ("PowOptions", {}), "FLOOR_DIV": ("FloorDivOptions", {}), "FLOOR_MOD": ("FloorModOptions", {}),
    "EQUAL": ("EqualOptions", {}), "NOT_EQUAL": ("NotEqualOptions", {}), "LESS": ("LessOptions", {}),
    "LESS_EQUAL": ("LessEqualOptions", {}), "GREATER": ("GreaterOptions", {}),
    "GREATER_EQUAL": ("GreaterEqualOptions", {}), "LOGICAL_AND": ("LogicalAndOptions", {}),
    "LOGICAL_OR": ("LogicalOrOptions", {}), "SQUARED_DIFFERENCE": ("SquaredDifferenceOptions", {}),
}  # fmt: skip
