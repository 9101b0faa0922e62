"""Lowering of flat programs to ONNX nodes.

The rules are in the modules `elementwise`, `array_ops`, `products` and `loops`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from meshflow.deployment import lowering
from meshflow.deployment.equations import DimSize, broadcast_shapes
from meshflow.deployment.lowering import LoweringError, Pads, Rule, find_tensor_with_size, is_static
from meshflow.environment import optional_packages

# Default version of ONNX's operators.
OPSET = 18
_COMPARISONS = {"Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"}


def load_onnx(part: str = "") -> Any:
    """Import the package onnx or a module of it.

    Raises:
      ImportError: if the extra `onnx` is not installed.
    """
    return optional_packages.import_extra(f"onnx{part}", "onnx", "ONNX files need the package onnx")


@dataclasses.dataclass(eq=False)
class OnnxTensor:
    """Tensor of a graph.

    Attributes:
      name: name, unique in the model.
      shape: sizes; symbolic sizes are dynamic.
      dtype: element type.
      data: elements of a constant.
    """

    name: str
    shape: tuple[DimSize, ...]
    dtype: np.dtype
    data: np.ndarray | None = None


class ModelState:
    """State that the graphs of a model share: names and constants.

    Args:
      opset: version of ONNX's operators.

    Attributes:
      opset: version of ONNX's operators.
      constants: constant tensors.
      inputs: inputs of the model.
    """

    def __init__(self, opset: int = OPSET) -> None:
        self.opset = opset
        self._count = 0
        self.constants: list[OnnxTensor] = []
        self.inputs: list[OnnxTensor] = []

    def make_name(self, prefix: str) -> str:
        """Return an unused name."""
        self._count += 1
        return f"{prefix}_{self._count}"


class OnnxLowering(lowering.Lowering[OnnxTensor]):
    """Lowering of a program to ONNX nodes.

    Args:
      names: state of the model.
      outer: lowering of the enclosing graph, for the body of a loop or branch.
    """

    runtime, caller = "ONNX", "Model.export"
    rules: ClassVar[dict[str, Rule]] = {}
    operators: ClassVar[dict[str, str]] = {
        "add": "Add", "add_any": "Add", "sub": "Sub", "mul": "Mul", "div": "Div", "pow": "Pow", "mod": "Mod",
        "xor": "Xor", "and": "And", "or": "Or", "max": "Max", "min": "Min", "eq": "Equal", "lt": "Less",
        "le": "LessOrEqual", "gt": "Greater", "ge": "GreaterOrEqual", "lt_to": "Less", "le_to": "LessOrEqual",
        "abs": "Abs", "neg": "Neg", "exp": "Exp", "log": "Log", "sqrt": "Sqrt", "sin": "Sin", "cos": "Cos",
        "tan": "Tan", "asin": "Asin", "acos": "Acos", "atan": "Atan", "sinh": "Sinh", "cosh": "Cosh",
        "asinh": "Asinh", "acosh": "Acosh", "atanh": "Atanh", "tanh": "Tanh", "logistic": "Sigmoid",
        "floor": "Floor", "ceil": "Ceil", "round": "Round", "sign": "Sign", "erf": "Erf", "elu": "Elu",
    }  # fmt: skip
    # Few runtimes' operators support 16-bit floats.
    dtype_replacements: ClassVar[dict[str, str]] = {"bfloat16": "float32", "float16": "float32"}
    size_dtype = np.int64

    def __init__(self, names: ModelState, outer: OnnxLowering | None = None) -> None:
        super().__init__()
        self.names = names
        self.nodes: list[Any] = []
        self._symbol_sizes: dict[str, OnnxTensor] = {}
        self.scope = "" if outer is None else outer.scope

    def make_constant(self, array: np.ndarray) -> OnnxTensor:
        """Create a tensor of constant elements."""
        data = array.astype(self.to_supported_dtype(array.dtype), copy=False)
        tensor = OnnxTensor(self.names.make_name("constant"), data.shape, data.dtype, data)
        self.names.constants.append(tensor)
        return tensor

    def make_vector(self, values: Iterable[int]) -> OnnxTensor:
        """Return integers as a vector of int64."""
        return self.get_constant(np.asarray(list(values), np.int64))

    def emit(
        self, code: str, inputs: Iterable[OnnxTensor | None], shape: Iterable[DimSize], dtype: DTypeLike, **attributes: Any
    ) -> OnnxTensor:  # fmt: skip
        """Add a node of one result, and return the result.

        Args:
          code: name of the operator.
          inputs: its operands.
          shape: shape of the result.
          dtype: dtype of the result.
          **attributes: attributes of the node.
        """
        result = self.new_tensor(shape, dtype, code)
        self.add(code, inputs, [result], **attributes)
        return result

    def new_tensor(self, shape: Iterable[DimSize], dtype: DTypeLike, code: str) -> OnnxTensor:
        """Create a tensor for the result of a node."""
        name = f"{self.scope}/{code}" if self.scope else code
        return OnnxTensor(self.names.make_name(name), tuple(shape), self.to_supported_dtype(dtype))

    def add(
        self,
        code: str,
        inputs: Iterable[OnnxTensor | None],
        outputs: list[OnnxTensor],
        **attributes: Any,
    ) -> None:
        """Add a node of any number of results.

        Raises:
          LoweringError: if a later opset introduces the operator, or its support for these dtypes.
        """
        inputs = list(inputs)
        self._check_opset(code, inputs)
        names = ["" if t is None else t.name for t in inputs]
        name = outputs[0].name if outputs else self.names.make_name(code)
        node = load_onnx(".helper").make_node(
            code, names, [t.name for t in outputs], name, **attributes
        )
        self.nodes.append(node)

    def _check_opset(self, code: str, inputs: Sequence[OnnxTensor | None]) -> None:
        opset, defs = self.names.opset, load_onnx(".defs")
        try:
            schema = defs.get_schema(code, opset)
        except defs.SchemaError:
            first = min(s.since_version for s in defs.get_all_schemas_with_history() if s.name == code)  # fmt: skip
            raise LoweringError(
                f"ONNX has the operator {code} since version {first}, and the file has opset_version={opset}"
            ) from None
        if opset >= OPSET:
            return
        for i, tensor in enumerate(inputs):
            allowed = schema.inputs[min(i, len(schema.inputs) - 1)].types
            dtype_name = "bool" if tensor is None or tensor.dtype == np.bool_ else tensor.dtype.name
            dtype_name = {"float32": "float", "float64": "double"}.get(dtype_name, dtype_name)
            if tensor is not None and f"tensor({dtype_name})" not in allowed:
                raise LoweringError(
                    f"ONNX's operator {code} does not take {tensor.dtype} in opset_version={opset}; a later one may"
                )

    # ---- sizes -----------------------------------------------------------------------------

    def compute(self, primitive: str, *operands: OnnxTensor) -> OnnxTensor:
        """Add the operator of an elementwise primitive of one or two operands, or 'floordiv' of sizes."""
        if primitive != "floordiv":
            return super().compute(primitive, *operands)
        # ONNX's division rounds toward zero, and its remainder has the sign of the divisor.
        multiple = self.compute("sub", operands[0], self.compute("mod", *operands))
        return self.compute("div", multiple, operands[1])

    def get_symbol_size(self, name: str) -> OnnxTensor:
        """Return a symbolic size, read from the shape of an input of the model."""
        if name not in self._symbol_sizes:
            tensor, axis, multiple = find_tensor_with_size(self.names.inputs, name)
            shape = self.emit("Shape", [tensor], [len(tensor.shape)], np.int64)
            index = self.get_constant(np.asarray(axis, np.int64))
            size = self.emit("Gather", [shape, index], [], np.int64, axis=0)
            self._symbol_sizes[name] = size if multiple == 1 else self.emit_binary("Div", size, self.get_size(multiple))  # fmt: skip
        return self._symbol_sizes[name]

    def make_shape_tensor(self, shape: Sequence[DimSize]) -> OnnxTensor:
        """Return a shape as a vector of int64."""
        if all(map(is_static, shape)):
            return self.make_vector(map(int, shape))
        parts = [self.reshape(self.get_size(d), [1]) for d in shape]
        return self.emit("Concat", parts, [len(shape)], np.int64, axis=0)

    # ---- operators that many rules use ------------------------------------------------------

    def emit_reshape(self, tensor: OnnxTensor, shape: Sequence[DimSize]) -> OnnxTensor:
        """Add a node that reshapes a tensor."""
        unknown = [i for i, d in enumerate(shape) if not is_static(d)]
        if len(unknown) <= 1 and 0 not in shape:
            target = self.make_vector(int(d) if is_static(d) else -1 for d in shape)
        else:
            target = self.make_shape_tensor(shape)
        return self.emit("Reshape", [tensor, target], shape, tensor.dtype)

    def emit_transpose(self, tensor: OnnxTensor, order: Sequence[int]) -> OnnxTensor:
        """Add a node that permutes the dimensions of a tensor."""
        shape = [tensor.shape[i] for i in order]
        return self.emit("Transpose", [tensor], shape, tensor.dtype, perm=order)

    def broadcast(self, tensor: OnnxTensor, shape: Sequence[DimSize]) -> OnnxTensor:
        """Repeat a tensor along its dimensions of size 1."""
        if tensor.shape == tuple(shape):
            return tensor
        return self.emit("Expand", [tensor, self.make_shape_tensor(shape)], shape, tensor.dtype)

    def emit_binary(self, code: str, x: OnnxTensor, y: OnnxTensor) -> OnnxTensor:
        """Add an elementwise node of two operands, which broadcast."""
        dtype = np.bool_ if code in _COMPARISONS else x.dtype
        return self.emit(code, [x, y], broadcast_shapes(x.shape, y.shape), dtype)

    def emit_cast(self, tensor: OnnxTensor, dtype: np.dtype) -> OnnxTensor:
        """Add a node that converts a tensor to another dtype."""
        to = load_onnx(".helper").np_dtype_to_tensor_dtype(dtype)
        return self.emit("Cast", [tensor], tensor.shape, dtype, to=to)

    def reduce(self, code: str, tensor: OnnxTensor, axes: Iterable[int], shape: Iterable[DimSize], keep: bool) -> OnnxTensor:  # fmt: skip
        """Reduce a tensor; most reductions take the axes as an attribute before opset 18."""
        settings: dict[str, Any] = {"keepdims": int(keep)}
        inputs = [tensor]
        if self.names.opset < 18 and code != "ReduceSum":
            settings["axes"] = list(axes)
        else:
            inputs.append(self.make_vector(axes))
        return self.emit(code, inputs, shape, tensor.dtype, **settings)

    def slice(self, tensor: OnnxTensor, starts: Sequence[DimSize], limits: Sequence[DimSize], strides: Sequence[int] | None = None) -> OnnxTensor:  # fmt: skip
        """Slice a tensor; a limit that is the symbolic size itself means all elements."""
        strides = [1] * len(starts) if strides is None else list(strides)
        shape, axes = [], []
        for i, (low, high, step) in enumerate(zip(starts, limits, strides, strict=True)):
            is_full = high is tensor.shape[i] or high == tensor.shape[i]
            if is_full and is_static(low) and low == 0 and step == 1:
                shape.append(tensor.shape[i])
            else:
                axes.append(i)
                shape.append(-(-(high - low) // step))
        if not axes:
            return tensor
        bounds = [self.make_shape_tensor([b[i] for i in axes]) for b in (starts, limits)]
        steps = [self.make_vector(axes), self.make_vector(int(strides[i]) for i in axes)]
        return self.emit("Slice", [tensor, *bounds, *steps], shape, tensor.dtype)

    def pad(self, tensor: OnnxTensor, pads: Pads, value: ArrayLike) -> OnnxTensor:
        """Pad a tensor with a constant."""
        if not any(map(any, pads)):
            return tensor
        shape = [d + low + high for d, (low, high) in zip(tensor.shape, pads, strict=True)]
        sizes = self.make_vector([low for low, _ in pads] + [high for _, high in pads])
        filler = self.get_constant(np.asarray(value).astype(tensor.dtype).reshape(()))
        return self.emit("Pad", [tensor, sizes, filler], shape, tensor.dtype)


register_rule = OnnxLowering.register_rule
