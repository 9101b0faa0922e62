"""Programs as ONNX nodes: one function for each primitive, found in one table.

The functions are in the modules `elementwise`, `shaping`, `products`, `loops`; here is what they share.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import numpy as np

from meshflow.deployment import lowering
from meshflow.deployment.lowering import Refused, holder, is_number, joined, same_pads
from meshflow.environment import extras

__all__ = [
    "OPSET",
    "Lowering",
    "Names",
    "Refused",
    "Tensor",
    "is_number",
    "kept_dtype",
    "lowers",
    "onnx",
    "same_pads",
]

# The version of the operators that is written unless another is asked for.
OPSET = 18
_COMPUTED_IN = {"bfloat16": "float32", "float16": "float32"}


def onnx(part: str = "") -> Any:
    """The package, or a module of it.

    Raises:
      ImportError: without the extra `onnx`.
    """
    return extras.load(f"onnx{part}", "onnx", "ONNX files need the package onnx")


def kept_dtype(dtype: Any) -> np.dtype:
    """The dtype that is written: 16-bit floats as float32, as few runtimes' operators have them."""
    dtype = np.dtype(dtype)
    return np.dtype(_COMPUTED_IN.get(dtype.name, dtype))


@dataclasses.dataclass(eq=False)
class Tensor:
    """A tensor of a graph.

    Attributes:
      name: its name, the only one of this name in the model.
      shape: sizes; what is no number varies.
      dtype: the element type.
      data: the elements of a constant.
    """

    name: str
    shape: tuple[Any, ...]
    dtype: np.dtype
    data: np.ndarray | None = None


class Names:
    """What a model's graphs share: names, and constants.

    Args:
      opset: the version of the operators.

    Attributes:
      opset: the same.
      constants: tensors of known elements.
      inputs: of the model.
    """

    def __init__(self, opset: int = OPSET) -> None:
        self.opset = opset
        self._count = 0
        self.constants: list[Tensor] = []
        self.inputs: list[Tensor] = []

    def new(self, what: str) -> str:
        """A name that nothing else has."""
        self._count += 1
        return f"{what}_{self._count}"


class Lowering(lowering.Lowering):
    """Writes a program's nodes.

    Args:
      names: of the model.
      outer: the lowering around that of a loop or branch, whose tensors its nodes may read.
    """

    runtime, caller = "ONNX", "Model.export"
    handlers: ClassVar[dict[str, Any]] = {}
    size_dtype = np.int64

    def __init__(self, names: Names, outer: Lowering | None = None) -> None:
        super().__init__()
        self.names = names
        self.nodes: list[Any] = []
        self._sizes: dict[str, Tensor] = {}
        self._scope = "" if outer is None else outer._scope

    def make_constant(self, array: np.ndarray) -> Tensor:
        """A tensor of known elements."""
        made = array.astype(kept_dtype(array.dtype), copy=False)
        tensor = Tensor(self.names.new("constant"), made.shape, made.dtype, made)
        self.names.constants.append(tensor)
        return tensor

    def integers(self, numbers: Iterable[int]) -> Tensor:
        """Numbers as a line of int64."""
        return self.constant(np.asarray(list(numbers), np.int64))

    def number(self, like: Tensor, number: float) -> Tensor:
        """A scalar of a tensor's dtype."""
        return self.constant(np.asarray(number, like.dtype))

    def emit(
        self, code: str, inputs: Iterable[Tensor | None], shape: Iterable[Any], dtype: Any, **attributes: Any
    ) -> Tensor:  # fmt: skip
        """The result of a node of one result.

        Args:
          code: the operator's name.
          inputs: its operands.
          shape, dtype: of the result.
          **attributes: the node's.
        """
        result = self.new(shape, dtype, code)
        self.add(code, inputs, [result], **attributes)
        return result

    def new(self, shape: Iterable[Any], dtype: Any, code: str) -> Tensor:
        """A tensor that a node is to make."""
        name = f"{self._scope}/{code}" if self._scope else code
        return Tensor(self.names.new(name), tuple(shape), kept_dtype(dtype))

    def add(
        self, code: str, inputs: Iterable[Tensor | None], outputs: list[Tensor], **attributes: Any
    ) -> None:
        """Adds a node of any number of results.

        Raises:
          Refused: when the operator, or the operator for these dtypes, comes in a later version.
        """
        inputs = list(inputs)
        self._check(code, inputs)
        given = ["" if t is None else t.name for t in inputs]
        name = outputs[0].name if outputs else self.names.new(code)
        node = onnx(".helper").make_node(code, given, [t.name for t in outputs], name, **attributes)
        self.nodes.append(node)

    def _check(self, code: str, inputs: Sequence[Tensor | None]) -> None:
        opset, defs = self.names.opset, onnx(".defs")
        try:
            schema = defs.get_schema(code, opset)
        except defs.SchemaError:
            first = min(s.since_version for s in defs.get_all_schemas_with_history() if s.name == code)  # fmt: skip
            raise Refused(
                f"ONNX has its operator {code} since version {first}, and the file is of opset_version={opset}"
            ) from None
        if opset >= OPSET:
            return
        for i, tensor in enumerate(inputs):
            allowed = schema.inputs[min(i, len(schema.inputs) - 1)].types
            kind = "bool" if tensor is None or tensor.dtype == np.bool_ else tensor.dtype.name
            kind = {"float32": "float", "float64": "double"}.get(kind, kind)
            if tensor is not None and f"tensor({kind})" not in allowed:
                raise Refused(
                    f"ONNX's operator {code} takes no {tensor.dtype} in opset_version={opset}; a later one may"
                )

    # ---- sizes -----------------------------------------------------------------------------

    def arithmetic(self, name: str, one: Tensor, other: Tensor) -> Tensor:
        """Arithmetic of sizes."""
        if name == "floordiv":
            # ONNX's division rounds towards zero, its remainder has the divisor's sign.
            whole = self.binary("Sub", one, self.binary("Mod", one, other))
            return self.binary("Div", whole, other)
        return self.binary(name.capitalize(), one, other)

    def variable_size(self, name: str) -> Tensor:
        """A symbol's size, from an input of the model that has it."""
        if name not in self._sizes:
            tensor, place, times = holder(self.names.inputs, name)
            shape = self.emit("Shape", [tensor], [len(tensor.shape)], np.int64)
            at = self.constant(np.asarray(place, np.int64))
            found = self.emit("Gather", [shape, at], [], np.int64, axis=0)
            self._sizes[name] = found if times == 1 else self.binary("Div", found, self.size(times))
        return self._sizes[name]

    def shape_tensor(self, shape: Sequence[Any]) -> Tensor:
        """A shape as a line of int64."""
        if all(map(is_number, shape)):
            return self.integers(map(int, shape))
        parts = [self.reshape(self.size(d), [1]) for d in shape]
        return self.emit("Concat", parts, [len(shape)], np.int64, axis=0)

    # ---- operators that many others need ---------------------------------------------------

    def reshape(self, tensor: Tensor, shape: Sequence[Any]) -> Tensor:
        """A tensor's elements in another shape."""
        if tuple(shape) == tensor.shape:
            return tensor
        if tensor.data is not None and all(map(is_number, shape)):
            return self.constant(tensor.data.reshape(shape))
        unknown = [i for i, d in enumerate(shape) if not is_number(d)]
        if len(unknown) <= 1 and 0 not in shape:
            target = self.integers(int(d) if is_number(d) else -1 for d in shape)
        else:
            target = self.shape_tensor(shape)
        return self.emit("Reshape", [tensor, target], shape, tensor.dtype)

    def transpose(self, tensor: Tensor, order: Sequence[int]) -> Tensor:
        """A tensor with its dimensions in another order."""
        order = [int(i) for i in order]
        if order == list(range(len(order))):
            return tensor
        if tensor.data is not None:
            return self.constant(tensor.data.transpose(order))
        shape = [tensor.shape[i] for i in order]
        return self.emit("Transpose", [tensor], shape, tensor.dtype, perm=order)

    def broadcast(self, tensor: Tensor, shape: Sequence[Any]) -> Tensor:
        """A tensor repeated where it has size 1."""
        if tensor.shape == tuple(shape):
            return tensor
        return self.emit("Expand", [tensor, self.shape_tensor(shape)], shape, tensor.dtype)

    def binary(self, code: str, one: Tensor, other: Tensor, dtype: Any = None) -> Tensor:
        """Sum, product and the like, with broadcasting."""
        return self.emit(code, [one, other], joined(one.shape, other.shape), dtype or one.dtype)

    def unary(self, code: str, tensor: Tensor) -> Tensor:
        """Exponentials, roots and the like."""
        return self.emit(code, [tensor], tensor.shape, tensor.dtype)

    def cast(self, tensor: Tensor, dtype: Any) -> Tensor:
        """A tensor in another dtype."""
        dtype = kept_dtype(dtype)
        if tensor.dtype == dtype:
            return tensor
        if tensor.data is not None:
            return self.constant(tensor.data.astype(dtype))
        to = onnx(".helper").np_dtype_to_tensor_dtype(dtype)
        return self.emit("Cast", [tensor], tensor.shape, dtype, to=to)

    def reduce(
        self, code: str, tensor: Tensor, axes: Iterable[int], shape: Any, keep: bool
    ) -> Tensor:
        """Sums, maxima and the like over axes, which most of these operators took as an attribute before version 18."""
        settings: dict[str, Any] = {"keepdims": int(keep)}
        inputs = [tensor]
        if self.names.opset < 18 and code != "ReduceSum":
            settings["axes"] = list(axes)
        else:
            inputs.append(self.integers(axes))
        return self.emit(code, inputs, shape, tensor.dtype, **settings)

    def slice(self, tensor: Tensor, starts: Any, limits: Any, strides: Any = None) -> Tensor:
        """Elements between bounds; the limit of a size that varies is the size itself."""
        strides = [1] * len(starts) if strides is None else list(strides)
        shape, axes = [], []
        for i, (low, high, step) in enumerate(zip(starts, limits, strides, strict=True)):
            whole = high is tensor.shape[i] or high == tensor.shape[i]
            if whole and is_number(low) and low == 0 and step == 1:
                shape.append(tensor.shape[i])
            else:
                axes.append(i)
                shape.append(-(-(high - low) // step))
        if not axes:
            return tensor
        bounds = [self.shape_tensor([b[i] for i in axes]) for b in (starts, limits)]
        steps = [self.integers(axes), self.integers(int(strides[i]) for i in axes)]
        return self.emit("Slice", [tensor, *bounds, *steps], shape, tensor.dtype)

    def pad(self, tensor: Tensor, pads: Sequence[tuple[int, int]], value: Any) -> Tensor:
        """A tensor with a constant around it."""
        if not any(map(any, pads)):
            return tensor
        shape = [d + low + high for d, (low, high) in zip(tensor.shape, pads, strict=True)]
        sizes = self.integers([low for low, _ in pads] + [high for _, high in pads])
        filler = self.constant(np.asarray(value).astype(tensor.dtype).reshape(()))
        return self.emit("Pad", [tensor, sizes, filler], shape, tensor.dtype)


lowers = Lowering.lowers
